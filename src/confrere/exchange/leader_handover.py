"""Leader failover: track which updates a common model contains, so that none is lost or counted twice.

A leader that fails after it has received all models and before it has answered takes their mean with it. The other sites
continue from the mean before, with what they have learned since. If the leader returns, its mean contains an update of
every site, and every site is about to send that update again. So each site keeps, with the last common model, its own
updates that may not be part of it, and every mean states what it was made of:

- `since`, the round in which it was made. Only models that were trained from the same mean are averaged: the group with
  the most records. Sites outside that group are answered too.
- `line`, the rounds of the means that it descends from, one bit each.
- for the last few of these, the sites whose models were averaged, one bit for each member of that round.

A site that adopts a mean can tell for each of its updates whether the mean contains it. Updates that it does not contain
are added to the model that the site trains and sends next. None of this depends on records: presence is public.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from confrere.core.custody import Custody, Scalar, public, strictest
from confrere.core.model import Model, mix

BITS = 39
"""How many bits a number in a parcel may hold: larger ones are refused (`screening.LARGEST`)."""
MEANS_LISTED = 4
"""For how many means, at most, a parcel lists the sites that were averaged."""
NUMBERS_LISTED = 40
"""How many numbers, at most, these lists take."""
SEPARATE = 8
"""How many unsettled updates are kept apart; older ones are added together."""

MemberBits = tuple[int, ...]
"""Members of a round, in sorted order, one bit each, in numbers of `BITS` bits."""


@dataclass(frozen=True)
class Update:
    """What a site learned in a round."""

    round: int
    place: int
    """The site's position among the members of that round."""
    learned: Model
    counted: bool = False
    """Whether the common model that the site has now contains it, as far as the site knows."""


@dataclass(frozen=True)
class TrackedMean:
    """A common model, and what it was made of."""

    model: Model
    since: int = -1
    """The round in which it was made."""
    line: int = 1
    """Bit k is set if this mean descends from the mean of round since − k."""
    members: tuple[MemberBits, ...] = ()
    """The sites averaged in this mean and in the last ones of its line."""
    custody: Custody = Custody.PUBLIC
    """The custody of these numbers: presence is public, unless a peer sent it with a stricter custody."""

    def scalars(self) -> dict[str, Scalar]:
        """The numbers that are sent with the model."""
        numbers: dict[str, float] = {"since": self.since, "line": self.line}
        for n, bits in enumerate(self.members):
            numbers |= {f"in {n} {word}": value for word, value in enumerate(bits)}
        return {name: Scalar(value, self.custody) for name, value in numbers.items()}

    def rounds(self) -> list[int]:
        """The rounds of its line, the newest first."""
        return [self.since - k for k in range(BITS) if self.line >> k & 1 and self.since >= k]

    def descends_from(self, round: int) -> bool:
        """Whether the mean of a round is in its line; assumed for means too old to have a bit."""
        back = self.since - round
        return back >= BITS or (back >= 0 and bool(self.line >> back & 1))

    def contains(self, round: int, place: int) -> bool | None:
        """Whether the mean of a round contains the model of the member at `place`; None if the round is not listed."""
        for at, bits in zip(self.rounds(), self.members, strict=False):
            if at == round:
                return bool(bits[place // BITS] >> place % BITS & 1) if place // BITS < len(bits) else False
        return None


def received_mean(scalars: Mapping[str, Scalar], model: Model) -> TrackedMean:
    """The mean of a parcel; numbers out of range are clamped."""
    members: list[MemberBits] = []
    for n in range(MEANS_LISTED):
        bits: list[int] = []
        while f"in {n} {len(bits)}" in scalars:
            bits.append(_clamped(scalars[f"in {n} {len(bits)}"].value))
        if not bits:
            break
        members.append(tuple(bits))
    since = int(scalars["since"].value) if "since" in scalars else -1
    line = _clamped(scalars["line"].value) if "line" in scalars else 1
    custody = strictest(number.custody for number in scalars.values())
    return TrackedMean(model.held(custody), since, line | 1, tuple(members), custody)


def _clamped(value: float) -> int:
    most: int = 2**BITS - 1
    return min(max(int(value), 0), most)


@dataclass(frozen=True)
class HandoverState:
    """The last common model that a site adopted, and its own updates that may not be part of it."""

    mean: TrackedMean
    updates: tuple[Update, ...] = ()

    def model(self) -> Model:
        """The common model plus the site's own updates that it does not contain."""
        missing = [u.learned for u in self.updates if not u.counted]
        return mix([(public(1.0), m) for m in (self.mean.model, *missing)]) if missing else self.mean.model

    def learned(self, round: int, place: int, before: Model, after: Model) -> HandoverState:
        """The state after a training."""
        update = Update(round, place, mix([(public(1.0), after), (public(-1.0), before)]))
        return replace(self, updates=_merge_old([*self.updates, update]))

    def adopt(self, mean: TrackedMean) -> HandoverState:
        """The state with a new common model, without the updates that are settled.

        A model that a site sends contains all of its updates so far. So a mean contains an update if it contains the
        site's model of that round or of a later one. An update is settled once a later mean has built on such a mean.
        """
        places = {u.round: u.place for u in self.updates}
        kept = []
        for u in self.updates:
            if u.counted and mean.descends_from(self.mean.since):
                continue
            sent = [r for r in places if r >= u.round and mean.descends_from(r)]
            contained = {r: mean.contains(r, places[r]) for r in sent}
            if any(contained[r] for r in sent if r < mean.since):
                continue
            if contained.get(mean.since):
                kept.append(replace(u, counted=True))
            elif None not in contained.values():  # unknown: better lost than counted twice
                kept.append(replace(u, counted=False))
        return HandoverState(mean, tuple(kept))


def next_mean(
    base: TrackedMean, round: int, model: Model, averaged: Sequence[str], members: Sequence[str]
) -> TrackedMean:
    """The mean of a round, made of the models of the `averaged` sites, which were trained from `base`."""
    words = -(-len(members) // BITS)
    bits = [0] * words
    for place, name in enumerate(sorted(members)):
        if name in averaged:
            bits[place // BITS] |= 1 << place % BITS
    line = base.line << (round - base.since) if 0 <= base.since <= round else 0
    most = min(MEANS_LISTED, NUMBERS_LISTED // words)
    listed = (tuple(bits), *base.members)[:most]
    return TrackedMean(model, round, (line | 1) & (2**BITS - 1), listed, base.custody)


def _merge_old(updates: list[Update]) -> tuple[Update, ...]:
    while len(updates) > SEPARATE:
        first, second, *others = updates
        if first.counted != second.counted:
            break
        both = mix([(public(1.0), first.learned), (public(1.0), second.learned)])
        updates = [replace(second, learned=both), *others]
    return tuple(updates)

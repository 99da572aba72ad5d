"""Leader failover: track which updates a common model contains, so none is lost or counted twice.

A leader that dies after it has received everybody's models and before it has answered takes with it a mean that nobody
has. The others go on from the mean before it, with what they have learned since. If that leader comes back, it holds a
mean in which everybody's last update is, while everybody is about to send that update once more. So every site keeps,
beside the last common model, its own updates that may not be in it, and every mean says what it was made of:

- `since`, the round of the mean that the models in it began with. Only models that began with the same mean are averaged:
  those of most records; whoever began with another one is answered all the same.
- `line`, the rounds of the means that it descends from, one bit each.
- for the last few of these, whose models were in them, one bit for each member of that round.

From that a site that adopts a mean sees for each of its updates whether it is in there. Those that are not are added to
what it trains next, and so to what it sends next. Nothing of this depends on records: who was there is public.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from confrere.core.custody import Custody, Scalar, public, strictest
from confrere.core.model import Model, mix

BITS = 39
"""How many bits a number that travels may hold: larger ones are refused (`screening.LARGEST`)."""
REMEMBERED = 4
"""For so many means it is told who was in them."""
SEPARATE = 8
"""So many updates that are not settled are kept apart; older ones are added up."""

ROOM = 40
"""So many numbers at most tell who was in them."""

Mask = tuple[int, ...]
"""Members of a round, in sorted order, one bit each, in words of `BITS`."""


@dataclass(frozen=True)
class Update:
    """What a site learned in a round."""

    round: int
    place: int
    """Which of that round's members the site was."""
    learned: Model
    counted: bool = False
    """Whether it is in the common model that the site has now, as far as the site was told."""


@dataclass(frozen=True)
class Mean:
    """A common model, and what it was made of."""

    model: Model
    since: int = -1
    """The round in which it was made."""
    line: int = 1
    """The bit of 2^k stands for the mean of round since − k: whether this one descends from it."""
    members: tuple[Mask, ...] = ()
    """Whose models were in this mean and in the last ones of its line."""
    custody: Custody = Custody.PUBLIC
    """The custody of these numbers: who was there is public, unless somebody sent it as something else."""

    def scalars(self) -> dict[str, Scalar]:
        """What travels beside the model."""
        told: dict[str, float] = {"since": self.since, "line": self.line}
        for n, mask in enumerate(self.members):
            told |= {f"in {n} {word}": bits for word, bits in enumerate(mask)}
        return {name: Scalar(value, self.custody) for name, value in told.items()}

    def rounds(self) -> list[int]:
        """The rounds of its line, the newest first."""
        return [self.since - k for k in range(BITS) if self.line >> k & 1 and self.since >= k]

    def descends_from(self, round: int) -> bool:
        """Whether the mean of a round is in its line; one that is too old to be told apart is taken to be."""
        back = self.since - round
        return back >= BITS or (back >= 0 and bool(self.line >> back & 1))

    def holds(self, round: int, place: int) -> bool | None:
        """Whether the model that a member sent in a round is in the mean of that round; None if nobody tells."""
        for at, mask in zip(self.rounds(), self.members, strict=False):
            if at == round:
                return bool(mask[place // BITS] >> place % BITS & 1) if place // BITS < len(mask) else False
        return None


def mean_of(scalars: Mapping[str, Scalar], model: Model) -> Mean:
    """The mean that was sent; numbers that cannot be are taken for the least that they could mean."""
    masks: list[Mask] = []
    for n in range(REMEMBERED):
        words: list[int] = []
        while f"in {n} {len(words)}" in scalars:
            words.append(_whole(scalars[f"in {n} {len(words)}"].value))
        if not words:
            break
        masks.append(tuple(words))
    since = int(scalars["since"].value) if "since" in scalars else -1
    line = _whole(scalars["line"].value) if "line" in scalars else 1
    custody = strictest(number.custody for number in scalars.values())
    return Mean(model.held(custody), since, line | 1, tuple(masks), custody)


def _whole(value: float) -> int:
    most: int = 2**BITS - 1
    return min(max(int(value), 0), most)


@dataclass(frozen=True)
class Standing:
    """Where a site stands: the last common model that it adopted, and its updates that may not be in it."""

    mean: Mean
    updates: tuple[Update, ...] = ()

    def model(self) -> Model:
        """The common model with what the site has learned and others do not know yet."""
        return _added(self.mean.model, [u for u in self.updates if not u.counted])

    def learned(self, round: int, place: int, before: Model, after: Model) -> Standing:
        """After a training."""
        update = Update(round, place, mix([(public(1.0), after), (public(-1.0), before)]))
        return replace(self, updates=_few([*self.updates, update]))

    def adopt(self, mean: Mean) -> Standing:
        """With a new common model, and without the updates that are in it for good.

        What a site sends holds all that it had learned up to then. So an update is in a mean if the site's model of that
        round, or of a later one, was. In the newest mean it is for good once others have built on that.
        """
        places = {u.round: u.place for u in self.updates}
        kept = []
        for u in self.updates:
            if u.counted and mean.descends_from(self.mean.since):
                continue
            sent = [r for r in places if r >= u.round and mean.descends_from(r)]
            held = {r: mean.holds(r, places[r]) for r in sent}
            if any(held[r] for r in sent if r < mean.since):
                continue
            if held.get(mean.since):
                kept.append(replace(u, counted=True))
            elif None not in held.values():  # where nobody tells: rather lost than counted twice
                kept.append(replace(u, counted=False))
        return Standing(mean, tuple(kept))


def following(base: Mean, round: int, model: Model, there: Sequence[str], members: Sequence[str]) -> Mean:
    """The mean of a round, made of the models of those who were `there` and had begun with `base`."""
    words = -(-len(members) // BITS)
    bits = [0] * words
    for place, name in enumerate(sorted(members)):
        if name in there:
            bits[place // BITS] |= 1 << place % BITS
    carried = base.line << (round - base.since) if base.since >= 0 else 0
    most = min(REMEMBERED, ROOM // words)
    members_of = (tuple(bits), *base.members)[:most]
    return Mean(model, round, (carried | 1) & (2**BITS - 1), members_of, base.custody)


def _added(model: Model, updates: Sequence[Update]) -> Model:
    return mix([(public(1.0), m) for m in (model, *(u.learned for u in updates))]) if updates else model


def _few(updates: list[Update]) -> tuple[Update, ...]:
    while len(updates) > SEPARATE:
        first, second, *rest = updates
        if first.counted != second.counted:
            break
        both = mix([(public(1.0), first.learned), (public(1.0), second.learned)])
        updates = [replace(second, learned=both), *rest]
    return tuple(updates)

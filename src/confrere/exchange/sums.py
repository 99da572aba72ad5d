"""Add up the sites' vectors without masks: only those computed from the same common state.

Every site that opens a sum adds the same vectors in the same order, so that all of them hold the same result to the
bit. The vectors are added as they arrive, so each must be fit to leave its site by itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from confrere.core.custody import Custody, Scalar, public, strictest, total
from confrere.core.errors import StudyError
from confrere.core.model import Model, mix
from confrere.core.parcel import Parcel
from confrere.core.protocols import OpenedSum
from confrere.core.seeds import derive
from confrere.exchange.combine import combiner

SINCE, VERSION, SUM = "since", "version", "sum of "
"""The names of numbers in a parcel: the common state that a vector was computed from, the state that follows from the sum, and
the prefix of numbers that are sums themselves (a site's own `weight` is checked against the roster)."""

VERSION_BITS = 39
"""A version is a number that travels exactly and is smaller than `screening.LARGEST`."""


MASKED_SUM = "masked-sum"
"""The combiner of a study whose sites add up behind masks."""


@combiner(MASKED_SUM)
@dataclass(frozen=True)
class MaskedSum:
    """The sites add up clipped gradients behind masks and share the noise of one release; see docs/masked-sums.md."""

    def __call__(self, own: Model, weight: Scalar, inbox: Sequence[Parcel]) -> Model:
        raise StudyError("a masked sum has no single models to combine")


@dataclass(frozen=True)
class Summand:
    """What one site brings to a sum."""

    site: str
    vector: Model | None
    scalars: Mapping[str, Scalar]

    @property
    def since(self) -> int:
        return int(self.scalars[SINCE].value) if SINCE in self.scalars else -1


def arrived(parcels: Sequence[Parcel]) -> list[Summand]:
    return [Summand(p.sender, p.model, p.scalars) for p in parcels]


def common_state(summands: Sequence[Summand]) -> int:
    """The state that most sites have; of several, that of the first site by name."""
    ordered = [s.since for s in sorted(summands, key=lambda s: s.site)]
    counts = Counter(ordered)
    return max(ordered, key=lambda since: (counts[since], -ordered.index(since)))


def open_sum(summands: Sequence[Summand], names: Sequence[str], round: int) -> OpenedSum | None:
    """The sum of the vectors from the state that most sites have, and of their numbers; None without a vector.

    A vector that comes without one of the numbers is left out.
    """
    since = common_state(summands)
    complete = [s for s in summands if s.vector is not None and s.scalars.keys() >= set(names)]
    chosen = sorted((s for s in complete if s.since == since), key=lambda s: s.site)
    vectors = [s.vector for s in chosen if s.vector is not None]
    if not vectors:
        return None
    # whose vectors are added up is read from everyone's numbers
    held = strictest(s.scalars[SINCE].custody for s in summands if SINCE in s.scalars)
    scalars = {name: total(s.scalars[name] for s in chosen) for name in names}
    version = version_after(since, round, [s.site for s in chosen])
    return OpenedSum(mix((public(1.0), v) for v in vectors).held(held), scalars, since, version)


def version_after(since: int, round: int, sites: Sequence[str]) -> int:
    """Identifies the common state that follows from a sum of these sites' vectors."""
    return derive(since, "sum", round, *sites) >> 63 - VERSION_BITS


def sum_scalars(opened: OpenedSum) -> dict[str, Scalar]:
    """The numbers that go with a sum from the centre to the others."""
    sums = {f"{SUM}{name}": value for name, value in opened.scalars.items()}
    return {**sums, SINCE: public(opened.since), VERSION: public(opened.version)}


def answered_sum(parcel: Parcel, names: Sequence[str]) -> OpenedSum | None:
    """The sum that a centre sent back; None if the parcel holds none."""
    numbers = answered_numbers(parcel, names)
    if parcel.model is None or numbers is None:
        return None
    scalars, since, version, held = numbers
    return OpenedSum(parcel.model.held(held), scalars, since, version)


def answered_numbers(
    parcel: Parcel, names: Sequence[str]
) -> tuple[dict[str, Scalar], int, int, Custody] | None:
    """The sums of numbers, the states before and after, and the custody of all of them; None if one is missing."""
    if not parcel.scalars.keys() >= {SINCE, VERSION, *(f"{SUM}{n}" for n in names)}:
        return None
    held = strictest(number.custody for number in parcel.scalars.values())
    scalars = {name: parcel.scalars[f"{SUM}{name}"] for name in names}
    since, version = (int(parcel.scalars[name].value) for name in (SINCE, VERSION))
    return scalars, since, version, held

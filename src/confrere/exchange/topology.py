"""Topologies: who sends to whom, as a pure function of the round and the members.

A topology says, for each sender, which share of its mass goes to whom; the shares of one sender (a column
of the mixing matrix) sum to one, so nothing is made and nothing is lost. Since every site can compute the
whole graph, no coordinator is needed. Members are taken in sorted order; one member alone keeps everything.

| name | edges in a round |
|---|---|
| exponential | each to one other, at distances that double |
| ring | each to the next |
| complete | each to all |
| star | each to the centre, which answers |
| random-regular | each to `degree` others, drawn anew each round |
| matrix | as the study's own matrices say |
| none | no edges |

A topology is a frozen dataclass whose fields are its options in a study:

    @topology("neighbours")
    @dataclass(frozen=True)
    class Neighbours(Ring):
        def column(self, round, members, sender):
            ordered = sorted(members)
            place = ordered.index(sender)
            near = {sender, ordered[place - 1], ordered[(place + 1) % len(ordered)]}
            return dict.fromkeys(sorted(near), 1 / len(near))
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, Literal

from confrere.core.errors import StudyError
from confrere.core.protocols import Topology
from confrere.core.registry import Registry
from confrere.core.seeds import derive

topologies: Registry[type[Topology]] = Registry(
    "topology", "confrere.topologies", package="confrere.exchange"
)
topology = topologies.register


class _Centreless:
    """Most graphs treat all members alike."""

    def centre(self, round: int, members: Sequence[str]) -> str | None:
        return None


@topology("none")
@dataclass(frozen=True)
class NoExchange(_Centreless):
    """No site sends anything: each learns alone."""

    exchanges: ClassVar[bool] = False

    def column(self, round: int, members: Sequence[str], sender: str) -> Mapping[str, float]:
        _place(members, sender)
        return {sender: 1.0}


@topology("exponential")
@dataclass(frozen=True)
class Exponential(_Centreless):
    """Each site sends to one other, at distances that double from round to round.

    `keep` is the share of the mass that a site keeps; with 0 each round is a permutation, so proxies travel
    and are never averaged. `rota` chooses the distances:

    *published*: 1, 2, 4 … 2^⌊log2(K−1)⌋, over and over (Assran et al., Stochastic Gradient Push; Kalra et
    al., Decentralized federated learning through proxy model sharing). Their sum may share a divisor with
    K, and then a travelling proxy comes back before it has seen all sites: for K = 3 it visits two sites.

    *ours*: K−1 halved, its rest halved, and so on, smallest first: K = 8 gives 1, 2, 4 as published, K = 7
    gives 1, 2, 3. The distances are as many as the published ones and always sum to K−1. So
    - a travelling proxy is one place further back after each pass, and after K passes at the latest has
      been everywhere;
    - no distance is larger than one plus the sum of the smaller ones, so sums of some of them give every
      number from 0 to K−1: with 0 < keep < 1, after a single pass (⌈log2 K⌉ rounds) each site holds a part of
      every other. Such a product is positive and doubly stochastic, and its powers converge to the mean.
      For K a power of two and keep = 1/2 one pass *is* the mean.
    """

    keep: float = 0.5
    rota: Literal["ours", "published"] = "ours"

    def __post_init__(self) -> None:
        _check_share(self.keep)
        if self.rota not in ("ours", "published"):
            raise StudyError(f'topology: rota is "ours" or "published", not "{self.rota}"')

    def column(self, round: int, members: Sequence[str], sender: str) -> Mapping[str, float]:
        hops = distances(len(members), self.rota)
        return _ahead(members, sender, [hops[round % len(hops)]] if hops else [], self.keep)


def distances(members: int, rota: Literal["ours", "published"] = "ours") -> tuple[int, ...]:
    """How far ahead each site sends, round by round, before it starts again; empty for a lone site.

    >>> distances(7), distances(7, "published"), distances(8)
    ((1, 2, 3), (1, 2, 4), (1, 2, 4))
    """
    rest, hops = members - 1, []
    while rest > 0:
        hops.append(rest - rest // 2)
        rest //= 2
    if rota == "published":
        return tuple(2**i for i in range(len(hops)))
    return tuple(reversed(hops))


@topology("ring")
@dataclass(frozen=True)
class Ring(_Centreless):
    """Each site sends to the next one, as in cyclical weight transfer (Chang et al., 2018)."""

    keep: float = 0.0

    def __post_init__(self) -> None:
        _check_share(self.keep)

    def column(self, round: int, members: Sequence[str], sender: str) -> Mapping[str, float]:
        return _ahead(members, sender, [1], self.keep)


@topology("complete")
@dataclass(frozen=True)
class Complete(_Centreless):
    """Each site sends to all others, in equal shares: every site is a synchronising site."""

    def column(self, round: int, members: Sequence[str], sender: str) -> Mapping[str, float]:
        others = range(1, len(members))
        return _ahead(members, sender, others, 1 / len(members))


@topology("star")
@dataclass(frozen=True)
class Star:
    """Each site sends to the centre, and the centre answers; the way back is not an edge of its own.

    `leader` is the name of a site, or "elected": then the members take turns, in sorted order, one a round.
    With a fixed centre mass only flows inwards, so push-sum needs an elected one to reach the mean.
    `outwards` turns the edges round: the centre sends to all, and they answer.
    """

    leader: str = "elected"
    keep: float = 0.0
    outwards: bool = False

    def __post_init__(self) -> None:
        _check_share(self.keep)

    def column(self, round: int, members: Sequence[str], sender: str) -> Mapping[str, float]:
        _place(members, sender)
        centre = self.centre(round, members)
        if (sender == centre) != self.outwards:
            return {sender: 1.0}
        return _shares(sender, members if self.outwards else [centre], self.keep)

    def centre(self, round: int, members: Sequence[str]) -> str:
        if self.leader == "elected":
            return _in_order(members)[round % len(members)]
        if self.leader not in members:
            raise StudyError(
                f'topology: the centre of the star, "{self.leader}", is not a member '
                f'({", ".join(sorted(members))}); name another leader, or set leader = "elected"'
            )
        return self.leader


@topology("random-regular")
@dataclass(frozen=True)
class RandomRegular(_Centreless):
    """Each site sends to `degree` others and receives from as many; they change every round.

    The members are put in a circle whose order is derived from (seed, round), and each sends to the next
    `degree` ones, in equal shares. Fewer members than that: each sends to all.
    """

    degree: int = 2
    seed: int = 0

    def __post_init__(self) -> None:
        if self.degree < 1:
            raise StudyError(f"topology: degree must be at least 1, not {self.degree}")

    def column(self, round: int, members: Sequence[str], sender: str) -> Mapping[str, float]:
        circle = _circle(self.seed, round, _in_order(members))
        degree = min(self.degree, len(circle) - 1)
        at = _place(circle, sender)
        return _shares(
            sender, [circle[(at + i) % len(circle)] for i in range(1, degree + 1)], 1 / (degree + 1)
        )


@lru_cache(maxsize=64)
def _circle(seed: int, round: int, members: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(sorted(members, key=lambda m: (derive(seed, "random-regular", round, m), m)))


Rows = tuple[tuple[float, ...], ...]


@topology("matrix")
@dataclass(frozen=True)
class Matrix(_Centreless):
    """The study's own mixing matrix, or several that take turns: entry [k][k'] is the share that k receives
    of what k' holds.

    Rows and columns stand for the members in sorted order, or for `sites` in the order given there. With
    `sites`, a member that left for good is left out, and what it would have had stays with its sender.
    """

    matrix: Any = ()
    sites: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "sites", tuple(self.sites))
        object.__setattr__(self, "matrix", _checked(self.matrix))
        if self.sites and len(self.sites) != len(self.matrix[0]):
            raise StudyError(
                f"topology: the matrix is {_by(self.matrix[0])} but names {len(self.sites)} sites; "
                "each needs one row and one column"
            )

    def column(self, round: int, members: Sequence[str], sender: str) -> Mapping[str, float]:
        rows: Rows = self.matrix[round % len(self.matrix)]
        names = self.sites or tuple(sorted(members))
        if not self.sites and len(names) != len(rows):
            raise StudyError(
                f"topology: the matrix is {_by(rows)} but there are {len(names)} members "
                f"({', '.join(names)}); give one row and one column to each"
            )
        _place(members, sender)
        at = _place(names, sender)
        shares = {name: row[at] for name, row in zip(names, rows, strict=True) if row[at] > 0}
        here = {name: share for name, share in shares.items() if name in members}
        lost = math.fsum(share for name, share in shares.items() if name not in here)
        return {**here, sender: here.get(sender, 0.0) + lost} if lost else here


def _checked(given: Any) -> tuple[Rows, ...]:
    """One matrix or a list of them as tuples, each column summing to one."""
    if given in ((), []):
        raise StudyError(
            "topology: the matrix is missing; give a row for each site, or a list of such matrices"
        )
    try:
        several = bool(given) and all(bool(m) and all(isinstance(r, (list, tuple)) for r in m) for m in given)
        matrices = tuple(
            tuple(tuple(float(x) for x in row) for row in m) for m in (given if several else [given])
        )
    except (TypeError, ValueError):
        raise StudyError("topology: matrix must be a list of rows of numbers, or a list of such") from None
    for number, rows in enumerate(matrices):
        which = f"matrix {number + 1} of {len(matrices)}" if len(matrices) > 1 else "the matrix"
        size = len(rows)
        if size == 0 or any(len(row) != size for row in rows):
            raise StudyError(
                f"topology: {which} is not square: {size} rows of {sorted(map(len, rows))} numbers"
            )
        if size != len(matrices[0]):
            raise StudyError(f"topology: {which} is {_by(rows)}, the first is {_by(matrices[0])}")
        for k, row in enumerate(rows):
            for j, share in enumerate(row):
                if not (math.isfinite(share) and share >= 0):
                    raise StudyError(f"topology: {which} has {share:g} in row {k + 1}, column {j + 1}")
        for j in range(size):
            total = math.fsum(row[j] for row in rows)
            if abs(total - 1) > 1e-6:
                change = "lost" if total < 1 else "made"
                raise StudyError(
                    f"topology: column {j + 1} of {which} sums to {total:g}, not 1: mass would be {change}; "
                    "a column holds the shares of one sender, its own share included"
                )
    return tuple(
        tuple(tuple(x / math.fsum(r[j] for r in rows) for j, x in enumerate(row)) for row in rows)
        for rows in matrices
    )


def _by(rows: Rows) -> str:
    return f"{len(rows)} × {len(rows)}"


def exchanges(graph: Topology) -> bool:
    """Whether anything is sent at all. A topology that sends nothing states `exchanges = False`."""
    return bool(getattr(graph, "exchanges", True))


def senders(graph: Topology, round: int, members: Sequence[str], receiver: str) -> tuple[str, ...]:
    """From whom a member receives in this round; itself not counted."""
    if not isinstance(graph, Hashable):
        return tuple(senders_by_receiver(graph, round, sorted(members)).get(receiver, ()))
    return _cached_senders(graph, round, tuple(sorted(members))).get(receiver, ())


def senders_by_receiver(graph: Topology, round: int, members: Sequence[str]) -> Mapping[str, Sequence[str]]:
    """For each receiver from whom it receives in this round, itself not counted."""
    if isinstance(graph, Star):  # no need to compute every column
        centre = graph.centre(round, members)
        others = [m for m in members if m != centre] if graph.keep < 1 else []
        return {m: [centre] for m in others} if graph.outwards else {centre: others}
    found: dict[str, list[str]] = {}
    for sender in members:
        for receiver, share in graph.column(round, members, sender).items():
            if receiver != sender and share > 0:
                found.setdefault(receiver, []).append(sender)
    return found


@lru_cache(maxsize=64)
def _cached_senders(graph: Topology, round: int, members: tuple[str, ...]) -> Mapping[str, tuple[str, ...]]:
    return {receiver: tuple(froms) for receiver, froms in senders_by_receiver(graph, round, members).items()}


def _check_share(keep: float) -> None:
    if not 0 <= keep <= 1:
        raise StudyError(f"topology: keep is a share between 0 and 1, not {keep:g}")


def _place(members: Sequence[str], name: str) -> int:
    at = _numbered(tuple(members)).get(name)
    if at is None:
        raise StudyError(f'topology: "{name}" is not a member ({", ".join(sorted(members))})')
    return at


@lru_cache(maxsize=8)
def _numbered(members: tuple[str, ...]) -> Mapping[str, int]:
    """The place of each member; all sites of a round ask about the same members."""
    return {name: at for at, name in enumerate(members)}


@lru_cache(maxsize=8)
def _sorted(members: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(sorted(members))


def _in_order(members: Sequence[str]) -> tuple[str, ...]:
    return _sorted(tuple(members))


def _ahead(members: Sequence[str], sender: str, hops: Sequence[int], keep: float) -> Mapping[str, float]:
    """`keep` stays, the rest goes in equal shares to the members that are `hops` places ahead."""
    circle = _in_order(members)
    at = _place(circle, sender)
    return _shares(sender, [circle[(at + hop) % len(circle)] for hop in hops], keep)


def _shares(sender: str, receivers: Sequence[str], keep: float) -> Mapping[str, float]:
    others = [r for r in receivers if r != sender]
    if not others or keep == 1:
        return {sender: 1.0}
    each = (1 - keep) / len(others)
    return {**({sender: keep} if keep > 0 else {}), **dict.fromkeys(others, each)}

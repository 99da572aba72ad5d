"""Many runs with and without one record, on records that are made to be the worst case.

A guarantee holds for every data set, so an attacker may choose one. All records but one lie at ±p and are
easy to tell apart; the one lies far out on the same line with the wrong label. Clipping makes it as
harmless as any other record, unless something that was trained on it without clipping shapes what leaves.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from confrere.core.errors import StudyError, TrainingError
from confrere.core.seeds import generator
from confrere.data.records import Federation, Records, Task
from confrere.privacy.accounting import Guarantee
from confrere.privacy.detect import Detected, worst_case
from confrere.runtime.audit.watch import Seen, Watched, added, largest
from confrere.study import Models, Study

FAR = (1e4, 1e3, 100.0, 10.0)
"""How many times further out than the others the record may lie; a few runs of their own choose."""

PILOT = 3
"""So many runs with the record, and so many without it, choose how far out it lies."""

Numbers = NDArray[np.float64]

RECORDS = (120, 240)
"""So many records, at least and at most, the site really has. What it declares, and so rate and noise, is the
study's own; a guarantee does not depend on how many records there are."""

MOST_ROUNDS = 5
"""So many rounds are watched, and what they alone cost is the claim: what comes later costs extra."""

MOST_RELEASES = 8
"""Of so many releases, spread over the run, an attacker makes up one score."""


@dataclass(frozen=True)
class Trap:
    """Records that are the worst case, and the one record that is added to them or not."""

    federation: Federation
    without: Records
    record: Tensor
    label: Tensor
    probes: Tensor

    @property
    def with_(self) -> Records:
        return added(self.without, self.record, self.label)


@dataclass(frozen=True)
class Outlier:
    """What many runs betrayed of one record."""

    detected: Detected
    claimed: Guarantee | None
    runs: int
    rounds: int
    far: float


def attack(
    study: Study,
    federation: Federation,
    *,
    runs: int,
    confidence: float,
    tick: Callable[[], None] = lambda: None,
) -> Outlier:
    """Train `runs` times with the record and as often without it, and tell which was which."""
    watched, trap, far = _most_telling(study, federation, largest(federation))
    rounds = min(study.rounds, MOST_ROUNDS)
    worlds = []
    claimed = None
    for world, records in enumerate((trap.with_, trap.without)):
        rows = []
        for number in range(runs):
            seen = watched.play(2 * number + world, records, rounds=rounds)
            if not seen.left:
                raise StudyError(f'strategy "{study.strategy_name}" sends nothing: there is nothing to audit')
            claimed = seen.claimed
            rows.append(_said(watched, seen, trap))
            tick()
        worlds.append(np.stack(rows))
    inside, outside = scores(*worlds)
    delta = study.privacy.delta if study.privacy else 0.0
    return Outlier(
        worst_case(inside, outside, delta=delta, confidence=confidence), claimed, runs, rounds, far
    )


def trap(federation: Federation, site: str, norm: float, far: float) -> Trap:
    """The worst case in the shape of the study's own records, at two sites."""
    task, own = federation.task, federation.sites[site]
    point = _point(task, own.train, norm)
    count = min(max(own.declared, RECORDS[0]), RECORDS[1]) // 2 * 2
    whole = _whole_numbers(own.train.inputs)
    sign = torch.where(torch.arange(count) % 2 == 0, 1.0, -1.0).reshape(-1, *([1] * len(task.inputs)))
    other = _another(own.train, point) if whole else -point
    inputs = torch.where(sign > 0, point, other)
    records = Records(
        inputs, _labels(task, own.train.targets, sign.reshape(-1) > 0), _units(own.train, count)
    )
    peer = next(name for name in sorted(federation.sites) if name != site)
    sites = {}
    for name in sorted([site, peer]):
        data = federation.sites[name]
        held_out = records.select(range(min(8, count)))
        sites[name] = replace(data, train=records, validation=held_out, test=held_out, common_test=None)
    record = point.unsqueeze(0) if whole else far * point.unsqueeze(0)
    label = _labels(task, own.train.targets, torch.tensor([False]))
    if label.is_floating_point():
        label = far * label
    probes = torch.stack([point, torch.zeros_like(point)])
    return Trap(replace(federation, sites=sites), records, record, label, probes)


def _most_telling(study: Study, federation: Federation, site: str) -> tuple[Watched, Trap, float]:
    """The trap that tells most in a few runs that are not used again."""
    norm = float(getattr(study.privacy.clipper(), "norm", 1.0)) if study.privacy else 1.0
    plan = replace(study, churn=type(study.churn)(), models=_of_two(study, site, federation))
    best, chosen, problem = -1.0, None, TrainingError("no record can be trained on")
    for far in FAR:
        found = trap(federation, site, norm, far)
        watched = Watched(plan, found.federation, site)
        try:
            worlds = [
                np.stack([_level(watched, found, -1 - 2 * n - world, records) for n in range(PILOT)])
                for world, records in enumerate((found.with_, found.without))
            ]
        except TrainingError as error:  # so far out that the site's own training breaks down
            problem = error
            continue
        spread = np.sqrt((worlds[0].var(0) + worlds[1].var(0)) / 2)
        apart = float(np.max(np.abs(worlds[0].mean(0) - worlds[1].mean(0)) / np.maximum(spread, 1e-9)))
        if apart > best:
            best, chosen = apart, (watched, found, far)
    if chosen is None:
        raise problem
    return chosen


def _level(watched: Watched, trap: Trap, number: int, records: Records) -> Numbers:
    """What the last release, and all of them on average, say about the line."""
    seen = watched.play(number, records, rounds=min(watched.study.rounds, MOST_ROUNDS))
    if not seen.left:
        raise StudyError(f'strategy "{watched.study.strategy_name}" sends nothing: there is nothing to audit')
    said = _said(watched, seen, trap)[:, 0]
    return np.array([said[-1], said.mean()])


def _of_two(study: Study, site: str, federation: Federation) -> Models:
    peer = next(name for name in sorted(federation.sites) if name != site)
    kept = {n: m for n, m in study.models.sites.items() if n in (site, peer)}
    return replace(study.models, sites=kept)


def _point(task: Task, records: Records, norm: float) -> Tensor:
    """A record whose gradient, at a guess of ½, is about as long as the clipping norm."""
    if _whole_numbers(records.inputs):
        return records.inputs[0].clone()
    signs = torch.randint(0, 2, task.inputs, generator=generator(0, "audit", "point")) * 2.0 - 1
    length = max(float(signs.norm()), 1e-9)
    point: Tensor = signs * (2 * norm / length)
    return point


def _whole_numbers(inputs: Tensor) -> bool:
    """Token ids and the like cannot be scaled: only records that there are may be used."""
    return inputs.ndim == 2 and bool((inputs == inputs.round()).all()) and float(inputs.max()) > 1


def _another(records: Records, point: Tensor) -> Tensor:
    for row in records.inputs:
        if not torch.equal(row, point):
            other: Tensor = row.clone()
            return other
    return point


def _labels(task: Task, like: Tensor, positive: Tensor) -> Tensor:
    if not like.is_floating_point():
        return positive.to(like.dtype)
    values = positive.to(like.dtype) * 2 - 1 if task.kind == "regression" else positive.to(like.dtype)
    return values.reshape(-1, *([1] * (like.ndim - 1))).expand(-1, *like.shape[1:]).clone()


def _units(like: Records, count: int) -> Tensor | None:
    return None if like.units is None else torch.arange(count)


def _said(watched: Watched, seen: Seen, trap: Trap) -> Numbers:
    """What the releases say about the line that all records lie on: a row per release, a column per output."""
    at = np.unique(np.linspace(0, len(seen.left) - 1, min(MOST_RELEASES, len(seen.left))).round().astype(int))
    out: Numbers = np.stack([watched.outputs(seen.left[i], trap.probes).reshape(-1).numpy() for i in at])
    return out


def scores(inside: Numbers, outside: Numbers) -> tuple[Numbers, Numbers]:
    """One number per run, made up in the way that told the two worlds apart best.

    Of the runs that `worst_case` chooses its threshold by, every other one is fitted to and the rest picks
    among the ways; the runs that judge are not looked at.
    """
    best, chosen = -1.0, (inside[:, -1, 0], outside[:, -1, 0])
    for way in (_mean_level, _last_level, _discriminant, _discriminant_of_steps):
        yes, no = way(inside, outside)
        a, b = yes[2::4], no[2::4]
        apart = abs(a.mean() - b.mean()) / max(float(np.sqrt((a.var() + b.var()) / 2)), 1e-12)
        if apart > best:
            best, chosen = float(apart), (yes, no)
    return chosen


def _mean_level(inside: Numbers, outside: Numbers) -> tuple[Numbers, Numbers]:
    return inside.mean(1)[:, 0], outside.mean(1)[:, 0]


def _last_level(inside: Numbers, outside: Numbers) -> tuple[Numbers, Numbers]:
    return inside[:, -1, 0], outside[:, -1, 0]


def _discriminant(inside: Numbers, outside: Numbers) -> tuple[Numbers, Numbers]:
    """Fisher's, over all releases, with a covariance that is drawn towards the identity."""
    yes, no = inside.reshape(len(inside), -1), outside.reshape(len(outside), -1)
    a, b = yes[::4], no[::4]
    spread = np.sqrt((a.var(0) + b.var(0)) / 2)
    spread = np.where(spread > 1e-9 * max(float(spread.max()), 1e-30), spread, np.inf)
    a, b = a / spread, b / spread
    centred = np.concatenate([a - a.mean(0), b - b.mean(0)])
    covariance = 0.7 * centred.T @ centred / len(centred) + 0.3 * np.eye(centred.shape[1])
    direction = np.linalg.solve(covariance, a.mean(0) - b.mean(0)) / spread
    return yes @ direction, no @ direction


def _discriminant_of_steps(inside: Numbers, outside: Numbers) -> tuple[Numbers, Numbers]:
    """The same on what changed from release to release, where noise is fresh each time."""
    return _discriminant(np.diff(inside, axis=1, prepend=0), np.diff(outside, axis=1, prepend=0))

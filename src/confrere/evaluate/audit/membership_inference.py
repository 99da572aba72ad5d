"""Membership inference: is this record among those that a model was trained on? (LiRA, Carlini et al. 2022)

The proxy is what an attacker gets; the private model is attacked too, to show why it stays inside.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from confrere.core.model import Model
from confrere.core.seeds import generator
from confrere.data.records import Federation, Records, concatenate
from confrere.evaluate.audit.audit_statistics import (
    Membership,
    likelihood_ratio,
    logit_confidence,
    membership,
)
from confrere.evaluate.audit.observed_simulation import ObservedSimulation
from confrere.study import Study

Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class MembershipResult:
    """How well the attack distinguished members from others, over several runs."""

    attack: Membership
    spread: float
    """Standard error of the area, from run to run."""
    records: int
    runs: int


def attack(
    study: Study, federation: Federation, site: str, *, runs: int, tick: Callable[[], None] = lambda: None
) -> dict[str, MembershipResult]:
    """Train on one half of the site's records and on the other, many times; attack each run with the rest.

    Every record is in exactly one of two complementary runs, so each attack has as many shadow models with a
    record as without it. Returns one result for what left («released») and one for each model that stayed.
    """
    pairs = max(runs // 2, 4)
    observed = ObservedSimulation(study, federation, site)
    pool = _pool(federation, site)
    masks, statistics = [], dict[str, list[Numbers]]()
    for pair in range(pairs):
        half = _half(pool, generator(study.seed, "audit", "halves", pair))
        for side, mask in enumerate((half, ~half)):
            seen = observed.run_once(2 * pair + side, pool.select(mask.nonzero()[:, 0]), finish=True)
            masks.append(mask.numpy())
            shown = dict(seen.private_models)
            if seen.released:
                shown["released"] = seen.released[-1]
            for role, model in shown.items():
                statistics.setdefault(role, []).append(_statistic(observed, model, pool))
            tick()
    member = np.stack(masks)
    return {
        role: _attacked(np.stack(rows), member)
        for role, rows in statistics.items()
        if len(rows) == len(member)
    }


def _half(pool: Records, chance: torch.Generator) -> Tensor:
    """One half of the records; all records of a patient on one side."""
    units = (
        torch.arange(len(pool)) if pool.units is None else torch.unique(pool.units, return_inverse=True)[1]
    )
    count = int(units.max()) + 1
    chosen = torch.zeros(count, dtype=torch.bool)
    chosen[torch.randperm(count, generator=chance)[: count // 2]] = True
    return chosen[units]


def _pool(federation: Federation, site: str) -> Records:
    """Records that a run may or may not be trained on; validation records play their part in every run."""
    own = federation.sites[site]
    if own.train.units is None or own.test.units is None:
        return concatenate([own.train, own.test])
    units = torch.cat([own.train.units, own.test.units])  # patients keep their numbers over the parts
    both = concatenate([own.train, own.test])
    return Records(both.inputs, both.targets, units)


def _statistic(observed: ObservedSimulation, model: Model, pool: Records) -> Numbers:
    losses = observed.losses(model, pool).numpy()
    if pool.targets.is_floating_point():
        out: Numbers = -np.minimum(losses, 1e12)
        return out
    return logit_confidence(np.exp(-losses))


def _attacked(statistics: Numbers, member: NDArray[np.bool_]) -> MembershipResult:
    """Each run in turn is attacked with all others but its complement as shadow models."""
    runs, records = statistics.shape
    scores, truths, areas = [], [], []
    columns = np.arange(records)
    for victim in range(runs):
        others = [r for r in range(runs) if r // 2 != victim // 2]
        # In every pair one run has the record and the other has not: pick per column.
        pairs = np.array(others).reshape(-1, 2)
        first = member[pairs[:, 0]]
        inside = np.where(first, statistics[pairs[:, 0]], statistics[pairs[:, 1]])
        outside = np.where(first, statistics[pairs[:, 1]], statistics[pairs[:, 0]])
        score = likelihood_ratio(statistics[victim], inside[:, columns], outside[:, columns])
        scores.append(score)
        truths.append(member[victim])
        areas.append(membership(score, member[victim]).area)
    found = membership(np.concatenate(scores), np.concatenate(truths))
    return MembershipResult(found, float(np.std(areas, ddof=1) / np.sqrt(runs / 2)), records, runs)

"""Reconstruction: from the change of a model's weights back to the record that caused it.

The attacker gets the easiest case: a site that trains one round on a single record. A linear layer's update
is then a multiple of that record, row by row, and its bias tells which multiple (Aono et al. 2017). Behind
another first layer the record is searched for whose gradient points the same way (Geiping et al. 2020).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from confrere.core.params import Params
from confrere.core.seeds import generator
from confrere.data.records import Federation, Records
from confrere.evaluate.audit.observed_simulation import ObservedRun, ObservedSimulation
from confrere.learning.objectives import supervised_loss
from confrere.study import Study
from confrere.study.masked_settings import masked_of

SEARCH = 150
"""Steps of the search where there is no shortcut."""


@dataclass(frozen=True)
class ReconstructionResult:
    """How like the true record a rebuilt one is: 1 is the same, 0 unrelated, each with its standard error.

    `found` is how often the true record was the nearest among `among` records; chance is 1/among.
    """

    similarity: float
    error: float
    unrelated: float
    found: float
    among: int
    attempts: int


def attack(
    study: Study,
    federation: Federation,
    site: str,
    *,
    attempts: int,
    tick: Callable[[], None] = lambda: None,
) -> dict[str, ReconstructionResult]:
    """Attack what left with noise («released»), what would leave without it, and the models that stay.

    With masked sums, what left is the opened sum less what colluding sites know; nothing would leave without noise.
    """
    once = replace(study, rounds=1, churn=type(study.churn)())
    t = study.training
    plans = {"released": once}
    if masked_of(study) is None:
        plans["released without noise"] = replace(
            once, privacy=None, training=replace(t, **t.protected, protected={})
        )
    pool = federation.sites[site].train
    chosen = torch.randperm(len(pool), generator=generator(study.seed, "audit", "victims"))[:attempts]
    out: dict[str, list[tuple[float, float, bool]]] = {}
    for name, plan in plans.items():
        if name == "released" and study.privacy is None:
            continue
        observed = ObservedSimulation(plan, federation, site)
        for number, victim in enumerate(chosen.tolist()):
            seen = observed.run_once(number, pool.select([victim]))
            for what, start, end, architecture in _updates(seen, name):
                guess = rebuilt(observed, start, end, architecture, pool, victim)
                out.setdefault(what, []).append(_compared(guess, pool, victim))
            tick()
    return {what: _summary(rows, len(pool)) for what, rows in out.items()}


def _updates(seen: ObservedRun, name: str) -> list[tuple[str, Params, Params, str]]:
    found = []
    if seen.sums:
        opened = seen.sums[0]
        found.append((name, opened.params * 0.0, opened.params, opened.architecture))
    elif seen.released and (start := seen.start(0)) is not None:
        found.append((name, start, seen.released[0].params, seen.released[0].architecture))
    if name == "released":
        for role, model in seen.private_models.items():
            if role in seen.first_weights:
                found.append((role, seen.first_weights[role], model.params, model.architecture))
    return found


def rebuilt(
    observed: ObservedSimulation, start: Params, end: Params, architecture: str, pool: Records, victim: int
) -> Tensor:
    """The attacker's guess at the record behind an update."""
    network = observed.sites[observed.site].network("audit", architecture)
    network.load(start)
    first = next((n for n, m in network.module.named_modules() if not list(m.children()) and _weighs(m)), "")
    layer = dict(network.module.named_modules()).get(first)
    size = pool.inputs[0].numel()
    if isinstance(layer, nn.Linear) and layer.bias is not None and layer.in_features == size:
        weight = (end[f"{first}.weight"] - start[f"{first}.weight"]).double()
        bias = (end[f"{first}.bias"] - start[f"{first}.bias"]).double()
        row = int(bias.abs().argmax())
        scale = float(bias[row]) or 1e-12
        return weight[row] / scale
    return _searched(network.module, start, end, pool, victim).double()


def _weighs(module: nn.Module) -> bool:
    return any(p.requires_grad for p in module.parameters(recurse=False))


def _searched(module: nn.Module, start: Params, end: Params, pool: Records, victim: int) -> Tensor:
    """The record whose gradient points where the weights went; its label is given away."""
    names = [n for n, p in module.named_parameters() if p.requires_grad]
    wanted = torch.cat([(start[n] - end[n]).reshape(-1) for n in names])
    weights = {n: start[n].clone().requires_grad_(True) for n in names}
    chance = generator(0, "audit", "search", victim)
    guess = (0.1 * torch.randn(1, *pool.inputs.shape[1:], generator=chance)).requires_grad_(True)
    target = pool.targets[victim : victim + 1]
    optimiser = torch.optim.Adam([guess], lr=0.1)
    for _ in range(SEARCH):
        loss = supervised_loss(functional_call(module, weights, (guess,)), target).sum()
        found = torch.cat(
            [g.reshape(-1) for g in torch.autograd.grad(loss, list(weights.values()), create_graph=True)]
        )
        optimiser.zero_grad()
        apart = 1 - nn.functional.cosine_similarity(found, wanted, dim=0)
        guess.grad = torch.autograd.grad(apart, guess)[0]
        optimiser.step()
    return guess.detach()[0].reshape(-1)


def _compared(guess: Tensor, pool: Records, victim: int) -> tuple[float, float, bool]:
    """Similarity to the true record and, on average, to all others; and whether the true one was nearest."""
    records = pool.inputs.reshape(len(pool), -1).double()
    centre = records.mean(0)
    guess = torch.nan_to_num(guess.reshape(-1)) - centre
    likeness = nn.functional.cosine_similarity(records - centre, guess.unsqueeze(0), dim=1)
    others = torch.arange(len(pool)) != victim
    true = float(likeness[victim])
    nearest = not bool((likeness[others] >= true + 1e-9).any())
    return true, float(likeness[others].mean()), nearest


def _summary(rows: list[tuple[float, float, bool]], among: int) -> ReconstructionResult:
    values = np.array([r[0] for r in rows])
    error = float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else float("nan")
    return ReconstructionResult(
        float(values.mean()),
        error,
        float(np.mean([r[1] for r in rows])),
        float(np.mean([r[2] for r in rows])),
        among,
        len(rows),
    )

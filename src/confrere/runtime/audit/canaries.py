"""One run with many canaries: made-up records, each put in with probability ½ (Steinke et al. 2023)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from confrere.core.errors import StudyError
from confrere.core.params import combine
from confrere.core.seeds import generator
from confrere.data.records import Federation, Records
from confrere.learning.objectives import log_probabilities
from confrere.privacy.accounting import Guarantee
from confrere.privacy.detect import Detected, canaries_in_one_run
from confrere.runtime.audit.watch import Watched, added
from confrere.study import Study

STEP = 0.01
"""A canary's score is how far a release went down its loss, measured on so small a part of the way that it is
the product of the release with the canary's own gradient."""

FAR = 4.0
"""How many times further out than any true record a canary lies."""


@dataclass(frozen=True)
class Canaries:
    """What one run betrayed of canaries."""

    detected: Detected
    claimed: Guarantee | None
    canaries: int
    included: int


def attack(study: Study, federation: Federation, site: str, *, canaries: int, confidence: float) -> Canaries:
    """Train once and guess from the releases which canaries took part."""
    watched = Watched(study, federation, site)
    own = federation.sites[site].train
    birds = unlikely(watched, made_up(own, canaries))
    chance = generator(study.seed, "audit", "canaries")
    included = torch.rand(canaries, generator=chance) < 0.5
    seen = watched.play(0, added(own, birds.inputs[included], birds.targets[included]))
    if not seen.left:
        raise StudyError(f'strategy "{study.strategy_name}" sends nothing: there is nothing to audit')
    scores = torch.zeros(canaries, dtype=torch.float64)
    for start, model in zip(seen.start, seen.left, strict=True):
        if start is not None:
            nearby = combine([(1 - STEP, start), (STEP, model.params)])
            before, after = (watched.losses(p, birds, model.architecture) for p in (start, nearby))
            scores += before - after
    delta = study.privacy.delta if study.privacy else 0.0
    found = canaries_in_one_run(np.asarray(scores), included.numpy(), delta=delta, confidence=confidence)
    return Canaries(found, seen.claimed, canaries, int(included.sum()))


def made_up(like: Records, count: int) -> Records:
    """Records that nobody has: far out in random directions, with labels that mean nothing."""
    chance = generator(0, "audit", "canary records", count)
    rows = torch.randint(0, len(like), (count,), generator=chance)
    inputs = like.inputs[rows].clone()
    if not bool((inputs == inputs.round()).all()):
        shape = (count, *like.inputs.shape[1:])
        length = FAR * like.inputs.reshape(len(like), -1).norm(dim=1).max()
        inputs = torch.randn(shape, generator=chance)
        inputs *= length / inputs.reshape(count, -1).norm(dim=1).reshape(-1, *([1] * (inputs.ndim - 1)))
    return Records(inputs, _labels(like.targets, count, chance))


def unlikely(watched: Watched, birds: Records) -> Records:
    """The canaries with the labels that fresh weights, which everybody knows, find least likely."""
    if birds.targets.is_floating_point():
        return birds
    said = watched.outputs(watched.sites[watched.site].build("proxy"), birds.inputs)
    return replace(birds, targets=log_probabilities(said).argmin(1))


def _labels(targets: Tensor, count: int, chance: torch.Generator) -> Tensor:
    return targets[torch.randint(0, len(targets), (count,), generator=chance)].clone()

"""Models between the user's own and that of all sites: interpolated models, interpolated records, a fine-tuned model.

After Mansour et al. 2020. The user's own share, λ, is chosen by cross-validation on the user's records: each value is
judged on records that neither model has learned from.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from confrere.core.params import Params
from confrere.core.seeds import derive
from confrere.data.records import Records
from confrere.data.split.holdout import folds
from confrere.partners.learner import PRIORS, Learner, Losses, joined, losses_of, mean_and_error

SHARES = tuple(n / 10 for n in range(11))
DATA_SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
PULLS = (1e5, 1000.0, 100.0, 10.0, 1.0)
"""How strongly a fine-tuned model is held to the common one: 1e5 leaves it as it is."""

FEW = 600
"""With fewer records, training alone is tuned on several divisions of them."""

Say = Callable[[Records], Tensor]
"""What a way of learning says about records."""


@dataclass(frozen=True)
class Way:
    """A way of learning, trained to the end: what it says, and what was chosen on the way."""

    name: str
    says: Say
    note: str = ""


def _best(tried: Mapping[float, Losses]) -> float:
    return min(tried, key=lambda value: (float(tried[value].mean()), value))


def _firmest(tried: Mapping[float, Losses]) -> float:
    """The strongest pull whose loss is within one standard error of the least (Breiman et al. 1984).

    With few records the least loss is often luck, and a weakly held winner a costly one.
    """
    least = tried[_best(tried)]
    behind = {value: mean_and_error(losses - least) for value, losses in tried.items()}
    return max(value for value, (mean, error) in behind.items() if mean <= error)


def _held_out(
    user: Records,
    seed: int,
    values: Sequence[float],
    judge: Callable[[Records, Records], Mapping[float, Losses]],
    repeats: int = 1,
) -> dict[float, Losses]:
    """For each value the loss of every record of the user, judged while it was left out.

    One division of few records into folds says little, so it is done `repeats` times.
    """
    held = {value: np.zeros(len(user)) for value in values}
    for repeat in range(repeats):
        for learned, judged in folds(user, derive(seed, "again", repeat)):
            for value, losses in judge(user.select(learned), user.select(judged)).items():
                held[value][judged.numpy()] += losses / repeats
    return held


def alone(learner: Learner, user: Records, seed: int, name: str = "alone") -> Way:
    """The user's own records only, regularised by cross-validation."""
    return together(learner, user, [], seed, name)


def together(learner: Learner, user: Records, peers: Sequence[Records], seed: int, name: str) -> Way:
    """One model of the user's and some peers' records, regularised for the user."""

    def judge(learned: Records, judged: Records) -> dict[float, Losses]:
        both = joined([learned, *peers])
        return {p: learner.losses(learner.learn(both, prior=p), judged) for p in PRIORS}

    prior = _firmest(_held_out(user, seed, PRIORS, judge, 1 if peers or len(user) > FEW else 3))
    params = learner.learn(joined([user, *peers]), prior=prior)
    return Way(name, lambda records: learner.outputs(params, records))


def interpolated_models(learner: Learner, user: Records, peers: Sequence[Records], seed: int) -> Way:
    """λ·own + (1 − λ)·all sites', on the outputs."""

    def judge(learned: Records, judged: Records) -> dict[float, Losses]:
        own = learner.outputs(learner.learn(learned), judged)
        common = learner.outputs(learner.learn(joined([learned, *peers])), judged)
        return {s: losses_of(s * own + (1 - s) * common, judged) for s in SHARES}

    share = _best(_held_out(user, seed, SHARES, judge))
    own, common = learner.learn(user), learner.learn(joined([user, *peers]))
    return Way(
        "models interpolated",
        lambda records: (
            share * learner.outputs(own, records) + (1 - share) * learner.outputs(common, records)
        ),
        f"λ = {share:.1f} is the user's own model",
    )


def interpolated_data(learner: Learner, user: Records, peers: Sequence[Records], seed: int) -> Way:
    """One model with the least λ·(loss on the user's records) + (1 − λ)·(loss on the records of all sites)."""

    def trained(own: Records, share: float) -> Params:
        both = joined([own, *peers])
        weights = torch.full((len(both),), (1 - share) / len(both))
        weights[: len(own)] += share / len(own)
        used = weights > 0
        return learner.learn(both.select(used.nonzero()[:, 0]), weights[used])

    def judge(learned: Records, judged: Records) -> dict[float, Losses]:
        return {s: learner.losses(trained(learned, s), judged) for s in DATA_SHARES}

    share = _best(_held_out(user, seed, DATA_SHARES, judge))
    params = trained(user, share)
    return Way(
        "records interpolated",
        lambda records: learner.outputs(params, records),
        f"λ = {share:.2f} of the loss is the user's own records'",
    )


def fine_tuned(learner: Learner, user: Records, peers: Sequence[Records], seed: int) -> Way:
    """Everybody's model, trained on with the user's records and held to where it came from as strongly as is best."""
    common = learner.learn(joined([user, *peers]))

    def judge(learned: Records, judged: Records) -> dict[float, Losses]:
        start = learner.learn(joined([learned, *peers]))
        return {p: learner.losses(learner.learn(learned, prior=p, centre=start), judged) for p in PULLS}

    pull = _firmest(_held_out(user, seed, PULLS, judge))
    params = learner.learn(user, prior=pull, centre=common)
    kept = (
        "left as it is"
        if pull == PULLS[0]
        else f"held to it as {pull:g} record{'s' if pull != 1 else ''} would"
    )
    return Way(
        "fine-tuned", lambda records: learner.outputs(params, records), f"the model of all sites, {kept}"
    )

"""What each way of learning would bring the user: alone, with partners, fine-tuned, or interpolated.

The interpolated models and records are after Mansour et al. 2020. The user's own share, λ, is chosen by cross-validation:
each value is judged on records that neither model was trained on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from confrere.core.metrics import proper
from confrere.core.params import Params
from confrere.core.results import Document, Tested
from confrere.core.seeds import derive
from confrere.data.records import Records
from confrere.data.split.holdout import folds
from confrere.data.tasks import Task
from confrere.learning.evaluation import measure
from confrere.partners.learner import PRIORS, Learner, Losses, joined, losses_of, mean_and_error
from confrere.site.journal_results import tested
from confrere.site.predictions import RecordPredictions, marks_of
from confrere.statistics.fixed_model_gain import judge_fixed, model_effects
from confrere.statistics.verdict import Gain, Word

ALONE, CHOICE, ALL_SITES = "alone", "with the chosen partners", "with everybody"
OVER_ALL = "choice over all sites"
SHARES = tuple(n / 10 for n in range(11))
DATA_SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
PULLS = (1e5, 1000.0, 100.0, 10.0, 1.0)
"""How strongly a fine-tuned model is pulled to the common one, in records: 1e5 leaves it unchanged."""

FEW = 600
"""With fewer records, training alone is tuned on several divisions into folds."""


@dataclass(frozen=True)
class Approach:
    """A way of learning, trained to completion."""

    name: str
    predict: Callable[[Records], Tensor]
    note: str = ""
    """What was chosen by cross-validation, in words."""


@dataclass(frozen=True)
class ApproachResult(Document):
    """What a way of learning brings the user, on test records that no choice has used."""

    UNSTATED = ("name",)
    OPTIONAL = ("gain_over_alone",)
    KEYS: ClassVar[Mapping[str, str]] = {"gain": "loss_less_than_alone", "error": "standard_error"}

    name: str
    metrics: Mapping[str, float]
    gain: float
    """How much lower the loss is than alone."""
    error: float
    note: str
    simulation_only: bool = True
    gain_over_alone: JudgedGain | None = None
    """By the primary measure; None for training alone."""


@dataclass(frozen=True)
class JudgedGain(Document):
    """A gain by the primary measure; positive is better. The word is about these models, not about another run."""

    OPTIONAL = ("interval",)

    mean: float
    word: Word
    interval: tuple[float, float] | None = None

    @classmethod
    def of(cls, gain: Gain) -> JudgedGain:
        ends = None if gain.low is None or gain.high is None else (gain.low, gain.high)
        return cls(gain.mean, gain.word, ends)


@dataclass(frozen=True)
class ChoiceOutcome:
    """What every way of learning brings, on how many test patients; empty without test records."""

    approaches: tuple[ApproachResult, ...] = ()
    metric: str | None = None
    """The primary measure."""
    tested: Tested | None = None
    over_all_sites: JudgedGain | None = None
    """The chosen partners against all sites; None if none, or all, are chosen."""


@dataclass(frozen=True)
class PartnerRecords:
    """The records of the user and of its peers; only a simulation has them all."""

    own: Records
    """The user's training and validation records."""
    test: Records
    """The user's test records."""
    peers: Mapping[str, Records]
    task: Task

    def judged(self, outputs: Tensor) -> RecordPredictions:
        """What a model predicts for the user's test patients."""
        marks = marks_of(self.test, "user")
        return RecordPredictions(outputs.float().numpy(), self.test.targets.numpy(), marks, self.task.spread)


def compare_approaches(
    learner: Learner,
    records: PartnerRecords,
    chosen: Sequence[str],
    cluster: Sequence[str],
    *,
    primary: str | None,
    seed: int,
) -> ChoiceOutcome:
    """Every way of learning on the user's test records, compared with training alone, and the choice with all sites.

    All words are one family and are corrected together.
    """
    own, test, peers = records.own, records.test, list(records.peers.values())
    if not len(test):
        return ChoiceOutcome()

    def with_peers(names: Sequence[str], title: str) -> Approach:
        return together(learner, own, [records.peers[n] for n in names], seed, title)

    approaches = [
        alone(learner, own, seed),
        *([with_peers(chosen, CHOICE)] if chosen else []),
        together(learner, own, peers, seed, ALL_SITES),
        with_peers(cluster, "with its group"),
        fine_tuned(learner, own, peers, seed),
        interpolated_models(learner, own, peers, seed),
        interpolated_data(learner, own, peers, seed),
    ]
    outputs = {approach.name: approach.predict(test) for approach in approaches}
    judged = {name: records.judged(output) for name, output in outputs.items()}
    pairs = {name: (ALONE, name) for name in outputs if name != ALONE}
    if chosen and len(chosen) < len(peers):
        pairs[OVER_ALL] = (ALL_SITES, CHOICE)
    effects = {key: model_effects(judged[one], judged[two]) for key, (one, two) in pairs.items()}
    common = set.intersection(*(set(found) for found in effects.values()))
    metric = primary if primary in common else proper(common)
    gains = judge_fixed({key: found[metric] for key, found in effects.items()}) if metric else {}
    stated = {key: JudgedGain.of(gain) for key, gain in gains.items()}
    losses = {name: losses_of(output, test) for name, output in outputs.items()}
    results = tuple(
        ApproachResult(
            a.name, measure(outputs[a.name], test.targets), *mean_and_error(losses[ALONE] - losses[a.name]),
            a.note, a.name != ALONE, stated.get(a.name),
        )
        for a in approaches
    )  # fmt: skip
    return ChoiceOutcome(results, metric, tested(test, records.task), stated.get(OVER_ALL))


def _best(tried: Mapping[float, Losses]) -> float:
    return min(tried, key=lambda value: (float(tried[value].mean()), value))


def _strongest(tried: Mapping[float, Losses]) -> float:
    """The strongest pull whose loss is within one standard error of the least (Breiman et al. 1984).

    With few records the least loss is often due to chance, and a weak pull overfits.
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
    """For each value, the held-out loss of every record of the user, averaged over `repeats` divisions into folds."""
    held = {value: np.zeros(len(user)) for value in values}
    for repeat in range(repeats):
        for learned, judged in folds(user, derive(seed, "again", repeat)):
            for value, losses in judge(user.select(learned), user.select(judged)).items():
                held[value][judged.numpy()] += losses / repeats
    return held


def alone(learner: Learner, user: Records, seed: int, name: str = ALONE) -> Approach:
    """The user's own records only, regularised by cross-validation."""
    return together(learner, user, [], seed, name)


def together(learner: Learner, user: Records, peers: Sequence[Records], seed: int, name: str) -> Approach:
    """One model of the user's and some peers' records, regularised for the user."""

    def judge(learned: Records, judged: Records) -> dict[float, Losses]:
        both = joined([learned, *peers])
        return {p: learner.losses(learner.learn(both, prior=p), judged) for p in PRIORS}

    prior = _strongest(_held_out(user, seed, PRIORS, judge, 1 if peers or len(user) > FEW else 3))
    params = learner.learn(joined([user, *peers]), prior=prior)
    return Approach(name, lambda records: learner.outputs(params, records))


def interpolated_models(learner: Learner, user: Records, peers: Sequence[Records], seed: int) -> Approach:
    """λ·own + (1 − λ)·all sites', on the outputs."""

    def judge(learned: Records, judged: Records) -> dict[float, Losses]:
        own = learner.outputs(learner.learn(learned), judged)
        common = learner.outputs(learner.learn(joined([learned, *peers])), judged)
        return {s: losses_of(s * own + (1 - s) * common, judged) for s in SHARES}

    share = _best(_held_out(user, seed, SHARES, judge))
    own, common = learner.learn(user), learner.learn(joined([user, *peers]))
    return Approach(
        "models interpolated",
        lambda records: (
            share * learner.outputs(own, records) + (1 - share) * learner.outputs(common, records)
        ),
        f"λ = {share:.1f} is the user's own model",
    )


def interpolated_data(learner: Learner, user: Records, peers: Sequence[Records], seed: int) -> Approach:
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
    return Approach(
        "records interpolated",
        lambda records: learner.outputs(params, records),
        f"λ = {share:.2f} of the loss is the user's own records'",
    )


def fine_tuned(learner: Learner, user: Records, peers: Sequence[Records], seed: int) -> Approach:
    """The common model, trained further on the user's records and pulled to where it started."""
    common = learner.learn(joined([user, *peers]))

    def judge(learned: Records, judged: Records) -> dict[float, Losses]:
        start = learner.learn(joined([learned, *peers]))
        return {p: learner.losses(learner.learn(learned, prior=p, centre=start), judged) for p in PULLS}

    pull = _strongest(_held_out(user, seed, PULLS, judge))
    params = learner.learn(user, prior=pull, centre=common)
    weight = f"{pull:g} record{'s' if pull != 1 else ''}"
    kept = "unchanged" if pull == PULLS[0] else f"with a prior worth {weight}"
    return Approach(
        "fine-tuned", lambda records: learner.outputs(params, records), f"the model of all sites, {kept}"
    )

"""At ε = 3, proven, sites with lopsided classes do better together than alone, and a useless proxy does no harm.

The small sisters of studies/together-beats-alone-fashion.toml: made-up records, so that nothing needs to be fetched.
"""

from __future__ import annotations

import statistics

import pytest
import torch

from confrere.data.records import Federation, Records, SiteData
from confrere.data.tasks import Task
from confrere.simulation.backends import simulate
from confrere.simulation.finished_run import Run
from confrere.study import Evaluation, Models, Privacy, Study, Training

CLASSES, INPUTS, SITES, RECORDS = 6, 30, 6, 500


def records(labels: torch.Tensor, rule: torch.Tensor, source: torch.Generator) -> Records:
    """Far from the centre, with classes that overlap: records of norm about 1, as features of pictures are."""
    noise = torch.randn(len(labels), INPUTS, generator=source)
    inputs = 2.0 + rule[labels] + 1.3 * noise
    return Records(inputs / 14, labels)


def federation(seed: int, agree: bool = True) -> Federation:
    """Sites with 80 % of one class each. Where they do not `agree`, each site's classes mean something else."""
    source = torch.Generator().manual_seed(seed)
    common = torch.randn(CLASSES, INPUTS, generator=source) * 0.6
    task = Task("multiclass", tuple("abcdef"), (INPUTS,))
    sites = {}
    for k in range(SITES):
        rule = common if agree else torch.randn(CLASSES, INPUTS, generator=source) * 0.6

        def lopsided(count: int, k: int = k, rule: torch.Tensor = rule) -> Records:
            own = torch.rand(count, generator=source) < 0.8
            others = torch.randint(0, CLASSES, (count,), generator=source)
            return records(torch.where(own, torch.full_like(others, k), others), rule, source)

        train, test = lopsided(RECORDS), lopsided(200)
        equal = records(torch.arange(1200) % CLASSES, rule, source)
        sites[f"s{k}"] = SiteData(f"s{k}", train, train.select(torch.arange(0)), test, common_test=equal)
    return Federation("made up", task, sites)


def study(strategy: str, rounds: int, seed: int) -> Study:
    return Study(
        seed=seed, rounds=rounds, strategy=strategy, topology=None if strategy == "local" else "complete",
        models=Models("linear", "centred-linear"),
        training=Training(
            balanced=True, tune_priors=(0.01, 0.1, 1.0),
            protected={"optimiser": "sgd", "learning_rate": 4.0, "momentum": 0.9, "weight_decay": 0.0},
        ),
        privacy=Privacy(epsilon=3.0, clipping={"name": "flat", "norm": 0.5}, steps=1),
        evaluation=Evaluation(every=rounds),
    )  # fmt: skip


def balanced(run: Run) -> list[float]:
    return [site.common_metrics.accuracy for site in run.sites.values()]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0])
def test_sites_with_lopsided_classes_do_better_together_at_a_proven_epsilon_of_three(seed: int) -> None:
    records = federation(seed)
    alone = simulate(study("local", 1, seed), records)
    together = simulate(study("proxyfl", 40, seed), records)
    for site in together.sites.values():
        assert site.privacy.proven
        assert site.privacy.epsilon <= 3.0
    gains = [b - a for a, b in zip(balanced(alone), balanced(together), strict=True)]
    assert statistics.fmean(gains) > 0.04
    assert min(gains) > -0.005


@pytest.mark.slow
def test_a_proxy_of_sites_that_mean_something_else_leaves_a_site_where_it_was() -> None:
    records = federation(1, agree=False)
    alone = simulate(study("local", 1, 1), records)
    together = simulate(study("proxyfl", 40, 1), records)
    losses = [
        (a.common_metrics.log_loss, b.common_metrics.log_loss)
        for a, b in zip(alone.sites.values(), together.sites.values(), strict=True)
    ]
    assert statistics.fmean(b - a for a, b in losses) < 0.02
    gains = [b - a for a, b in zip(balanced(alone), balanced(together), strict=True)]
    assert statistics.fmean(gains) > -0.01

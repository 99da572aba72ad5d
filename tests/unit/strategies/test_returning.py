"""A site that was away, or joins late, starts from the model that the others have in common."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from confrere.core.params import Params
from confrere.learning.local_training.one_site import Job, OneAtATime, Trained
from confrere.simulation.backends import simulate
from confrere.simulation.finished_run import Run
from confrere.study import Models, Study, Training, load
from confrere.study.churn import Churn
from tests.conftest import arrays, write_study
from tests.nodes import nodes_in_process

COMMON = ["fedavg", "fedprox", "fml", "personal", "coln", "swarm", "afl"]
"""Strategies that promise a common model; fedma's sites hold a common part."""
ON_GRAPHS = [(s, g) for s in COMMON for g in ("complete", "star") if (s, g) != ("swarm", "complete")]
AWAY = Churn(absent={"site1": [1, 2]})
LATE = Churn(join={"site1": 3})


def study(strategy: str, churn: Churn, topology: Any = None, rounds: int = 4) -> Study:
    return Study(
        name="returning", rounds=rounds, strategy=strategy, topology=topology, churn=churn,
        models=Models("linear", "linear"), training=Training(tune=False, learning_rate=0.3),
    )  # fmt: skip


class Starts(OneAtATime):
    """Notes what each site's training of the exchanged model starts from."""

    def __init__(self) -> None:
        self.of: dict[str, list[Params]] = {}

    async def run(self, job: Job) -> Trained:
        role = next(r for r in ("proxy", "common", "model") if r in job.objective)
        self.of.setdefault(job.site, []).append(job.weights[role])
        return await super().run(job)


def apart(models: Sequence[Params]) -> float:
    return max(float((m.flatten() - models[0].flatten()).abs().max()) for m in models)


def common(run: Run) -> list[Params]:
    return [
        next(models[r] for r in ("proxy", "model") if r in models).params for models in run.models.values()
    ]


@pytest.mark.parametrize("churn", [AWAY, LATE], ids=["absent", "late"])
@pytest.mark.parametrize(("strategy", "topology"), ON_GRAPHS)
def test_who_returns_starts_from_the_common_model(strategy: str, topology: str, churn: Churn) -> None:
    starts = Starts()
    run = simulate(study(strategy, churn, topology), arrays(3, 60), trainer=starts)
    last = [starts.of[site][-1] for site in sorted(starts.of)]
    assert apart(last) < 1e-6
    if strategy != "personal":  # whose sites deploy models of their own
        assert apart(common(run)) < 1e-6


def test_fedma_gives_a_site_that_returns_the_common_layers_of_the_others() -> None:
    class Layers(Starts):
        async def run(self, job: Job) -> Trained:
            self.of.setdefault(job.site, []).append(next(iter(job.weights.values())))
            return await OneAtATime.run(self, job)

    starts = Layers()
    simulate(study("fedma", AWAY), arrays(3, 60), trainer=starts)
    last = [starts.of[site][-1] for site in sorted(starts.of)]
    assert len({p.shapes for p in last}) == 1


def test_a_return_does_not_throw_the_others_back() -> None:
    away = Churn(absent={"site1": list(range(1, 8))})
    plan = study("fedavg", away, rounds=10).with_(training=Training(tune=False, learning_rate=0.02))
    run = simulate(plan, arrays(3, 90))
    losses = [0.0] * 10
    for e in run.events:
        if e.kind == "evaluated" and e.site != "site1" and e.round is not None:
            losses[e.round] += e.data["test"]["model"]["log_loss"]
    assert losses[8] < losses[7] < losses[6]


@pytest.mark.parametrize("strategy", ["fedavg", "swarm"])
def test_workers_bring_who_returns_up_to_date_as_a_simulation_does(strategy: str) -> None:
    plan = study(strategy, AWAY)
    memory, workers = simulate(plan, arrays(3, 60)), simulate(plan, arrays(3, 60), workers=2)
    for site in memory.models:
        assert memory.models[site]["model"].params.equals(workers.models[site]["model"].params)


def test_nodes_bring_who_returns_up_to_date_as_a_simulation_does(tmp_path: Path) -> None:
    loaded = load(write_study(tmp_path, records=60))
    found = study("fedavg", AWAY).with_(sites=loaded.sites, schema=loaded.schema)
    memory, nodes = simulate(found), nodes_in_process(found, tmp_path / "run")
    assert apart(common(nodes)) < 1e-6
    for site in memory.models:
        torch.testing.assert_close(
            memory.models[site]["model"].params.flatten(), nodes.models[site]["model"].params.flatten()
        )

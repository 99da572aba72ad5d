"""Swarm learning: whatever happens to leaders, the round goes on and every update counts once.

The trainer of these tests adds 1 to a weight of its own for each site and round, so the weights of the common model
say how much each update counts in it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from confrere.core.custody import Custody
from confrere.core.errors import StudyError
from confrere.core.model import Model
from confrere.core.params import Params
from confrere.exchange.leader_handover import (
    BITS,
    HandoverState,
    TrackedMean,
    Update,
    next_mean,
    received_mean,
)
from confrere.exchange.screening import LARGEST
from confrere.learning.local_training.one_site import Job, Trained
from confrere.simulation.backends import simulate
from confrere.simulation.finished_run import Run
from confrere.site.faults import Fault
from confrere.study import Data, Models, Study, Training
from confrere.study.churn import Churn
from confrere.study.data_settings import Split
from tests.conftest import arrays

ROUNDS, SITES = 9, 3


class Marker:
    """A trainer that leaves a mark for each of a site's trainings."""

    def __init__(self) -> None:
        self.done: dict[str, int] = {}

    async def run(self, job: Job) -> Trained:
        number = self.done[job.site] = self.done.get(job.site, -1) + 1
        weights = job.weights["model"]["1.weight"].clone()
        weights[0, int(job.site[-1]) * ROUNDS + number] += 1.0
        return Trained(
            params={"model": Params({**job.weights["model"], "1.weight": weights})}, memory={"model": {}}
        )


def sites(count: int = SITES) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {
        f"site{k}": (rng.normal(size=(40, SITES * ROUNDS)).astype(np.float32), np.arange(40) % 2)
        for k in range(count)
    }


def study(rounds: int = ROUNDS, **changes: Any) -> Study:
    plan = Study(
        name="swarm",
        rounds=rounds,
        strategy="swarm",
        training=Training(tune=False),
        models=Models("linear", "linear"),
        data=Data(split=Split(method="stratified")),  # training parts of equal size
    )
    return plan.with_(**changes)


def counts(run: Run, site: str = "site0") -> np.ndarray[Any, Any]:
    """How much each site's update of each round counts in a site's model: a row for each site."""
    start = simulate(study(1), sites(), trainer=Idle()).models["site0"]["model"].params["1.weight"]
    return (run.models[site]["model"].params["1.weight"] - start).numpy().reshape(SITES, ROUNDS)


class Idle:
    """A trainer that changes nothing."""

    async def run(self, job: Job) -> Trained:
        return Trained(params={"model": job.weights["model"]}, memory={"model": {}})


def test_without_losses_every_update_counts_by_its_records() -> None:
    run = simulate(study(4), sites(), trainer=Marker())
    np.testing.assert_allclose(counts(run)[:, :4], 1 / 3, atol=1e-6)


@pytest.mark.parametrize("point", ["before-exchange", "mid-exchange", "before-answer"])
@pytest.mark.parametrize("who", ["site0", "site1", "site2"])
@pytest.mark.parametrize("when", [2, 3, 4])
def test_whoever_is_lost_and_comes_back_every_update_counts_once(point: Any, who: str, when: int) -> None:
    """The leaders are site0, site1, site2, site0 …; one of the sites dies in a round and comes back in the next."""
    run = simulate(study(), sites(), trainer=Marker(), faults=(Fault(who, when, point, False),))
    settled = counts(run)[:, : ROUNDS - 1]
    assert settled.min() > 0.3  # nothing is lost; two of three sites at the least have 1/2 each
    assert settled.max() < 0.51  # nothing counts twice
    finished = {(e.site, e.round) for e in run.events if e.kind == "trained"}
    assert len(finished) == SITES * ROUNDS  # and nobody is stalled


def test_a_leader_that_dies_for_good_before_answering_takes_only_its_own_update_with_it() -> None:
    run = simulate(study(), sites(), trainer=Marker(), faults=(Fault("site1", 4, "before-answer", True),))
    found = counts(run)
    np.testing.assert_allclose(found[:, :4], 1 / 3, atol=1e-6)
    assert found[1, 4] == 0
    np.testing.assert_allclose(found[[0, 2], 4:6], 1 / 2, atol=1e-6)  # what site1 had received is not lost
    np.testing.assert_allclose(found[[0, 2], 8], 1 / 2, atol=1e-6)


def test_two_leaders_in_a_row_may_die() -> None:
    faults = (Fault("site0", 3, "before-answer", False), Fault("site1", 4, "before-answer", False))
    settled = counts(simulate(study(), sites(), trainer=Marker(), faults=faults))[:, : ROUNDS - 1]
    assert settled.min() > 0.3
    assert (
        settled.max() < 1.01
    )  # for one round, each has begun with another mean: one site's model is the mean then


def test_sites_that_are_away_and_leaders_that_are_away_lose_nothing_of_anybody() -> None:
    churn = Churn(absent={"site0": [3, 4], "site2": [5]})
    run = simulate(study(churn=churn), sites(), trainer=Marker())
    found = counts(run)
    done = {"site0": ROUNDS - 2, "site1": ROUNDS, "site2": ROUNDS - 1}
    for k, trainings in enumerate(done.values()):
        assert found[k, : trainings - 1].min() > 0.3
        assert found[k, : trainings - 1].max() < 1.01


def test_it_learns_what_the_mean_learns() -> None:
    training = Training(tune=False, learning_rate=0.1, batch_size=32)
    one, other = (
        simulate(study(6, training=training, strategy=s, topology="star"), arrays())
        for s in ("swarm", "fedavg")
    )
    for site in one.models:
        for name, tensor in one.models[site]["model"].params.items():
            np.testing.assert_allclose(tensor, other.models[site]["model"].params[name], atol=1e-5)


def test_a_topology_without_a_leader_is_refused() -> None:
    with pytest.raises(StudyError, match="swarm needs a leader"):
        simulate(study(2, topology="complete"), sites())


def model(value: float = 0.0) -> Any:
    import torch

    from confrere.core.custody import Custody
    from confrere.core.model import Model

    return Model(Params({"w": torch.full((1,), value)}), "one", Custody.PUBLIC)


def test_a_mean_says_who_was_in_it_however_many_there_are() -> None:
    members = [f"s{k:04}" for k in range(130)]
    there = [m for k, m in enumerate(members) if k % 3 == 0]
    first = next_mean(TrackedMean(model()), 0, model(), there, members)
    second = next_mean(first, 2, model(), members, members)
    read = received_mean(second.scalars(), model())
    assert read == second
    assert len(second.scalars()) <= 64
    assert [read.contains(0, k) for k in range(130)] == [k % 3 == 0 for k in range(130)]
    assert read.contains(2, 129) is True
    assert read.contains(1, 0) is None
    assert (read.descends_from(0), read.descends_from(1), read.descends_from(2)) == (True, False, True)


def test_a_line_ends_after_as_many_rounds_as_it_has_bits_and_numbers_stay_exact() -> None:
    mean = TrackedMean(model())
    for number in range(3 * BITS):
        mean = next_mean(mean, number, model(), ["a"], ["a", "b"])
    assert received_mean(mean.scalars(), model()) == mean
    assert mean.line == 2**BITS - 1
    assert mean.descends_from(0)  # too old to tell


def test_where_nobody_tells_an_update_is_rather_lost_than_counted_twice() -> None:
    mean = TrackedMean(model())
    for number in range(10):
        mean = next_mean(mean, number, model(), ["a"], ["a", "b"])
    old = HandoverState(TrackedMean(model(), 0, 1), (Update(1, 1, model(1.0)),))
    assert old.adopt(mean).updates == ()
    new = HandoverState(TrackedMean(model(), 0, 1), (Update(9, 1, model(1.0)),))
    assert [u.counted for u in new.adopt(mean).updates] == [False]


def test_what_a_site_learns_alone_for_long_is_added_up() -> None:
    standing = HandoverState(TrackedMean(model()))
    for number in range(50):
        standing = standing.learned(number, 0, model(0.0), model(1.0))
    assert len(standing.updates) <= 8
    assert float(standing.model().params["w"]) == 50


def test_what_a_mean_says_of_itself_is_never_too_large_to_travel() -> None:
    mean = TrackedMean(Model(Params({"w": torch.zeros(1)}), "one", Custody.PUBLIC))
    names = [f"site{k}" for k in range(2 * BITS)]
    for number in range(2 * BITS):
        mean = next_mean(mean, number, mean.model, names, names)
        assert all(abs(said.value) <= LARGEST for said in mean.scalars().values())

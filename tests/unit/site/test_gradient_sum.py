"""One gradient sum of a site: paid for once, clipped by what is protected, and held as closely as training would."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import torch

from confrere.core.custody import Custody, private, public
from confrere.core.model import Model
from confrere.core.parcel import Parcel
from confrere.exchange.screening import LARGEST, Outlier, screen
from confrere.exchange.sums import Summand, open_sum
from confrere.learning.objectives import Distilled, Supervised
from confrere.simulation.backends import simulate
from confrere.simulation.simulation import Simulation
from confrere.site.exchange_limits import bounds_of
from confrere.site.faults import Fault
from confrere.site.participant import Participant
from confrere.site.site_round import SiteRound
from confrere.strategies.fedavg import FedAvg
from confrere.study import Models, Privacy, Study, Training
from confrere.study.churn import Churn
from tests.conftest import arrays
from tests.property.test_gradient_sums import federation

GRADIENTS = {"name": "fedavg", "exchange": "gradients"}
CLIP = 0.5


def study(**changes: Any) -> Study:
    base = Study(
        name="sum", rounds=5, strategy=GRADIENTS, models=Models("linear", "linear"),
        training=Training(tune=False, optimiser="sgd", learning_rate=0.2, momentum=0.9),
    )  # fmt: skip
    return base.with_(**changes)


def site(**privacy: Any) -> Participant:
    asked = Privacy(delta=1e-4, clipping={"name": "flat", "norm": CLIP}, **privacy) if privacy else None
    simulation = Simulation(study(privacy=asked), federation([30, 12]), trainer="one")
    simulation.prepare()
    return simulation.sites["site0"]


def summed(at: Participant, model: Model | None = None, **more: Any) -> Model:
    found = asyncio.run(
        SiteRound(at, 0).gradient_sum(more.pop("loss", Supervised()), at=model or at.build("proxy"), **more)
    )
    assert found is not None
    return found


def test_a_gradient_sum_is_charged_as_one_step_before_it_is_drawn() -> None:
    at = site(noise_multiplier=2.0, steps=3)
    seen = []
    at.journal.add = lambda event: seen.append((event, at.ledger.counter))  # type: ignore[method-assign]
    summed(at)
    (charged, counter), (trained, _) = seen
    assert (charged.kind, counter, charged.data["steps"]) == ("charged", 1, 1)
    assert trained.kind == "trained"


def test_a_patient_moves_the_sum_by_at_most_the_clipping_norm() -> None:
    at = site(noise_multiplier=0.001, unit="patient")
    whole = summed(at)
    at.data = type(at.data)(
        at.name, at.data.train.select(list(range(2, len(at.data.train)))), at.data.validation, at.data.test,
        at.data.declared,
    )  # fmt: skip
    without = summed(at)
    assert 0.01 < whole.params.distance(without.params) <= CLIP * 1.01


def test_what_a_gradient_sum_reads_decides_its_custody_as_in_training() -> None:
    at = site(noise_multiplier=2.0)
    assert summed(at).custody == Custody.PROTECTED
    own = at.build("proxy").held(Custody.PRIVATE)
    taught = summed(at, loss=Distilled("teacher", private(0.5)), reads={"teacher": own})
    assert taught.custody == Custody.PRIVATE
    assert summed(at, model=own).custody == Custody.PRIVATE
    assert summed(site()).custody == Custody.UNPROVEN


def test_a_site_whose_budget_is_spent_takes_the_common_step_without_a_gradient() -> None:
    privacy = Privacy(epsilon=1.0, delta=1e-4, noise_multiplier=6.0)
    run = simulate(study(rounds=30, privacy=privacy), arrays(3, 90))
    assert any(e.kind == "budget-spent" for e in run.events)
    first, *others = [m["model"].params for m in run.models.values()]
    assert all(first.equals(other) for other in others)


def test_a_site_that_returns_is_sent_the_optimiser_with_the_model() -> None:
    for optimiser in ("sgd", "adam"):
        training = Training(tune=False, optimiser=optimiser, learning_rate=0.2)
        for topology in ("complete", "star"):
            plan = study(training=training, topology=topology, churn=Churn(absent={"site1": [1, 2]}))
            first, *others = [m["model"].params for m in simulate(plan, arrays(3, 60)).models.values()]
            assert all(first.equals(other) for other in others)


def test_a_site_that_was_lost_in_the_middle_of_a_sum_comes_back_to_the_common_state() -> None:
    run = simulate(study(rounds=7), arrays(3, 60), faults=(Fault("site1", 2, "mid-exchange"),))
    first, *others = [m["model"].params for m in run.models.values()]
    for other in others:
        torch.testing.assert_close(first.flatten(), other.flatten())


def test_a_gradient_without_the_numbers_that_it_is_divided_by_is_left_out() -> None:
    vector = site().build("proxy").held(Custody.UNPROVEN)
    known = {"since": public(0), "weight": public(10), "rate": public(1)}
    bare = {"since": public(0), "rate": public(1)}
    opened = open_sum([Summand("a", vector, known), Summand("b", vector, bare)], ("weight", "rate"), 0)
    assert opened is not None
    assert opened.vector.params.equals(vector.params)
    assert open_sum([Summand("b", vector, bare)], ("weight", "rate"), 0) is None


def test_parcels_hold_the_numbers_of_a_sum_only_where_gradients_are_exchanged() -> None:
    assert FedAvg().numbers == ("weight",)
    summing = FedAvg(exchange="gradients")
    sent = {"weight", "rate", "since", "version", "steps", "sum of weight", "sum of rate"}
    assert set(summing.numbers) == sent
    bounds = bounds_of(study(), site(), {"site0": 30, "site1": 12})
    assert bounds.weight < LARGEST
    for name in sent:
        with pytest.raises(Outlier, match=name):
            screen(Parcel("run", 0, 0, 0, "a", "b", 0, None, {name: public(-1)}), bounds, 0.0)


def test_rounded_parcels_leave_all_sites_with_the_same_sum() -> None:
    for topology in ("complete", "star"):
        run = simulate(study(topology=topology, compression="int8"), arrays(3, 60))
        first, *others = [m["model"].params for m in run.models.values()]
        assert all(first.equals(other) for other in others)

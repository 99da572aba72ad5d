"""The private steps of a training call: one value that is charged and draws."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar

import dp_accounting
import numpy as np
import pytest
import torch
from dp_accounting.rdp import RdpAccountant
from torch import Tensor

from confrere.core.custody import public
from confrere.core.errors import PrivacyError
from confrere.core.events import Journal
from confrere.core.model import Model
from confrere.core.protocols import Objective, Peers, Site
from confrere.core.registry import strategies
from confrere.data.records import Federation, Records, SiteData
from confrere.data.tasks import Task
from confrere.learning.objectives import Distilled, Supervised
from confrere.privacy import stacked_steps
from confrere.privacy.accounting import epsilon
from confrere.privacy.charged_steps import OneRelease, PrivateSteps
from confrere.privacy.charges import gaussian, on_one_sample
from confrere.privacy.clipping import Clipping, Flat, Quantile
from confrere.privacy.gradients import ClippedSum
from confrere.privacy.mechanism import Mechanism
from confrere.privacy.noise import Seeded
from confrere.privacy.sampling import FullBatch, Patients, Poisson
from confrere.simulation.simulation import Simulation
from confrere.study import Models, Privacy
from tests.drawn import Recording, columns, one_hot
from tests.unit.quick import quick

NOTHING: Mapping[str, Tensor] = {}
SUM = ClippedSum(torch.zeros(3), units=0)
RECORDS, DELTA = 60, 1e-4
WHOLE_ORDERS = tuple(float(order) for order in range(2, 64))
"""Orders at which dp-accounting states the divergence of a sampled Gaussian exactly."""


def mechanism(
    rate: Fraction = Fraction(1, 4), clipping: Clipping | None = None, noise: float = 1.4
) -> Mechanism:
    return Mechanism(FullBatch() if rate == 1 else Poisson(rate), clipping or Flat(1.0), noise, 20.0)


def test_each_protected_role_draws_its_own_sample_and_is_charged_for_it() -> None:
    private = PrivateSteps({"a": mechanism(), "b": mechanism()}, 3)
    assert private.charges == (gaussian(1.4, Fraction(1, 4), 6),)
    drawn = [draw.rows for draw in private.draw(400, Seeded(1))]
    assert len(drawn) == 3
    assert len({tuple(rows.tolist()) for step in drawn for rows in step.values()}) == 6


def test_mechanisms_that_differ_are_charged_apart() -> None:
    private = PrivateSteps({"a": mechanism(), "b": mechanism(clipping=Quantile(1.0)), "c": mechanism()}, 2)
    assert private.charges == (
        gaussian(1.4, Fraction(1, 4), 4),
        gaussian(on_one_sample(1.4, 10.0), Fraction(1, 4), 2),
    )


def test_a_sample_pays_for_one_release() -> None:
    draw = next(PrivateSteps({"a": mechanism(), "b": mechanism()}, 1).draw(40, Seeded(1)))
    for role in ("a", "b"):
        draw.release(role, SUM, NOTHING)
        with pytest.raises(PrivacyError, match=f'"{role}" was charged for one release'):
            draw.release(role, SUM, NOTHING)


def test_a_sample_of_many_sites_pays_for_one_release_at_each() -> None:
    private = [PrivateSteps({"a": mechanism()}, 2)] * 2
    steps = stacked_steps.StackedSteps(private, [40, 40], [Seeded(1), Seeded(2)])
    buffer, sums = (
        stacked_steps.ReleaseBuffer(torch.empty(2, 3)),
        stacked_steps.ClippedSums(torch.zeros(2, 3), [0, 0], [0, 0], [0, 0]),
    )
    with pytest.raises(PrivacyError, match="charged for one release"):
        steps.mechanisms["a"].release(sums, [NOTHING] * 2, buffer)
    for _ in steps.draw():
        steps.mechanisms["a"].release(sums, [NOTHING] * 2, buffer)
        with pytest.raises(PrivacyError, match="charged for one release"):
            steps.mechanisms["a"].release(sums, [NOTHING] * 2, buffer)


def test_a_sum_that_was_paid_for_once_is_released_once() -> None:
    paid = OneRelease("profile", 3.0, "patient", Seeded(1))
    assert paid.charge == gaussian(3.0, 1, 1, unit="patient")
    assert float(paid.release(torch.zeros(50_000), 2.0).std()) == pytest.approx(6.0, rel=0.03)
    with pytest.raises(PrivacyError, match='"profile" was charged for one release'):
        paid.release(torch.zeros(1), 2.0)


@pytest.mark.parametrize(
    ("rates", "roles", "expected"),
    [
        ({"proxy": 4}, ["private", "proxy"], [("private", "proxy")]),
        ({"proxy": 4}, ["proxy", "private"], [("proxy", "private")]),
        ({"proxy": 1}, ["private", "proxy"], [("proxy",)]),
        ({"a": 4, "b": 4}, ["x", "a", "y", "b", "z"], [("x", "a", "y", "z"), ("b",)]),
        ({"a": 1, "b": 1}, ["x", "a", "b"], [("a", "b")]),
        ({"a": 1, "b": 4, "c": 1}, ["x", "a", "b", "c"], [("a", "c"), ("x", "b")]),
        ({}, ["x", "y"], []),
    ],
)
def test_who_learns_from_the_same_records(rates: dict[str, int], roles: list[str], expected: Any) -> None:
    private = PrivateSteps({r: mechanism(Fraction(1, n)) for r, n in rates.items()}, 1)
    assert private.batches(roles) == expected


def test_a_model_protected_per_record_is_drawn_and_clipped_by_record_beside_one_per_patient() -> None:
    by_patient = Mechanism(Poisson(Fraction(1, 2), "patient"), Flat(1.0), 1.0, 5.0, "patient")
    private = PrivateSteps({"record": mechanism(Fraction(1, 2)), "patient": by_patient}, 1)
    patients = Patients([n // 10 for n in range(100)])
    rows = next(private.draw(patients, Seeded(1))).rows
    assert len(rows["patient"]) % 10 == 0
    assert len({int(n) // 10 for n in rows["record"]}) == 10
    assert [c.unit for c in private.charges] == ["record", "patient"]


# What releases from one sample cost


@pytest.mark.parametrize("noises", [[2.0] * 2, [1.4] * 16, [1.1, 3.0, 20.0]])
@pytest.mark.parametrize("rate", [Fraction(1, 32), Fraction(1, 3)])
def test_releases_from_one_sample_cost_what_dp_accounting_says(noises: list[float], rate: Fraction) -> None:
    together = dp_accounting.ComposedDpEvent([dp_accounting.GaussianDpEvent(z) for z in noises])
    accountant = RdpAccountant(WHOLE_ORDERS)
    accountant.compose(dp_accounting.PoissonSampledDpEvent(float(rate), together), 5)
    ours = epsilon([gaussian(on_one_sample(*noises), rate, 5)], 1e-5, "rdp", WHOLE_ORDERS)
    assert ours == pytest.approx(accountant.get_epsilon(1e-5), rel=1e-9)
    apart = epsilon([gaussian(z, rate, 5) for z in noises], 1e-5)
    assert apart < epsilon([gaussian(on_one_sample(*noises), rate, 5)], 1e-5)


def test_in_full_batches_it_makes_no_difference() -> None:
    one, many = gaussian(on_one_sample(*[8.0] * 16)), gaussian(8.0, 1, 16)
    assert epsilon([one], 1e-5) == pytest.approx(epsilon([many], 1e-5), rel=1e-9)


# Strategies that protect several models in one call


@dataclass(frozen=True)
class Two:
    one: Model
    two: Model


@dataclass(frozen=True)
class Pair:
    """A strategy of a user's own: two protected models, the second of which learns from the first."""

    deploys: ClassVar[tuple[str, ...]] = ("one", "two")
    topology: ClassVar[str] = "none"

    def init(self, site: Site) -> Two:
        return Two(site.build("proxy"), site.build("proxy"))

    def releases(self, sites: int) -> int:
        return 2

    async def round(self, state: Two, site: Site, peers: Peers) -> Two:
        objective: Objective = {"one": Supervised(), "two": Distilled("one", public(0.5))}
        models = {"one": state.one, "two": state.two}
        return Two(**await site.train(objective, models, protect=["one", "two"]))


@pytest.fixture
def pair() -> Iterator[str]:
    """The name of the strategy, which is known as long as the test runs."""
    strategies.register("pair")(Pair)
    yield "pair"
    del strategies._things["pair"]


def numbered(sites: int) -> Federation:
    """Sites at which every record moves a weight of its own."""
    truth = torch.from_numpy(np.random.default_rng(0).normal(size=(sites, RECORDS))).float()
    found = {}
    for k in range(sites):
        records = Records(one_hot(RECORDS), truth[k])
        found[f"site{k}"] = SiteData(f"site{k}", records, records.select([]), records, RECORDS)
    return Federation("numbered", Task("regression", (), (RECORDS,)), found)


class Recorded(Simulation):
    """A rehearsal whose sites keep account of what they draw."""

    def prepare(self, journal: Journal | None = None) -> None:
        super().prepare(journal)
        for k, site in enumerate(self.sites.values()):
            site.randomness = Recording(k, lambda value: columns(value, RECORDS))


def claimed_and_drawn(strategy: Any, sites: int, trainer: str) -> list[tuple[float, float]]:
    """The ε that each site claims after a study, and the ε of what it has drawn."""
    privacy = Privacy(epsilon=3.0, delta=DELTA, sampling="poisson", batch_size=6, steps=1)
    plan = quick(strategy, rounds=3, privacy=privacy, models=Models("linear", "linear"))
    simulation = Recorded(plan, numbered(sites), trainer=trainer)
    simulation.run()
    found = []
    for site in simulation.sites.values():
        assert isinstance(site.randomness, Recording)
        found.append((site.ledger.epsilon(DELTA), site.randomness.epsilon(DELTA)))
    return found


@pytest.mark.parametrize("trainer", ["one", "cohort"])
def test_weight_erosion_for_every_user_costs_no_more_than_it_claims(trainer: str) -> None:
    for claimed, true in claimed_and_drawn("weight_erosion", 4, trainer):
        assert 2.9 < claimed <= 3.0
        assert true == pytest.approx(claimed, rel=2e-3)


@pytest.mark.parametrize("trainer", ["one", "cohort"])
def test_a_strategy_that_protects_two_models_in_a_call_costs_no_more_than_it_claims(
    pair: str, trainer: str
) -> None:
    for claimed, true in claimed_and_drawn(pair, 2, trainer):
        assert 2.9 < claimed <= 3.0
        assert true == pytest.approx(claimed, rel=2e-3)


def test_rounds_are_planned_for_all_models_of_a_round(pair: str) -> None:
    privacy = Privacy(
        noise_multiplier=4.0, epsilon=3.0, delta=DELTA, sampling="poisson", batch_size=6, steps=1
    )
    simulation = Simulation(quick(pair, rounds=10_000, privacy=privacy), numbered(2))
    simulation.prepare()
    site = simulation.sites["site0"]
    left = site.rounds_left()
    assert left
    assert epsilon([gaussian(4.0, Fraction(1, 10), 2 * left)], DELTA) <= 3.0
    assert epsilon([gaussian(4.0, Fraction(1, 10), 2 * (left + 1))], DELTA) > 3.0

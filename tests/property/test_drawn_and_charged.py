"""What a ledger is charged for a training is what the training draws, whatever the objective."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from confrere.core.model import Model
from confrere.core.protocols import Loss
from confrere.data.records import Federation, Records, SiteData
from confrere.data.tasks import Task
from confrere.learning.networks.loss_sum import LOSS_SUM
from confrere.learning.objectives import Supervised
from confrere.privacy import lint
from confrere.privacy.accounting import epsilon
from confrere.privacy.budget import Budget
from confrere.privacy.charged_steps import Draw, PrivateSteps
from confrere.privacy.noise import Randomness
from confrere.privacy.sampling import Patients
from confrere.simulation.simulation import Simulation
from confrere.site.participant import Participant
from confrere.site.site_round import SiteRound
from confrere.study import Privacy
from tests.drawn import Recording, charged
from tests.unit.quick import quick

RECORDS = 60
PATIENT = [n // 3 for n in range(RECORDS)]
SITES = ("a", "b")
DELTA = 1e-4


@dataclass(frozen=True)
class Noted:
    """A loss that notes which records it was asked about: their targets are their numbers."""

    seen: list[int] = field(compare=False)
    of: tuple[str, ...] = ()

    @property
    def reads(self) -> frozenset[str]:
        return frozenset(self.of)

    def __call__(self, own: Tensor, others: Mapping[str, Tensor], targets: Tensor) -> Tensor:
        self.seen.extend(int(n) for n in targets.reshape(-1).tolist())
        wanted = targets.reshape(-1) / RECORDS + sum(t[:, 0] for t in others.values())
        return (own[:, 0] - wanted).square()


@pytest.fixture(autouse=True, scope="module")
def only_real_records() -> Iterator[None]:
    """Losses that note what they are asked about would note the made-up records of the trial too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lint, "check_loss", lambda *_: None)
        yield


@dataclass(frozen=True)
class Call:
    """A training call, and the privacy of its study."""

    protected: tuple[str, ...]
    plain: bool
    read: bool
    """Whether each protected role reads the one before."""
    poisson: bool
    unit: Any
    steps: int
    batch: int
    clipping: str
    trainings: int = 1
    trainer: str = "one"

    def privacy(self) -> Privacy:
        return Privacy(
            noise_multiplier=1.7, delta=DELTA, clipping=self.clipping, unit=self.unit, steps=self.steps,
            sampling="poisson" if self.poisson else "full", batch_size=self.batch,
        )  # fmt: skip


calls = st.builds(
    Call,
    protected=st.integers(1, 4).flatmap(
        lambda k: st.sampled_from(
            [tuple(f"m{n}" for n in range(k)), (LOSS_SUM, *(f"m{n}" for n in range(k)))]
        )
    ),
    plain=st.booleans(),
    read=st.booleans(),
    poisson=st.booleans(),
    unit=st.sampled_from(["record", "patient"]),
    steps=st.integers(1, 3),
    batch=st.sampled_from([6, 15, 30]),
    clipping=st.sampled_from(["flat", "per-layer", "adaclip", "quantile"]),
    trainings=st.integers(1, 2),
    trainer=st.sampled_from(["one", "cohort"]),
)


def federation() -> Federation:
    numbers = torch.arange(RECORDS)
    inputs = torch.randn(RECORDS, 4, generator=torch.Generator().manual_seed(3))
    records = Records(inputs, numbers.float(), torch.tensor(PATIENT))
    sites = {n: SiteData(n, records, records.select([]), records, RECORDS) for n in SITES}
    return Federation("numbered", Task("regression", (), (4,)), sites)


class Numbered(Recording):
    """Randomness that learns from the losses which records, or patients, a sum is made of."""

    def __init__(self, seed: int, unit: str) -> None:
        super().__init__(seed, lambda _: self._taken())
        self.asked: list[int] = []
        self.unit = unit

    def _taken(self) -> frozenset[int]:
        found = frozenset(PATIENT[n] if self.unit == "patient" else n for n in self.asked)
        self.asked.clear()
        return found


Sites = list[tuple[Participant, Numbered]]


def prepared(call: Call) -> Sites:
    """Two sites with randomness that keeps account."""
    simulation = Simulation(quick("fedavg", privacy=call.privacy()), federation(), trainer=call.trainer)
    simulation.prepare()
    found: Sites = []
    for number, site in enumerate(simulation.sites.values()):
        site.extra_networks = {LOSS_SUM: LOSS_SUM}
        site.randomness = source = Numbered(number, call.unit)
        found.append((site, source))
    return found


async def trained(site: Participant, source: Numbered, call: Call) -> None:
    models: dict[str, Model] = {}
    objective: dict[str, Loss] = {}
    for number, role in enumerate(call.protected):
        models[role] = site.build(LOSS_SUM if role == LOSS_SUM else "proxy")
        before = call.protected[number - 1 : number] if call.read and number else ()
        objective[role] = Noted(source.asked, before)
    if call.plain:
        models["own"], objective["own"] = site.build("proxy"), Supervised()
    here = SiteRound(site, 0)
    for _ in range(call.trainings):
        await here.train(objective, models, protect=call.protected)


async def all_trained(sites: Sites, call: Call) -> None:
    await asyncio.gather(*(trained(site, source, call) for site, source in sites))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(calls)
def test_every_training_is_charged_for_the_samples_and_the_noise_that_it_draws(call: Call) -> None:
    sites = prepared(call)
    asyncio.run(all_trained(sites, call))
    for site, source in sites:
        charges = site.ledger.charges()
        assert source.events() == charged(charges)
        assert {c.unit for c in charges} == {call.unit}
        calls = call.steps * call.trainings
        if call.poisson:
            assert len(source.samples) == calls * len(call.protected)
            assert all(s.noise for s in source.samples)
        else:
            queries = [2 if call.clipping == "quantile" and r != LOSS_SUM else 1 for r in call.protected]
            assert len(source.members) == calls * sum(queries)


TWO = Call(("m0", "m1"), False, False, True, "record", 2, 15, "flat")


def test_one_sample_for_two_models_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def one_for_all(self: PrivateSteps, units: int | Patients, randomness: Randomness) -> Iterator[Draw]:
        for _ in range(self.count):
            rows = self.mechanisms["m0"].sampling.draw(units, randomness)
            yield Draw(self.mechanisms, dict.fromkeys(self.mechanisms, rows), randomness)

    monkeypatch.setattr(PrivateSteps, "draw", one_for_all)
    sites = prepared(TWO)
    asyncio.run(all_trained(sites, TWO))
    for site, source in sites:
        assert source.events() != charged(site.ledger.charges())
        assert source.epsilon(DELTA) > site.ledger.epsilon(DELTA) * 1.05


def test_a_budget_that_does_not_pay_for_all_models_of_a_training_pays_for_none() -> None:
    site, source = prepared(TWO)[0]
    site.budget = Budget(epsilon(site.private_steps(["m0"]).charges, DELTA) * 1.001, DELTA)
    asyncio.run(trained(site, source, TWO))
    assert (source.samples, site.ledger.charges()) == ([], ())


def test_a_rehearsed_training_is_replayed_free_of_charge_only_with_the_same_models() -> None:
    site, source = prepared(TWO)[0]
    asyncio.run(trained(site, source, TWO))
    spent = site.ledger.charges()
    site.trainings.clear()  # as after a restart
    asyncio.run(trained(site, source, TWO))
    assert site.ledger.charges() == spent
    site.trainings.clear()
    asyncio.run(
        trained(site, source, replace(TWO, protected=("m0",)))
    )  # its noise is not that of the first time
    assert sum(c.count for c in site.ledger.charges()) == sum(c.count for c in spent) + TWO.steps

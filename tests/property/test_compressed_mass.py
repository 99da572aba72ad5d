"""With push-sum and compressed parcels, whatever is lost on the way for a while or comes twice: Σ mass and Σ mass·θ stay."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from confrere.core.params import Params
from confrere.core.parcel import Parcel
from confrere.core.seeds import generator
from confrere.exchange.compression import ParcelContext, numbers
from confrere.learning.local_training.one_site import Job, Trained
from confrere.simulation.simulation import Simulation
from confrere.site.faults import Fault
from confrere.site.mailbox import Mailbox
from confrere.site.open_sites import open_sites
from confrere.study.churn import Churn
from tests.conftest import arrays
from tests.unit.quick import quick

SITES, ROUNDS = 4, 6
RECORDS = arrays(SITES, 30)
NAMES = sorted(RECORDS)
KINDS: list[Any] = ["float16", "int8", {"name": "top-k", "share": 0.4}, {"name": "random-k", "share": 0.4}]


class MovesOnce:
    """A trainer that puts every site somewhere else in the first round and leaves it there."""

    def __init__(self) -> None:
        self.seen: set[str] = set()

    async def run(self, job: Job) -> Trained:
        moved = dict(job.weights)
        if job.site not in self.seen:
            self.seen.add(job.site)
            chance = generator(0, job.site)
            moved = {
                r: Params({n: t + torch.randn(t.shape, generator=chance) for n, t in p.items()})
                for r, p in moved.items()
            }
        return Trained(params={r: moved[r] for r in job.objective})


class Weighed(Simulation):
    """A simulation that adds up mass and mass·θ, wherever they are, after each round."""

    found: list[tuple[float, Tensor]]

    def settle(self, number: int) -> None:
        super().settle(number)
        if number >= 2 and not self.lost and all(run.state is not None for run in self.runs.values()):
            self.found.append(self.sums())

    def sums(self) -> tuple[float, Tensor]:
        masses, total = [], torch.zeros(5, dtype=torch.float64)
        for name, state in ((n, r.state) for n, r in self.runs.items() if r.state is not None):
            peers = self.peers[name]
            masses.append(state.mass.held.value)
            total = total + state.mass.held.value * numbers(state.model.params)
            rest = peers.packing.owed(state.model.architecture)
            total = total if rest is None else total + rest
            for parcel in peers.mailbox.waiting():
                if parcel.model is None:  # a site whose mass is all under way has nothing to send
                    assert parcel.scalar("mass").value == 0
                    continue
                masses.append(parcel.scalar("mass").value)
                total = total + parcel.scalar("mass").value * self.read(name, parcel)
        return math.fsum(masses), total

    def read(self, name: str, parcel: Parcel) -> Tensor:
        """What a parcel says, and where it says nothing, what everybody started with."""
        packing = self.peers[name].packing
        assert packing.compression is not None
        assert parcel.model is not None
        start = packing.start(parcel.model.architecture)
        assert start is not None
        moment = ParcelContext(parcel.run, parcel.round, parcel.phase, parcel.sender)
        return packing.compression.spread(parcel.model.params, numbers(start), start.shapes, moment)


graphs = st.one_of(
    st.fixed_dictionaries({"name": st.just("exponential"), "keep": st.sampled_from([0.0, 0.5])}),
    st.just({"name": "complete"}),
    st.fixed_dictionaries({"name": st.just("random-regular"), "degree": st.integers(1, 3)}),
)
absences = st.dictionaries(
    st.sampled_from(NAMES), st.lists(st.integers(2, ROUNDS - 2), max_size=3, unique=True)
)


def weigh(
    kind: Any, graph: Any, churn: Churn, faults: tuple[Fault, ...] = (), mass: str = "equal"
) -> Weighed:
    study = quick(
        {"name": "avgpush", "mass": mass}, topology=graph, rounds=ROUNDS, churn=churn, privacy=None, compression=kind,
    )  # fmt: skip
    found = Weighed(study, open_sites(study, RECORDS), faults=faults, trainer=MovesOnce())
    found.found = []
    found.run()
    return found


def conserved(found: Weighed) -> None:
    assert len(found.found) >= 2
    for mass, total in found.found[1:]:
        assert mass == pytest.approx(found.found[0][0], rel=1e-12)
        # the models themselves are single precision
        torch.testing.assert_close(total, found.found[0][1], rtol=1e-5, atol=2e-5 * mass)


@settings(max_examples=16, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(KINDS), graphs, absences, st.sampled_from(["equal", "size"]))
def test_absence_loses_nothing(kind: Any, graph: Any, absent: dict[str, list[int]], mass: str) -> None:
    conserved(weigh(kind, graph, Churn(absent=absent), mass=mass))


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.sampled_from(KINDS),
    graphs,
    st.sampled_from(NAMES),
    st.sampled_from(["before-exchange", "mid-exchange"]),
)
def test_a_loss_in_the_middle_of_an_exchange_loses_nothing(
    kind: Any, graph: Any, site: str, point: Any
) -> None:
    conserved(weigh(kind, graph, Churn(), (Fault(site, 3, point),)))


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_parcel_that_comes_twice_counts_once(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    deliver = Mailbox.deliver

    def twice(self: Mailbox, parcel: Parcel) -> bool:
        first = deliver(self, parcel)
        assert not deliver(self, parcel)
        return first

    monkeypatch.setattr(Mailbox, "deliver", twice)
    conserved(weigh(kind, {"name": "exponential"}, Churn()))


def test_the_same_test_notices_a_rest_that_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    from confrere.exchange.packing import Packing

    pack = Packing.pack

    def forgetful(self: Packing, *given: Any, **more: Any) -> Any:
        self.memory.clear()
        return pack(self, *given, **more)

    monkeypatch.setattr(Packing, "pack", forgetful)
    with pytest.raises(AssertionError):
        conserved(weigh({"name": "top-k", "share": 0.4}, {"name": "exponential"}, Churn()))

"""Over whole runs, with absences, losses and returns, mass is neither made nor lost."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from confrere.core.custody import public
from confrere.core.parcel import Parcel
from confrere.privacy.accounting import epsilon
from confrere.simulation.simulation import Simulation
from confrere.site.faults import Fault
from confrere.site.mailbox import Mailbox
from confrere.site.open_sites import open_sites
from confrere.study.churn import Churn
from tests.conftest import arrays
from tests.unit.quick import PRIVACY, quick

SITES, ROUNDS = 4, 5
RECORDS = arrays(SITES, 30)
NAMES = sorted(RECORDS)


class Balance(Simulation):
    """A simulation that weighs everything after each round."""

    weighed: list[float]

    def settle(self, number: int) -> None:
        super().settle(number)
        self.weighed.append(self.total(number))

    def total(self, number: int) -> float:
        epoch = self.churn.epoch(number)
        members = self.churn.members(number, list(self.sites))
        held = 0.0
        for name in members:
            state = self.runs[name].state
            if state is None:  # not started yet: it will start with its declared size
                held += self.sites[name].size
            elif state.mass.epoch != epoch:  # away since the membership changed: it starts anew
                held += state.mass.start.value
            else:
                held += state.mass.held.value
        waiting = [p for peers in self.peers.values() for p in peers.mailbox.waiting() if p.epoch == epoch]
        return held + math.fsum(p.scalar("mass").value for p in waiting) - self.debited(number)

    def debited(self, number: int) -> float:
        """A site that is lost in the middle of a round still shows the mass it had before it sent."""
        sent = 0.0
        for name in self.lost:
            for event in self.sites[name].journal.events:
                if event.kind == "sent" and event.site == name and event.round == self.lost_in.get(name):
                    sent += float(event.data["mass"])
        return sent

    @property
    def lost_in(self) -> dict[str, int]:
        return {f.site: f.round for f in self.faults}


graphs = st.one_of(
    st.fixed_dictionaries({"name": st.just("exponential"), "keep": st.sampled_from([0.0, 0.3, 0.5])}),
    st.fixed_dictionaries({"name": st.just("ring"), "keep": st.sampled_from([0.0, 0.5])}),
    st.just({"name": "complete"}),
    st.fixed_dictionaries({"name": st.just("random-regular"), "degree": st.integers(1, 3)}),
    st.just({"name": "star"}),
)
absences = st.dictionaries(
    st.sampled_from(NAMES), st.lists(st.integers(0, ROUNDS - 2), max_size=3, unique=True)
)
points = st.sampled_from(["before-exchange", "mid-exchange"])


def weigh(churn: Churn, graph: Any, faults: tuple[Fault, ...] = ()) -> Balance:
    study = quick("avgpush", topology=graph, rounds=ROUNDS, churn=churn, privacy=None)
    found = Balance(study, open_sites(study, RECORDS), faults=faults)
    found.weighed = []
    found.run()
    return found


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(graphs, absences, st.sampled_from([0.0, 0.3, 0.6]), st.integers(0, 50))
def test_absence_loses_no_mass(graph: Any, absent: dict[str, list[int]], chance: float, seed: int) -> None:
    found = weigh(Churn(absent=absent, probability=chance, seed=seed), graph)
    everything = sum(s.size for s in found.sites.values())
    assert found.weighed == [pytest.approx(everything, rel=1e-9)] * ROUNDS


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(graphs, st.sampled_from(NAMES), st.integers(0, ROUNDS - 2), points, st.booleans())
def test_a_loss_in_the_middle_of_an_exchange_loses_no_mass(
    graph: Any, site: str, number: int, point: Any, forever: bool
) -> None:
    found = weigh(Churn(), graph, (Fault(site, number, point, forever),))
    everything = sum(s.size for s in found.sites.values())
    assert found.weighed == [pytest.approx(everything, rel=1e-9)] * ROUNDS


def test_the_same_test_notices_a_lost_parcel(monkeypatch: pytest.MonkeyPatch) -> None:
    deliver = Mailbox.deliver

    def forgetful(self: Mailbox, parcel: Parcel) -> bool:
        return deliver(self, parcel if parcel.round != 2 else replace(parcel, scalars={"mass": public(0.0)}))

    monkeypatch.setattr(Mailbox, "deliver", forgetful)
    found = weigh(Churn(), {"name": "exponential"})
    everything = sum(s.size for s in found.sites.values())
    assert found.weighed[:2] == [pytest.approx(everything, rel=1e-9)] * 2
    assert found.weighed[2] < 0.9 * everything


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(graphs, st.sampled_from(NAMES), st.integers(1, 3), st.sampled_from(NAMES), st.integers(1, 3), absences)
def test_joining_and_leaving_start_the_mass_anew(
    graph: Any, joins: str, late: int, leaves: str, early: int, absent: dict[str, list[int]]
) -> None:
    if joins == leaves:
        return
    churn = Churn(absent=absent, join={joins: late}, leave={leaves: early + 1})
    mine = {n: {r for r in range(ROUNDS) if n in churn.members(r, NAMES)} for n in NAMES}
    if any(mine[n] <= set(absent.get(n, ())) for n in NAMES):
        return
    found = weigh(churn, graph)
    sizes = {n: s.size for n, s in found.sites.items()}
    expected = [sum(sizes[n] for n in churn.members(r, NAMES)) for r in range(ROUNDS)]
    assert found.weighed == pytest.approx(expected, rel=1e-9)


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.sampled_from(["avgpush", "fedavg", "cwt", "fml"]), absences, st.sampled_from(NAMES), st.integers(0, 3)
)
def test_every_ledger_covers_every_release(
    strategy: str, absent: dict[str, list[int]], site: str, number: int
) -> None:
    """What left a site was charged before, and the ledger holds neither less nor more than was trained."""
    study = quick(strategy, rounds=ROUNDS, churn=Churn(absent=absent))
    simulation = Simulation(study, open_sites(study, RECORDS), faults=(Fault(site, number),))
    run = simulation.run()
    for name, participant in simulation.sites.items():
        mine = [e for e in run.events if e.site == name and e.kind in ("charged", "trained", "sent")]
        charged: set[int | None] = set()
        for event in mine:
            if event.kind == "charged":
                charged.add(event.round)
            elif event.kind == "trained":
                assert event.round in charged
            elif event.data["model"] and event.data["custody"] == "PROTECTED":
                assert charged
        assert participant.mechanism is not None
        steps = sum(c.count for c in participant.ledger.charges())
        assert steps == len(charged) * participant.steps
        if charged:
            spent = epsilon([participant.mechanism.charge(steps)], PRIVACY.delta)
            assert participant.ledger.epsilon(PRIVACY.delta) == pytest.approx(spent)
            assert spent <= 8.0

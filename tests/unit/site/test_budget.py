"""A budget that is spent stops its own proxy's training and nobody else."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from confrere.core.errors import PrivacyError
from confrere.privacy.accounting import epsilon
from confrere.privacy.charges import gaussian
from confrere.simulation.backends import simulate
from confrere.simulation.finished_run import Run
from confrere.study import Data, Models, Privacy, Study, load
from confrere.study.data_settings import Split
from tests.conftest import arrays, write_study
from tests.nodes import nodes_in_process
from tests.unit.quick import TRAINING, quick

NOISE, STEPS, ROUNDS = 20.0, 2, 6
ENOUGH_FOR_THREE = epsilon([gaussian(NOISE, 1, 3 * STEPS)], 1e-4) * 1.001


def tight(when_spent: Any, strategy: Any = "avgpush", **changes: Any) -> Study:
    """A budget for three of the six rounds."""
    privacy = Privacy(
        epsilon=ENOUGH_FOR_THREE, noise_multiplier=NOISE, delta=1e-4, steps=STEPS, when_spent=when_spent
    )
    return quick(strategy, rounds=ROUNDS, privacy=privacy, **changes)


def kinds(run: Run, kind: str) -> list[tuple[str | None, int | None]]:
    return [(e.site, e.round) for e in run.events if e.kind == kind]


def test_noise_and_budget_together_end_before_the_step_that_would_overspend() -> None:
    run = simulate(tight("relay"), arrays())
    for site in run.sites.values():
        assert 0.99 * ENOUGH_FOR_THREE / 1.001 <= site.privacy.epsilon <= ENOUGH_FOR_THREE
    assert kinds(run, "charged") == [(f"site{n}", r) for r in range(3) for n in range(3)]
    assert kinds(run, "budget-spent") == [(f"site{n}", 3) for n in range(3)]
    noise = {e.data["noise_multiplier"] for e in run.events if e.kind == "charged"}
    assert noise == {NOISE}


def test_noise_alone_stops_nobody_and_shows_what_was_spent() -> None:
    privacy = Privacy(noise_multiplier=NOISE, delta=1e-4, steps=STEPS)
    run = simulate(quick(rounds=ROUNDS, privacy=privacy), arrays())
    expected = epsilon([gaussian(NOISE, 1, ROUNDS * STEPS)], 1e-4)
    assert [s.privacy.epsilon for s in run.sites.values()] == [pytest.approx(expected)] * 3
    assert kinds(run, "budget-spent") == []


def test_a_calibrated_budget_is_used_up_and_not_exceeded() -> None:
    run = simulate(quick(rounds=ROUNDS), arrays())
    for site in run.sites.values():
        assert 7.9 < site.privacy.epsilon <= 8.0
    assert kinds(run, "budget-spent") == []


def test_who_relays_goes_on_sending_and_the_mass_is_kept() -> None:
    run = simulate(tight("relay"), arrays())
    late = [e for e in run.events if e.kind == "sent" and (e.round or 0) >= 3]
    assert {e.site for e in late} == {"site0", "site1", "site2"}
    held = sum(state.mass.held.value for state in last_states(tight("relay")).values())
    assert held == pytest.approx(sum(s.records for s in run.sites.values()))


def last_states(study: Study) -> dict[str, Any]:
    from confrere.simulation.simulation import Simulation
    from confrere.site.open_sites import open_sites

    simulation = Simulation(study, open_sites(study, arrays()))
    simulation.run()
    return {name: run.state for name, run in simulation.runs.items()}


def test_who_leaves_is_no_member_any_more() -> None:
    run = simulate(tight("leave"), arrays())
    assert kinds(run, "left") == [(f"site{n}", 3) for n in range(3)]
    assert {r for _, r in kinds(run, "sent")} == {0, 1, 2}


SMALL = epsilon([gaussian(4.0, Fraction(1, 2), 3 * 4)], 1e-4) * 1.001
"""Enough for three rounds of a site that draws each record with probability one half."""


def uneven(when_spent: Any) -> Study:
    """site0 declares few records, so its sampling rate is high and its budget ends first."""
    privacy = Privacy(
        epsilon=SMALL, noise_multiplier=4.0, delta=1e-4, sampling="poisson", batch_size=30, steps=4,
        when_spent=when_spent,
    )  # fmt: skip
    data = Data(split=Split(method="stratified"))  # training parts of exactly 60 %
    return quick({"name": "proxyfl", "private": "distil"}, rounds=ROUNDS, privacy=privacy, data=data)


def sizes() -> dict[str, Any]:
    big = arrays(3, 900)
    return {"site0": tuple(a[:100] for a in big["site0"]), "site1": big["site1"], "site2": big["site2"]}


@pytest.mark.parametrize("when_spent", ["relay", "leave"])
def test_one_budget_ends_and_the_others_go_on(when_spent: str) -> None:
    run = simulate(uneven(when_spent), sizes())
    charged = kinds(run, "charged")
    rounds = {n: [r for s, r in charged if s == n] for n in ("site0", "site1", "site2")}
    assert rounds["site0"] == [0, 1, 2]
    assert rounds["site1"] == rounds["site2"] == list(range(ROUNDS))
    trained = [r for s, r in kinds(run, "trained") if s == "site0"]
    if when_spent == "relay":  # its private model goes on learning from what arrives
        assert trained == list(range(ROUNDS))
    else:
        assert trained == rounds["site0"]
    assert all(s.privacy.epsilon <= SMALL for s in run.sites.values())
    assert set(run.sites) == {"site0", "site1", "site2"}


def test_who_would_leave_before_the_first_round_is_told_so() -> None:
    privacy = Privacy(epsilon=0.1, noise_multiplier=1.0, delta=1e-4, when_spent="leave")
    with pytest.raises(
        PrivacyError, match=r'site "site0": its budget of ε = 0\.1 .* does not last for a single round'
    ):
        simulate(quick("avgpush", privacy=privacy), arrays())


def test_workers_and_nodes_stop_at_the_same_step(tmp_path: Path) -> None:
    loaded = load(write_study(tmp_path, records=60, sites=2))
    study = tight("leave", sites=loaded.sites, schema=loaded.schema, models=Models(), training=TRAINING)
    memory = simulate(study)
    for apart in (simulate(study, workers=2), nodes_in_process(study, tmp_path / "run")):
        assert sorted(kinds(apart, "charged")) == sorted(kinds(memory, "charged"))
        assert apart.mean == pytest.approx(memory.mean, abs=1e-6)

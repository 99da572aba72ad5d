"""Noise that protects nobody is not called protection, however it was asked for."""

from __future__ import annotations

from typing import Any

import pytest

from confrere.core.custody import Custody
from confrere.core.errors import CustodyError, PrivacyError, StudyError
from confrere.core.events import Journal
from confrere.core.results import PrivacySpent as Shown
from confrere.evaluate.study_check import above_ceilings
from confrere.learning.local_training.one_site import OneAtATime
from confrere.privacy.charges import Charge, gaussian
from confrere.privacy.ledger import Ledger
from confrere.report import words
from confrere.report.history import history
from confrere.report.result_tables import _privacy_lines
from confrere.simulation.backends import simulate
from confrere.site import assemble
from confrere.site.assemble import SiteContext, participant_of
from confrere.site.open_sites import open_sites
from confrere.site.participant import Participant
from confrere.study import Caps, Privacy, SiteConfig, Study
from tests.conftest import arrays
from tests.unit.quick import quick

NAMES = ("site0", "site1", "site2")


def sent(run: Any) -> list[str]:
    return [e.data["custody"] for e in run.events if e.kind == "sent" and e.data["model"]]


def configured(**own: Any) -> dict[str, SiteConfig]:
    return {name: SiteConfig(**own) for name in NAMES}


def site_of(plan: Study, before: list[Charge]) -> Participant:
    data, ledger = open_sites(plan, arrays(3, 60)), Ledger(dataset="site0")
    if before:
        ledger.spend(before, key="an earlier study", budget=None)
    context = SiteContext("r", Journal(None), OneAtATime(), ledger=ledger)
    return participant_of(plan, plan.build_strategy(), data.sites["site0"], data.task, context)


@pytest.mark.parametrize(
    "privacy",
    [
        Privacy(noise_multiplier=0.001, delta=1e-4, steps=2),
        Privacy(epsilon=50.0, delta=1e-4, steps=2),
        Privacy(noise_multiplier=0.5, delta=1e-4, steps=2, sampling="poisson", batch_size=30),
    ],
    ids=["no noise", "a large budget", "sampled"],
)
def test_a_study_above_the_ceiling_is_unproven_and_labelled_wherever_its_epsilon_stands(
    privacy: Privacy,
) -> None:
    run = simulate(quick("fedavg", privacy=privacy), arrays(3, 60))
    assert sent(run)[-1] == "UNPROVEN"
    for entry in run.sites.values():
        assert entry.privacy.epsilon > 10
        assert entry.privacy.above_ceiling is True
        assert entry.privacy.ceiling == 10
        assert entry.privacy.proven is True
    course = history(run.events).epsilon("site0")
    assert course[-1].ceiling == 10


def test_within_the_ceiling_nothing_changes() -> None:
    run = simulate(quick("fedavg"), arrays(3, 60))
    assert set(sent(run)) <= {"PROTECTED", "PUBLIC"}
    assert not any(entry.privacy.above_ceiling for entry in run.sites.values())


def test_without_consent_what_is_above_the_ceiling_does_not_leave() -> None:
    plan = quick(
        "fedavg",
        privacy=Privacy(noise_multiplier=0.001, delta=1e-4, steps=2),
        sites=configured(accept_unproven_privacy=False),
    )
    with pytest.raises(CustodyError, match="ceiling"):
        simulate(plan, arrays(3, 60))


def test_the_site_sets_its_own_ceiling() -> None:
    low = quick("fedavg", sites={"site0": SiteConfig(caps=Caps(ceiling=4.0))})
    run = simulate(low, arrays(3, 60))
    above = {name: entry.privacy.above_ceiling for name, entry in run.sites.items()}
    assert above == {"site0": True, "site1": False, "site2": False}
    for wrong in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises((PrivacyError, StudyError), match=r"caps\.ceiling"):
            site_of(quick(sites={"site0": SiteConfig(caps=Caps(ceiling=wrong))}), [])


@pytest.mark.parametrize("ceiling", [10.001, 40.0, 1e9])
def test_a_ceiling_may_be_lowered_and_not_raised(ceiling: float) -> None:
    """Otherwise a site could call any ε protection; to let it out, it accepts that it is unproven."""
    site_of(quick(sites={"site0": SiteConfig(caps=Caps(ceiling=10.0))}), [])
    with pytest.raises(PrivacyError, match=r"caps\.ceiling.*at most 10.*accept_unproven_privacy"):
        site_of(quick(sites={"site0": SiteConfig(caps=Caps(ceiling=ceiling))}), [])


def test_the_note_of_a_check_names_the_ceiling_of_each_site() -> None:
    two, ten = above_ceilings({"a": 2.0, "b": 10.0, "c": 2.0})
    assert "a and c: ε would end above the ceiling of 2:" in two
    assert "b: ε would end above the ceiling of 10:" in ten
    assert above_ceilings({}) == []


def test_the_ceiling_counts_all_that_was_ever_spent_on_the_records() -> None:
    plan = quick(privacy=Privacy(noise_multiplier=3.0, delta=1e-4, steps=1))
    fresh, old = site_of(plan, []), site_of(plan, [gaussian(0.5, 1, 2)])
    assert fresh.caveat() is None
    assert fresh.released == Custody.PROTECTED
    caveat = old.caveat()
    assert caveat is not None
    assert "above the ceiling of 10" in caveat
    assert old.released == Custody.UNPROVEN


def test_the_ceiling_counts_at_the_sites_own_delta() -> None:
    before = [gaussian(0.62, 1, 1)]
    privacy = Privacy(noise_multiplier=50.0, delta=1e-3, steps=1)
    assert site_of(quick(privacy=privacy), before).released == Custody.PROTECTED
    strict = {"site0": SiteConfig(caps=Caps(epsilon=9.9, delta=1e-9))}
    assert site_of(quick(privacy=privacy, sites=strict), before).released == Custody.UNPROVEN


def test_a_ledger_of_patients_and_records_shows_both_and_counts_patients_at_twice_the_sensitivity() -> None:
    site = site_of(quick(), [gaussian(2.0, unit="patient"), gaussian(50.0)])
    told = site.spending()
    assert told["unit"] == "record"
    assert told["units"]["patient"] is None
    assert told["units"]["record"] == told["epsilon"] == site.ledger.epsilon(1e-4, "record")
    assert told["epsilon"] > Ledger.epsilon(site_of(quick(), [gaussian(1.05)]).ledger, 1e-4)


def test_both_units_and_the_ceiling_are_part_of_the_words() -> None:
    shown = Shown(11.5, 1e-5, "record", True, "pld", None, {"patient": None}, 10.0, True)
    said = words.privacy(shown)
    assert (
        said
        == "11.5 (ε, δ = 1e-5, per record, accountant pld); per patient: no bound: above the ceiling of 10"
    )
    assert words.epsilon(float("inf")) == "∞"
    assert _privacy_lines([]) == []


def test_an_optimiser_keeps_its_memory_when_a_run_passes_the_ceiling(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Studies that repeat papers pass it half-way; their training must not begin anew there."""
    privacy = Privacy(noise_multiplier=1.0, delta=1e-4, steps=2)
    training = {"optimiser": "sgd", "learning_rate": 0.1, "momentum": 0.9}
    base = quick("fedavg", rounds=6, privacy=privacy)
    plan = base.with_(training=base.training.__class__(tune=False, protected=training))
    passes = simulate(plan.with_(sites=configured()), arrays(3, 60))
    assert set(sent(passes)) == {"PROTECTED", "UNPROVEN"}
    monkeypatch.setattr(assemble, "own_ceiling", lambda *_: 1e6)
    within = simulate(plan.with_(sites=configured()), arrays(3, 60))
    assert set(sent(within)) == {"PROTECTED"}
    assert passes.mean == within.mean

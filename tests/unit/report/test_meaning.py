"""The report shows what an ε means beside it."""

from __future__ import annotations

from confrere.report.history import history
from confrere.report.page.learning_curves import privacy_over_rounds
from confrere.simulation.backends import simulate
from confrere.study import Privacy
from tests.conftest import arrays
from tests.unit.quick import quick


def test_the_report_shows_for_whom_epsilon_holds_and_the_curve_behind_it() -> None:
    run = simulate(quick("fedavg"), arrays(3, 60))
    told = run.result.privacy
    assert told.site in run.sites
    assert told.readings["record"] == run.sites[told.site].privacy.epsilon
    assert told.readings["file"] == told.readings["record"]  # by hash, one record moves no other
    shown = str(privacy_over_rounds(history(run.events), list(run.sites), "seed 0")).replace("\u00a0", " ")
    assert told.sentence in shown
    assert "one patient with all records" in shown
    assert "no bound" in shown
    assert "Trade-off curve" in shown
    assert "two Gaussians" in shown
    assert "ceiling" not in shown


def test_the_report_labels_what_is_above_the_ceiling_and_states_no_mu_for_samples() -> None:
    sampled = Privacy(noise_multiplier=0.5, delta=1e-4, steps=2, sampling="poisson", batch_size=30)
    run = simulate(quick("fedavg", privacy=sampled), arrays(3, 60))
    shown = str(privacy_over_rounds(history(run.events), list(run.sites), "seed 0"))
    assert "above the ceiling of 10" in shown
    assert "marked UNPROVEN" in shown
    assert "two Gaussians" not in shown

"""What masks take away is stated where it would stand: in the report, in the search for partners, and by the planner."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from confrere.cli import add_commands, app
from confrere.evaluate.compare import compare
from confrere.partners.search import find_partners
from confrere.report import words
from confrere.report.page import write_report
from confrere.simulation.backends import simulate
from confrere.study import Models, Privacy, Study
from confrere.study.masked_settings import Masked
from tests.conftest import arrays, write_study


def study(masks: bool) -> Study:
    found = Study(
        name="hidden", rounds=2, strategy="fedavg", models=Models("linear", "linear"),
        privacy=Privacy(epsilon=3.0, delta=1e-4),
    )  # fmt: skip
    return found.with_(combiner="masked-sum", masked=Masked(1, 0)) if masks else found


@pytest.mark.parametrize("masks", [True, False])
def test_the_report_of_a_run_says_what_it_cannot_show(masks: bool, tmp_path: Path) -> None:
    run = simulate(study(masks), arrays(4, 80), out=tmp_path / "run")
    page = run.report().read_text(encoding="utf-8")
    assert (words.HIDDEN_BY_MASKS in page) == masks


def test_the_report_of_a_comparison_does_too(tmp_path: Path) -> None:
    compare(study(True), ["fedavg"], sites=arrays(4, 80), seeds=[0], out=tmp_path / "out")
    page = write_report(tmp_path / "out").read_text(encoding="utf-8")
    assert words.HIDDEN_BY_MASKS in page
    assert "all models are mixed" not in page


def test_a_search_for_partners_says_that_the_field_has_less() -> None:
    found = find_partners(study(True), "site0", arrays(4, 80), by="transfer")
    assert any("a trial of peers are not available" in note for note in found.notes)
    plain = find_partners(study(False), "site0", arrays(4, 80), by="transfer")
    assert not any("masked" in note for note in plain.notes)


def test_the_planner_says_when_masks_do_not_pay(tmp_path: Path) -> None:
    """Two of three sites share the noise, and with noise on a grid ε is proven less tightly: hardly anything is gained."""
    add_commands()
    body = 'name = "few"\nrounds = 2\nstrategy = "fedavg"\n[privacy]\nepsilon = 3.0\ndelta = 1e-5\n'
    found = CliRunner().invoke(app, ["plan", str(write_study(tmp_path, body, 3))])
    assert found.exit_code == 0
    text = " ".join(found.stdout.split())
    assert ("With masked sums (combiner" in text) != ("Masked sums would not pay here" in text)
    assert "signal-to-noise would be" in text

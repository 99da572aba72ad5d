"""`confrere simulate --workers` and `--engine`: the same answer, or one line that says why not."""

from __future__ import annotations

import sys

import pytest

from tests.unit.cli.command import PRIVATE, QUICK, Desk


def test_workers_change_nothing_but_the_time(desk: Desk) -> None:
    study = desk.study(QUICK + PRIVATE)
    one = desk.confrere("simulate", study, "--json", "--out", "one").json
    two = desk.confrere("simulate", study, "--json", "--out", "two", "--workers", 2).json
    assert two["mean"] == pytest.approx(one["mean"], abs=1e-5)
    assert [s["privacy"] for s in two["sites"].values()] == [s["privacy"] for s in one["sites"].values()]
    assert {p.name for p in (desk.folder / "two").iterdir()} == {
        p.name for p in (desk.folder / "one").iterdir()
    }


def test_engines_that_cannot_be_had_are_refused(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    study = desk.study()
    monkeypatch.setitem(sys.modules, "ray", None)
    desk.refused("simulate", study, "--engine", "ray", "--out", "run")
    said = desk.confrere("simulate", study, "--engine", "ray", "--out", "run").said
    assert "pip install 'confrere[ray]'" in said
    desk.refused("simulate", study, "--engine", "spark", "--out", "run")
    for workers in (0, 10_001, 10**22):
        said = desk.refused("simulate", study, "--workers", workers, "--out", "run")
        assert "between 1 and 10,000" in said


def test_one_process_per_site_is_gone_and_the_message_names_what_to_use(desk: Desk) -> None:
    said = desk.refused("simulate", desk.study(), "--processes", "--out", "run")
    assert "--workers" in said
    assert "confrere rehearse" in said


@pytest.mark.parametrize("effort", [("--seconds", "1e12"), ("--seconds", "inf"), ("--runs", 10**22)])
def test_an_audit_without_end_is_refused(desk: Desk, effort: tuple[str, object]) -> None:
    assert "at most" in desk.refused("audit", desk.study(), *effort)

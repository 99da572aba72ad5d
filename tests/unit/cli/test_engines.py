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
    desk.refused("simulate", study, "--workers", 0, "--out", "run")


def test_one_process_per_site_is_gone_and_the_message_names_what_to_use(desk: Desk) -> None:
    said = desk.refused("simulate", desk.study(), "--processes", "--out", "run")
    assert "--workers" in said
    assert "confrere rehearse" in said

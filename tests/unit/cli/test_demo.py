"""`confrere demo`: real referral centres, beside training alone, within the promised privacy."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from confrere.study import Study, load
from tests.unit.cli.command import Desk


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same demo in two rounds."""

    def shortened(path: str | Path, *more: Any) -> Study:
        study = load(path, *more)
        return dataclasses.replace(
            study, rounds=2, training=dataclasses.replace(study.training, tune=False), variants={}
        )

    monkeypatch.setattr("confrere.study.load", shortened)


@pytest.mark.usefixtures("short")
def test_the_demo_ends_with_a_table_and_a_report(desk: Desk) -> None:
    answer = desk.confrere("demo", "--seeds", 1, "--json", "--out", "demo")
    found = answer.json
    assert answer.code == 0
    assert Path(found["report"]).read_text(encoding="utf-8").startswith("<!")
    assert {"local", "proxyfl", "fedavg", "pooled"} <= set(found["strategies"])
    for name in ("proxyfl", "fedavg"):
        privacy = found["strategies"][name]["privacy"]
        assert 0 < privacy["epsilon"] <= 3.0
        assert (privacy["proven"], privacy["unit"]) == (True, "record")
    assert found["strategies"]["local"]["privacy"] is None
    assert any("three" in n or "3 " in n for n in found["notes"]), (
        "the site that was left out is not mentioned"
    )


def test_the_demo_needs_a_seed(desk: Desk) -> None:
    assert "--seeds is 0" in desk.refused("demo", "--seeds", 0)

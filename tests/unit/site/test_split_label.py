"""A stratified split is labelled with what it costs, wherever a study is looked at."""

from __future__ import annotations

from html import unescape
from pathlib import Path

import pytest

from confrere.evaluate.compare import compare
from confrere.evaluate.study_check import check
from confrere.simulation.backends import simulate
from confrere.study import Data
from confrere.study.data_settings import Split
from tests.conftest import arrays
from tests.unit.quick import quick

COST = "moves up to two others, so that for a site's whole file ε is that of a group of three"
STRATIFIED = Data(split=Split(method="stratified"))


def test_check_states_the_cost() -> None:
    study = quick("proxyfl", data=Data(bundled="thyroid", split=Split(method="stratified")))
    facts = check(study)
    assert (facts.split["method"], facts.split["group"]) == ("stratified", 3)
    assert any(COST in text for text in facts.warnings)
    plain = check(quick("proxyfl", data=Data(bundled="thyroid")))
    assert (plain.split["method"], plain.split["group"]) == ("hash", 1)
    assert not any(COST in text for text in plain.warnings)


@pytest.mark.parametrize(("data", "group"), [(STRATIFIED, 3), (Data(), 1)], ids=["stratified", "hash"])
def test_results_and_report_state_the_cost(data: Data, group: int, tmp_path: Path) -> None:
    run = simulate(quick(data=data), arrays(), out=tmp_path / "run")
    assert run.result.split["group"] == group
    page = unescape(run.report(tmp_path / "page.html").read_text(encoding="utf-8"))
    assert (COST in page) == (group == 3)


def test_a_comparison_states_the_cost() -> None:
    found = compare(quick("proxyfl", data=STRATIFIED), ["proxyfl"], (0,), arrays()).result
    assert any(COST in text for text in found.notes)

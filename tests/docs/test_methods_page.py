"""docs/methods.md describes every strategy that was measured, and the tables of its record are what was measured.

A new strategy needs no line there: docs/reference/options.md is generated and lists it with its options.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest

from confrere.core.events import Event
from confrere.core.registry import strategy
from confrere.data.bundled.fetch import fetch
from confrere.data.bundled.sets import sets
from confrere.partners import METHODS
from confrere.strategies import strategies
from confrere.strategies.fedprox import FedProx
from tests.docs.test_reference import generator

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "methods.md").read_text(encoding="utf-8")


def measured() -> set[str]:
    """The strategies of the record."""
    runs = json.loads((ROOT / "docs" / "records" / "figures" / "criteria.json").read_text(encoding="utf-8"))[
        "runs"
    ]
    return {key.split("/")[0] for key in runs} - {"choosing"}


def criteria() -> ModuleType:
    """The script that measures, which has no ending."""
    loader = importlib.machinery.SourceFileLoader("criteria", str(ROOT / "scripts" / "criteria"))
    spec = importlib.util.spec_from_loader("criteria", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def test_every_measured_strategy_is_described_with_its_own_options() -> None:
    for name in measured():
        assert f"**{name}**" in PAGE, (
            f"describe {name} in docs/methods.md, in a paragraph that begins with **{name}**"
        )
    for name in re.findall(r"^\*\*([a-z_]+)\*\*", PAGE, re.MULTILINE):
        assert name in strategies, f"docs/methods.md describes {name}, which is no strategy"
    for name, options in {
        "coln": "normalise form alternate start halt",
        "afl": "ascent bound",
        "fedma": "growth spread",
    }.items():
        for option in options.split():
            assert option in strategies[name].__dataclass_fields__  # type: ignore[attr-defined]
            assert f"`{option}" in PAGE, option


@pytest.fixture
def newest() -> Iterator[None]:
    """A strategy whose file was put into the folder a moment ago."""

    @strategy("newest-of-all")
    @dataclass(frozen=True)
    class Newest(FedProx):
        """Does the newest thing (Nobody, 2030)."""

        speed: float = 0.25

    Newest.__module__ = "confrere.strategies.newest"
    yield
    strategies.remove("newest-of-all")


@pytest.mark.usefixtures("newest")
def test_a_new_strategy_needs_no_line_here_and_is_in_the_reference() -> None:
    test_every_measured_strategy_is_described_with_its_own_options()
    test_the_tables_are_those_of_the_measurements()
    row = next(
        line for line in generator().options_page().splitlines() if line.startswith("| `newest-of-all` |")
    )
    assert "Does the newest thing (Nobody, 2030)." in row
    assert "`speed = 0.25`" in row


def test_the_tables_are_those_of_the_measurements() -> None:
    script = criteria()
    kept = json.loads(script.KEPT.read_text(encoding="utf-8"))
    table = (
        script.PAGE.read_text(encoding="utf-8")
        .split("<!-- criteria -->\n")[1]
        .split("\n<!-- end of criteria -->")[0]
    )
    assert table == script.tables(kept)
    assert len(measured()) >= 15
    for name in measured():
        assert f"\n| {name} |" in table
    for name in {*METHODS, *script.choosing.ADAPTED}:
        assert f"\n| {name} |" in table
    rows = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("| ")]
    assert {len(row) for row in rows} == {8}  # a method and seven criteria, none left out
    assert all(cell for row in rows for cell in row)


def test_feedback_is_how_often_a_bad_site_is_put_beneath_an_honest_one() -> None:
    script = criteria()
    told = [
        Event("weighed", "a", 0, data={"weights": {"b": 0.1, "c": 0.2, "bad": 0.9}}),
        Event("weighed", "a", 1, data={"weights": {"b": 0.9, "c": 0.2, "bad": 0.2}}),
    ]
    assert sorted(script._told("weight_erosion", told, "a", {"bad"})) == [0.5, 1.0]
    assert sorted(script._told("afl", told, "a", {"bad"})) == [0.0, 0.5]  # there the worst-served weighs most
    assert script._told("fedavg", told, "b", {"bad"}) == []


@pytest.mark.large
def test_a_measurement_can_be_repeated() -> None:
    """The numbers of one run, but for the clock's, follow from strategy, setting and seed."""
    recipe = sets()["titanic"].recipe
    assert recipe is not None
    fetch(recipe)
    script = criteria()
    kept = json.loads(script.KEPT.read_text(encoding="utf-8"))["runs"]["fedavg/plain/0"]
    again = script.run("fedavg", "plain", 0)
    assert abs(again["bytes"] - kept["bytes"]) < 0.1 * kept["bytes"]
    for site, value in kept["auc"].items():
        assert abs(again["auc"][site] - value) < 0.01

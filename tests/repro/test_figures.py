"""Figures of comparisons: drawn from plain numbers, the same file for the same numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

from confrere.core.errors import StudyError
from repro.figures import (
    draw_curves,
    draw_groups,
    draw_pyramid,
    draw_reached,
    draw_scope,
    draw_settings,
)
from repro.method_style import KNOWN, method_styles

CURVES = {
    "a": [{"round": 1, "mean": 0.5, "std": 0.1}, {"round": 2, "mean": 0.7, "std": 0.1}],
    "a/proxy": [{"round": 1, "mean": 0.4, "std": 0.0}, {"round": 2, "mean": 0.5, "std": 0.0}],
}
GROUPS = {
    "young": {"local": 0.7, "fedavg": 0.75, "mine": 0.8},
    "old": {"local": 0.6, "fedavg": 0.66, "mine": 0.62},
}
BASELINES = {"local": "alone", "fedavg": "global"}


def test_the_same_numbers_give_the_same_file(tmp_path: Path) -> None:
    one = draw_curves(CURVES, tmp_path / "x" / "c.svg", measure="accuracy", lines={"majority": 0.6})
    two = draw_curves(CURVES, tmp_path / "y" / "c.svg", measure="accuracy", lines={"majority": 0.6})
    assert one.read_bytes() == two.read_bytes()
    assert b"accuracy" in one.read_bytes() or len(one.read_bytes()) > 1000


def test_every_kind_is_drawn(tmp_path: Path) -> None:
    spread = {g: dict.fromkeys(v, 0.01) for g, v in GROUPS.items()}
    made = [
        draw_settings(GROUPS, spread, tmp_path / "s.svg", measure="accuracy"),
        draw_groups(GROUPS, BASELINES, tmp_path / "b.svg", measure="accuracy"),
        draw_pyramid(GROUPS, "mine", "fedavg", tmp_path / "p.png", measure="accuracy"),
        draw_curves(CURVES, tmp_path / "w.svg", measure="accuracy", dotted={"peer": CURVES["a"]}),
        draw_scope(
            {"a": [("1 site", 0.6, 0.1), ("2 sites", 0.7, 0.1)]}, tmp_path / "o.svg", measure="accuracy"
        ),
    ]
    for path in made:
        assert path.stat().st_size > 3000, path


def test_a_model_and_its_proxy_share_a_colour() -> None:
    found = method_styles(["a", "a/proxy", "b"])
    assert found["a"].colour == found["a/proxy"].colour != found["b"].colour
    assert found["a"].line != found["a/proxy"].line


def test_a_method_has_one_name_and_one_colour_in_every_figure() -> None:
    one, other = (
        method_styles(["fml@α=0.3", "proxyfl"]),
        method_styles(["proxyfl, exponential", "new", "fml"]),
    )
    assert one["proxyfl"].colour == other["proxyfl, exponential"].colour
    assert one["fml@α=0.3"].colour == other["fml"].colour
    assert (one["fml@α=0.3"].label, other["proxyfl, exponential"].label) == (
        "FML, α=0.3",
        "ProxyFL, exponential",
    )


def test_methods_look_different() -> None:
    looks = [(s.colour, s.line) for name, s in KNOWN.items() if not is_variant_of_coln(name)]
    assert len(looks) - len(set(looks)) == 1, (
        "only «alone with noise» and «own records only» look alike: no figure has both"
    )


def is_variant_of_coln(name: str) -> bool:
    return name in ("normalised", "linear", "plus", "minus", "in-turns", "small")


def test_published_values_are_drawn(tmp_path: Path) -> None:
    plain = draw_curves(CURVES, tmp_path / "a" / "c.svg", measure="accuracy").read_text()
    found = draw_curves(
        CURVES, tmp_path / "b" / "c.svg", measure="accuracy", published={"a": 0.66}
    ).read_text()
    assert found.count("<use ") - plain.count("<use ") >= 2  # the diamond, and its entry in the legend


def test_what_cannot_be_drawn_is_said(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match="no method"):
        draw_groups({"x": {"local": 1.0, "fedavg": 1.0}}, BASELINES, tmp_path / "b.svg", measure="accuracy")
    with pytest.raises(StudyError, match="not both measured"):
        draw_pyramid(GROUPS, "mine", "other", tmp_path / "p.svg", measure="accuracy")
    with pytest.raises(StudyError, match="ends with"):
        draw_curves(CURVES, tmp_path / "c.gif", measure="accuracy")


def test_a_later_milestone_that_brought_nothing_adds_nothing(tmp_path: Path) -> None:
    steps = {"a": [("10 %", 0.6), ("50 %", 0.8), ("100 %", 0.7)]}
    assert draw_reached(steps, tmp_path / "r.svg", measure="accuracy").stat().st_size > 3000

"""The demo: README shows what it prints, and its words do not depend on which seeds were run."""

from __future__ import annotations

import re
from importlib.resources import files
from inspect import signature
from pathlib import Path

import pytest

from confrere.core.results import ComparisonResult
from confrere.evaluate.compare import compare
from confrere.evaluate.demo import STRATEGIES, demo
from confrere.study import load
from tests.docs.test_pages_run import ROOT
from tests.unit.cli.command import Desk

SEEDS: int = signature(demo).parameters["seeds"].default
TABLE = re.compile(r"^```\n(Site .*?)^```$", re.DOTALL | re.MULTILINE)


def shown_in_readme() -> list[str]:
    """The parts of the table in README, without line breaks; «…» stands for sites that are left out."""
    found = TABLE.search((ROOT / "README.md").read_text(encoding="utf-8"))
    assert found is not None
    return [spaced(part) for part in re.split(r"^…$|^$", found.group(1), flags=re.MULTILINE) if part.strip()]


def spaced(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.slow
def test_readme_shows_what_the_demo_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """About two minutes of processor time: all seeds."""
    monkeypatch.setenv("COLUMNS", "80")
    printed = spaced(Desk(tmp_path, monkeypatch, capsys).confrere("demo").out)
    for part in shown_in_readme():
        assert part in printed


@pytest.mark.slow
def test_the_seeds_of_the_demo_and_the_next_ones_agree_in_their_words() -> None:
    """About five minutes of processor time. With five seeds a gain of this size is clear in some sets and not in others."""
    first, second = (words_with(range(start, start + SEEDS)) for start in (0, SEEDS))
    assert first == second


@pytest.mark.slow
def test_five_seeds_and_the_next_five_do_not_contradict_each_other() -> None:
    first, second = words_with(range(5)), words_with(range(5, 10))
    assert not [which for which in first if {first[which], second[which]} == {"better", "worse"}]


def words_with(seeds: range) -> dict[tuple[str, str], str | None]:
    study = load(str(files("confrere.evaluate") / "demo.toml"))
    return words(compare(study, STRATEGIES, seeds).result)


def words(result: ComparisonResult) -> dict[tuple[str, str], str | None]:
    """Every word about a site, or about the mean over sites."""
    assert result.metric is not None
    found: dict[tuple[str, str], str | None] = {}
    for name, strategy in result.strategies.items():
        if name != result.reference:
            found[name, "all"] = strategy.gains[result.metric].word
            found |= {(name, s): site.gains[result.metric].word for s, site in strategy.sites.items()}
    assert any(found.values())
    return found

"""The demo: README shows what it prints, and its words do not depend on which seeds were run."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

import pytest

from confrere.core.results import ComparisonResult
from confrere.evaluate.compare import compare
from confrere.evaluate.demo import STRATEGIES
from confrere.study import load
from tests.docs.test_pages_run import ROOT
from tests.unit.cli.command import Desk

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
def test_five_seeds_and_the_next_five_agree_in_their_words() -> None:
    study = load(str(files("confrere.evaluate") / "demo.toml"))
    first, second = (words(compare(study, STRATEGIES, seeds).result) for seeds in (range(5), range(5, 10)))
    assert first == second


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

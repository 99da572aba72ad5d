"""The Python of README.md and of the tutorials runs as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from confrere.core.registry import strategies

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs" / "tutorials").glob("*.md"))]
FENCE = re.compile(r"^```python[^\n]*\n(.*?)^```", re.DOTALL | re.MULTILINE)


def snippets(page: Path) -> list[tuple[int, str]]:
    """The Python blocks of a page with the line on which each begins."""
    text = page.read_text(encoding="utf-8")
    return [(text[: m.start(1)].count("\n") + 1, m[1]) for m in FENCE.finditer(text)]


WITH_PYTHON = [p for p in PAGES if p.exists() and snippets(p)]


def test_the_readme_shows_python() -> None:
    assert ROOT / "README.md" in WITH_PYTHON


@pytest.mark.parametrize("page", WITH_PYTHON, ids=lambda p: p.name)
def test_the_python_of_a_page_runs(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Top to bottom in one session, in an empty folder, as a reader would type it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(strategies, "_things", dict(strategies._things))
    (tmp_path / "studies").symlink_to(ROOT / "studies")
    space: dict[str, object] = {"__name__": "__main__"}
    for line, code in snippets(page):
        exec(compile("\n" * (line - 1) + code, str(page), "exec"), space)

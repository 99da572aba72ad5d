"""What README, tutorials and how-to guides tell a reader to type runs as it stands there.

A page is run from top to bottom in an empty folder, with the repository's `studies/` in it. A block with a file name
above it (`study.toml`:) becomes that file. A shell block with a title ("needs a running node") is not run: the title
says why. Commands that take several seeds run with one. Pages are quick, or listed in SLOW.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
GUIDES = (
    "data",
    "tasks",
    "partners",
    "methods",
    "robustness",
    "scale",
    "operations",
    "privacy",
    "utility",
    "upgrading",
)
PAGES = [
    ROOT / "README.md",
    *sorted((DOCS / "tutorials").glob("*.md")),
    *sorted((DOCS / "how-to").glob("*.md")),
    *(DOCS / f"{name}.md" for name in (*GUIDES, "index", "faq", "performance", "studies")),
]
SLOW = {
    "partners",
    "robustness",
    "scale",
    "privacy",
    "privacy-level",
    "README",
    "audit",
    "compare",
    "sources",
    "first-rehearsal",
    "own-data",
    "own-strategy",
    "utility",
    "performance",
    "read-report",
    "predict",
    "resume",
}
BLOCK = re.compile(r"(?:^`([\w/.-]+)`[^\n]*:\n\n)?^```(\w+)([^\n]*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
INSTALLED = re.compile(r"^(make \w+|\. \.venv/bin/activate)", re.MULTILINE)
SEEDS = re.compile(r"--seeds \d+")


def blocks(page: Path) -> list[tuple[str, str, str]]:
    """File name, language and text of every block that a reader is meant to use."""
    found = BLOCK.findall(page.read_text(encoding="utf-8"))
    return [(name, language, text) for name, language, title, text in found if "title=" not in title]


def runnable(page: Path) -> bool:
    return any(name or language in ("sh", "python") for name, language, _ in blocks(page))


NODES = DOCS / "tutorials" / "three-hospitals.md"
CASES = [
    pytest.param(page, marks=[pytest.mark.slow] if page.stem in SLOW else [], id=page.stem)
    for page in PAGES
    if page != NODES and runnable(page)
]


def test_every_guide_of_the_navigation_is_tried() -> None:
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    guides = text.split("- Tutorials:")[1].split("- Reference:")[0]
    assert set(re.findall(r": ([\w/-]+\.md)", guides)) <= {
        page.relative_to(DOCS).as_posix() for page in PAGES[1:]
    }


@pytest.mark.parametrize("page", CASES)
def test_a_page_runs_as_a_reader_would_type_it(page: Path, tmp_path: Path) -> None:
    follow(page, tmp_path)


@pytest.mark.slow
def test_three_hospitals_become_three_nodes_as_the_tutorial_says(tmp_path: Path) -> None:
    printed = follow(NODES, tmp_path)
    for name in ("nord", "sud", "ouest"):
        assert "finished: the model is in" in (tmp_path / f"{name}.txt").read_text()
    assert "Rounds done: 12 of 12" in printed
    assert "Not private" in printed
    assert "all in place" in printed
    assert len((tmp_path / "predictions.csv").read_text().splitlines()) == 71


def follow(page: Path, folder: Path) -> str:
    """Do what a page says, in an empty folder; returns what its commands printed."""
    (folder / "studies").mkdir()
    for study in (ROOT / "studies").glob("*.toml"):
        (folder / "studies" / study.name).write_bytes(study.read_bytes())
    printed = python = ""
    for name, language, text in blocks(page):
        if name:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text, encoding="utf-8")
        elif language == "python":
            python += text + "\n"  # the blocks of a page are one session
            printed += run([sys.executable, "-c", python], folder, text)
        elif language == "sh":
            printed += run(["bash", "-ec", SEEDS.sub("--seeds 1", INSTALLED.sub("true", text))], folder, text)
    return printed


def run(command: list[str], folder: Path, shown: str) -> str:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    surroundings = {**os.environ, "PATH": path, "OMP_NUM_THREADS": "1", "COLUMNS": "160"}
    done = subprocess.run(command, cwd=folder, env=surroundings, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{shown}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    return done.stdout

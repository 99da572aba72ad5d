"""Every source file, module and test that the documentation names exists."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    [
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("src/confrere/**/*.py"),
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        ROOT / "mkdocs.yml",
    ]
)
PLACES = ("", "src", "src/confrere", "docs", "tests")
FILE = re.compile(r"(?<![\w/.])((?:[\w-]+/)+[\w-]+\.py)\b")
STUDY = re.compile(r"(?<![\w/.])(studies/[\w-]+\.toml)\b")
TEST = re.compile(r"(?<![\w/])(test_\w+\.py)\b")
MODULE = re.compile(r"(?:::: |`)(confrere(?:\.[a-z]\w*)+)")


def test_what_the_documentation_names_exists() -> None:
    found = {str(page.relative_to(ROOT)): missing(page.read_text(encoding="utf-8")) for page in PAGES}
    assert not {page: names for page, names in found.items() if names}


def test_a_file_that_is_gone_is_found() -> None:
    text = "`site/gone.py`, studies/gone.toml, `test_gone.py::test_it`, `confrere.site.gone.thing`, benchmarks/NAME.py"
    assert missing(text) == ["site/gone.py", "studies/gone.toml", "test_gone.py", "confrere.site.gone.thing"]


def missing(text: str) -> list[str]:
    """The names in a text that belong to nothing; NAME stands for any name."""
    found = [
        name
        for kind in (FILE, STUDY)
        for name in kind.findall(text)
        if "NAME" not in name and not exists(name)
    ]
    found += [name for name in TEST.findall(text) if not any(ROOT.glob(f"tests/**/{name}"))]
    return found + [name for name in MODULE.findall(text) if not is_module(name)]


def exists(name: str) -> bool:
    return any((ROOT / place / name).is_file() for place in PLACES)


def is_module(name: str) -> bool:
    """Whether a dotted name is a module of the package, or a lower-case name that a module or package defines."""
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        path = ROOT / "src" / Path(*parts[:end])
        if path.is_dir() or path.with_suffix(".py").is_file():
            return end >= len(parts) - 1
    return False

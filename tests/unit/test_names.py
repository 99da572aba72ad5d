"""One name, one thing: no two classes, and no two modules of different folders, share a name unless they are one idea."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "src" / "confrere"
CLASSES = {"State": "the state of a strategy, in its file"}
MODULES = {
    "coln": "the combination, and the strategy that uses it",
    "exchange": "the folder, and the report section about it",
    "node": "the folder, and its main class",
    "page": "HTML pages",
    "privacy": "the folder, and the result that states what was spent",
    "simulation": "the folder, and its main class",
}


def test_no_two_classes_share_a_name() -> None:
    found = defaultdict(list)
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                found[node.name].append(str(path.relative_to(PACKAGE)))
    assert not {name: where for name, where in found.items() if len(where) > 1 and name not in CLASSES}


def test_no_two_modules_share_a_name() -> None:
    """A file in cli/ is named after its command, so it may be named like what it calls."""
    found = defaultdict(list)
    for name, path in modules():
        found[name].append(str(path.relative_to(PACKAGE)))
    assert not {name: where for name, where in found.items() if len(where) > 1 and name not in MODULES}


def modules() -> Iterator[tuple[str, Path]]:
    for path in PACKAGE.rglob("*.py"):
        if "cli" not in path.relative_to(PACKAGE).parts:
            yield (path.parent.name if path.name == "__init__.py" else path.stem), path

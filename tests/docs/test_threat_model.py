"""Every protection in docs/threat-model.md is proved by a test that exists."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "threat-model.md").read_text("utf-8")


def test_every_named_test_exists() -> None:
    named = re.findall(r"`(test_\w+\.py)::(test_\w+)`", TEXT)
    assert len(named) > 40
    for file, test in named:
        assert any(f"def {test}(" in p.read_text("utf-8") for p in (ROOT / "tests").rglob(file)), (file, test)


def test_every_attack_has_a_test() -> None:
    header = re.compile(r"^\| (attack|---|what)")
    rows = [line for line in TEXT.split("## Someone on the network")[1].splitlines() if line.startswith("| ")]
    for line in rows:
        assert header.match(line) or "::test_" in line.split("|")[3], line

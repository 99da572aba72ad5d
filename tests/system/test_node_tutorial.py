"""The tutorial, word by word."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "tutorials" / "three-hospitals.md"
BLOCK = re.compile(r"(?:`([\w/.]+)`:\n\n)?```(\w*)\n(.*?)```", re.DOTALL)


@pytest.mark.slow
def test_three_hospitals_become_three_nodes_as_the_tutorial_says(tmp_path: Path) -> None:
    place = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    surroundings = {**os.environ, "PATH": place, "OMP_NUM_THREADS": "1", "COLUMNS": "160"}
    said = ""
    for name, language, text in BLOCK.findall(PAGE.read_text(encoding="utf-8")):
        if name:
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text(text, encoding="utf-8")
        elif language == "sh":
            done = subprocess.run(
                ["bash", "-ec", text],
                cwd=tmp_path,
                env=surroundings,
                capture_output=True,
                text=True,
                check=False,
            )
            said += done.stdout
            assert done.returncode == 0, done.stderr
    for name in ("nord", "sud", "ouest"):
        assert "finished: the model is in" in (tmp_path / f"{name}.txt").read_text()
    assert "Rounds done: 12 of 12" in said
    assert "Not private" in said
    assert "all in place" in said
    assert len((tmp_path / "predictions.csv").read_text().splitlines()) == 71

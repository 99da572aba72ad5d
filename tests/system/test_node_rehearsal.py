"""Real nodes on this machine, over mutual TLS, end where the simulation ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from confrere.node.rehearsal import home_of, rehearse
from confrere.runtime.simulate import simulate
from confrere.study import load
from tests.conftest import write_study

BODY = """
rounds = 3
strategy = "proxyfl"
patience = 60.0
[training]
tune_priors = [0.1]
tune_lengths = [20]
[privacy]
epsilon = 8.0
delta = 1e-4
steps = 2
"""


def confrere(*words: object, code: int = 0) -> str:
    """Run a command; its standard output (or, where it should fail, its complaint)."""
    done = subprocess.run(
        [sys.executable, "-m", "confrere", *map(str, words)],
        capture_output=True, text=True, check=False, env={**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"},
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout if code == 0 else done.stderr


@pytest.fixture(scope="module")
def rehearsed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any, Any]:
    """One rehearsal, looked at by all tests of this file."""
    folder = tmp_path_factory.mktemp("rehearsal")
    study = load(write_study(folder, BODY, sites=2, records=80))
    return folder, study, rehearse(study, out=folder / "run")


def test_a_rehearsal_ends_where_the_simulation_ends(rehearsed: tuple[Path, Any, Any]) -> None:
    _, study, run = rehearsed
    memory = simulate(study)
    assert run.mean == pytest.approx(memory.mean, abs=1e-5)
    for name, models in memory.models.items():
        for role, model in models.items():
            assert run.models[name][role].params.distance(model.params) < 1e-5
    spent = {n: s["privacy"] for n, s in memory.sites.items()}
    assert {n: s["privacy"] for n, s in run.sites.items()} == spent


def test_it_says_that_it_is_not_private(rehearsed: tuple[Path, Any, Any]) -> None:
    folder, _, run = rehearsed
    assert any("nothing here is private" in e.data.get("text", "") for e in run.events)
    card = (home_of(folder / "run", "site0") / "model" / "card.md").read_text()
    assert "not private" in card


def test_a_journal_can_be_verified_and_an_edited_line_is_named(
    rehearsed: tuple[Path, Any, Any], tmp_path: Path
) -> None:
    home = home_of(rehearsed[0] / "run", "site0")
    assert json.loads(confrere("journal", "verify", home, "--json"))["whole"] is True
    lines = (home / "journal.jsonl").read_text().splitlines()
    edited = tmp_path / "journal.jsonl"
    edited.write_text("\n".join([*lines[:2], lines[2].replace("site0", "site9"), *lines[3:]]) + "\n")
    assert "line 3" in confrere("journal", "verify", edited, code=2)


def test_a_node_that_has_ended_still_has_a_status(rehearsed: tuple[Path, Any, Any]) -> None:
    found = json.loads(confrere("status", home_of(rehearsed[0] / "run", "site0"), "--json"))
    assert (found["doing"], found["round"], found["rounds"]) == ("not running", 3, 3)
    assert found["privacy"]["delta"] == 1e-4
    assert found["peers"]["site1"]["missing_in_rounds"] == []


def test_the_log_holds_nothing_private(rehearsed: tuple[Path, Any, Any]) -> None:
    home = home_of(rehearsed[0] / "run", "site0")
    rows = [json.loads(line) for line in (home / "log.jsonl").read_text().splitlines()]
    assert {"sent", "charged", "round-started"} <= {r["event"] for r in rows}
    assert not {"trained", "evaluated", "fitted"} & {r["event"] for r in rows}
    kinds = {json.loads(line)["kind"] for line in (home / "journal.jsonl").read_text().splitlines()}
    assert {"trained", "evaluated"} <= kinds  # which are in the journal


def test_the_model_predicts_without_the_node(rehearsed: tuple[Path, Any, Any], tmp_path: Path) -> None:
    folder, _, run = rehearsed
    model = home_of(folder / "run", "site0") / "model"
    frame = pd.read_csv(folder / "site0.csv")
    frame.drop(columns="y").to_csv(tmp_path / "new.csv", index=False)
    confrere("predict", model, tmp_path / "new.csv", "-o", tmp_path / "out.csv")
    found = pd.read_csv(tmp_path / "out.csv")
    assert len(found) == len(frame)
    assert (found["prediction"] == frame["y"]).mean() > 0.6
    assert found["probability of yes"].between(0, 1).all()


def test_a_file_that_does_not_fit_is_named_with_line_and_column(
    rehearsed: tuple[Path, Any, Any], tmp_path: Path
) -> None:
    folder, _, _ = rehearsed
    model = home_of(folder / "run", "site0") / "model" / "model.safetensors"
    (tmp_path / "bad.csv").write_text("a,b,c,d\n1,1,1,1\n1,77,1,1\n")
    complaint = confrere("predict", model, tmp_path / "bad.csv", "-o", tmp_path / "out.csv", code=2)
    assert "bad.csv" in complaint
    assert "line 3" in complaint
    assert "column b" in complaint
    (tmp_path / "half.safetensors").write_bytes(model.read_bytes()[:100])
    complaint = confrere("predict", tmp_path / "half.safetensors", tmp_path / "bad.csv", "-o", "x.csv", code=2)
    assert "damaged" in complaint

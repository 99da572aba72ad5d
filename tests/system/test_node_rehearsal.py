"""Real nodes on this machine, over mutual TLS, end where the simulation ends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from confrere.simulation.backends import simulate
from confrere.simulation.rehearsal import rehearse
from confrere.site.site_folder import site_folder_of
from confrere.study import load
from tests.conftest import write_study
from tests.unit.cli.command import Desk

Rehearsed = tuple[Path, Any, Any]

BODY = """
rounds = 3
strategy = "proxyfl"
patience = 600.0
[training]
tune_priors = [0.1]
tune_lengths = [20]
[privacy]
epsilon = 8.0
delta = 1e-4
steps = 2
"""


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Desk:
    return Desk(tmp_path, monkeypatch, capsys)


@pytest.fixture(scope="module")
def rehearsed(tmp_path_factory: pytest.TempPathFactory) -> Rehearsed:
    """One rehearsal, looked at by all tests of this file."""
    folder = tmp_path_factory.mktemp("rehearsal")
    study = load(write_study(folder, BODY, sites=2, records=80))
    return folder, study, rehearse(study, out=folder / "run")


def test_a_rehearsal_ends_where_the_simulation_ends(rehearsed: Rehearsed) -> None:
    _, study, run = rehearsed
    memory = simulate(study)
    assert run.mean == pytest.approx(memory.mean, abs=1e-5)
    for name, models in memory.models.items():
        for role, model in models.items():
            assert run.models[name][role].params.distance(model.params) < 1e-5
    spent = {n: s.privacy for n, s in memory.sites.items()}
    assert {n: s.privacy for n, s in run.sites.items()} == spent


@pytest.mark.slow
@pytest.mark.parametrize(
    "strategy", ["afl", "coln", "fedma", "pfnm", "personal", "swarm", "weight_erosion"]
)  # fmt: skip
def test_every_strategy_ends_where_the_simulation_ends_and_predicts(
    strategy: str, tmp_path: Path, desk: Desk
) -> None:
    body = BODY.replace("rounds = 3", "rounds = 4").replace("proxyfl", strategy)
    body += '[models]\nproxy = { name = "mlp", hidden = [5] }\n'
    study = load(write_study(tmp_path, body, sites=3, records=80))
    run, memory = rehearse(study, out=tmp_path / "run"), simulate(study)
    assert run.mean == pytest.approx(memory.mean, abs=1e-5)
    model = site_folder_of(tmp_path / "run", "site0") / "model"
    desk.confrere("predict", model, tmp_path / "site0.csv", "-o", tmp_path / "said.csv")
    assert len(pd.read_csv(tmp_path / "said.csv")) == 80


def test_it_says_that_it_is_not_private(rehearsed: Rehearsed) -> None:
    folder, _, run = rehearsed
    assert any("not private" in e.data.get("text", "") for e in run.events)
    card = (site_folder_of(folder / "run", "site0") / "model" / "card.md").read_text()
    assert "not private" in card


def test_a_journal_can_be_verified_and_an_edited_line_is_named(
    rehearsed: Rehearsed, tmp_path: Path, desk: Desk
) -> None:
    home = site_folder_of(rehearsed[0] / "run", "site0")
    assert desk.confrere("journal", "verify", home, "--json").json["whole"] is True
    lines = (home / "journal.jsonl").read_text().splitlines()
    edited = tmp_path / "journal.jsonl"
    edited.write_text("\n".join([*lines[:2], lines[2].replace("site0", "site9"), *lines[3:]]) + "\n")
    assert "line 3" in desk.refused("journal", "verify", edited)


def test_a_node_that_has_ended_still_has_a_status(rehearsed: Rehearsed, desk: Desk) -> None:
    home = site_folder_of(rehearsed[0] / "run", "site0")
    found = desk.confrere("status", home, "--json").json
    assert (found["doing"], found["round"], found["rounds"]) == ("not running", 3, 3)
    assert found["privacy"]["delta"] == 1e-4
    assert found["peers"]["site1"]["missing_in_rounds"] == []
    assert found["peers"]["site1"]["last_contact"] > 0
    assert found["bytes"]["in_parcels"] > 0
    assert 0 <= found["quality_private"]["accuracy"] <= 1
    said = desk.confrere("status", home).out
    assert "Rounds done: 3 of 3" in said
    assert "δ = 1e-4, per record, accountant pld" in said


def test_the_log_holds_nothing_private(rehearsed: Rehearsed) -> None:
    home = site_folder_of(rehearsed[0] / "run", "site0")
    rows = [json.loads(line) for line in (home / "log.jsonl").read_text().splitlines()]
    assert {"sent", "charged", "round-started"} <= {r["event"] for r in rows}
    assert not {"trained", "evaluated", "fitted"} & {r["event"] for r in rows}
    kinds = {json.loads(line)["kind"] for line in (home / "journal.jsonl").read_text().splitlines()}
    assert {"trained", "evaluated"} <= kinds  # which are in the journal


def test_the_model_predicts_without_the_node(rehearsed: Rehearsed, tmp_path: Path, desk: Desk) -> None:
    folder, _, _ = rehearsed
    model = site_folder_of(folder / "run", "site0") / "model"
    frame = pd.read_csv(folder / "site0.csv")
    frame.drop(columns="y").to_csv(tmp_path / "new.csv", index=False)
    assert desk.confrere("predict", model, "new.csv", "-o", "out.csv").code == 0
    found = pd.read_csv(tmp_path / "out.csv")
    assert len(found) == len(frame)
    assert (found["prediction"] == frame["y"]).mean() > 0.6
    assert found["probability of yes"].between(0, 1).all()


def test_a_file_that_does_not_fit_is_named_with_line_and_column(
    rehearsed: Rehearsed, tmp_path: Path, desk: Desk
) -> None:
    model = site_folder_of(rehearsed[0] / "run", "site0") / "model" / "model.safetensors"
    (tmp_path / "bad.csv").write_text("a,b,c,d\n1,1,1,1\n1,77,1,1\n")
    complaint = desk.refused("predict", model, "bad.csv", "-o", "out.csv")
    assert "bad.csv" in complaint
    assert "line 3" in complaint
    assert "column b" in complaint
    (tmp_path / "half.safetensors").write_bytes(model.read_bytes()[:100])
    complaint = desk.refused("predict", "half.safetensors", "bad.csv", "-o", "x.csv")
    assert "damaged" in complaint


SPENT = """
rounds = 25
strategy = "fedavg"
patience = 600.0
[training]
tune = false
[privacy]
epsilon = 3.0
delta = 1e-4
noise_multiplier = 2.0
steps = 1
[stop]
budget = true
"""


@pytest.mark.slow
def test_nodes_stop_when_every_budget_is_spent_where_the_simulation_does(tmp_path: Path) -> None:
    study = load(write_study(tmp_path, SPENT, sites=2, records=80))
    memory = simulate(study)
    assert 1 < memory.result.stopped.rounds < 25
    run = rehearse(study, out=tmp_path / "run")
    said = [e.data for e in run.events if e.kind == "notice" and e.data.get("stopped")]
    assert {s["stopped"] for s in said} == {memory.result.stopped.rounds}
    assert all("budget is spent" in s["text"] for s in said)
    assert all(s.privacy.epsilon <= 3.0 for s in run.sites.values())


@pytest.mark.slow
def test_nodes_stop_when_the_time_is_up(tmp_path: Path) -> None:
    timed = SPENT.replace("budget = true", "hours = 1e-9")
    study = load(write_study(tmp_path, timed, sites=2, records=80))
    run = rehearse(study, out=tmp_path / "run")
    said = [e.data for e in run.events if e.kind == "notice" and e.data.get("stopped")]
    assert {s["stopped"] < 25 and "1e-09 hours are over" in s["text"] for s in said} == {True}

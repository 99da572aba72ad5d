"""What a site takes home from a simulation: its model with a card, and its own journal."""

from __future__ import annotations

import stat
from pathlib import Path

import pandas as pd
import pytest
import torch
from torch import nn

from confrere.core.errors import CheckpointError
from confrere.core.events import verified
from confrere.simulation import finished_run
from confrere.simulation.backends import simulate
from confrere.simulation.finished_run import write_journal
from confrere.site.saved_model import SavedModel, predictions
from confrere.site.site_folder import site_folder_of
from confrere.study import Evaluation, Models, load
from confrere.study.churn import Churn
from tests.conftest import arrays, write_study
from tests.unit.quick import quick

STUDY = 'rounds = 2\nstrategy = "{}"\n[training]\ntune_priors = [1.0]\n'


@pytest.mark.parametrize("strategy", ["proxyfl", "pooled"])
def test_the_model_of_a_simulated_site_predicts_records_of_a_file(strategy: str, tmp_path: Path) -> None:
    study = load(write_study(tmp_path, STUDY.format(strategy), sites=2, records=80))
    run = simulate(study, out=tmp_path / "run")
    for site in ("site0", "site1"):
        model = SavedModel(site_folder_of(tmp_path / "run", site) / "model")
        network, used = model.parts[0][1], run.models[site][study.build_strategy().deploys[0]]
        assert all(torch.equal(t, used.params[n]) for n, t in network.module.state_dict().items())
        records = tmp_path / f"{site}.csv"
        assert len(predictions(model, records)) == len(pd.read_csv(records))


def test_the_journal_of_a_node_is_never_replaced(tmp_path: Path) -> None:
    journal = tmp_path / "journal.jsonl"
    journal.write_text("what a node has written\n", encoding="utf-8")
    (tmp_path / "node.sqlite").touch()
    with pytest.raises(CheckpointError, match="belongs to a node"):
        write_journal(journal, [])
    assert journal.read_text(encoding="utf-8") == "what a node has written\n"


def test_what_a_site_takes_home_is_for_its_owner_only(tmp_path: Path) -> None:
    simulate(quick(), arrays(2, 60), out=tmp_path / "run")
    home = site_folder_of(tmp_path / "run", "site0")
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    files = [p for p in home.rglob("*") if p.is_file()]
    assert len(files) == 4
    assert {stat.S_IMODE(p.stat().st_mode) for p in files} == {0o600}


def test_the_journal_of_a_site_holds_its_own_events_and_is_whole(tmp_path: Path) -> None:
    run = simulate(quick(), arrays(2, 60), out=tmp_path / "run")
    events = [e for e, _ in verified(site_folder_of(tmp_path / "run", "site1") / "journal.jsonl")]
    assert events[0].kind == "run-started"
    assert set(events[0].data["sites"]) == {"site1"}
    kinds = [e.kind for e in run.events if e.site == "site1" or e.kind == "round-started"]
    assert [e.kind for e in events[1:]] == kinds
    assert {e.site for e in events} == {"site1"}


def test_a_card_states_the_metrics_of_the_last_evaluation(tmp_path: Path) -> None:
    run = simulate(quick("local"), arrays(2, 60), out=tmp_path / "run")
    card = (site_folder_of(tmp_path / "run", "site0") / "model" / "card.md").read_text(encoding="utf-8")
    last = [e for e in run.events if e.kind == "evaluated" and e.site == "site0"][-1]
    (metrics,) = [last.data["test"][role] for role in quick("local").build_strategy().deploys[:1]]
    assert f"accuracy: {metrics['accuracy']:.4g}" in card
    assert "not private" in card


def test_a_run_of_many_sites_writes_no_folders_for_single_sites_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finished_run, "MOST", 2)
    run = simulate(quick(), arrays(3, 60), out=tmp_path / "run")
    assert not (tmp_path / "run" / "sites").exists()
    assert any("no folders of single sites" in e.data["text"] for e in run.events if e.kind == "notice")


def test_networks_given_as_functions_leave_a_journal_and_no_model(tmp_path: Path) -> None:
    own = Models(private=lambda: nn.Linear(4, 1), proxy="linear")
    simulate(quick(models=own), arrays(2, 60), out=tmp_path / "run")
    assert [p.name for p in site_folder_of(tmp_path / "run", "site0").iterdir()] == ["journal.jsonl"]


def test_a_site_that_leaves_is_evaluated_after_its_last_round_and_not_again() -> None:
    study = quick(rounds=4, evaluation=Evaluation(every=3), churn=Churn(leave={"site0": 2}))
    run = simulate(study, arrays(3, 60))
    rounds = {s: [e.round for e in run.events if (e.kind, e.site) == ("evaluated", s)] for s in run.sites}
    after = [4] if study.training.tune else []
    assert rounds == {"site0": [1, *after], "site1": [2, 3, *after], "site2": [2, 3, *after]}

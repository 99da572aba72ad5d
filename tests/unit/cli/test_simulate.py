"""`confrere simulate`: the same command twice says the same, machines read JSON, a run folder holds everything."""

from __future__ import annotations

import json
import math
import tomllib
from pathlib import Path

import pytest

from confrere.core.metrics import metrics_of
from tests.unit.cli.command import PRIVATE, QUICK, Desk

QUICKSTART = Path(__file__).parents[3] / "studies" / "quickstart.toml"
METRICS = {m.name for m in metrics_of("classes")}


def test_the_quickstart_prints_the_same_results_twice(desk: Desk) -> None:
    less = ["--set", "rounds=2", "--set", "training.tune=false", "--json"]
    first, second = (desk.confrere("simulate", QUICKSTART, *less).json for _ in range(2))
    assert first["sites"] == second["sites"]
    assert first["mean"] == second["mean"]
    assert first["run"] != second["run"]
    assert len(first["sites"]) == 5
    other = desk.confrere("simulate", QUICKSTART, *less, "--seed", 1).json
    assert other["mean"] != first["mean"]
    assert (first["seed"], other["seed"]) == (0, 1)


@pytest.mark.slow
def test_the_quickstart_as_it_is_prints_the_same_results_twice(desk: Desk) -> None:
    first, second = (desk.confrere("simulate", QUICKSTART, "--json").json for _ in range(2))
    assert (first["sites"], first["mean"]) == (second["sites"], second["mean"])


def test_json_has_the_keys_that_machines_rely_on(desk: Desk) -> None:
    body = 'rounds = 2\nstrategy = { name = "fml", alpha = 0.5 }\n[training]\ntune = false\n' + PRIVATE
    answer = desk.confrere("simulate", desk.study(body), "--json", "--out", "run")
    found = answer.json
    assert answer.code == 0
    assert set(found) >= {"run", "study", "seed", "sites", "mean"}
    assert found["run"] == "run"
    assert set(found["sites"]) == {"site0", "site1", "site2"}
    for site in found["sites"].values():
        assert set(site) >= {"records", "metrics", "proxy_metrics", "privacy", "bytes_sent"}
        assert set(site["metrics"]) == set(site["proxy_metrics"]) == METRICS
        assert set(site["privacy"]) >= {"epsilon", "delta", "proven", "unit"}
        assert 0 < site["privacy"]["epsilon"] <= 8.0
        assert site["privacy"]["proven"] is True
        assert site["bytes_sent"] > 0
    for metric in METRICS:
        values = [s["metrics"][metric] for s in found["sites"].values()]
        assert found["mean"][metric] == pytest.approx(math.fsum(values) / 3)


def test_without_privacy_no_privacy_is_claimed(desk: Desk) -> None:
    found = desk.confrere("simulate", desk.study(), "--json").json
    assert [s["privacy"] for s in found["sites"].values()] == [None] * 3


def test_people_get_a_table_and_the_way_to_the_report(desk: Desk) -> None:
    answer = desk.confrere("simulate", desk.study(), "--out", "run")
    assert answer.code == 0
    for word in ("site0", "site1", "site2", "run"):
        assert word in answer.out
    assert "confrere report run" in answer.out


def test_a_run_goes_to_a_folder_of_its_own_with_all_that_it_takes_to_repeat_it(desk: Desk) -> None:
    desk.confrere(
        "simulate", desk.study('name = "mine"\n' + QUICK), "--set", "training.epochs=2", "--seed", 7
    )
    (run,) = (desk.folder / "runs").iterdir()
    assert run.name.startswith("mine-")
    facts = json.loads((run / "run.json").read_text(encoding="utf-8"))
    assert (facts["seed"], facts["command"][:17]) == (7, "confrere simulate")
    assert {"confrere", "python", "torch"} <= set(facts["versions"])
    assert facts["hardware"]["cores"] >= 1
    assert (run / "journal.jsonl").exists()
    result = json.loads((run / "result.json").read_text(encoding="utf-8"))
    again = desk.confrere("simulate", run / "study.toml", "--json", "--out", "again").json
    assert (again["sites"], again["mean"], again["study"]) == (
        result["sites"],
        result["mean"],
        result["study"],
    )


def test_set_changes_one_key_and_leaves_the_others(desk: Desk) -> None:
    path = desk.study('rounds = 2\nstrategy = "fedprox"\n')
    changes = ["--set", "strategy.pull=0.5", "--set", "training.epochs=3", "--set", 'topology="star"']
    desk.confrere("simulate", path, *changes, "--out", "run")
    written = tomllib.loads((desk.folder / "run" / "study.toml").read_text(encoding="utf-8"))
    assert written["strategy"] == {"name": "fedprox", "pull": 0.5}
    assert (written["training"]["epochs"], written["topology"], written["rounds"]) == (3, "star", 2)


def test_the_order_of_sites_in_the_file_makes_no_difference(desk: Desk) -> None:
    path = desk.study('rounds = 2\nstrategy = { name = "avgpush", mass = "size" }\n' + PRIVATE)
    text = path.read_text(encoding="utf-8")
    head, *sites = text.split("[sites.")
    turned = desk.folder / "turned.toml"
    turned.write_text(head + "".join("[sites." + s for s in reversed(sites)), encoding="utf-8")
    one, two = (desk.confrere("simulate", p, "--set", "name=x", "--json").json for p in (path, turned))
    assert list(one["sites"]) == list(two["sites"]) == ["site0", "site1", "site2"]
    assert (one["sites"], one["mean"], one["study"]) == (two["sites"], two["mean"], two["study"])


def test_resume_ends_like_the_whole_run(desk: Desk) -> None:
    path = desk.study('rounds = 3\nstrategy = "avgpush"\n' + PRIVATE)
    whole = desk.confrere("simulate", path, "--out", "whole", "--json").json
    desk.confrere("simulate", path, "--out", "part")
    part = desk.folder / "part"
    (part / "result.json").unlink()
    max((part / "checkpoints").iterdir()).unlink()
    again = desk.confrere("simulate", "--resume", "part", "--json").json
    assert (again["sites"], again["mean"]) == (whole["sites"], whole["mean"])
    assert json.loads((part / "result.json").read_text(encoding="utf-8"))["mean"] == whole["mean"]

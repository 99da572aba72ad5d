"""Results in the terminal fit it, name every site, and carry their spread."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from federation import THYROID, write_comparison, write_run
from rich.console import Console, RenderableType

from confrere.core.results import ComparisonResult, RunResult
from confrere.report.result_tables import comparison_table, run_table
from confrere.report.results_folder import read_comparison


def printed(table: RenderableType, width: int) -> str:
    out = StringIO()
    Console(file=out, width=width).print(table)
    return out.getvalue()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tables") / "thyroid"


@pytest.fixture(scope="module")
def document(folder: Path) -> dict[str, Any]:
    return write_comparison(folder, rounds=4, primary="log_loss")


@pytest.mark.parametrize("width", [80, 100, 140, 200])
def test_a_comparison_fits_the_terminal(document: dict[str, Any], width: int) -> None:
    text = printed(comparison_table(ComparisonResult.from_json(document)), width)
    assert max(map(len, text.splitlines())) <= width
    assert all(site in text for site in THYROID)
    assert "no clear difference" in text
    assert "…" not in text


@pytest.mark.parametrize("width", [80, 140])
def test_a_site_shows_records_both_ways_a_word_and_its_bytes(document: dict[str, Any], width: int) -> None:
    text = printed(comparison_table(ComparisonResult.from_json(document)), width)
    alone = document["strategies"]["local"]["sites"]["SVHD"]["metrics"]["auc"]
    assert f"{alone['mean']:.3f} ± {alone['std']:.3f}" in text
    for word in (
        "AUC",
        "accuracy",
        "log loss",
        "Alone",
        "Together",
        "worse",
        "better",
        "5\u2009493",
        "137 KB",
    ):
        assert word in text


def with_patients(document: dict[str, Any]) -> Any:
    """A copy of the document in which every site was tested on 71 patients, 19 of them ill."""
    stated = json.loads(json.dumps(document))
    tested = {"patients": 71, "rarer": 19, "rarer_class": "ill", "positive": 19, "positive_class": "ill"}
    for row in stated["strategies"]["local"]["sites"].values():
        row["tested"] = tested
    return stated


@pytest.mark.parametrize("width", [80, 200])
def test_the_patients_behind_the_figures_are_counted(document: dict[str, Any], width: int) -> None:
    stated = with_patients(document)
    text = printed(comparison_table(ComparisonResult.from_json(stated)), width)
    assert "rec." not in text
    assert text.count("71 patients,") == len(THYROID)
    assert text.count("19 ill") == len(THYROID)
    assert "the means rest on 355 patients, 95 of them «ill»." in " ".join(text.split())
    few = {"patients": 34, "rarer": 3, "rarer_class": "well", "positive": 31, "positive_class": "ill"}
    stated["strategies"]["local"]["sites"]["SVHD"]["tested"] = few
    text = printed(comparison_table(ComparisonResult.from_json(stated)), width)
    assert "31 ill," in text
    assert "3 well" in text


@pytest.mark.parametrize("width", [80, 200])
def test_the_patients_behind_the_means_of_groups_are_counted(document: dict[str, Any], width: int) -> None:
    stated = with_patients(document)
    sites = list(THYROID)
    groups = {"complete": sites[:2], "lacking": sites[2:]}
    for strategy in stated["strategies"].values():
        strategy["by_columns"] = {k: {"sites": v, "mean": {"log_loss": 0.3}} for k, v in groups.items()}
    text = " ".join(printed(comparison_table(ComparisonResult.from_json(stated)), width).split())
    for count in (
        "142 patients, 38 of",
        "213 patients, 57 of",
    ):  # beside each other, broken into lines at 80 columns
        assert count in text


def test_the_number_of_words_that_the_correction_covers_is_stated(document: dict[str, Any]) -> None:
    comparison = ComparisonResult.from_json(document)
    text = " ".join(printed(comparison_table(comparison), 200).split())
    stated = sum(
        gains[comparison.headline].word is not None
        for s in comparison.strategies.values()
        for gains in (s.gains, *(site.gains for site in s.sites.values()))
        if comparison.headline in gains
    )
    assert stated >= len(THYROID)
    assert f"corrected for {stated} words." in text


def test_the_primary_metric_leads(document: dict[str, Any], tmp_path: Path) -> None:
    table = printed(comparison_table(ComparisonResult.from_json(document)), 200)
    first = next(line for line in table.splitlines() if line.startswith("SVHD"))
    assert "log loss" in first
    assert "better" in first
    finals = {s: {"auc": 0.9, "log_loss": 0.3} for s in THYROID}
    result = RunResult.from_json(write_run(tmp_path / "run", "local", 0, THYROID, 2, finals))
    assert printed(run_table(result), 100).split()[:5] == ["Site", "Records", "Log", "loss", "AUC"]


def test_the_budget_is_told_where_the_journals_are(document: dict[str, Any], folder: Path) -> None:
    said = "Privacy spent at every site: 3.0 of 3.0 (ε, δ = 1e-5, per record, accountant pld)"
    assert said in printed(comparison_table(read_comparison(folder)), 140)
    assert "3.0 (ε, δ = 1e-5, per record)" in printed(
        comparison_table(ComparisonResult.from_json(document)), 140
    )


def test_one_seed_gives_no_verdict(tmp_path: Path) -> None:
    text = printed(
        comparison_table(
            ComparisonResult.from_json(write_comparison(tmp_path, seeds=1, rounds=2, question=""))
        ),
        80,
    )
    assert "One seed, so no spread and no verdict" in text
    assert "±" not in text
    assert "better" not in text


def test_a_run_fits_80_columns_and_says_that_it_has_no_spread(tmp_path: Path) -> None:
    finals = {s: {"accuracy": 0.8, "macro_accuracy": 0.7, "log_loss": 0.4, "auc": 0.9} for s in THYROID}
    result = write_run(tmp_path, "proxyfl", 0, THYROID, 3, finals)
    text = printed(run_table(RunResult.from_json(result)), 80)
    assert max(map(len, text.splitlines())) <= 80
    assert "mean over sites" in text
    assert "3.0 of 3.0 (ε, δ = 1e-5, per record, accountant pld)" in " ".join(text.split())
    assert "One seed, so no spread" in text


def test_the_epsilon_of_a_rehearsal_is_labelled_not_private(tmp_path: Path) -> None:
    finals = {s: {"auc": 0.9} for s in THYROID}
    text = printed(run_table(RunResult.from_json(write_run(tmp_path, "proxyfl", 0, THYROID, 3, finals))), 140)
    assert "3.0 of 3.0 (ε" in text
    assert "Not private: this is a rehearsal" in text
    alone = printed(
        run_table(
            RunResult.from_json(write_run(tmp_path / "alone", "local", 0, {"A": 10}, 2, {"A": {"auc": 0.9}}))
        ),
        80,
    )
    assert "rehearsal" not in alone  # there is no ε


def test_training_alone_spends_nothing_because_nothing_leaves(tmp_path: Path) -> None:
    result = write_run(tmp_path, "local", 0, {"A": 10}, 2, {"A": {"auc": 0.9}})
    assert "nothing left the site" in printed(run_table(RunResult.from_json(result)), 80)


def test_names_are_shown_as_they_are(tmp_path: Path) -> None:
    result = write_run(tmp_path, "local", 0, {"[bold]A[/]": 10}, 2, {"[bold]A[/]": {"auc": 0.9}})
    assert "[bold]A[/]" in printed(run_table(RunResult.from_json(result)), 80)


def test_the_means_name_the_sites_that_they_lack_or_that_prevent_a_word(tmp_path: Path) -> None:
    """One test patient has no AUC, and no variance: the mean AUC is over fewer sites, and no mean is judged."""
    write_comparison(tmp_path, rounds=2)
    path = tmp_path / "comparison.json"
    document = json.loads(path.read_text(encoding="utf-8"))
    name = next(iter(document["strategies"]["local"]["sites"]))
    for way in ("local", "proxyfl"):
        site = document["strategies"][way]["sites"][name]
        site["metrics"].pop("auc")
        site["tested"] = {"patients": 5, "rarer": 2, "single": True}
    said = " ".join(printed(comparison_table(ComparisonResult.from_json(document)), 140).split())
    total = len(document["strategies"]["local"]["sites"])
    assert f"AUC: mean of {total - 1} of {total} sites." in said
    assert f"A mean that includes {name} is not judged: a test set there holds one patient only." in said

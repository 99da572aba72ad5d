"""What the report and the tables say where privacy bought nothing, and on common test records."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

from federation import write_comparison
from rich.console import Console
from test_page import words_of

from confrere.core.results import ComparisonResult
from confrere.report.page import write_report
from confrere.report.result_tables import comparison_table, studies_table


def changed(folder: Path, **gains: tuple[float, float, float]) -> dict[str, Any]:
    """A comparison whose mean gains, with their intervals, are these; the primary metric has words."""
    write_comparison(folder, rounds=2)
    path = folder / "comparison.json"
    document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    for metric, (mean, low, high) in gains.items():
        entry = document["strategies"]["proxyfl"]
        values = [mean] * len(document["seeds"])
        stated = {"mean": mean, "std": 0.0, "values": values, "interval": [low, high]}
        if metric == document["primary"]:
            stated["word"] = "better" if low > 0 else "worse" if high < 0 else "no clear difference"
        entry.setdefault("gain_over_alone", {})[metric] = stated
        for site in entry["sites"].values():
            site.setdefault("gain", {})[metric] = stated
        for name, shown in (("local", 0.7), ("proxyfl", 0.7 + mean)):
            group = document["strategies"][name].setdefault(
                "common", {"mean": {}, "gain_over_alone": {}, "sites": {}}
            )
            group["mean"][metric] = {"mean": shown, "std": 0.0, "values": [shown] * len(values)}
            if name == "proxyfl":
                group["gain_over_alone"][metric] = stated
    path.write_text(json.dumps(document), encoding="utf-8")
    return document


def printed(what: Any) -> str:
    console = Console(width=160, record=True, file=io.StringIO())
    console.print(what)
    return " ".join(console.export_text().split())


def test_where_a_gain_is_excluded_the_report_says_that_it_is_not_worth_its_privacy(tmp_path: Path) -> None:
    document = changed(tmp_path, auc=(-0.004, -0.01, 0.0004), log_loss=(0.0, -0.002, 0.002))
    said = "Collaboration is not worth its privacy here"
    assert said in words_of(write_report(tmp_path))
    assert said in printed(comparison_table(ComparisonResult.from_json(document)))
    assert said in printed(studies_table({"thyroid": ComparisonResult.from_json(document)}))


def test_where_the_interval_is_merely_wide_it_says_no_such_thing(tmp_path: Path) -> None:
    document = changed(tmp_path, auc=(0.001, -0.01, 0.012), log_loss=(0.0, -0.002, 0.002))
    said = "not worth its privacy"
    assert said not in words_of(write_report(tmp_path))
    assert said not in printed(comparison_table(ComparisonResult.from_json(document)))
    assert said not in printed(studies_table({"thyroid": ComparisonResult.from_json(document)}))


def test_where_the_primary_measure_is_clearly_better_it_does_not(tmp_path: Path) -> None:
    document = changed(tmp_path, auc=(0.01, 0.002, 0.02), log_loss=(0.0, -0.002, 0.002))
    assert "not worth its privacy" not in words_of(write_report(tmp_path))
    assert "not worth its privacy" not in printed(comparison_table(ComparisonResult.from_json(document)))


def test_another_measure_does_not_decide(tmp_path: Path) -> None:
    document = changed(tmp_path, auc=(-0.004, -0.01, 0.0004), log_loss=(0.01, 0.002, 0.02))
    assert "not worth its privacy" in printed(comparison_table(ComparisonResult.from_json(document)))


def test_common_test_records_have_a_table_of_their_own(tmp_path: Path) -> None:
    document = changed(tmp_path, accuracy=(0.05, 0.03, 0.07), auc=(0.02, 0.01, 0.03))
    page = words_of(write_report(tmp_path))
    assert "On common test records" in page
    assert "+5.0 points (95 % interval +3.0 to +7.0)" in page
    assert "On the common test records, mean accuracy over sites" in printed(
        comparison_table(ComparisonResult.from_json(document))
    )
    assert "accuracy, common" in printed(studies_table({"fashion": ComparisonResult.from_json(document)}))

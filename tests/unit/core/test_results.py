"""Results are types; the JSON documents are written from them and read back."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest

import confrere
from confrere.core.errors import Retired
from confrere.core.results import ComparisonResult, Measured, Metrics, PrivacySpent, RunResult, SiteResult
from tests.conftest import arrays
from tests.unit.quick import quick

SPENT = PrivacySpent(1.5, 1e-5, "record", True, "pld", 3.0, {"record": 1.5, "patient": None}, 10.0, False)


def test_a_metric_is_an_attribute_and_an_unknown_one_names_what_was_measured() -> None:
    metrics = Metrics({"auc": 0.8, "log_loss": 0.4})
    assert metrics.auc == metrics["auc"] == 0.8
    assert metrics == {"auc": 0.8, "log_loss": 0.4}
    with pytest.raises(AttributeError, match='"rmse" was not measured; there are: auc, log_loss'):
        _ = metrics.rmse
    assert "auc" in dir(metrics)


def test_a_result_cannot_be_changed_by_accident() -> None:
    with pytest.raises(FrozenInstanceError):
        SPENT.epsilon = 0.1  # type: ignore[misc]


@pytest.mark.parametrize(
    "read",
    [
        lambda site: site["metrics"]["auc"] == 0.8,
        lambda site: site.get("attacker", False) is False,
        lambda site: "privacy" in site,
        lambda site: {**site}["privacy"]["epsilon"] == 1.5,
    ],
)
def test_the_keys_of_0_1_still_work_and_warn(read: Callable[[SiteResult[float]], bool]) -> None:
    site = SiteResult("Ouest", 60, Metrics({"auc": 0.8}), privacy=SPENT, bytes_sent=10)
    with pytest.warns(Retired, match="read its attributes") as caught:
        assert read(site)
    assert {Path(w.filename).name for w in caught} == {"test_results.py"}


def test_privacy_is_read_back_as_it_was_written() -> None:
    assert PrivacySpent.from_json(json.loads(json.dumps(SPENT.as_json()))) == SPENT
    assert SPENT.others == (("patient", None),)
    assert SPENT.exceeded_ceiling is None
    assert PrivacySpent.from_json(None) is None
    older = {"epsilon": 2.0, "delta": 1e-5, "proven": True, "unit": "record"}
    assert PrivacySpent.from_json(older) == PrivacySpent(2.0, 1e-5, "record", True)


def test_what_was_not_measured_has_no_mean_and_is_left_out_when_read() -> None:
    assert Measured.from_json({"mean": None, "std": None, "values": []}) is None
    assert Measured.from_json(0.5) == Measured(0.5, None, (0.5,))
    assert Measured.from_json(float("nan")) is None


def test_a_run_and_its_document_say_the_same(tmp_path: Path) -> None:
    run = confrere.simulate(quick("proxyfl"), arrays(), out=tmp_path / "run")
    document = json.loads((tmp_path / "run" / "result.json").read_text(encoding="utf-8"))
    assert document == json.loads(json.dumps(run.result.as_json()))
    assert RunResult.from_json(document) == run.result
    assert set(document) >= {"run", "study", "seed", "sites", "mean"}
    site = document["sites"]["site0"]
    assert set(site) >= {"records", "metrics", "proxy_metrics", "privacy", "bytes_sent"}
    assert set(site["privacy"]) >= {"epsilon", "delta", "proven", "unit"}
    assert run.sites["site0"].metrics.accuracy == site["metrics"]["accuracy"]


def test_a_comparison_and_its_document_say_the_same(tmp_path: Path) -> None:
    found = confrere.compare(quick(), ["fedavg"], [0, 1], arrays(), out=tmp_path / "c", pooled=True)
    document = json.loads((tmp_path / "c" / "comparison.json").read_text(encoding="utf-8"))
    assert document == json.loads(json.dumps(found.result.as_json()))
    assert ComparisonResult.from_json(document).as_json() == document
    fedavg = document["strategies"]["fedavg"]
    assert set(fedavg) >= {"mean", "gain_over_alone", "sites", "privacy", "seconds"}
    assert set(fedavg["gain_over_alone"]["accuracy"]) >= {"mean", "std", "worst_site"}
    assert found.strategies["fedavg"].gains.accuracy.mean == fedavg["gain_over_alone"]["accuracy"]["mean"]
    assert found.result.gap["accuracy"].as_json() == document["gap"]["accuracy"]

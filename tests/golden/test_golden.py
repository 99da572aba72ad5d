"""What users get from six small studies stays as it was recorded; `record.py` records an intended change."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from confrere.core.metrics import METRICS, metric
from tests.golden.golden import (
    RUNTIMES,
    STUDIES,
    changed,
    described,
    differences,
    document,
    of_new_metric,
    recording,
    run_study,
    spelled,
    write_study,
)
from tests.unit.cli.command import Desk

EACH = pytest.mark.parametrize("study", STUDIES)
ANEW = "if this is intended: python -m tests.golden.record"


def recorded(study: str) -> dict[str, Any]:
    return dict(json.loads(recording(study).read_text(encoding="utf-8")))


@EACH
@pytest.mark.parametrize("runtime", RUNTIMES)
def test_models_events_files_and_results_are_as_recorded(study: str, runtime: str, tmp_path: Path) -> None:
    found = described(run_study(study, runtime, tmp_path))
    assert differences(recorded(study), runtime, found) == [], ANEW


@EACH
def test_the_command_prints_the_recorded_document(
    study: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    desk = Desk(tmp_path, monkeypatch, capsys)
    said = desk.confrere("simulate", write_study(study, tmp_path), "--json", "--out", "run").json
    found = changed(recorded(study)["json"], document(said))
    assert {path: value for path, value in found.items() if not of_new_metric(path)} == {}, ANEW


def altered(value: Any) -> Iterator[Any]:
    """Copies of a document, each with one value changed or left out."""
    if not isinstance(value, dict | list):
        yield value + 0.001 if isinstance(value, float) else f"not {value}"
        return
    for key in value if isinstance(value, dict) else range(len(value)):
        for other in altered(value[key]):
            copy = value.copy()
            copy[key] = other
            yield copy
        copy = value.copy()
        del copy[key]
        yield copy


def test_any_change_of_models_events_files_or_results_would_be_noticed() -> None:
    saved = recorded("proxyfl")
    found = {k: v for k, v in saved.items() if k not in RUNTIMES}
    assert differences(saved, "memory", found) == []
    for other in altered(found):
        assert differences(saved, "memory", other) != []


def test_recordings_are_small_and_spelled_alike() -> None:
    texts = [recording(study).read_text(encoding="utf-8") for study in STUDIES]
    assert sum(map(len, texts)) < 80_000
    for text in texts:
        assert spelled(json.loads(text)) + "\n" == text


def test_a_new_metric_needs_no_new_recording() -> None:
    saved = recorded("proxyfl")
    found = {k: v for k, v in saved.items() if k not in RUNTIMES}
    found["json"] = {**found["json"], "mean": {**found["json"]["mean"], "my_score": 0.5}}
    assert differences(saved, "memory", found) != []
    metric("my_score", label="my score", meaning="…", forms=("classes",))(
        lambda p, weights: np.ones(len(weights))
    )
    try:
        assert differences(saved, "memory", found) == []
    finally:
        METRICS.remove("my_score")
    found["json"]["mean"]["rmse"] = 0.5  # recorded elsewhere
    assert differences(saved, "memory", found) != []

"""What people call the arms of a comparison."""

from __future__ import annotations

import pytest

from confrere.core.registry import strategies
from confrere.core.results import ComparisonResult
from confrere.evaluate.compare import compare, label
from confrere.study import Study
from tests.conftest import arrays


@pytest.mark.parametrize(
    ("name", "strategy", "text"),
    [
        ("local", "local", "Alone"),
        ("local-dp", "local", "Alone, with noise"),
        ("proxyfl-small+signflip", "proxyfl", "ProxyFL (small), under signflip"),
        ("careful", "proxyfl", "careful"),
        ("careful+signflip", "proxyfl", "careful, under signflip"),
        ("personal", "personal", "personal"),
    ],
)
def test_an_arm_that_is_named_after_its_strategy_has_its_label(name: str, strategy: str, text: str) -> None:
    assert label(name, Study(strategy=strategy)) == text


def test_a_label_travels_from_the_strategy_to_the_report(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strategies["fedavg"], "label", "The mean of all")
    found = compare(Study(rounds=1), ["fedavg"], seeds=[0], sites=arrays(2, 60))
    assert found.strategies["fedavg"].label == "The mean of all"
    started = next(e for e in found.runs["fedavg"][0].events if e.kind == "run-started")
    assert (started.data["strategy"], started.data["label"]) == ("fedavg", "The mean of all")


def test_a_document_without_labels_shows_names() -> None:
    assert (
        ComparisonResult.from_json({"strategies": {"proxyfl": {}}}).strategies["proxyfl"].label == "proxyfl"
    )

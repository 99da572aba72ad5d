"""What a run came to is read off its journal: the best round on validation records, and nothing counted twice."""

from __future__ import annotations

from typing import Any

import pytest

from confrere.core.events import Event
from confrere.site.journal_results import current, mean_metrics, site_results


def evaluated(round: int, validation: float | None, test: float, site: str = "a") -> Event:
    held_out = None if validation is None else {"model": {"log_loss": validation}}
    return Event(
        "evaluated", site, round, data={"validation": held_out, "test": {"model": {"log_loss": test}}}
    )


def outcome(events: list[Event], select: str = "best", rounds: int = 9) -> dict[str, Any]:
    return site_results(events, ["model"], select, rounds)["a"]


ROUNDS = [evaluated(0, 0.9, 0.1), evaluated(1, 0.5, 0.7), evaluated(2, 0.5, 0.2), evaluated(3, 0.6, 0.3)]


def test_the_best_on_validation_counts_whatever_the_test_says() -> None:
    assert (outcome(ROUNDS).round, outcome(ROUNDS).metrics) == (1, {"log_loss": 0.7})
    assert outcome(ROUNDS, "last").round == 3


def test_without_validation_records_the_last_counts() -> None:
    assert outcome([evaluated(0, None, 0.1), evaluated(1, None, 0.2)]).round == 1


def test_a_model_that_was_trained_to_the_end_counts_in_any_case() -> None:
    assert outcome([*ROUNDS, evaluated(4, 0.99, 0.4)], rounds=4).round == 4


def test_what_was_done_again_counts_once() -> None:
    sent = [Event("sent", "a", r, data={"bytes": 10, "to": "b", "phase": 0}) for r in (0, 1, 2)]
    events = [ROUNDS[0], *sent, Event("resumed", data={"round": 1}), *sent[1:], evaluated(1, 0.1, 0.3)]
    assert outcome(events).bytes_sent == 30
    assert outcome(events).metrics == {"log_loss": 0.3}
    twice = [*events, Event("resumed", data={"round": 0}), ROUNDS[1]]
    assert [e.kind for e in current(twice)] == ["resumed", "resumed", "evaluated"]
    assert outcome(twice).bytes_sent == 0


def test_a_site_where_a_metric_is_not_defined_is_left_out_of_its_mean() -> None:
    found = mean_metrics([{"accuracy": 0.5, "auc": 0.9}, {"accuracy": 0.7}, {"accuracy": 0.9, "auc": 0.7}])
    assert found == pytest.approx({"accuracy": 0.7, "auc": 0.8})
    assert mean_metrics([]) == {}

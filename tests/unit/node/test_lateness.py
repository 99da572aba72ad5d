"""A peer that costs the others more than its share is waited for less."""

from __future__ import annotations

from collections import Counter

import pytest

from confrere.node.lateness import GRACE, WINDOW, Lateness

PATIENCE, WORK = 10.0, 0.5


def played(
    delays: dict[str, float], rounds: int, senders: list[list[str]]
) -> tuple[float, Counter[str], float]:
    """Rounds in which each peer sends so many seconds after it is expected: the time, who was missing, the longest wait."""
    now, missing, longest = 0.0, Counter[str](), 0.0
    lateness = Lateness()
    for number in range(rounds):
        now += WORK
        began, expected = now, set(senders[number % len(senders)])
        lateness.begin(expected, PATIENCE, now)
        while awaited := {p for p in expected if delays.get(p, 0.0) > now - began + 1e-9}:
            left = lateness.left(awaited, now)
            if left <= 0:
                break
            now += min(left, min(delays[p] for p in awaited) - (now - began))
        lateness.end(awaited, now)
        missing.update(awaited)
        longest = max(longest, now - began)
    return now, missing, longest


def test_a_peer_that_is_always_late_costs_no_more_than_its_share() -> None:
    for senders in ([["a", "slow"]], [["a"], ["slow"]]):  # together, or in turn
        seconds, missing, _ = played({"slow": 9.9}, 200, senders)
        assert seconds <= 2 * 200 * WORK + GRACE * PATIENCE + 1
        assert missing["slow"] > 50
        assert not missing["a"]


def test_several_late_peers_cost_no_more_than_one() -> None:
    delays = dict.fromkeys(["x", "y"], 9.9)
    seconds, missing, _ = played(delays, 200, [["a", "b", "c", "x", "y"]])
    assert seconds <= 2 * 200 * WORK + GRACE * PATIENCE + 1
    assert missing["x"] == missing["y"] > 50


def test_a_peer_that_is_half_as_fast_is_always_waited_for() -> None:
    _, missing, _ = played({"slow": WORK}, 1000, [["a", "slow"]])
    assert not missing


def test_a_peer_that_is_late_once_is_forgiven() -> None:
    _, missing, longest = played({"slow": 9.9}, 2, [["a", "slow"]])
    assert not missing
    assert longest > 9


def test_nobody_is_waited_for_less_than_the_studys_window() -> None:
    lateness = Lateness()
    for number in range(10):
        lateness.begin({"a", "slow"}, PATIENCE, number * PATIENCE)
        lateness.left({"slow"}, number * PATIENCE)
        lateness.end({"slow"}, (number + 1) * PATIENCE)
    lateness.begin({"a", "slow"}, PATIENCE, 10 * PATIENCE)
    assert lateness.left({"slow"}, 10 * PATIENCE) == pytest.approx(PATIENCE / WINDOW)


def test_one_peer_alone_and_a_minority_that_is_there_are_no_quorum() -> None:
    seconds, missing, _ = played({"slow": 9.9}, 20, [["slow"]])
    assert not missing
    assert seconds > 20 * 9.9
    delays = dict.fromkeys(["x", "y", "z"], 9.9)
    _, missing, _ = played(delays, 20, [["a", "x", "y", "z"]])
    assert not missing

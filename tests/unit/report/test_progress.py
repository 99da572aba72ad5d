"""Long work shows how far it is and how long it will take, on standard error only."""

from __future__ import annotations

from io import StringIO
from typing import Any

import pytest
from federation import LABELS, events
from rich.console import Console

from confrere.core.events import Event, Journal
from confrere.report import progress as module
from confrere.report.progress import Follower, counting, progress, time_left

SITES = {"A": 100, "B": 200}
FINALS = {s: {"auc": 0.9} for s in SITES}


def run(strategy: str, seed: int, rounds: int = 4) -> list[Event]:
    data = {"strategy": strategy, "label": LABELS[strategy], "seed": seed, "rounds": rounds}
    start = Event("run-started", data=data)
    return [start, *events(strategy, seed, SITES, rounds, FINALS), Event("run-finished", data={})]


def test_rounds_of_all_runs_add_up_to_the_whole() -> None:
    follower = Follower(12)
    seen = []
    for strategy in ("local", "proxyfl", "pooled"):
        for event in run(strategy, 0):
            follower(event)
            seen.append(follower.done)
    assert seen == sorted(seen)
    assert follower.done == 12


def test_it_says_strategy_seed_round_and_measure() -> None:
    follower = Follower(4)
    for event in run("proxyfl", 3)[:-1]:
        follower(event)
    assert follower.what.startswith("ProxyFL, seed 3, round 4 of 4, validation AUC 0.")


def test_a_resumed_run_starts_where_it_goes_on() -> None:
    follower = Follower(None)
    for event in run("proxyfl", 0)[:3]:
        follower(event)
    follower(Event("resumed", data={"round": 2}))
    assert (follower.done, follower.total) == (2, 4)


def test_the_time_left_is_an_estimate_and_says_so() -> None:
    assert time_left(10, 40, 20.0) == "about 60 s left"
    assert time_left(39, 40, 20.0) == "about 1 s left"
    assert time_left(0, 40, 20.0) == ""
    assert time_left(40, 40, 20.0) == ""


def test_a_bar_is_drawn_in_a_terminal() -> None:
    out = StringIO()
    journal = Journal()
    with progress(4, "Thyroid", console=Console(file=out, force_terminal=True, width=140)) as listener:
        journal.listen(listener)
        for event in run("proxyfl", 0):
            journal.add(event)
    assert "4/4" in out.getvalue()
    assert "Thyroid" in out.getvalue()


def test_without_a_terminal_it_keeps_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    with progress(4, "Thyroid") as listener:
        for event in run("proxyfl", 0):
            listener(event)
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "")


def test_without_a_terminal_long_work_says_a_plain_line_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EVERY", 0.0)
    out = StringIO()
    with progress(4, "Thyroid", console=Console(file=out)) as listener:
        for event in run("proxyfl", 0):
            listener(event)
    assert "Thyroid: 3 of 4 rounds; ProxyFL, seed 0, round 4 of 4" in out.getvalue()
    assert "\x1b" not in out.getvalue()


def test_what_is_counted_has_a_bar_with_the_time_left() -> None:
    screen = StringIO()
    console: Any = Console(file=screen, force_terminal=True, width=100)
    with counting("features of pictures", console=console) as done:
        done(1, 4)
        done(4, 4)
    assert "features of pictures" in screen.getvalue()
    assert "4/4" in screen.getvalue()
    assert module.bars == []


def test_what_is_counted_during_a_run_is_a_line_of_its_bar() -> None:
    screen = StringIO()
    console: Any = Console(file=screen, force_terminal=True, width=100)
    with progress(4, "Study", console=console) as listener:
        with counting("features of pictures", console=console) as done:
            done(1, 4)
            assert [task.description for task in module.bars[-1].tasks] == ["Study", "features of pictures"]
        assert [task.description for task in module.bars[-1].tasks] == ["Study"]
        listener(run("local", 0)[0])
    assert module.bars == []


def test_counting_without_a_terminal_prints_a_plain_line_now_and_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    screen = StringIO()
    console: Any = Console(file=screen, width=100)
    with counting("features of pictures", console=console) as done:
        done(1, 4)
        assert screen.getvalue() == ""
        monkeypatch.setattr(module, "EVERY", 0.0)
        done(2, 4)
    assert screen.getvalue().startswith("features of pictures: 2 of 4; ")

"""Live progress: one bar over all rounds of all runs, on standard error.

Where standard error is no terminal (a log, a pipe) it prints only a plain line now and then.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import fmean

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text

from confrere.core.events import Event
from confrere.core.metrics import METRICS, proper
from confrere.report import words
from confrere.report.console import Console
from confrere.report.history import DEPLOYED

EVERY = 30.0
"""Seconds between two lines where there is no terminal."""


class Follower:
    """Listens to the journals of one run after another and knows how far they are."""

    def __init__(self, total: int | None) -> None:
        self.total = total
        self.label, self.seed = "", ""
        self.round, self.rounds = 0, 0
        self._before = 0  # rounds of the runs that are over
        self._metrics: dict[str, dict[str, float]] = {}

    def __call__(self, event: Event) -> None:
        data = event.data
        if event.kind == "run-started":
            self.label, self.seed = (
                str(data.get("label") or data.get("strategy") or ""),
                str(data.get("seed", "")),
            )
            self.round, self.rounds = 0, int(data.get("rounds") or 0)
            self._metrics = {}
            if self.total is None:
                self.total = self.rounds
        elif event.kind == "resumed":
            self.round = int(data.get("round") or 0)
        elif event.kind == "round-started" and event.round is not None:
            self.round = max(self.round, event.round)  # nodes report for themselves, one after another
        elif event.kind == "evaluated" and event.site is not None:
            roles = data.get("validation") or {}
            role = next((r for r in (*DEPLOYED, *roles) if r in roles), None)
            if role is not None:
                self._metrics[event.site] = roles[role] or {}
        elif event.kind == "run-finished":
            self._before += self.rounds
            self.round, self.rounds = 0, 0

    @property
    def done(self) -> int:
        return self._before + self.round

    @property
    def what(self) -> str:
        """«ProxyFL, seed 3, round 12 of 30, validation log loss 0.293»; the tables at the end are on test records."""
        parts = [self.label] if self.label else []
        if self.seed:
            parts.append(f"seed {self.seed}")
        if self.rounds:
            parts.append(f"round {min(self.round + 1, self.rounds)} of {self.rounds}")
        for name in (m for m in (proper(METRICS), *METRICS) if m):
            values = [m[name] for m in self._metrics.values() if m.get(name) is not None]
            if values:
                parts.append(f"validation {words.metric(name).label} {words.figure(name, fmean(values))}")
                break
        return ", ".join(parts)


def time_left(done: int, total: int | None, elapsed: float) -> str:
    """An estimate from the pace so far, and it says so; nothing while there is no pace yet."""
    if not total or done <= 0 or done >= total:
        return ""
    left = elapsed * (total - done) / done
    return f"about {words.duration(left) if left >= 10 else f'{math.ceil(left)} s'} left"


@contextmanager
def progress(
    total: int | None, title: str, *, console: Console | None = None
) -> Iterator[Callable[[Event], None]]:
    """A listener for one journal or several; the bar ends with the block.

    with progress(rounds * runs, "Thyroid") as listener:
        journal.listen(listener)
    """
    where = console or Console(file=sys.stderr)
    shown = _bar if where.is_terminal else _lines
    with shown(where, Follower(total), title) as listener:
        yield listener


bars: list[Progress] = []
"""The bars on the screen; what is counted in between becomes a line of the last one."""


def _columns(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=None, complete_style="cyan"),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[left]}", markup=False),
        console=console,
        transient=False,
        expand=True,
        refresh_per_second=4,
    )


@contextmanager
def _bar(console: Console, follower: Follower, title: str) -> Iterator[Callable[[Event], None]]:
    bar = _columns(console)
    began = time.monotonic()
    task: TaskID = bar.add_task(title, total=follower.total, left="")
    bars.append(bar)

    def listener(event: Event) -> None:
        follower(event)
        left = time_left(follower.done, follower.total, time.monotonic() - began)
        full = f"{title}: {follower.what}" if follower.what else title
        short = follower.what if console.width < 110 and follower.what else full
        bar.update(task, completed=follower.done, total=follower.total, description=short, left=left)

    try:
        with bar:
            yield listener
    finally:
        bars.remove(bar)


@contextmanager
def counting(title: str, *, console: Console | None = None) -> Iterator[Callable[[int, int], None]]:
    """Called with what is done and with all there is to do; nothing is shown before the first call.

    with counting("features of pictures") as done:
        done(128, 40_000)
    """
    where = console or Console(file=sys.stderr)
    began = printed = time.monotonic()
    own: list[tuple[Progress, TaskID]] = []

    def show(done: int, total: int) -> None:
        nonlocal printed
        now = time.monotonic()
        left = time_left(done, total, now - began)
        if not where.is_terminal:
            if now - printed >= EVERY:
                printed = now
                line = "; ".join(
                    p for p in (f"{done:,} of {total:,}", words.duration(now - began), left) if p
                )
                where.print(Text(f"{title}: {line}"), soft_wrap=True)
            return
        if not own:
            bar = bars[-1] if bars else _columns(where)
            own.append((bar, bar.add_task(title, total=total, left="")))
            if not bars:
                bar.start()
        bar, task = own[0]
        bar.update(task, completed=done, total=total, left=left)

    try:
        yield show
    finally:
        for bar, task in own:
            if bar in bars:
                bar.remove_task(task)
            else:
                bar.stop()


@contextmanager
def _lines(console: Console, follower: Follower, title: str) -> Iterator[Callable[[Event], None]]:
    began = printed = time.monotonic()

    def listener(event: Event) -> None:
        nonlocal printed
        follower(event)
        now = time.monotonic()
        if now - printed >= EVERY:
            printed = now
            total = f" of {follower.total}" if follower.total else ""
            parts = [f"{follower.done}{total} rounds", follower.what, words.duration(now - began)]
            left = time_left(follower.done, follower.total, now - began)
            line = "; ".join(p for p in (*parts, left) if p)
            console.print(Text(f"{title}: {line}"), soft_wrap=True)

    yield listener

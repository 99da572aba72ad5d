"""What a run came to, worked out from its journal alone."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from confrere.core.events import Event
from confrere.learning.evaluate import HIGHER_IS_BETTER

CHOOSING = ("log_loss", "rmse")
"""By which validation metric a site chooses the round whose model it keeps."""


def current(events: Iterable[Event]) -> list[Event]:
    """The events that count: after a resumption, those of the rounds that were done again are dropped."""
    kept: list[Event] = []
    for event in events:
        if event.kind == "resumed":
            again = int(event.data["round"])
            kept = [e for e in kept if e.round is None or e.round < again]
        kept.append(event)
    return kept


def site_results(
    events: Sequence[Event], roles: Sequence[str], select: str, rounds_asked: int
) -> dict[str, dict[str, Any]]:
    """Per site: metrics of the model it would use, of its proxy, privacy spent and bytes sent."""
    scores, spent, sent = _tallied(events)
    out = {}
    for site, rounds in sorted(scores.items()):
        best = chosen(rounds, roles[0], select, rounds_asked)
        test = best.data.get("test") or {}
        common = best.data.get("common_test") or {}
        entry: dict[str, Any] = {"metrics": test.get(roles[0], {}), "round": best.round}
        if len(roles) > 1:
            entry["proxy_metrics"] = test.get(roles[1], {})
        if common:
            entry["common_metrics"] = common.get(roles[0], {})
            if len(roles) > 1:
                entry["common_proxy_metrics"] = common.get(roles[1], {})
        entry["privacy"] = privacy_of(spent.get(site))
        entry["bytes_sent"] = sent.get(site, 0)
        out[site] = entry
    return out


Tallied = tuple[dict[str, list[Event]], dict[str, Mapping[str, Any]], dict[str, int]]


def _tallied(events: Sequence[Event], counts: bool = False) -> Tallied:
    """By site, evaluations, the last charge and bytes. In one pass, unless rounds were done again: then of what `counts`."""
    scores: dict[str, list[Event]] = {}
    spent: dict[str, Mapping[str, Any]] = {}
    sent: dict[str, int] = {}
    for event in events:
        if event.kind == "resumed" and not counts:
            return _tallied(current(events), counts=True)
        if event.site is None:
            continue
        if event.kind == "evaluated":
            scores.setdefault(event.site, []).append(event)
        elif event.kind == "charged":
            spent[event.site] = event.data
        elif event.kind == "sent":
            sent[event.site] = sent.get(event.site, 0) + int(event.data["bytes"])
    return scores, spent, sent


def chosen(rounds: Sequence[Event], role: str, select: str, rounds_asked: int) -> Event:
    """The evaluation that counts: the best on validation records (the earliest of equals), or the last.

    A model that was trained to the end after the last round counts in any case: it has seen the validation
    records, and its regularisation was chosen by cross-validation.
    """
    if select == "last" or rounds[-1].round == rounds_asked:
        return rounds[-1]
    best, found = rounds[-1], math.inf
    for event in rounds:
        metrics = (event.data.get("validation") or {}).get(role, {})
        value = next((metrics[m] for m in CHOOSING if m in metrics), math.nan)
        if value < found:
            best, found = event, value
    return best


def privacy_of(charged: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if charged is None:
        return None
    return {k: charged[k] for k in ("epsilon", "delta", "proven", "unit", "accountant", "budget")}


def by_columns(sites: Mapping[str, Mapping[str, Any]]) -> dict[str, list[str]]:
    """The sites that have all columns and those that lack some; empty where only one kind is there."""
    lacking = [n for n, entry in sites.items() if entry.get("missing_columns")]
    complete = [n for n in sites if n not in lacking]
    return {"complete": complete, "lacking": lacking} if lacking and complete else {}


def mean_metrics(entries: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """The plain mean over sites; a site where a metric is not defined is left out of that metric."""
    values: dict[str, list[float]] = {}
    for entry in entries:
        for name, value in entry.items():
            values.setdefault(name, []).append(value)
    order = [m for m in HIGHER_IS_BETTER if m in values]
    return {m: sum(values[m]) / len(values[m]) for m in order}

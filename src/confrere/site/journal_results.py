"""The results of sites, from the events of a journal; `finished_run` makes the result of the whole run from them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from confrere.core.events import Event
from confrere.core.metrics import in_order, proper
from confrere.core.results import Figure, Metrics, PrivacySpent, SiteResult, Tested
from confrere.data.records import Records
from confrere.data.tasks import Task
from confrere.privacy.charges import Charge


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
) -> dict[str, SiteResult[float]]:
    """Per site: metrics of the model it would use, of its proxy, privacy spent and bytes sent."""
    scores, spent, sent = _tallied(events)
    out = {}
    for site, rounds in sorted(scores.items()):
        best = chosen(rounds, roles[0], select, rounds_asked)
        test, common = best.data.get("test") or {}, best.data.get("common_test") or {}
        proxy = roles[1] if len(roles) > 1 else None
        out[site] = SiteResult(
            site,
            metrics=Metrics(test.get(roles[0])),
            proxy_metrics=Metrics(test.get(proxy)) if proxy else None,
            common_metrics=Metrics(common.get(roles[0])) if common else None,
            common_proxy_metrics=Metrics(common.get(proxy)) if common and proxy else None,
            privacy=PrivacySpent.from_json(spent.get(site)),
            bytes_sent=sent.get(site, 0),
            round=best.round,
        )
    return out


Tallied = tuple[dict[str, list[Event]], dict[str, Mapping[str, Any]], dict[str, int]]


def _tallied(events: Sequence[Event]) -> Tallied:
    """By site, evaluations, the last charge and bytes; of rounds that were done again, the last time counts."""
    scores: dict[str, list[Event]] = {}
    spent: dict[str, Mapping[str, Any]] = {}
    sent: dict[str, int] = {}
    for event in current(events):
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
        chosen_by = proper(metrics)
        value = metrics[chosen_by] if chosen_by else math.nan
        if value < found:
            best, found = event, value
    return best


def charged(events: Sequence[Event], site: str) -> list[Charge]:
    """What a site was charged in this run, one count per event."""
    counts: dict[str, int] = {}
    for event in current(events):
        if event.kind == "charged" and event.site == site:
            text = event.data["mechanism"]
            counts[text] = counts.get(text, 0) + event.data["steps"]
    return [Charge(event, count) for event, count in sorted(counts.items())]


def tested(test: Records, task: Task) -> Tested | None:
    """How many patients are in a site's test records, and how many of them outside the most frequent class."""
    if not len(test):
        return None
    patients = test.units if test.units is not None else torch.arange(len(test))
    count = len(torch.unique(patients))
    if task.form != "classes":
        return Tested(count, count)
    labels = test.targets.reshape(-1).long()
    common = int(torch.bincount(labels).argmax())
    rarer = len(torch.unique(patients[labels != common]))
    if len(task.classes) != 2:
        return Tested(count, rarer)
    positive = len(torch.unique(patients[labels == 1]))
    return Tested(count, rarer, task.classes[1 - common], positive, task.classes[1])


def prevalence(train: Records, task: Task) -> float | None:
    """The share of class 1 among training records, where there are two classes: what a site knows before it tests.

    Where all of them are of one class, half a record of each class is added.
    """
    if task.form != "classes" or len(task.classes) != 2 or not len(train):
        return None
    ill, count = float((train.targets.reshape(-1) == 1).sum()), len(train)
    return ill / count if 0 < ill < count else (ill + 0.5) / (count + 1)


def by_columns(sites: Mapping[str, SiteResult[Figure]]) -> dict[str, list[str]]:
    """The sites that have all columns and those that lack some; empty where only one kind is there."""
    lacking = [n for n, site in sites.items() if site.missing_columns]
    complete = [n for n in sites if n not in lacking]
    return {"complete": complete, "lacking": lacking} if lacking and complete else {}


def mean_metrics(entries: Iterable[Mapping[str, float] | None]) -> Metrics[float]:
    """The plain mean over sites; a site where a metric is not defined is left out of that metric."""
    values: dict[str, list[float]] = {}
    for entry in entries:
        for name, value in (entry or {}).items():
            values.setdefault(name, []).append(value)
    return Metrics({m: sum(values[m]) / len(values[m]) for m in in_order(values)})

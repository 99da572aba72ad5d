"""Repeating a published experiment: train, count what is sent, or add up privacy, and put it beside what the source reports."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from confrere.core.errors import StudyError
from confrere.core.events import Event
from confrere.exchange.communication import Link
from confrere.learning.evaluate import HIGHER_IS_BETTER
from confrere.privacy import accounting
from confrere.privacy.charges import gaussian
from confrere.privacy.sampling import epoch
from confrere.runtime.compare import compare, default_arms
from confrere.runtime.published import beside, curves
from confrere.runtime.records import open_sites
from confrere.runtime.run import Run, hardware, versions
from confrere.runtime.traffic import methods
from confrere.study import Reported, Study, scaled

LINK = Link(100.0, 20.0)
"""Megabit per second and milliseconds, as `confrere traffic` has them unless told otherwise."""
COUNTS = (3, 4, 5, 6, 7, 8, 16, 32, 64, 128)


def result_file(docs: Path, name: str) -> Path:
    return docs / "studies" / f"{name}.json"


def repeat(
    study: Study,
    scale: str,
    *,
    seeds: int | None = None,
    listeners: tuple[Callable[[Event], None], ...] = (),
) -> dict[str, Any]:
    """Run the study at a scale; what comes back is kept as JSON and drawn later."""
    study = scaled(study, scale)
    if study.reported is None:
        raise StudyError(f'study "{study.name}" has no source: add [reported]')
    found: dict[str, Any] = {
        "name": study.name, "study": study.hash(), "scale": scale, "by": study.reported.by,
        "rounds": study.rounds, "versions": versions(), "hardware": hardware(),
    }  # fmt: skip
    if study.reported.by == "traffic":
        grown = methods(study, open_sites(study), LINK, COUNTS)
        rows = {name: [vars(g) for g in gs] for name, gs in grown.items()}
        return found | {"link": [LINK.bandwidth, LINK.latency], "traffic": rows, "seeds": []}
    if study.reported.by == "epsilon":
        return found | {"epsilon": costs(study, study.reported), "seeds": []}
    chosen = range(study.seed, study.seed + (seeds or study.comparison.seeds))
    result = compare(study, default_arms(study), chosen, listeners=listeners, pooled=study.comparison.pooled)
    measure = headline(result.runs)
    return found | {
        "seeds": list(chosen),
        "records": records(result.runs),
        "measure": measure,
        "reported": beside(study.reported, result.runs),
        "curves": curves(result.runs, measure, study.reported.test),
        "sites": by_site(result.runs, measure, study.reported.test),
        "weights": weights(result.runs),
        "majority": majority(result.runs),
    }


def costs(study: Study, reported: Reported) -> dict[str, dict[str, float]]:
    """ε of each arm that the source states with its number of records, by both accountants, with the study's own settings."""
    privacy = study.privacy
    if privacy is None or privacy.noise_multiplier is None:
        raise StudyError(f'study "{study.name}" is to repeat an ε and states no privacy.noise_multiplier')
    out = {}
    for arm, stated in reported.values.items():
        count = int(_number(stated.get("records", 0)))
        if count < 1:
            raise StudyError(f"reported.values.{arm}: an ε needs the number of records")
        steps, rate = epoch(count, privacy.batch_size)
        charges = [gaussian(privacy.noise_multiplier, rate, steps * study.rounds)]
        out[arm] = {a: accounting.epsilon(charges, privacy.delta, a) for a in ("rdp", "pld")}
    return out


def headline(runs: Mapping[str, Sequence[Run]]) -> str:
    """The measure that is drawn: accuracy where there is one."""
    first = next(iter(runs.values()))[0]
    return next(m for m in HIGHER_IS_BETTER if m in first.mean)


def records(runs: Mapping[str, Sequence[Run]]) -> dict[str, int]:
    """How many records each site learns from, as it declares them, in the first run with sites of its own."""
    first = next(iter(runs.values()))[0]
    return {s: int(entry["records"]) for s, entry in sorted(first.sites.items())}


def by_site(runs: Mapping[str, Sequence[Run]], metric: str, test: str) -> dict[str, dict[str, float]]:
    """The mean over seeds, by site and arm."""
    part = "common_metrics" if test == "common" else "metrics"
    out: dict[str, dict[str, list[float]]] = {}
    for name, found in runs.items():
        for run in found:
            for site, entry in run.sites.items():
                if metric in (entry.get(part) or {}):
                    out.setdefault(site, {}).setdefault(name, []).append(entry[part][metric])
    return {s: {a: statistics.fmean(v) for a, v in arms.items()} for s, arms in sorted(out.items())}


def weights(runs: Mapping[str, Sequence[Run]]) -> dict[str, dict[str, list[dict[str, float]]]]:
    """How much each site counted for a user, round by round, where a way of learning says it (first seed)."""
    out: dict[str, dict[str, list[dict[str, float]]]] = {}
    for name, found in runs.items():
        told: dict[str, list[dict[str, float]]] = {}
        for event in found[0].events:
            if event.kind == "weights" and event.round is not None and event.site is not None:
                for peer, weight in (event.data.get("weights") or {}).items():
                    told.setdefault(f"{event.site}: {peer}", []).append(
                        {"round": event.round + 1, "mean": float(weight), "std": 0.0}
                    )
        if told:
            out[name] = told
    return out


def majority(runs: Mapping[str, Sequence[Run]]) -> dict[str, float]:
    """The accuracy of always naming the most frequent class, by site, where that was noted."""
    first = next(iter(runs.values()))[0]
    return {s: e["majority"] for s, e in first.sites.items() if "majority" in e}


def _number(value: float | list[float]) -> float:
    return value[0] if isinstance(value, list) else value

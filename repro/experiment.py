"""Repeating a published experiment: train, count what is sent, or add up privacy, and put it beside what the source reports."""

from __future__ import annotations

import json
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import numpy as np

from confrere.core.custody import Custody
from confrere.core.errors import ConfrereError, StudyError
from confrere.core.events import Event
from confrere.core.metrics import METRICS
from confrere.core.owner_only import make_private_folder
from confrere.core.results import ALONE, POOLED, RunResult
from confrere.data.records import Federation
from confrere.evaluate.compare import default_arms, shared, variant
from confrere.evaluate.traffic import methods
from confrere.exchange.round_cost import LinkSpeed
from confrere.privacy import accounting
from confrere.privacy.charges import gaussian
from confrere.privacy.renyi import PUBLISHED_ORDERS
from confrere.privacy.sampling import epoch
from confrere.simulation.backends import simulate
from confrere.simulation.finished_run import Run
from confrere.simulation.run_folder import hardware, write_json
from confrere.site.open_sites import open_sites
from confrere.site.predictions import RecordPredictions, SelectedPredictions
from confrere.study import Study, scaled
from confrere.version import versions
from repro.judgement import beside, curves
from repro.reported import Experiment, Reported
from repro.scope import scopes

LINK = LinkSpeed(100.0, 20.0)
"""Mbit/s and milliseconds, the defaults of `confrere traffic`."""
TOLD = ("evaluated", "weighed")
"""The events of a run that figures are drawn from."""
ACCURACY_FIRST: tuple[str, ...] = ("accuracy", *METRICS)
COUNTS = (3, 4, 5, 6, 7, 8, 16, 32, 64, 128)


def result_file(docs: Path, name: str) -> Path:
    return docs / "studies" / f"{name}.json"


def repeat(
    experiment: Experiment,
    scale: str,
    *,
    seeds: int | None = None,
    kept: Path | None = None,
    seconds: float = math.inf,
    listeners: tuple[Callable[[Event], None], ...] = (),
) -> dict[str, Any]:
    """Run the study at a scale; what comes back is kept as JSON and drawn later.

    With `kept`, every single run is put down in that folder and not done again, so that a repetition of hours can be
    interrupted: after `seconds` it is (`Unfinished`), and the next call goes on.
    """
    study, reported = scaled(experiment.study, scale), experiment.reported
    found: dict[str, Any] = {
        "name": study.name, "study": study.hash(), "scale": scale, "by": reported.by,
        "rounds": study.rounds, "settings": settings(study), "versions": versions(), "hardware": hardware(),
    }  # fmt: skip
    if reported.by == "traffic":
        grown = methods(study, open_sites(study), LINK, COUNTS)
        rows = {name: [vars(g) for g in gs] for name, gs in grown.items()}
        return found | {"link": [LINK.bandwidth, LINK.latency], "traffic": rows, "seeds": []}
    if reported.by == "epsilon":
        return found | {"epsilon": costs(study, reported), "seeds": []}
    chosen = range(study.seed, study.seed + (seeds or study.comparison.seeds))
    runs = run_arms(study, chosen, kept, seconds, listeners)
    told = beside(reported, runs)
    measure = headline(told["measured"])
    best = chosen_settings(study, runs)
    return found | {
        "seeds": list(chosen),
        "records": records(runs),
        "measure": measure,
        "reported": told,
        "curves": curves(runs, measure, reported.test),
        "sites": by_site(runs, measure, reported.test),
        "weights": weights(runs),
        "chosen": best,
        "scope": scopes(study, chosen, best, measure, _once(kept, listeners), open_sites)
        if "scope" in reported.figures
        else {},
        "levels": levels(study, reported) if "weights" in reported.figures else {},
        "bytes": {n: sum(e.bytes_sent or 0 for e in found[0].sites.values()) for n, found in runs.items()},
    }


def run_arms(
    study: Study,
    seeds: Sequence[int],
    kept: Path | None,
    seconds: float,
    listeners: tuple[Callable[[Event], None], ...],
) -> dict[str, list[Run]]:
    """Every arm with every seed, but for what is kept already."""
    began = time.monotonic()
    arms = [ALONE, *default_arms(study), *([POOLED] if study.comparison.pooled else [])]
    runs: dict[str, list[Run]] = {name: [] for name in arms}
    for seed in seeds:
        opened: list[tuple[Study, Federation]] = []
        for name, found in runs.items():
            own = variant(study, name).with_(seed=seed)
            place = kept / f"{own.hash()}-{seed}.json" if kept else None
            if place is not None and place.exists():
                found.append(_read(place, own))
                continue
            if time.monotonic() - began > seconds:
                raise Unfinished(f"{study.name}: {name}, seed {seed} is next")
            found.append(simulate(own, shared(opened, own), listeners=listeners))
            if place is not None:
                _keep(place, found[-1])
    return runs


def settings(study: Study) -> dict[str, Any]:
    """What a result depends on, as the study states it: by this a page knows whether the result is still that of the study.

    A hash would not do: it also changes when a later version knows a setting more.
    """
    beside_it = ("title", "question", "comparison", "scales", "scale")
    return {k: v for k, v in study.as_dict().items() if k not in beside_it}


class Unfinished(ConfrereError):
    """A repetition was interrupted after its time; what was run is kept."""


def _once(
    kept: Path | None, listeners: tuple[Callable[[Event], None], ...]
) -> Callable[[Study, Federation], Run]:
    """Run a study with some of its sites, unless that was done and put down before."""

    def run(study: Study, federation: Federation) -> Run:
        place = kept / f"{study.hash()}-{study.seed}.json" if kept else None
        if place is not None and place.exists():
            return _read(place, study)
        found = simulate(study, federation, listeners=listeners)
        if place is not None:
            _keep(place, found)
        return found

    return run


def _keep(path: Path, run: Run) -> None:
    make_private_folder(path.parent)
    told = [
        {"kind": e.kind, "site": e.site, "round": e.round, "data": e.data}
        for e in run.events
        if e.kind in TOLD
    ]
    write_json(path, {"result": run.result.as_json(), "events": told})
    arrays = {
        f"{quote(site, safe='')}/{part}/{what}": np.asarray(getattr(found, what))
        for site, selected in run.predictions.items()
        for part, found in selected.parts.items()
        for what in ("outputs", "targets", "marks", "spread")
    }
    np.savez_compressed(path.with_suffix(".npz"), **arrays)  # type: ignore[arg-type]  # names are text


def _read(path: Path, study: Study) -> Run:
    found = json.loads(path.read_text(encoding="utf-8"))
    events = [Event(e["kind"], e["site"], e["round"], Custody.PRIVATE, e["data"]) for e in found["events"]]
    return Run(
        study,
        RunResult.from_json(found["result"]),
        events,
        predictions=_predictions(path.with_suffix(".npz")),
    )


def _predictions(path: Path) -> dict[str, SelectedPredictions]:
    """What `_keep` has put down; nothing for a run that was kept before predictions were."""
    if not path.exists():
        return {}
    found: dict[str, SelectedPredictions] = {}
    with np.load(path) as arrays:
        for name in {n.rpartition("/")[0] for n in arrays.files}:
            site, _, part = name.partition("/")
            outputs, targets, marks = (arrays[f"{name}/{what}"] for what in ("outputs", "targets", "marks"))
            kept = RecordPredictions(outputs, targets, marks, float(arrays[f"{name}/spread"]))
            found.setdefault(unquote(site), SelectedPredictions()).parts[part] = kept
    return found


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
        published = accounting.epsilon(charges, privacy.delta, "rdp", PUBLISHED_ORDERS)
        out[arm] = {"rdp": published, "pld": accounting.epsilon(charges, privacy.delta)}
    return out


def headline(measured: Mapping[str, Mapping[str, Any]]) -> str:
    """The measure that is drawn: accuracy where there is one."""
    return next(m for m in ACCURACY_FIRST if any(m in values for values in measured.values()))


def records(runs: Mapping[str, Sequence[Run]]) -> dict[str, int]:
    """How many records each site learns from, as it declares them, in the first run with sites of its own."""
    first = next(iter(runs.values()))[0]
    return {s: entry.records or 0 for s, entry in sorted(first.sites.items())}


def by_site(runs: Mapping[str, Sequence[Run]], metric: str, test: str) -> dict[str, dict[str, float]]:
    """The mean over seeds, by site and arm."""
    part = "common_metrics" if test == "common" else "metrics"
    out: dict[str, dict[str, list[float]]] = {}
    for name, found in runs.items():
        for run in found:
            for site, entry in run.sites.items():
                scores: Mapping[str, float] = getattr(entry, part) or {}
                if metric in scores:
                    out.setdefault(site, {}).setdefault(name, []).append(scores[metric])
    return {s: {a: statistics.fmean(v) for a, v in arms.items()} for s, arms in sorted(out.items())}


def weights(runs: Mapping[str, Sequence[Run]]) -> dict[str, dict[str, list[dict[str, float]]]]:
    """How much each peer counted for each user, round by round, where a way of learning tells it (first seed)."""
    out: dict[str, dict[str, list[dict[str, float]]]] = {}
    for name, found in runs.items():
        told: dict[str, list[dict[str, float]]] = {}
        for event in found[0].events:
            if event.kind == "weighed" and event.round is not None:
                for peer, weight in event.data["weights"].items():
                    point = {"round": event.round + 1, "mean": float(weight), "std": 0.0}
                    told.setdefault(f"{event.site} ← {peer}", []).append(point)
        if told:
            out[name] = told
    return out


def chosen_settings(study: Study, runs: Mapping[str, Sequence[Run]]) -> dict[str, str]:
    """For each arm the setting that does best on the sites' validation records, over all seeds; empty without these.

    So a learning rate can be tuned for each way of learning by itself, and is judged on other records.
    """
    losses: dict[str, dict[str, float]] = {}
    for name, found in runs.items():
        arm, setting = study.comparison.parts(name)
        last = [_validation_loss(run) for run in found]
        if setting is not None and all(v is not None for v in last):
            losses.setdefault(arm, {})[setting] = statistics.fmean(v for v in last if v is not None)
    return {arm: min(found, key=lambda s: found[s]) for arm, found in losses.items()}


def _validation_loss(run: Run) -> float | None:
    """The mean over sites of the log loss on validation records, when the run was over."""
    last: dict[str, float] = {}
    for event in run.events:
        if event.kind == "evaluated" and event.site is not None:
            measures: Mapping[str, float] = next(iter((event.data.get("validation") or {}).values()), {})
            if "log_loss" in measures:
                last[event.site] = measures["log_loss"]
    return statistics.fmean(last.values()) if last else None


def levels(study: Study, reported: Reported) -> dict[str, float]:
    """The accuracy of always naming the most frequent class of the test records, mean over sites, in the first seed."""
    shares = []
    for site in open_sites(study).sites.values():
        test = site.common_test if reported.test == "common" else site.test
        if test is not None and len(test) and not test.targets.is_floating_point():
            shares.append(float(test.targets.bincount().max()) / len(test))
    return {"majority class": statistics.fmean(shares)} if shares else {}


def _number(value: float | list[float]) -> float:
    return value[0] if isinstance(value, list) else value

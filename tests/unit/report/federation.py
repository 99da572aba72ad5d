"""A synthetic federation on disk: journals, runs and a comparison, as `confrere compare` leaves them."""

from __future__ import annotations

import json
import math
import random
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from confrere.core.custody import Custody
from confrere.core.events import Event, Journal
from confrere.statistics.verdict import LEAST_RARER, Effect, Gain, judge_all

THYROID = {"other": 5493, "SVI": 2394, "SVHC": 956, "STMW": 255, "SVHD": 71}
CLASSIFICATION = ("accuracy", "macro_accuracy", "log_loss", "auc")
BYTES = 34_180

LABELS = {"local": "Alone", "proxyfl": "ProxyFL", "fedavg": "FedAvg", "pooled": "All records pooled"}
# How far each strategy comes on the way from alone (0) to pooled (1), for a site that has much to gain.
WORTH = {"local": 0.0, "pooled": 1.0, "proxyfl": 0.7, "fedavg": -0.25, "local-dp": -0.9}


def events(
    strategy: str,
    seed: int,
    sites: Mapping[str, int],
    rounds: int,
    finals: Mapping[str, Mapping[str, float]],
    *,
    start: int = 0,
    proven: bool = True,
    absent: Mapping[int, Sequence[str]] | None = None,
) -> Iterator[Event]:
    """The events of a run from round `start` on, ending where `finals` says."""
    names, rng, private = list(sites), random.Random(f"{strategy}{seed}"), Custody.PRIVATE
    together = strategy.split("-")[0] not in ("local", "pooled")
    noisy = together or strategy.endswith("-dp")
    for turn in range(start, rounds):
        away = set((absent or {}).get(turn, ())) if together else set()
        here = [n for n in names if n not in away]
        yield Event("round-started", None, turn, data={"members": names, "present": here, "epoch": 0})
        for name in sorted(away):
            yield Event("absent", name, turn, data={"text": f"{name} did not take part"})
        for index, name in enumerate(names):
            if name in away:
                continue
            if noisy:
                yield Event(
                    "charged",
                    name,
                    turn,
                    data={
                        "role": "proxy",
                        "steps": 10,
                        "epsilon": 2.97 * math.sqrt((turn + 1) / rounds),
                        "delta": 1e-5,
                        "budget": 3.0,
                        "unit": "record",
                        "accountant": "pld",
                        "proven": proven,
                        "noise_multiplier": 12.3,
                        "sample_rate": 1.0,
                    },
                )
            losses = {"private": 0.3, "proxy": 0.4}
            data = {"losses": losses, "dropped": 0, "seconds": 0.1, "alpha": 0.3}
            yield Event("trained", name, turn, private, data)
            if together and len(names) > 1:
                hop = 2 ** (turn % (int(math.log2(max(len(names) - 1, 1))) + 1)) % len(names) or 1
                to = names[(index + hop) % len(names)]
                if to in away:
                    yield Event("missing", to, turn, data={"senders": [name], "phase": 0})
                yield Event(
                    "sent",
                    name,
                    turn,
                    data={
                        "to": to,
                        "phase": 0,
                        "bytes": BYTES,
                        "custody": "PROTECTED" if proven else "UNPROVEN",
                        "mass": 0.5,
                    },
                )
            shape = 1 - math.exp(-4 * (turn + 1) / rounds)
            now = {
                m: v + (1 - shape) * (0.5 if m in ("log_loss", "rmse") else -0.25) + rng.gauss(0, 0.004)
                for m, v in finals[name].items()
            }
            roles = (
                {"private": now, "proxy": {m: v - 0.03 for m, v in now.items()}}
                if together
                else {"model": now}
            )
            yield Event(
                "evaluated", name, turn, private, {"validation": roles, "test": roles, "common_test": None}
            )


def write_run(
    folder: Path,
    strategy: str,
    seed: int,
    sites: Mapping[str, int],
    rounds: int,
    finals: Mapping[str, Mapping[str, float]],
    *,
    proven: bool = True,
    absent: Mapping[int, Sequence[str]] | None = None,
    finish: bool = True,
    evaluated: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """One run folder; returns its result. `evaluated` are further facts of every evaluation."""
    folder.mkdir(parents=True, exist_ok=True)
    noisy = strategy.split("-")[0] not in ("local", "pooled") or strategy.endswith("-dp")
    target = {"epsilon": 3.0, "delta": 1e-5, "unit": "record", "accountant": "pld", "proven": proven}
    facts = {
        "name": "thyroid",
        "study": "9f2c" * 16,
        "seed": seed,
        "strategy": strategy,
        "label": LABELS.get(strategy, strategy),
        "versions": {"confrere": "0.1.0", "torch": "2.9.0", "python": "3.11.9"},
        "hardware": {"cpu": "2 cores", "memory": "8 GB"},
        "started": "2026-11-15T20:00:00Z",
        "seconds": 41.3,
        "command": f"confrere simulate study.toml --set seed={seed}",
    }
    journal = Journal(folder / "journal.jsonl")
    described = {n: {"records": r, "private": "mlp", "proxy": "linear"} for n, r in sites.items()}
    journal.add(
        Event(
            "run-started",
            data={
                **facts,
                "title": "Abnormal thyroid",
                "rounds": rounds,
                "topology": "exponential",
                "task": "binary",
                "options": {},
                "sites": described,
                "privacy": target if noisy else None,
            },
        )
    )
    journal.add(Event("notice", None, None, data={"text": "WEST has 3 records and was left out"}))
    count = dict.fromkeys(sites, 0)
    for event in events(strategy, seed, sites, rounds, finals, proven=proven, absent=absent):
        more = evaluated if event.kind == "evaluated" else None
        journal.add(replace(event, data={**event.data, **more}) if more else event)
        if event.kind == "sent":
            count[event.site or ""] += event.data["bytes"]
    spent = {"epsilon": 2.97, "delta": 1e-5, "proven": proven, "unit": "record"} if noisy else None
    result = {
        "run": str(folder),
        "study": facts["study"],
        "seed": seed,
        "sites": {
            n: {
                "records": r,
                "metrics": dict(finals[n]),
                "proxy_metrics": {m: v - 0.03 for m, v in finals[n].items()} if count[n] else {},
                "privacy": spent,
                "bytes_sent": count[n],
            }
            for n, r in sites.items()
        },
        "mean": {m: statistics.fmean(f[m] for f in finals.values()) for m in next(iter(finals.values()))},
    }
    if finish:
        journal.add(Event("run-finished", data={"seconds": 41.3, "result": result}))
        (folder / "result.json").write_text(json.dumps(result))
    journal.close()
    (folder / "run.json").write_text(json.dumps(facts))
    (folder / "study.toml").write_text('title = "Abnormal thyroid"\nrounds = 24\n')
    return result


def write_comparison(
    folder: Path,
    *,
    sites: Mapping[str, int] = THYROID,
    strategies: Sequence[str] = ("local", "proxyfl", "fedavg", "pooled"),
    seeds: int = 5,
    rounds: int = 24,
    metrics: Sequence[str] = CLASSIFICATION,
    proven: bool = True,
    absent: Mapping[int, Sequence[str]] | None = None,
    journals: bool = True,
    primary: str = "auc",
    title: str = "Abnormal thyroid by referral source",
    question: str = "Do the referral centres recognise abnormal thyroid function better together than alone?",
) -> dict[str, Any]:
    """A comparison folder in which small sites gain much, large ones hardly; returns comparison.json."""
    folder.mkdir(parents=True, exist_ok=True)
    results: dict[str, list[dict[str, Any]]] = {s: [] for s in strategies}
    for seed in range(seeds):
        for strategy in strategies:
            finals = {
                site: _finals(site, records, strategy, seed, metrics) for site, records in sites.items()
            }
            run = folder / "runs" / f"{strategy}-{seed}"
            results[strategy].append(
                write_run(run, strategy, seed, sites, rounds, finals, proven=proven, absent=absent)
            )
            if not journals:
                (run / "journal.jsonl").unlink()
    document = {
        "title": title,
        "question": question,
        "reference": "local",
        "primary": primary,
        "notes": ["WEST has 3 records and was left out.", "Missing values: the schema's public default."],
        "seeds": list(range(seeds)),
        "strategies": {
            s: {"label": LABELS.get(s, s), **_summary(rows, results["local"], metrics)}
            for s, rows in results.items()
        },
    }
    (folder / "comparison.json").write_text(json.dumps(document))
    return document


def _finals(site: str, records: int, strategy: str, seed: int, metrics: Sequence[str]) -> dict[str, float]:
    fixed, luck = random.Random(site), random.Random(f"{site}{seed}")
    own = random.Random(f"{site}{seed}{strategy}")
    want = 0.5 / math.sqrt(records) + fixed.uniform(0, 0.006)  # what pooling would bring
    split = luck.gauss(0, 0.12 / math.sqrt(records) + 0.003)  # the same test records for every strategy
    worth = WORTH.get(strategy, 0.4) * want + own.gauss(0, 0.06 / math.sqrt(records) + 0.001)
    if records > 5000 and strategy == "proxyfl":
        worth -= 1.4 * want  # the largest site has nothing to learn from the others
    level = 0.90 + fixed.uniform(-0.05, 0.02) - want * 0.4 + split + worth
    every = {
        "auc": min(level, 0.999),
        "accuracy": level - 0.06 + own.gauss(0, 0.004),
        "macro_accuracy": level - 0.11 + own.gauss(0, 0.004),
        "log_loss": 0.9 * (1.18 - level) + own.gauss(0, 0.004),
        "rmse": 40 * (1.4 - level),
        "r2": level - 0.3,
    }
    return {m: every[m] for m in metrics}


def over_seeds(values: Sequence[float]) -> Gain:
    """A gain in which only the luck of the runs plays a part, by the one rule."""
    between = statistics.variance(values) / len(values) if len(values) > 1 else 0.0
    return judge_all({0: Effect(tuple(values), between, 0.0, LEAST_RARER)})[0]


def stated(values: Sequence[float]) -> dict[str, Any]:
    """The gain as a comparison's document states it."""
    gain = over_seeds(values)
    interval = {} if gain.low is None else {"interval": [gain.low, gain.high]}
    return {"mean": gain.mean, "std": gain.std, "values": list(values), "word": gain.word, **interval}


def _summary(
    rows: list[dict[str, Any]], alone: list[dict[str, Any]], metrics: Sequence[str]
) -> dict[str, Any]:
    def spread(values: list[float]) -> dict[str, Any]:
        std = statistics.stdev(values) if len(values) > 1 else None
        return {"mean": statistics.fmean(values), "std": std}

    sites: dict[str, Any] = {}
    for name, first in rows[0]["sites"].items():
        measured = {m: [r["sites"][name]["metrics"][m] for r in rows] for m in metrics}
        sites[name] = {
            "records": first["records"],
            "metrics": {m: {**spread(v), "values": v} for m, v in measured.items()},
            "privacy": first["privacy"],
            "bytes_sent": first["bytes_sent"],
        }
    gains = {}
    for m in metrics:
        sign = -1 if m in ("log_loss", "rmse") else 1
        by_site = {
            n: [
                sign * (r["sites"][n]["metrics"][m] - a["sites"][n]["metrics"][m])
                for r, a in zip(rows, alone, strict=True)
            ]
            for n in sites
        }
        per_seed = [statistics.fmean(column) for column in zip(*by_site.values(), strict=True)]
        gains[m] = {**stated(per_seed), "worst_site": min(statistics.fmean(v) for v in by_site.values())}
        for n, values in by_site.items():
            sites[n].setdefault("gain", {})[m] = stated(values)
    return {
        "mean": {m: spread([r["mean"][m] for r in rows]) for m in metrics},
        "gain_over_alone": gains,
        "sites": sites,
        "privacy": next(iter(sites.values()))["privacy"],
        "seconds": 41.3 * len(rows),
    }

"""Several ways to collaborate on the same records, over several seeds, beside training alone."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from confrere.core.errors import StudyError
from confrere.core.events import Event
from confrere.core.registry import nearest, strategies
from confrere.data.records import Federation
from confrere.learning.evaluate import HIGHER_IS_BETTER
from confrere.observe.report import write_report
from confrere.runtime.bootstrap import intervals
from confrere.runtime.published import beside
from confrere.runtime.records import Source, open_sites
from confrere.runtime.results import by_columns, mean_metrics
from confrere.runtime.run import Run, check_free, hardware, versions, write_json
from confrere.runtime.said import PARTS
from confrere.runtime.simulate import simulate
from confrere.strategies import discover
from confrere.study import Comparing, Study, merged, named
from confrere.study.exchanged import sends

ALONE = "local"
"""Training alone, without noise: what every comparison is measured against."""

POOLED = "pooled"
"""One model on all records, without noise: how much there is to gain by learning together."""


@dataclass
class Comparison:
    """What a comparison came to; `result` is what `compare --json` prints."""

    result: dict[str, Any]
    runs: dict[str, list[Run]] = field(repr=False, default_factory=dict)
    folder: Path | None = None

    def report(self, path: str | Path | None = None) -> Path:
        if self.folder is None:
            raise StudyError("a report needs the files of the runs: compare(…, out=FOLDER)")
        return write_report(self.folder, Path(path) if path else None)


def variant(study: Study, name: str) -> Study:
    """The study as `name` would run it: one of its `[variants]`, or a strategy with its own topology.

    The study's strategy options and topology are those of its own strategy; every other strategy runs with
    its defaults, unless `[variants.NAME]` says otherwise. «NAME@SETTING» is NAME in one of the comparison's settings.
    """
    discover()
    arm, setting = study.comparison.parts(name)
    if setting is not None and name not in study.variants:
        return merged(
            variant(study, arm), study.comparison.settings[setting], f'comparison.settings."{setting}"'
        )
    if name not in study.variants and name not in strategies:
        known = sorted({*study.variants, *strategies.names()})
        raise StudyError(f'unknown strategy "{name}"{nearest(name, known)}; known: {", ".join(known)}')
    study = _fitting(study, name)
    if name != study.strategy_name and name in strategies:
        study = replace(study, strategy=name, topology=None)
    if name in study.variants:
        study = merged(study, study.variants[name], f"variants.{name}")
    return replace(study, variants={}, comparison=Comparing(), scales={}, reported=None)


def _fitting(study: Study, name: str) -> Study:
    """Without what is said about models on their way, where `name` sends none, or says it anew."""
    own = study.variants.get(name, {})
    chosen = own.get("strategy", name if name in strategies else study.strategy)
    rule = strategies[named(chosen, f"variants.{name}.strategy")[0]]
    if getattr(rule, "topology", None) is None and "topology" not in own:
        return replace(study, combiner=None, compression=None, attack=None)
    return replace(study, combiner=None) if "combiner" in own else study


def arms(study: Study, names: Sequence[str] | None = None, pooled: bool = False) -> dict[str, Study]:
    """All that a comparison runs: training alone, the named ways, each also under the study's attack, and pooling."""
    honest = replace(study, attack=None)
    found: dict[str, Study] = {}
    for name in dict.fromkeys([ALONE, *(names or default_arms(study)), *([POOLED] if pooled else [])]):
        found[name] = variant(honest, name)
        if study.attack is not None and sends(found[name]) and found[name].attack is None:
            under = named(study.attack, "attack")[0]
            found[f"{name}+{under}"] = replace(found[name], attack=study.attack)
    return found


def default_arms(study: Study) -> list[str]:
    """What a comparison of the study runs beside training alone, unless it is told otherwise."""
    return study.comparison.names() or [study.strategy_name]


def compare(
    study: Study,
    names: Sequence[str] | None = None,
    seeds: Sequence[int] = (0, 1, 2),
    sites: Mapping[str, Source] | None = None,
    *,
    out: str | Path | None = None,
    device: str = "cpu",
    listeners: tuple[Callable[[Event], None], ...] = (),
    command: str = "",
    pooled: bool = False,
) -> Comparison:
    """Run each strategy with each seed on the same records and say who gains what over training alone.

    With `pooled`, one model of all records without noise is trained as well: how much there is to gain.
    """
    if not seeds:
        raise StudyError("a comparison needs at least one seed")
    variants = arms(study, names, pooled)
    chosen = list(variants)
    folder = Path(out) if out is not None else None
    if folder is not None:
        check_free(folder)
    runs: dict[str, list[Run]] = {name: [] for name in chosen}
    seconds = dict.fromkeys(chosen, 0.0)
    for seed in seeds:
        opened: list[tuple[Study, Federation]] = []
        for name in chosen:
            place = folder / "runs" / f"{quote(name, safe=' ')}-{seed}" if folder else None
            began = time.perf_counter()
            run = simulate(
                variants[name].with_(seed=seed),
                shared(opened, variants[name].with_(seed=seed), sites),
                out=place,
                device=device,
                listeners=listeners,
            )
            seconds[name] += time.perf_counter() - began
            runs[name].append(run)
    dishonest = _dishonest(runs)
    runs = {name: [among_honest(run, dishonest) for run in found] for name, found in runs.items()}
    together = {n: summary(runs[n], runs[ALONE], seconds[n]) for n in chosen}
    for part in PARTS:
        add_intervals(together, runs, part)
    result = {
        "title": study.title or study.name,
        "question": study.question,
        "study": study.hash(),
        "scale": study.scale,
        "reference": ALONE,
        "seeds": list(seeds),
        "strategies": together,
        "gap": gap(together),
        "notes": [*_notes(runs[ALONE][0]), *_unpaired(variants), *_told(dishonest)],
        "versions": versions(),
        "hardware": hardware(device),
        "command": command,
    }
    if dishonest:
        result["attack"] = {name: list(sites) for name, sites in dishonest.items()}
    if study.reported is not None:
        result["reported"] = beside(study.reported, runs)
    if folder is not None:
        write_json(folder / "comparison.json", result)
        (folder / "study.toml").write_text(study.to_toml(), encoding="utf-8")
    return Comparison(result, runs, folder)


def shared(
    opened: list[tuple[Study, Federation]], study: Study, sites: Mapping[str, Source] | None = None
) -> Federation:
    """The study's records: read and encoded once for all arms of a seed that have the same ones."""
    for other, found in opened:
        if _same_records(other, study):
            return found
    opened.append((study, open_sites(study, sites)))
    return opened[-1][1]


def _dishonest(runs: Mapping[str, Sequence[Run]]) -> dict[str, list[str]]:
    """By arm, who attacked in it; empty where all were honest."""
    found = {n: arm[0].result.get("attack") for n, arm in runs.items()}
    return {n: list(attack["attackers"]) for n, attack in found.items() if attack}


def among_honest(run: Run, dishonest: Mapping[str, Sequence[str]]) -> Run:
    """The run without the sites that attack in any arm: all arms are compared on the same, honest ones."""
    gone = {site for sites in dishonest.values() for site in sites}
    if not gone:
        return run
    sites = {n: s for n, s in run.sites.items() if n not in gone}
    result = {**run.result, "sites": sites, "mean": mean_metrics(s["metrics"] for s in sites.values())}
    if "common_mean" in result:
        result["common_mean"] = mean_metrics(s.get("common_metrics", {}) for s in sites.values())
    return replace(run, result=result, said={n: k for n, k in run.said.items() if n not in gone})


def _told(dishonest: Mapping[str, Sequence[str]]) -> list[str]:
    """Who attacked, and that they do not count."""
    if not dishonest:
        return []
    who = "; ".join(f"{name}: {', '.join(sites)}" for name, sites in dishonest.items())
    return [f"All figures are of the honest sites alone. Dishonest were {who}."]


def _unpaired(variants: Mapping[str, Study]) -> list[str]:
    """Which strategies ran on other records than training alone: their gains mix both differences."""
    alone = variants[ALONE]
    others = [n for n, s in variants.items() if not _same_records(alone, s)]
    return [f'"{n}" has other records than «{ALONE}»: its gains are not paired' for n in others]


def _same_records(one: Study, two: Study) -> bool:
    return (one.data, one.sites, one.schema) == (two.data, two.sites, two.schema)


def summary(runs: Sequence[Run], alone: Sequence[Run], seconds: float) -> dict[str, Any]:
    """One strategy over all seeds: means, spreads, and gains over training alone, paired by seed and site."""
    sites = sorted(runs[0].sites)
    metrics = [m for m in HIGHER_IS_BETTER if m in runs[0].mean]
    gains = {m: _gains(runs, alone, sites, m) for m in metrics}
    kinds = by_columns(runs[0].sites)
    told = {"by_columns": {k: _group(runs, alone, names, metrics) for k, names in kinds.items()}}
    return {
        "mean": {m: _spread([r.mean[m] for r in runs if m in r.mean]) for m in metrics},
        "gain_over_alone": {
            m: {
                **_spread([statistics.fmean(g.values()) for g in gains[m] if g]),
                **_worst(gains[m], sites),
            }
            for m in metrics
        },
        "sites": {
            s: {
                "records": runs[0].sites[s]["records"],
                "metrics": {
                    m: _spread([r.sites[s]["metrics"][m] for r in runs if m in r.sites[s]["metrics"]])
                    for m in metrics
                },
                "gain": {m: _spread([g[s] for g in gains[m] if s in g]) for m in metrics},
                "privacy": _largest([r.sites[s]["privacy"] for r in runs]),
                "bytes_sent": round(statistics.fmean(r.sites[s]["bytes_sent"] for r in runs)),
                **{k: runs[0].sites[s][k] for k in ("missing_columns",) if k in runs[0].sites[s]},
            }
            for s in sites
        },
        "privacy": _largest([entry["privacy"] for r in runs for entry in r.sites.values()]),
        "seconds": round(seconds, 2),
        **(told if kinds else {}),
        **_common(runs, alone),
    }


def _group(
    runs: Sequence[Run], alone: Sequence[Run], sites: Sequence[str], metrics: Sequence[str]
) -> dict[str, Any]:
    """Some of the sites over all seeds: their mean, and their gain over training alone."""
    means = [mean_metrics(r.sites[s]["metrics"] for s in sites if s in r.sites) for r in runs]
    return {
        "sites": list(sites),
        "mean": {m: _spread([mean[m] for mean in means if m in mean]) for m in metrics},
        "gain_over_alone": {
            m: _spread([statistics.fmean(g.values()) for g in _gains(runs, alone, sites, m) if g])
            for m in metrics
        },
    }


def _common(runs: Sequence[Run], alone: Sequence[Run]) -> dict[str, Any]:
    """The same on the common test records, where the study has them; nothing otherwise."""
    sites = [s for s, entry in sorted(runs[0].sites.items()) if entry.get("common_metrics")]
    if not sites:
        return {}
    metrics = [m for m in HIGHER_IS_BETTER if any(m in runs[0].sites[s]["common_metrics"] for s in sites)]
    gains = {m: _gains(runs, alone, sites, m, "common_metrics") for m in metrics}
    means = [mean_metrics(r.sites[s].get("common_metrics", {}) for s in sites) for r in runs]
    return {
        "common": {
            "mean": {m: _spread([mean[m] for mean in means if m in mean]) for m in metrics},
            "gain_over_alone": {
                m: {
                    **_spread([statistics.fmean(g.values()) for g in gains[m] if g]),
                    **_worst(gains[m], sites),
                }
                for m in metrics
            },
            "sites": {
                s: {
                    "metrics": {m: _spread(_found(runs, s, m, "common_metrics")) for m in metrics},
                    "gain": {m: _spread([g[s] for g in gains[m] if s in g]) for m in metrics},
                }
                for s in sites
            },
        }
    }


def _found(runs: Sequence[Run], site: str, metric: str, of: str = "metrics") -> list[float]:
    return [r.sites[site][of][metric] for r in runs if metric in r.sites[site].get(of, {})]


def add_intervals(together: dict[str, Any], runs: Mapping[str, Sequence[Run]], part: str) -> None:
    """Put the 95 % intervals of the paired bootstrap beside the gains: on the sites' own test records, or the common ones."""
    said = {
        n: [{s: k.parts[part] for s, k in r.said.items() if part in k.parts} for r in found]
        for n, found in runs.items()
    }
    for name, found in intervals(said, ALONE).items():
        entry = together[name] if part == "test" else together[name].get("common")
        if entry is None:
            continue
        for metric, ends in found.mean.items():
            entry["gain_over_alone"].get(metric, {})["interval"] = list(ends)
        for site, by_metric in found.sites.items():
            for metric, ends in by_metric.items():
                entry["sites"][site]["gain"].get(metric, {})["interval"] = list(ends)


def gap(together: Mapping[str, Any]) -> dict[str, Any]:
    """For each metric: alone, pooled without noise, and the share of the way between them that each strategy made.

    Where pooling gains nothing that is clear, a share of it would mean nothing and is None.
    """
    if POOLED not in together:
        return {}
    found = {}
    for metric, way in together[POOLED]["gain_over_alone"].items():
        low = (way.get("interval") or [None])[0]
        clear = way["mean"] is not None and way["mean"] > 0 and (low is None or low > 0)
        gained = {n: s["gain_over_alone"].get(metric, {}).get("mean") for n, s in together.items()}
        found[metric] = {
            "alone": together[ALONE]["mean"].get(metric, {}).get("mean"),
            "pooled": together[POOLED]["mean"].get(metric, {}).get("mean"),
            "gap": {k: way[k] for k in ("mean", "std", "interval") if k in way},
            "closed": {
                n: g / way["mean"] if clear and g is not None else None
                for n, g in gained.items()
                if n not in (ALONE, POOLED)
            },
        }
    return found


def _gains(
    runs: Sequence[Run], alone: Sequence[Run], sites: Sequence[str], metric: str, of: str = "metrics"
) -> list[dict[str, float]]:
    """For each seed, how much better each site does together than alone; positive is better."""
    sign = 1.0 if HIGHER_IS_BETTER[metric] else -1.0
    out = []
    for run, base in zip(runs, alone, strict=True):
        found = {}
        for s in sites:
            together, apart = (r.sites.get(s, {}).get(of, {}).get(metric) for r in (run, base))
            if together is not None and apart is not None:
                found[s] = sign * (together - apart)
        out.append(found)
    return out


def _spread(values: Sequence[float]) -> dict[str, Any]:
    if not values:
        return {"mean": None, "std": None, "values": []}
    std = statistics.stdev(values) if len(values) > 1 else None
    return {"mean": statistics.fmean(values), "std": std, "values": list(values)}


def _worst(gains: Sequence[Mapping[str, float]], sites: Sequence[str]) -> dict[str, Any]:
    means = {s: statistics.fmean(g[s] for g in gains if s in g) for s in sites if any(s in g for g in gains)}
    if not means:
        return {"worst_site": None, "worst_site_name": None}
    worst = min(means, key=lambda s: means[s])
    return {"worst_site": means[worst], "worst_site_name": worst}


def _largest(found: Sequence[dict[str, Any] | None]) -> dict[str, Any] | None:
    """The privacy of the site and seed that spent most."""
    spent = [p for p in found if p is not None]
    return max(spent, key=lambda p: p["epsilon"]) if spent else None


def _notes(run: Run) -> list[str]:
    return [str(e.data["text"]) for e in run.events if e.kind == "notice" and e.site is None]

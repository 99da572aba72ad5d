"""What a folder of results holds: one run, or a comparison of strategies over seeds."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import unquote

from confrere.core.errors import CheckpointError
from confrere.core.events import Json, verified
from confrere.observe.journal import History, history, read_history


@dataclass(frozen=True)
class Privacy:
    """An ε with all that it means something only together with."""

    epsilon: float
    delta: float
    unit: str
    proven: bool
    accountant: str | None = None
    budget: float | None = None


@dataclass(frozen=True)
class Measured:
    """A figure with its spread. `values` has one entry per seed; None where it could not be measured."""

    mean: float
    std: float | None = None
    values: tuple[float | None, ...] = ()
    interval: tuple[float, float] | None = None
    """95 %, by the paired bootstrap over test records and seeds, where it was made."""


@dataclass(frozen=True)
class SiteResult:
    name: str
    records: int | None = None
    metrics: Mapping[str, Measured] = field(default_factory=dict)
    proxy_metrics: Mapping[str, Measured] = field(default_factory=dict)
    gains: Mapping[str, Measured] = field(default_factory=dict)
    """Over alone, paired by seed; positive is better."""
    privacy: Privacy | None = None
    bytes_sent: int | None = None
    lacks: Mapping[str, str] = field(default_factory=dict)
    """Columns of the schema that the site has not: imputed there, or left out everywhere."""


@dataclass(frozen=True)
class Group:
    """The sites that have all columns, or those that lack some, and how they do on the mean."""

    sites: tuple[str, ...]
    mean: Mapping[str, Measured]
    gains: Mapping[str, Measured] = field(default_factory=dict)


@dataclass(frozen=True)
class StrategyResult:
    name: str
    sites: Mapping[str, SiteResult]
    mean: Mapping[str, Measured]
    privacy: Privacy | None = None
    seconds: float | None = None
    gains: Mapping[str, Measured] = field(default_factory=dict)
    by_columns: Mapping[str, Group] = field(default_factory=dict)
    """«complete» and «lacking», where there are sites of both kinds."""
    common: Group | None = None
    """On the common test records, where the study has them."""

    @property
    def bytes_sent(self) -> int | None:
        """Of all sites together, in one run; None where it was not recorded."""
        sent = [s.bytes_sent for s in self.sites.values() if s.bytes_sent is not None]
        return sum(sent) if sent else None


@dataclass(frozen=True)
class Comparison:
    """Several ways to learn, each over the same seeds, beside training alone."""

    strategies: Mapping[str, StrategyResult]
    seeds: tuple[int, ...]
    title: str = ""
    question: str = ""
    reference: str = "local"
    notes: tuple[str, ...] = ()
    featured: str | None = None
    """The strategy that the answer is about."""
    metric: str | None = None
    """The measure that the answer is judged by."""
    facts: Mapping[str, Json] = field(default_factory=dict)
    """Study, scale, command, versions and hardware, as far as they were written down."""
    reported: Mapping[str, Json] | None = None
    """What the study's source reports, beside what was measured."""

    @property
    def alone(self) -> StrategyResult | None:
        return self.strategies.get(self.reference)

    @property
    def pooled(self) -> StrategyResult | None:
        return self.strategies.get("pooled")

    @property
    def together(self) -> StrategyResult | None:
        """The collaboration that the report is about: the named one, else ProxyFL, else the first."""
        names = [n for n in self.strategies if is_collaboration(n)]
        for name in (self.featured or "", "proxyfl", *names):
            if name in self.strategies:
                return self.strategies[name]
        return None

    @property
    def sites(self) -> tuple[str, ...]:
        """Largest first, as alone sees them; a pooled «site» of all records is none."""
        known = self.alone or self.together
        sites = list(known.sites.values()) if known else []
        return tuple(s.name for s in sorted(sites, key=lambda s: (-(s.records or 0), s.name)))

    @property
    def metrics(self) -> tuple[str, ...]:
        return in_order(m for s in self.strategies.values() for r in s.sites.values() for m in r.metrics)

    @property
    def headline(self) -> str | None:
        """The measure that decides: the named one, else the first of AUC, accuracy, RMSE … there is."""
        for name in (self.metric, "auc", "accuracy", "rmse", *self.metrics):
            if name in self.metrics:
                return name
        return None


@dataclass(frozen=True)
class Run:
    """One run: its facts (run.json), its journal, and its result if it came to one."""

    folder: Path | None
    facts: Mapping[str, Json]
    history: History
    sites: Mapping[str, SiteResult]
    mean: Mapping[str, Measured]
    finished: bool
    by_columns: Mapping[str, Group] = field(default_factory=dict)

    @property
    def strategy(self) -> str:
        return str(self.facts.get("strategy") or self.history.started.get("strategy") or "")


ORDER = ("auc", "accuracy", "macro_accuracy", "f1", "log_loss", "rmse", "r2")


def is_collaboration(name: str) -> bool:
    """Whether sites learn together under this name; alone and pooled are what it is measured against."""
    return name.split("@")[0].split("-")[0] not in ("local", "pooled")


def comparison_of(document: Mapping[str, Json]) -> Comparison:
    """What `compare --json` prints, as values."""
    return Comparison(
        {name: _strategy(name, row) for name, row in document["strategies"].items()},
        tuple(document.get("seeds") or ()),
        str(document.get("title") or ""),
        str(document.get("question") or ""),
        str(document.get("reference") or "local"),
        tuple(str(n) for n in document.get("notes") or ()),
        document.get("featured"),
        document.get("metric"),
        {k: document[k] for k in ("study", "scale", "command", "versions", "hardware") if document.get(k)},
        document.get("reported"),
    )


def run_of(
    result: Mapping[str, Json],
    facts: Mapping[str, Json] | None = None,
    told: History | None = None,
    folder: Path | None = None,
) -> Run:
    """What `simulate --json` prints, as values."""
    told = told or History()
    sites = {name: _with_ledger(_site(name, row), told) for name, row in (result.get("sites") or {}).items()}
    means = _measures(result.get("mean"))
    return Run(folder, facts or {}, told, sites, means, bool(result), _groups(result.get("by_columns")))


def read_comparison(folder: Path) -> Comparison:
    """A comparison folder. What comparison.json leaves out of an ε is read in the journals beside it."""
    comparison = comparison_of(_json(folder / "comparison.json"))
    completed = {}
    for name, strategy in comparison.strategies.items():
        journal = next((p for p in runs_of(folder, name) if (p / "journal.jsonl").exists()), None)
        paying = {s.name for s in strategy.sites.values() if s.privacy}
        if journal is not None and paying:
            told = _first_charges(journal / "journal.jsonl", paying)
            strategy = replace(strategy, sites={n: _with_ledger(s, told) for n, s in strategy.sites.items()})
        completed[name] = strategy
    return replace(comparison, strategies=completed)


def read_run(folder: Path) -> Run:
    """A run folder, finished or not."""
    path = folder / "journal.jsonl"
    if not path.exists():
        raise CheckpointError(f"{folder}: no journal.jsonl here; name the folder of a run or of a comparison")
    told = read_history(path)
    facts = _json(folder / "run.json") if (folder / "run.json").exists() else dict(told.started)
    result = _json(folder / "result.json") if (folder / "result.json").exists() else None
    return run_of(result or (told.finished or {}).get("result") or {}, facts, told, folder)


def runs_of(folder: Path, strategy: str) -> list[Path]:
    """The single runs of a strategy in a comparison folder, in the order of their seeds."""
    runs = [
        p
        for p in (folder / "runs").glob("*-*")
        if unquote(p.name.rpartition("-")[0]) == strategy and p.name.rpartition("-")[2].isdigit()
    ]
    return sorted(runs, key=lambda p: int(p.name.rpartition("-")[2]))


def read_facts(folder: Path) -> dict[str, Json]:
    """What a run wrote down about itself; empty where it did not."""
    path = folder / "run.json"
    return _json(path) if path.exists() else {}


def _json(path: Path) -> dict[str, Json]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: cannot be read as JSON ({error})") from None
    if not isinstance(document, dict):
        raise CheckpointError(f"{path}: holds {type(document).__name__}, not the results of a run")
    return document


def in_order(names: Iterable[str]) -> tuple[str, ...]:
    """Measures in the order in which they are always shown, each once."""
    found = list(dict.fromkeys(names))
    return tuple([m for m in ORDER if m in found] + [m for m in found if m not in ORDER])


def _strategy(name: str, row: Mapping[str, Json]) -> StrategyResult:
    sites = {site: _site(site, r) for site, r in (row.get("sites") or {}).items()}
    return StrategyResult(
        name,
        sites,
        _measures(row.get("mean")),
        _privacy(row.get("privacy")),
        row.get("seconds"),
        _measures(row.get("gain_over_alone")),
        _groups(row.get("by_columns")),
        _common(row.get("common")),
    )


def _common(row: Mapping[str, Json] | None) -> Group | None:
    if not row:
        return None
    return Group(
        tuple(row.get("sites") or ()), _measures(row.get("mean")), _measures(row.get("gain_over_alone"))
    )


def _site(name: str, row: Mapping[str, Json]) -> SiteResult:
    return SiteResult(
        name,
        row.get("records"),
        _measures(row.get("metrics")),
        _measures(row.get("proxy_metrics")),
        _measures(row.get("gain")),
        _privacy(row.get("privacy")),
        row.get("bytes_sent"),
        {str(c): str(how) for c, how in (row.get("missing_columns") or {}).items()},
    )


def _groups(row: Mapping[str, Json] | None) -> dict[str, Group]:
    return {
        kind: Group(
            tuple(group.get("sites") or ()),
            _measures(group.get("mean")),
            _measures(group.get("gain_over_alone")),
        )
        for kind, group in (row or {}).items()
        if kind in ("complete", "lacking")
    }


def _measures(row: Mapping[str, Json] | None) -> dict[str, Measured]:
    measures = {name: _measured(value) for name, value in (row or {}).items()}
    return {name: m for name, m in measures.items() if m is not None}


def _measured(value: Json) -> Measured | None:
    if isinstance(value, Mapping):
        mean, values = _finite(value.get("mean")), tuple(_finite(v) for v in value.get("values") or ())
        ends = tuple(e for v in value.get("interval") or () if (e := _finite(v)) is not None)
        interval = (ends[0], ends[1]) if len(ends) == 2 else None
        return None if mean is None else Measured(mean, _finite(value.get("std")), values, interval)
    number = _finite(value)
    return None if number is None else Measured(number, None, (number,))


def _finite(value: Json) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _privacy(row: Mapping[str, Json] | None) -> Privacy | None:
    if not row or row.get("epsilon") is None:
        return None
    return Privacy(
        float(row["epsilon"]),
        float(row["delta"]),
        str(row.get("unit") or "record"),
        bool(row.get("proven", False)),
        row.get("accountant"),
        _finite(row.get("budget")),
    )


def _first_charges(path: Path, sites: set[str]) -> History:
    """The journal as far as the first charge of each of these sites: that names budget and accountant."""
    wanted, events = set(sites), []
    for event, _ in verified(path):
        if event.kind == "charged" and event.site in wanted:
            events.append(event)
            wanted.discard(event.site)
            if not wanted:
                break
    return history(events)


def _with_ledger(site: SiteResult, told: History) -> SiteResult:
    """The accountant and the budget, which only the journal knows."""
    spent = told.epsilon(site.name)
    if site.privacy is None or not spent:
        return site
    privacy = replace(
        site.privacy,
        accountant=site.privacy.accountant or spent[-1].accountant,
        budget=spent[-1].budget if site.privacy.budget is None else site.privacy.budget,
    )
    return replace(site, privacy=privacy)

"""Read a results folder: a single run, or a comparison over seeds."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import unquote

from confrere.core.errors import CheckpointError
from confrere.core.events import Json, verified
from confrere.core.metrics import in_order, proper
from confrere.core.results import ComparisonResult, Figure, RunResult, SiteResult
from confrere.report.history import History, history, read_history


@dataclass(frozen=True)
class RunRecord:
    """The folder of a run: its facts (run.json), its journal, and its result if it came to one."""

    folder: Path | None
    facts: Mapping[str, Json]
    history: History
    result: RunResult
    finished: bool

    @property
    def sites(self) -> Mapping[str, SiteResult[float]]:
        return self.result.sites

    @property
    def strategy(self) -> str:
        return str(self.facts.get("strategy") or self.history.started.get("strategy") or "")

    @property
    def label(self) -> str:
        """What people call the strategy; its name where no label was written down."""
        return str(self.history.started.get("label") or self.strategy)

    @property
    def primary(self) -> str | None:
        """The study's primary metric; where the study states none, the proper scoring rule, or else the first."""
        return primary_of(self.result, self.folder)


def with_ledgers(result: RunResult, journal: History) -> RunResult:
    """The result with what only the journal knows of a site's privacy: accountant and budget."""
    return replace(result, sites={name: _with_ledger(site, journal) for name, site in result.sites.items()})


def read_comparison(folder: Path) -> ComparisonResult:
    """A comparison folder. What comparison.json leaves out of an ε is read in the journals beside it."""
    comparison = ComparisonResult.from_json(_json(folder / "comparison.json"))
    completed = {}
    for name, strategy in comparison.strategies.items():
        journal = next((p for p in runs_of(folder, name) if (p / "journal.jsonl").exists()), None)
        paying = {s.name for s in strategy.sites.values() if s.privacy}
        if journal is not None and paying:
            charges = _first_charges(journal / "journal.jsonl", paying)
            sites = {n: _with_ledger(s, charges) for n, s in strategy.sites.items()}
            strategy = replace(strategy, sites=sites)
        completed[name] = strategy
    return replace(comparison, strategies=completed, facts={**_split(folder, comparison), **comparison.facts})


def _split(folder: Path, comparison: ComparisonResult) -> dict[str, Json]:
    """How records were held out, as the first run with a result states it: for a comparison that does not state it itself."""
    results = (p / "result.json" for name in comparison.strategies for p in runs_of(folder, name))
    first = next((p for p in results if p.exists()), None)
    split = _json(first).get("split") if first else None
    return {"split": split} if split else {}


def read_run(folder: Path) -> RunRecord:
    """A run folder, finished or not."""
    path = folder / "journal.jsonl"
    if not path.exists():
        raise CheckpointError(f"{folder}: no journal.jsonl here; name the folder of a run or of a comparison")
    journal = read_history(path)
    facts = read_facts(folder) or dict(journal.started)
    document = _json(folder / "result.json") if (folder / "result.json").exists() else None
    document = document or (journal.finished or {}).get("result") or {}
    result = with_ledgers(RunResult.from_json(document), journal)
    return RunRecord(folder, facts, journal, result, bool(document))


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


def primary_of(result: RunResult, folder: Path | None = None) -> str | None:
    """The primary metric of a run, from the study in its folder; by default the proper scoring rule, or else the first."""
    place = folder or (Path(result.run) if result.run else None)
    stated = _stated_primary(place / "study.toml") if place else None
    return stated if stated in result.mean else proper(result.mean) or next(iter(in_order(result.mean)), None)


def _stated_primary(study: Path) -> str | None:
    try:
        evaluation = tomllib.loads(study.read_text(encoding="utf-8")).get("evaluation")
    except (OSError, ValueError):
        return None
    return evaluation.get("primary") if isinstance(evaluation, dict) else None


def _json(path: Path) -> dict[str, Json]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: cannot be read as JSON ({error})") from None
    if not isinstance(document, dict):
        raise CheckpointError(f"{path}: holds {type(document).__name__}, not the results of a run")
    return document


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


def _with_ledger(site: SiteResult[Figure], journal: History) -> SiteResult[Figure]:
    spent = journal.epsilon(site.name)
    if site.privacy is None or not spent:
        return site
    privacy = replace(
        site.privacy,
        accountant=site.privacy.accountant or spent[-1].accountant,
        budget=spent[-1].budget if site.privacy.budget is None else site.privacy.budget,
    )
    return replace(site, privacy=privacy)

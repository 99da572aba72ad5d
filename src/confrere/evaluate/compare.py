"""Compare strategies on the same records over several seeds, with training alone as the reference."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from confrere.core.errors import StudyError
from confrere.core.events import Event
from confrere.core.metrics import proper
from confrere.core.registry import nearest, strategies
from confrere.core.results import ALONE, POOLED, ComparisonResult, Measured, SiteRecords, StrategyResult
from confrere.core.strategy_traits import traits
from confrere.data.federation_profile import profile
from confrere.data.profile_chart import MOST_FEATURES
from confrere.data.records import Federation
from confrere.evaluate.comparison_verdicts import verdicts
from confrere.evaluate.peer_trials import Tried, peer_gains, try_models
from confrere.evaluate.strategy_summary import gap, summary
from confrere.report.page import write_report
from confrere.simulation.finished_run import Run
from confrere.simulation.run_folder import RunFolder, check_free, hardware, write_json
from confrere.simulation.simulation import Simulation
from confrere.site.journal_results import by_columns, mean_metrics
from confrere.site.open_sites import Source, open_sites
from confrere.strategies import discover
from confrere.study import ComparisonSettings, Study, merged, named
from confrere.study.exchange_settings import sends
from confrere.version import versions


@dataclass(frozen=True)
class Comparison:
    """The result of a comparison: `comparison.strategies["proxyfl"].gains.auc.mean` is a number.

    `comparison.result` has everything that `confrere compare --json` prints (`comparison.result.as_json()`).
    """

    result: ComparisonResult
    runs: dict[str, list[Run]] = field(repr=False, default_factory=dict)
    """By strategy, one run per seed."""
    folder: Path | None = None

    @property
    def strategies(self) -> Mapping[str, StrategyResult]:
        return self.result.strategies

    def __repr__(self) -> str:
        return f"Comparison({', '.join(self.strategies)} over {len(self.result.seeds)} seeds, folder={self.folder})"

    def report(self, path: str | Path | None = None) -> Path:
        """Write the HTML report: one file, by default report.html in the comparison's folder."""
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
    return replace(study, variants={}, comparison=ComparisonSettings(), scales={})


def _fitting(study: Study, name: str) -> Study:
    """The study without its exchange settings, if `name` sends no models or has its own."""
    own = study.variants.get(name, {})
    chosen = own.get("strategy", name if name in strategies else study.strategy)
    rule = strategies[named(chosen, f"variants.{name}.strategy")[0]]
    if traits(rule).topology is None and "topology" not in own:
        return replace(study, combiner=None, masked=None, compression=None, attack=None)
    return replace(study, combiner=None, masked=None) if "combiner" in own else study


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
    """What a comparison of the study runs in addition to training alone, by default."""
    return study.comparison.names() or [study.strategy_name]


def compare(
    study: Study,
    names: Sequence[str] | str | None = None,
    seeds: Sequence[int] | int = (0, 1, 2, 3, 4),
    sites: Mapping[str, Source] | None = None,
    *,
    out: str | Path | None = None,
    device: str = "cpu",
    listeners: tuple[Callable[[Event], None], ...] = (),
    command: str = "",
    pooled: bool = False,
) -> Comparison:
    """Run each strategy with each seed on the same records, and compare it with training alone.

    `names` are strategies or [variants] of the study; `sites` are your own records, as in `simulate`. With `out`, all runs
    are kept in that folder. With `pooled`, one model of all records without noise is trained as well: how much there is to
    gain.

    >>> found = confrere.compare(study, ["fedavg"], seeds=[0, 1], sites=sites)
    >>> gain = found.strategies["fedavg"].gains.accuracy
    >>> len(gain.values), gain.worst_site <= gain.mean
    (2, True)
    """
    names = [names] if isinstance(names, str) else names
    seeds = range(study.seed, study.seed + seeds) if isinstance(seeds, int) else seeds
    if not seeds:
        raise StudyError("a comparison needs at least one seed")
    folder = Path(out) if out is not None else None
    if folder is not None:
        check_free(folder)
    variants = arms(study, names, pooled)
    ran = _run_all(variants, seeds, sites, folder, device, listeners)
    runs, seconds = ran.runs, ran.seconds
    attackers = {n: found[0].result.attack.attackers for n, found in runs.items() if found[0].result.attack}
    runs = {name: [without_attackers(run, attackers) for run in found] for name, found in runs.items()}
    first = runs[ALONE][0]
    primary = study.evaluation.primary if study.evaluation.primary in first.mean else proper(first.mean)
    found = verdicts(runs, primary, by_columns(first.sites), _classes(first))
    results = {
        name: summary(name, label(name, variants[name]), runs, round(seconds[name], 2), found)
        for name in variants
    }
    result = ComparisonResult(
        results,
        tuple(seeds),
        title=study.title or study.name,
        question=study.question,
        notes=(*_notes(runs[ALONE][0]), *_unpaired(variants), *_attack_note(attackers)),
        facts=_facts(study, device, command),
        metric=primary,
        gap=gap(results, found),
        attack=attackers,
        records=ran.records,
        public=ran.public,
        trials=_honest(peer_gains(ran.tried, primary), attackers),
    )
    if folder is not None:
        write_json(folder / "comparison.json", result.as_json())
        (folder / "study.toml").write_text(study.to_toml(), encoding="utf-8")
    return Comparison(result, runs, folder)


def _facts(study: Study, device: str, command: str) -> dict[str, Any]:
    return {
        "study": study.hash(),
        "scale": study.scale,
        "split": study.data.split.facts,
        "versions": versions(),
        "hardware": hardware(device),
        "command": command,
    }


@dataclass
class _Ran:
    """Every arm with every seed, and what was measured of records and models on the way."""

    runs: dict[str, list[Run]]
    seconds: dict[str, float]
    """By arm."""
    records: dict[str, SiteRecords] = field(default_factory=dict)
    public: bool = False
    tried: list[Tried] = field(default_factory=list)
    """By seed."""


def _run_all(
    variants: Mapping[str, Study], seeds: Sequence[int], sites: Mapping[str, Source] | None, folder: Path | None,
    device: str, listeners: tuple[Callable[[Event], None], ...],
) -> _Ran:  # fmt: skip
    ran = _Ran({name: [] for name in variants}, dict.fromkeys(variants, 0.0))
    for seed in seeds:
        opened: list[tuple[Study, Federation]] = []
        for name, arm in variants.items():
            arm, began = arm.with_(seed=seed), time.perf_counter()
            simulation = Simulation(arm, open_sites(arm, shared(opened, arm, sites)), device=device)
            place = folder / "runs" / f"{quote(name, safe=' ')}-{seed}" if folder else None
            files = RunFolder(place, arm, of_comparison=True) if place is not None else None
            ran.runs[name].append(simulation.run(files, listeners))
            ran.seconds[name] += time.perf_counter() - began
            if name == ALONE:
                ran.tried.append(try_models(simulation))
        federation = opened[0][1]
        ran.records, ran.public = ran.records or _records(federation), federation.card is not None
    return ran


def _honest(
    found: Mapping[str, Mapping[str, Measured]], attackers: Mapping[str, Sequence[str]]
) -> dict[str, dict[str, Measured]]:
    """Without the sites that attack in any arm."""
    gone = {site for sites in attackers.values() for site in sites}
    return {
        site: {peer: gain for peer, gain in peers.items() if peer not in gone}
        for site, peers in found.items()
        if site not in gone
    }


def _records(federation: Federation) -> dict[str, SiteRecords]:
    """What `confrere datasets show` draws, in numbers; without the columns in which sites hardly differ."""
    seen = profile(federation)
    columns = seen.most_apart(MOST_FEATURES)
    shares = {seen.features[c]: seen.shares(c) for c in columns if seen.two_valued[c]}
    return {
        site.name: SiteRecords(
            site.records,
            {name: float(share) for name, share in site.labels.items() if math.isfinite(share)},
            {name: share for name, share in site.missing.items() if share > 0},
            {seen.features[c]: float(seen.apart[row, c]) for c in columns},
            len(seen.features),
            {name: by_site[row] for name, by_site in shares.items()},
        )
        for row, site in enumerate(seen.sites)
    }


def shared(
    opened: list[tuple[Study, Federation]], study: Study, sites: Mapping[str, Source] | None = None
) -> Federation:
    """The study's records: read and encoded once for all arms of a seed that have the same ones."""
    for other, found in opened:
        if _same_records(other, study):
            return found
    opened.append((study, open_sites(study, sites)))
    return opened[-1][1]


def without_attackers(run: Run, attackers: Mapping[str, Sequence[str]]) -> Run:
    """The run without the sites that attack in any arm: all arms are compared on the same, honest ones."""
    gone = {site for sites in attackers.values() for site in sites}
    if not gone:
        return run
    sites = {n: s for n, s in run.sites.items() if n not in gone}
    common = (
        None if run.result.common_mean is None else mean_metrics(s.common_metrics for s in sites.values())
    )
    mean = mean_metrics(s.metrics for s in sites.values())
    result = replace(run.result, sites=sites, mean=mean, common_mean=common)
    return replace(
        run, result=result, predictions={n: k for n, k in run.predictions.items() if n not in gone}
    )


def _attack_note(attackers: Mapping[str, Sequence[str]]) -> list[str]:
    """Who attacked, and that they do not count."""
    if not attackers:
        return []
    who = "; ".join(f"{name}: {', '.join(sites)}" for name, sites in attackers.items())
    return [f"All figures are of the honest sites alone. Dishonest were {who}."]


def _unpaired(variants: Mapping[str, Study]) -> list[str]:
    """Which strategies ran on other records than training alone: their gains mix both differences."""
    alone = variants[ALONE]
    others = [n for n, s in variants.items() if not _same_records(alone, s)]
    return [f'"{n}" has other records than «{ALONE}»: its gains are not paired' for n in others]


def label(name: str, study: Study) -> str:
    """The label of an arm: «ProxyFL, with noise»; one that is not named after its strategy keeps its name."""
    honest, _, attack = name.partition("+")
    suffix = honest.removeprefix(study.strategy_name)
    if not suffix:
        text = study.strategy_label
    elif suffix == honest or suffix[0] != "-":
        text = honest
    else:
        text = f"{study.strategy_label}{', with noise' if suffix == '-dp' else f' ({suffix[1:]})'}"
    return f"{text}, under {attack}" if attack else text


def _same_records(one: Study, two: Study) -> bool:
    return (one.data, one.sites, one.schema) == (two.data, two.sites, two.schema)


def _classes(run: Run) -> tuple[str, ...]:
    start = next((e.data for e in run.events if e.kind == "run-started"), {})
    return tuple(str(c) for c in (start.get("task") or {}).get("classes") or ())


def _notes(run: Run) -> list[str]:
    return [str(e.data["text"]) for e in run.events if e.kind == "notice" and e.site is None]

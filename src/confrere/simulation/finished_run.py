"""From the start event of a run to its result: time it, sum up journal and sites, and return the public `Run`."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from confrere.core.custody import Custody
from confrere.core.errors import CheckpointError, StudyError, warn_renamed
from confrere.core.events import Event, Journal
from confrere.core.model import Model
from confrere.core.owner_only import make_private_folder
from confrere.core.results import Attacked, Group, Metrics, PrivacyMeaning, RunResult, SiteResult, Stopped
from confrere.report.page import write_report
from confrere.simulation.collaboration import Collaboration
from confrere.simulation.run_folder import RunFolder, hardware
from confrere.site.assemble import has_own_networks, unprotected_patients
from confrere.site.deployment import deployment_of
from confrere.site.journal_results import (
    by_columns,
    charged,
    current,
    mean_metrics,
    prevalence,
    site_results,
    tested,
)
from confrere.site.predictions import SelectedPredictions, write_predictions
from confrere.site.site_folder import STORE, Ending, save_model, site_folder_of
from confrere.site.start_events import run_started, site_started
from confrere.study import Study

MOST = 50
"""A simulation of more sites writes no folders for single sites: copies of its journal would slow it by a fifth or more."""


@dataclass(frozen=True)
class Run:
    """The result of a run.

    `run.sites["Ouest"].metrics.auc`, `run.sites["Ouest"].privacy.epsilon` and `run.mean.auc` are numbers;
    `run.result` has everything that `confrere simulate --json` prints (`run.result.as_json()`).
    """

    study: Study
    result: RunResult
    events: Sequence[Event] = field(repr=False, default_factory=list)
    """All events, in order."""
    folder: Path | None = None
    models: dict[str, dict[str, Model]] = field(repr=False, default_factory=dict)
    """Per site, the models that it would use: PRIVATE where they were trained without noise."""
    predictions: dict[str, SelectedPredictions] = field(repr=False, default_factory=dict)
    """Per site, what its model predicted for each test record: PRIVATE."""

    def __repr__(self) -> str:
        return f"Run({self.study.name!r}, {len(self.sites)} sites, folder={self.folder})"

    @property
    def said(self) -> dict[str, SelectedPredictions]:
        """The name of `predictions` before 0.2."""
        warn_renamed("run.said", "run.predictions")
        return self.predictions

    @property
    def mean(self) -> Metrics[float]:
        """The plain mean over sites, without attackers."""
        return self.result.mean

    @property
    def sites(self) -> Mapping[str, SiteResult[float]]:
        return self.result.sites

    def report(self, path: str | Path | None = None) -> Path:
        """Write the HTML report: one file, by default report.html in the run's folder."""
        if self.folder is None:
            raise StudyError("a report needs the files of the run: simulate(study, out=FOLDER)")
        return write_report(self.folder, Path(path) if path else None)


@dataclass
class RunTimer:
    """Times a run and sums it up."""

    journal: Journal
    began: float

    def finish(self, collaboration: Collaboration, folder: RunFolder | None) -> Run:
        seconds = time.perf_counter() - self.began
        events = self.journal.events
        result = run_result(collaboration, events, folder.path if folder else None, self.journal.kinds)
        document = result.as_json()
        data = {"seconds": round(seconds, 3), "result": document}
        self.journal.add(Event("run-finished", custody=Custody.PRIVATE, data=data))  # it holds metrics
        predictions = {n: j.predictions for n, j in collaboration.judges.items() if j.predictions.parts}
        if folder is not None:
            folder.finish(document, seconds)
            write_predictions(predictions, folder.path / "predictions.npz")
        models = {name: collaboration.models(name) for name in result.sites}
        return Run(collaboration.study, result, events, folder.path if folder else None, models, predictions)


def run_result(
    collaboration: Collaboration, events: Sequence[Event], folder: Path | None, kinds: Collection[str]
) -> RunResult:
    """The result of a collaboration whose events, of these kinds, are all there."""
    study, plan, federation = collaboration.study, collaboration.plan, collaboration.federation
    attackers = plan.sites if plan is not None else ()
    found = site_results(events, collaboration.strategy.deploys, study.evaluation.select, study.rounds)
    sites = {
        name: replace(
            site,
            records=federation.sites[name].size,
            attacker=name in attackers,
            missing_columns=dict(federation.sites[name].lacks),
            tested=tested(federation.sites[name].test, federation.task),
            prevalence=prevalence(federation.sites[name].train, federation.task),
        )
        for name, site in found.items()
    }
    honest = [site for name, site in sites.items() if name not in attackers]
    common = any(site.common_metrics is not None for site in sites.values())
    return RunResult(
        run=str(folder) if folder else None,
        study=study.hash(),
        scale=study.scale,
        seed=study.seed,
        strategy=study.strategy_name,
        split=study.data.split.facts,
        sites=sites,
        mean=mean_metrics(site.metrics for site in honest),
        attack=Attacked(plan.name, tuple(plan.sites), tuple(plan.honest)) if plan is not None else None,
        stopped=_stopped(events) if "notice" in kinds else None,
        privacy=_meaning(collaboration, sites, events),
        common_mean=mean_metrics(site.common_metrics for site in honest) if common else None,
        by_columns={
            kind: Group(tuple(names), mean_metrics(sites[n].metrics for n in names))
            for kind, names in by_columns(sites).items()
        },
    )


def _meaning(
    collaboration: Collaboration, sites: Mapping[str, SiteResult[float]], events: Sequence[Event]
) -> PrivacyMeaning | None:
    """What ε means at the site that spent most; None where nothing was trained with noise."""
    spent = {name: site.privacy.epsilon for name, site in sites.items() if site.privacy is not None}
    if not spent:
        return None
    most = max(spent, key=lambda name: spent[name])
    meaning = collaboration.sites[most].meaning(charged(events, most))
    return PrivacyMeaning.from_json({"site": most, **meaning})


def _stopped(events: Sequence[Event]) -> Stopped | None:
    """After how many rounds, and why, where the study has stopped before its last one."""
    found = (e.data for e in reversed(events) if e.kind == "notice" and e.data.get("stopped"))
    last = next(found, None)
    return Stopped(last["stopped"], last["text"]) if last else None


def started(collaboration: Collaboration, journal: Journal, again: bool, first: int) -> RunTimer:
    """Record what is about to run."""
    study = collaboration.study
    if again:
        journal.add(Event("resumed", data={"round": first}))
    else:
        machine = hardware(collaboration.device)
        journal.add(run_started(study, collaboration.federation, collaboration.sites, machine))
        if collaboration.plan is not None:
            journal.add(Event("notice", data={"text": collaboration.plan.text}))
        for text in (*collaboration.federation.notes, *collaboration.remarks):
            journal.add(Event("notice", data={"text": text}))
        for name, site in collaboration.federation.sites.items():
            warning = unprotected_patients(study, site)
            for text in (*site.notes, *([warning] if warning else [])):
                journal.add(Event("notice", name, custody=Custody.PRIVATE, data={"text": text}))
    return RunTimer(journal, time.perf_counter())


def write_site_folders(collaboration: Collaboration, folder: Path, journal: Journal) -> None:
    """The folders of all sites of a simulation, from their last states and the events of the run."""
    sites = collaboration.judges
    if len(sites) > MOST:
        text = f"no folders of single sites were written: the run has {len(sites):,} sites, and the most is {MOST}"
        journal.add(Event("notice", data={"text": text}))
        return
    study, federation = collaboration.study, collaboration.federation
    deployments = {}
    for name in sites:
        run = collaboration.run_of(name)
        if run is not None and run.state is not None and not has_own_networks(study):
            deployments[name] = run, deployment_of(run, name)
    began, done = time.time(), 0
    own: dict[str, list[Event]] = {name: [] for name in sites}
    for event in current(journal.events):
        if event.site in own:
            own[event.site].append(event)
        elif event.kind == "round-started" and event.round is not None:
            done = max(done, event.round + 1)
            for name in own.keys() & set(event.data["members"]):
                own[name].append(replace(event, site=name))
        elif event.kind == "run-started":
            began = event.time
    agreed = study.hash()
    for name, site in sites.items():
        home = site_folder_of(folder, name)
        make_private_folder(home.parent)
        make_private_folder(home)
        start = replace(site_started(site, collaboration.names, rehearsal=True), time=began)
        write_journal(home / "journal.jsonl", [start, *own[name]])
        if name in deployments:
            run, deployment = deployments[name]
            scores = next((e.data for e in reversed(own[name]) if e.kind == "evaluated"), {})
            here = min(done, collaboration.churn.leave.get(name, done))
            ending = Ending(agreed, collaboration.names, here, deployment, federation.schema, scores)
            save_model(home, run, name, ending)


def write_journal(path: Path, events: Iterable[Event]) -> None:
    """A journal in one go, readable by its owner only. The journal of a node is never replaced."""
    if (path.parent / STORE).exists():
        raise CheckpointError(f"{path}: this journal belongs to a node and is not replaced")
    path.unlink(missing_ok=True)
    journal = Journal(path)
    for event in events:
        journal.add(event)
    journal.close()

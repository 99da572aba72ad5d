"""The folder of a run and what it holds: journal, resolved study, versions, checkpoints, result."""

from __future__ import annotations

import json
import os
import platform
import shutil
import time
import tomllib
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from confrere.core.custody import Custody
from confrere.core.errors import CheckpointError, StudyError
from confrere.core.events import Event, Journal
from confrere.observe.report import write_report
from confrere.runtime import said
from confrere.runtime.assemble import unprotected_patients
from confrere.runtime.results import by_columns, mean_metrics, site_results
from confrere.runtime.said import Kept
from confrere.runtime.shelf import Shelf
from confrere.study import Study, parse
from confrere.version import __version__

if TYPE_CHECKING:
    from confrere.runtime.simulate import Simulation

PACKAGES = ("torch", "numpy", "pandas", "dp-accounting", "safetensors")


def versions() -> dict[str, str]:
    found = {"confrere": __version__, "python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def hardware(device: str = "cpu") -> dict[str, Any]:
    return {
        "machine": platform.machine(),
        "system": platform.system(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": device,
    }


def write_json(path: Path, content: Any) -> None:
    """Write a file whole or not at all."""
    temporary = path.with_suffix(path.suffix + ".part")
    try:
        temporary.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def check_free(path: Path) -> None:
    """A run never writes over anything: its folder is new, or empty."""
    if (path / "journal.jsonl").exists():
        raise StudyError(
            f"{path} holds a run already; choose another --out, or go on with it: --resume {path}"
        )
    if (path / "comparison.json").exists():
        raise StudyError(f"{path} holds a comparison already; choose another --out")
    if path.is_dir() and any(path.iterdir()):
        raise StudyError(f"{path} is not empty; choose a new folder for --out")


@dataclass
class Folder:
    """Where a run keeps its files."""

    path: Path
    study: Study
    command: str = ""
    _made: list[Path] = field(default_factory=list)
    """The folders that were not there before, the deepest first."""

    def __post_init__(self) -> None:
        self._shelf = Shelf(self.path / "checkpoints")

    def open(self, again: bool = False) -> Journal:
        """Create the folder, or find it again, and open its journal."""
        try:
            if not again:
                check_free(self.path)
                toml = self.study.to_toml()
                deepest = self.path / "checkpoints"
                self._made = [p for p in (deepest, *deepest.parents) if not p.exists()]
                deepest.mkdir(parents=True)
                (self.path / "study.toml").write_text(toml, encoding="utf-8")
                facts = {
                    "name": self.study.name,
                    "study": self.study.hash(),
                    "scale": self.study.scale,
                    "seed": self.study.seed,
                    "strategy": self.study.strategy_name,
                    "versions": versions(),
                    "hardware": hardware(),
                    "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
                    "command": self.command,
                }
                write_json(self.path / "run.json", facts)
            return Journal(self.path / "journal.jsonl")
        except OSError as error:
            self._take_back()
            reason = error.strerror or error
            raise StudyError(f"{self.path}: the run folder cannot be written: {reason}") from None

    def checkpoint(self, done: int, content: dict[str, Any], journal: Journal) -> None:
        """Keep the state after a round, and the one before it in case this one gets damaged."""
        journal.sync()
        self._shelf.put(done, content)

    def due(self, changed: Collection[str]) -> set[str] | None:
        """The sites that the next checkpoint has to hold if these have changed since the last one; None: all."""
        return self._shelf.due(changed)

    def latest(self) -> dict[str, Any] | None:
        """The newest checkpoint that can be read; a damaged one is passed over."""
        return self._shelf.latest()

    def discard_if_nothing_was_done(self, journal: Journal) -> None:
        """Take back the files of a run that failed in its first round: there is nothing to go on with."""
        if any((self.path / "checkpoints").glob("round-*.safetensors")):
            return
        with suppress(OSError):
            journal.close()
        self._take_back()

    def _take_back(self) -> None:
        """Remove what `open` has made. The folder was new or empty, so all that is in it is ours."""
        if not self._made or not self.path.is_dir():
            return
        with suppress(OSError):
            for inside in self.path.iterdir():
                shutil.rmtree(inside) if inside.is_dir() else inside.unlink()
            for made in self._made[1:]:
                made.rmdir()

    def finish(self, result: dict[str, Any], seconds: float) -> None:
        write_json(self.path / "result.json", result)
        facts = json.loads((self.path / "run.json").read_text(encoding="utf-8"))
        write_json(self.path / "run.json", {**facts, "seconds": round(seconds, 3)})


def resume_folder(path: Path, study: Study | None = None) -> tuple[Folder, Study]:
    """A run that was interrupted. A study with functions in it has to be given again."""
    if not (path / "journal.jsonl").exists():
        raise CheckpointError(f"{path}: there is no run to go on with (no journal.jsonl)")
    if (path / "result.json").exists():
        raise CheckpointError(f"{path}: this run is finished; see {path / 'result.json'}")
    if study is None:
        try:
            table = tomllib.loads((path / "study.toml").read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{path / 'study.toml'}: cannot be read: {error}") from None
        study = parse(table, str(path / "study.toml"))
    try:
        facts = json.loads((path / "run.json").read_text(encoding="utf-8"))
        agreed = (facts["study"], facts["seed"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path / 'run.json'}: cannot be read: {error}") from None
    if agreed != (study.hash(), study.seed):
        raise CheckpointError(f"{path}: the run was started with another study or seed (hash {agreed[0]})")
    return Folder(path, study), study


@dataclass
class Run:
    """What came of a simulation."""

    study: Study
    result: dict[str, Any]
    events: Sequence[Event] = field(repr=False, default_factory=list)
    """All that happened, in order; those of a large run are kept folded and cost a little to go through."""
    folder: Path | None = None
    models: dict[str, Any] = field(repr=False, default_factory=dict)
    """Per site, the models that it would use: PRIVATE where they were trained without noise."""
    said: dict[str, Kept] = field(repr=False, default_factory=dict)
    """Per site, what its model said about each test record: PRIVATE."""

    @property
    def mean(self) -> dict[str, float]:
        return dict(self.result["mean"])

    @property
    def sites(self) -> dict[str, dict[str, Any]]:
        return dict(self.result["sites"])

    def report(self, path: str | Path | None = None) -> Path:
        """Write the HTML report."""
        if self.folder is None:
            raise StudyError("a report needs the files of the run: simulate(study, out=FOLDER)")
        return write_report(self.folder, Path(path) if path else None)


@dataclass
class Watch:
    """Times a run and sums it up."""

    journal: Journal
    began: float

    def finish(self, simulation: Simulation, folder: Folder | None) -> Run:
        study = simulation.study
        seconds = time.perf_counter() - self.began
        events, told = self.journal.events, self.journal.kinds
        sites = site_results(events, simulation.strategy.deploys, study.evaluation.select, study.rounds)
        attackers = simulation.plan.sites if simulation.plan is not None else ()
        for name, entry in sites.items():
            sites[name] = {"records": simulation.federation.sites[name].declared, **entry}
            if name in attackers:
                sites[name]["attacker"] = True
        if any(data.lacks for data in simulation.federation.sites.values()):
            for name, entry in sites.items():
                entry["missing_columns"] = dict(simulation.federation.sites[name].lacks)
        result: dict[str, Any] = {
            "run": str(folder.path) if folder else None,
            "study": study.hash(),
            "scale": study.scale,
            "seed": study.seed,
            "strategy": study.strategy_name,
            "sites": sites,
            "mean": mean_metrics(s["metrics"] for n, s in sites.items() if n not in attackers),
        }
        if simulation.plan is not None:
            result["attack"] = simulation.plan.as_json()
        if "notice" in told and (why := _stopped(events)):
            result["stopped"] = why
        if any("common_metrics" in s for s in sites.values()):
            result["common_mean"] = mean_metrics(
                s.get("common_metrics", {}) for n, s in sites.items() if n not in attackers
            )
        if kinds := by_columns(sites):
            result["by_columns"] = {
                kind: {"sites": names, "mean": mean_metrics(sites[n]["metrics"] for n in names)}
                for kind, names in kinds.items()
            }
        data = {"seconds": round(seconds, 3), "result": result}
        self.journal.add(Event("run-finished", custody=Custody.PRIVATE, data=data))  # it holds metrics
        heard = {name: judge.said for name, judge in simulation.judges.items() if judge.said.parts}
        if folder is not None:
            folder.finish(result, seconds)
            said.write(heard, folder.path / "said.npz")
        models = {name: simulation.models(name) for name in sites}
        return Run(study, result, events, folder.path if folder else None, models, heard)


def _stopped(events: Sequence[Event]) -> dict[str, Any] | None:
    """After how many rounds, and why, where the study has stopped before its last one."""
    found = (e.data for e in reversed(events) if e.kind == "notice" and e.data.get("stopped"))
    last = next(found, None)
    return {"rounds": last["stopped"], "why": last["text"]} if last else None


def started(simulation: Simulation, journal: Journal, again: bool, first: int) -> Watch:
    """Put down what is about to be run."""
    study, privacy = simulation.study, simulation.study.privacy
    unproven = next((s.unproven for s in simulation.sites.values()), None)
    if again:
        journal.add(Event("resumed", data={"round": first}))
    else:
        guarantee = None
        if privacy is not None:
            guarantee = {
                "epsilon": privacy.epsilon,
                "delta": privacy.delta,
                "unit": privacy.unit,
                "accountant": privacy.accountant,
                "proven": unproven is None,
            }
        data = {
            "name": study.name,
            "title": study.title or study.name,
            "question": study.question,
            "study": study.hash(),
            "seed": study.seed,
            "strategy": study.strategy_name,
            "options": study.as_dict().get("strategy"),
            "rounds": study.rounds,
            "topology": type(study.graph()).__name__.lower(),
            "task": {
                "kind": simulation.federation.task.kind,
                "classes": list(simulation.federation.task.classes),
            },
            "sites": {
                n: {
                    "records": d.declared,
                    "private": str(study.models.of(n, "private")),
                    "proxy": str(study.models.proxy),
                }
                for n, d in simulation.federation.sites.items()
            },
            "privacy": guarantee,
            "unproven": unproven,
            "versions": versions(),
            "hardware": hardware(simulation.device),
        }
        journal.add(Event("run-started", data=data))
        if simulation.plan is not None:
            journal.add(Event("notice", data={"text": simulation.plan.text}))
        for text in (*simulation.federation.notes, *simulation.remarks):
            journal.add(Event("notice", data={"text": text}))
        for name, site in simulation.federation.sites.items():
            warning = unprotected_patients(study, site)
            for text in (*site.notes, *([warning] if warning else [])):
                journal.add(Event("notice", name, custody=Custody.PRIVATE, data={"text": text}))
    return Watch(journal, time.perf_counter())

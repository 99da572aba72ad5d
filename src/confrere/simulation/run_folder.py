"""The folder of a run and what it holds: journal, resolved study, versions, checkpoints, result."""

from __future__ import annotations

import json
import os
import platform
import shutil
import time
import tomllib
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from confrere.core.errors import CheckpointError, StudyError
from confrere.core.events import Journal
from confrere.core.owner_only import make_private_folder, write_private
from confrere.core.terminal import json_text
from confrere.simulation.checkpoints import CheckpointFiles
from confrere.study import Study, parse
from confrere.version import versions

ROSTER = Path("sites") / "roster.toml"
"""In the folder of a rehearsal: the members that its nodes have signed. The folder of a simulation has none."""


def hardware(device: str = "cpu") -> dict[str, Any]:
    return {
        "machine": platform.machine(),
        "system": platform.system(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": device,
    }


def write_json(path: Path, content: Any) -> None:
    """Write a file whole or not at all, for its owner alone: results hold metrics."""
    write_private(path, json_text(content, indent=1) + "\n")


def check_free(path: Path) -> None:
    """A run never writes over anything: its folder is new, or empty."""
    if (path / "journal.jsonl").exists():
        raise StudyError(f"{path} holds a run already; choose another --out, or resume it: --resume {path}")
    if (path / "comparison.json").exists():
        raise StudyError(f"{path} holds a comparison already; choose another --out")
    if path.is_dir() and any(path.iterdir()):
        raise StudyError(f"{path} is not empty; choose a new folder for --out")


@dataclass
class RunFolder:
    """Where a run keeps its files."""

    path: Path
    study: Study
    command: str = ""
    of_comparison: bool = False
    """Whether the run is one of many that are compared: it is not resumed and no site deploys its model, so it has neither
    checkpoints nor folders of single sites."""
    _made: list[Path] = field(default_factory=list)
    """The folders that were not there before, the deepest first."""

    def __post_init__(self) -> None:
        self._checkpoints = CheckpointFiles(self.path / "checkpoints")

    def open(self, again: bool = False) -> Journal:
        """Create the folder, or find it again, and open its journal."""
        try:
            if not again:
                check_free(self.path)
                toml = self.study.to_toml()
                deepest = self.path / "checkpoints"
                self._made = [p for p in (deepest, *deepest.parents) if not p.exists()]
                make_private_folder(self.path)  # it holds predictions and checkpoints
                if not self.of_comparison:
                    make_private_folder(deepest)
                write_private(self.path / "study.toml", toml)
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
        self._checkpoints.put(done, content)

    def due(self, changed: Collection[str]) -> set[str] | None:
        """The sites that the next checkpoint has to hold if these have changed since the last one; None: all."""
        return self._checkpoints.due(changed)

    def latest(self) -> dict[str, Any] | None:
        """The newest checkpoint that can be read; a damaged one is passed over."""
        return self._checkpoints.latest()

    def discard_if_nothing_was_done(self, journal: Journal) -> None:
        """Take back the files of a run that failed in its first round: there is nothing to go on with."""
        if any((self.path / "checkpoints").glob("round-*.safetensors")):
            return
        if self.of_comparison and any(e.kind == "round-started" and e.round for e in journal.events):
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


def resume_folder(
    path: Path, study: Study | None = None, *, of_nodes: bool = False
) -> tuple[RunFolder, Study]:
    """A run that was interrupted. A study with functions in it has to be given again.

    With `of_nodes`, the run of a rehearsal; otherwise that of a simulation. Neither can continue the other: a node's
    state is in its own store.
    """
    if not (path / "journal.jsonl").exists():
        raise CheckpointError(f"{path}: no run to resume (no journal.jsonl)")
    if (path / "result.json").exists():
        raise CheckpointError(f"{path}: this run is finished; see {path / 'result.json'}")
    if not of_nodes and (path / ROSTER).exists():
        raise CheckpointError(
            f"{path}: this run was made by nodes; resume it with `confrere rehearse --resume {path}`"
        )
    if of_nodes and not (path / ROSTER).exists():
        raise CheckpointError(
            f"{path}: this run has no nodes to start again; if it is a simulation, resume it with"
            f" `confrere simulate --resume {path}`"
        )
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
    return RunFolder(path, study), study

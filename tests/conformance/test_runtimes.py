"""What a user sees of a study is the same in every runtime: events, files, report, progress and `--resume`."""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from confrere.core.events import Event
from confrere.report.progress import Follower
from confrere.simulation.simulation import resume, simulate
from confrere.site.run_folder import Run
from confrere.site.site_folder import site_folder_of
from confrere.study import Study, load
from tests.conformance.table import NOTICES_OF_NODES, OF_ONE_RUNTIME
from tests.conformance.test_strategies import SIGNATURE, same_models
from tests.conftest import write_study
from tests.golden.golden import comparable
from tests.nodes import nodes_in_process
from tests.unit.cli.command import Desk

STUDY = """
rounds = 5
strategy = "proxyfl"
patience = 600.0
[training]
tune_priors = [0.1]
tune_lengths = [5]
[privacy]
epsilon = 8.0
delta = 1e-4
steps = 1
[churn]
absent = { site0 = [2] }
join = { site1 = 1 }
leave = { site2 = 3 }
"""
SITES = ("site0", "site1", "site2")
RUNTIMES = ("memory", "workers", "nodes")


@dataclass(frozen=True)
class Seen:
    """A run, and where its progress bar stood after each event."""

    run: Run
    progress: list[int]


def start(runtime: str, study: Study, out: Path, **more: Any) -> Run:
    if runtime == "nodes":
        return nodes_in_process(study, out, **more)
    return simulate(study, out=out, workers=2 if runtime == "workers" else None, **more)


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Seen]:
    """The same study in every runtime, looked at by all tests of this file."""
    folder = tmp_path_factory.mktemp("runtimes")
    study = load(write_study(folder, STUDY, records=60))
    found = {}
    for runtime in RUNTIMES:
        bar, progress = Follower(study.rounds), [0]

        def follow(event: Event, bar: Follower = bar, progress: list[int] = progress) -> None:
            bar(event)
            progress.append(bar.done)

        found[runtime] = Seen(start(runtime, study, folder / runtime, listeners=(follow,)), progress)
    return found


def of_site(run: Run, site: str, signature: int = 0) -> list[tuple[Any, ...]]:
    """The events of a site in order, with everything in them that is no matter of time."""
    found = []
    for event in comparable(run.events):
        only_on_nodes = event.kind == "notice" and NOTICES_OF_NODES & event.data.keys()
        if event.site == site and not only_on_nodes:
            data = {k: v for k, v in event.data.items() if k != "seconds"}
            if signature and "bytes" in data:
                data["bytes"] -= signature
            found.append((event.kind, event.round, event.custody.name, flat(data)))
    return found


def flat(data: Any) -> Any:
    """With numbers that differ by rounding made equal."""
    if isinstance(data, float):
        return pytest.approx(data, rel=1e-4, abs=1e-5)
    if isinstance(data, dict):
        return {k: flat(v) for k, v in data.items()}
    if isinstance(data, list | tuple):
        return [flat(v) for v in data]
    return data


@pytest.mark.parametrize("site", SITES)
@pytest.mark.parametrize("runtime", ["workers", "nodes"])
def test_every_site_has_the_same_events(runtime: str, site: str, seen: dict[str, Seen]) -> None:
    signature = SIGNATURE if runtime == "nodes" else 0
    assert of_site(seen[runtime].run, site, signature) == of_site(seen["memory"].run, site)


@pytest.mark.parametrize("runtime", ["workers", "nodes"])
def test_event_kinds_of_one_runtime_stand_in_the_table(runtime: str, seen: dict[str, Seen]) -> None:
    everywhere = {e.kind for e in seen["memory"].run.events} | {"notice"}
    kinds = {e.kind for e in seen[runtime].run.events}
    for journal in (seen[runtime].run.folder or Path()).glob("sites/*/journal.jsonl"):
        kinds |= {json.loads(line)["kind"] for line in journal.read_text(encoding="utf-8").splitlines()}
    assert kinds - everywhere <= OF_ONE_RUNTIME[runtime]


def inside(folder: Path) -> set[str]:
    return {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_every_site_has_a_folder_with_its_journal_and_its_model(runtime: str, seen: dict[str, Seen]) -> None:
    folder = seen[runtime].run.folder
    assert folder is not None
    for site in SITES:
        assert {"journal.jsonl", "model/card.md", "model/model.safetensors"} <= inside(
            site_folder_of(folder, site)
        )


def test_the_folder_of_a_site_is_the_same_in_every_runtime(seen: dict[str, Seen]) -> None:
    """A node has more: its keys, its store and its ledger."""
    own = {"keys", "ledger.key", "ledger.sqlite", "lock", "log.jsonl", "node.sqlite", "parcels"}
    for site in SITES:
        found = [
            {p for p in inside(site_folder_of(one.run.folder or Path(), site)) if Path(p).parts[0] not in own}
            for one in seen.values()
        ]
        assert found[0]
        assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("runtime", ["workers", "nodes"])
def test_the_report_has_the_same_sections(runtime: str, seen: dict[str, Seen]) -> None:
    def sections(name: str) -> list[str]:
        return re.findall(r"<h[23][^>]*>(.*?)</h[23]>", seen[name].run.report().read_text(encoding="utf-8"))

    assert len(sections("memory")) > 3
    assert sections(runtime) == sections("memory")


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_progress_moves_through_every_round(runtime: str, seen: dict[str, Seen]) -> None:
    progress = seen[runtime].progress
    assert progress == sorted(progress)
    assert set(progress) == set(range(6))


@pytest.mark.parametrize("before", ["memory", "workers"])
@pytest.mark.parametrize("after", [None, 2])
def test_an_interrupted_simulation_goes_on_in_memory_or_with_workers(
    before: str, after: int | None, seen: dict[str, Seen], tmp_path: Path
) -> None:
    def stop(event: Event) -> None:
        if event.kind == "trained" and event.round == 3:
            raise RuntimeError("the plug was pulled")

    study = seen["memory"].run.study
    with pytest.raises(RuntimeError, match="plug"):
        start(before, study, tmp_path / "run", listeners=(stop,))
    same_models(seen["memory"].run, resume(tmp_path / "run", workers=after), 1e-5)


def test_an_interrupted_rehearsal_goes_on(
    seen: dict[str, Seen], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    desk, study = Desk(tmp_path, monkeypatch, capsys), seen["nodes"].run.study
    with pytest.raises(asyncio.CancelledError):
        nodes_in_process(study, tmp_path / "run", interrupted=lambda e: (e.kind, e.round) == ("trained", 3))
    assert (tmp_path / "run" / "journal.jsonl").exists()
    answer = desk.confrere("rehearse", "--resume", "run", "--json")
    assert answer.code == 0, answer.err
    assert answer.json["mean"] == pytest.approx(seen["memory"].run.mean, abs=1e-5)


def test_a_rehearsal_is_resumed_from_the_folder_of_a_rehearsal_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    desk, path = Desk(tmp_path, monkeypatch, capsys), write_study(tmp_path, STUDY, records=60)

    def stop(event: Event) -> None:
        if event.kind == "trained" and event.round == 1:
            raise RuntimeError("the plug was pulled")

    with pytest.raises(RuntimeError, match="plug"):
        start("memory", load(path), tmp_path / "run", listeners=(stop,))
    assert "simulate --resume" in desk.refused("rehearse", "--resume", "run")
    assert "STUDY.toml" in desk.refused("rehearse")
    assert "--seed" in desk.refused("rehearse", "--resume", "run", "--seed", "3")

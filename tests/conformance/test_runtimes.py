"""What a user sees of a study is the same in every runtime: events, files, report, progress and `--resume`.

Ray takes long to start: `make test-all` includes it.
"""

from __future__ import annotations

import asyncio
import json
import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from safetensors.torch import load_file

from confrere.core.events import Event, verified
from confrere.report.progress import Follower
from confrere.simulation.backends import resume, simulate
from confrere.simulation.finished_run import Run
from confrere.simulation.rehearsal import resume_rehearsal
from confrere.site.site_folder import site_folder_of
from confrere.study import Study, load
from tests.conformance.table import FILES_OF_NODES, ONLY_IN, common_events
from tests.conformance.test_strategies import SIGNATURE, same_models
from tests.conftest import write_study
from tests.nodes import Tasks, nodes_in_process
from tests.unit.cli.command import Desk

SPENT = 1.5
"""An ε that is spent before the last round."""
STUDY = """
rounds = 5
strategy = "proxyfl"
patience = 600.0
[training]
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
SHORT = """
rounds = 6
strategy = "fedavg"
patience = 600.0
{more}
[training]
tune = false
learning_rate = 0.05
[privacy]
epsilon = {epsilon}
delta = 1e-4
noise_multiplier = 3.0
steps = 1
"""
FURTHER = {
    "stop": SHORT.format(more='compression = "int8"', epsilon=8.0) + "[stop]\nchange = 0.9\n",
    "spent": SHORT.format(more="", epsilon=SPENT) + "[stop]\nbudget = true\n",
    "leave": SHORT.format(more="", epsilon=1.1).replace("noise_multiplier = 3.0", "noise_multiplier = 6.0")
    + 'when_spent = "leave"\n[sites.site1.caps]\nepsilon = 0.8\n[churn]\nabsent = { site2 = [1] }\n',
}
"""Studies that end before their last round: all sites stop, or budgets are spent (the sites relay, or leave one
after another); one with compressed parcels."""
RAY = pytest.param("ray", marks=pytest.mark.slow)
OTHERS = ("workers", "nodes", RAY)
RUNTIMES = ("memory", *OTHERS)


@dataclass(frozen=True)
class Seen:
    """A run, and where its progress bar stood after each event."""

    run: Run
    progress: list[int]


def start(runtime: str, study: Study, out: Path, **more: Any) -> Run:
    if runtime == "nodes":
        return nodes_in_process(study, out, **more)
    if runtime == "ray":
        pytest.importorskip("ray", reason="Ray is not installed: pip install 'confrere[ray]'")
    return simulate(study, out=out, **ENGINES[runtime], **more)


ENGINES: dict[str, dict[str, Any]] = {
    "memory": {},
    "workers": {"workers": 2},
    "ray": {"workers": 2, "engine": "ray"},
}


class Runs(dict[str, Seen]):
    """The same study in every runtime, run when a test first asks for it."""

    def __init__(self, folder: Path, study: str = STUDY) -> None:
        super().__init__()
        self.folder, self.study = folder, load(write_study(folder, study, records=60))

    def __missing__(self, runtime: str) -> Seen:
        bar, progress = Follower(self.study.rounds), [0]

        def follow(event: Event) -> None:
            bar(event)
            progress.append(bar.done)

        run = start(runtime, self.study, self.folder / runtime, listeners=(follow,))
        self[runtime] = Seen(run, progress)
        return self[runtime]


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(tmp_path_factory.mktemp("runtimes"))


@pytest.fixture(scope="module", params=FURTHER)
def further(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(tmp_path_factory.mktemp(request.param), FURTHER[request.param])


def of_site(run: Run, site: str, signature: int = 0) -> list[tuple[Any, ...]]:
    """The events of a site in order, with everything in them that is no matter of time."""
    return told(run.events, site, signature)


def told(events: Sequence[Event], site: str, signature: int = 0) -> list[tuple[Any, ...]]:
    found = []
    for event in common_events(events):
        if event.site == site:
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
@pytest.mark.parametrize("runtime", OTHERS)
def test_every_site_has_the_same_events(runtime: str, site: str, seen: Runs) -> None:
    signature = SIGNATURE if runtime == "nodes" else 0
    assert of_site(seen[runtime].run, site, signature) == of_site(seen["memory"].run, site)


@pytest.mark.parametrize("runtime", OTHERS)
def test_event_kinds_of_one_runtime_stand_in_the_table(runtime: str, seen: Runs) -> None:
    found = only_here(seen[runtime].run, seen["memory"].run)
    assert found <= {row.kind for row in ONLY_IN if row.runtime == runtime}


def only_here(run: Run, expected: Run) -> set[str]:
    """The kinds of events that this runtime has and a simulation in memory has not."""
    kinds = {e.kind for e in run.events}
    for journal in (run.folder or Path()).glob("sites/*/journal.jsonl"):
        kinds |= {json.loads(line)["kind"] for line in journal.read_text(encoding="utf-8").splitlines()}
    return kinds - {e.kind for e in expected.events} - {"notice"}


def inside(folder: Path) -> set[str]:
    return {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_every_site_has_a_folder_with_its_journal_and_its_model(runtime: str, seen: Runs) -> None:
    folder = seen[runtime].run.folder
    assert folder is not None
    for site in SITES:
        assert {"journal.jsonl", "model/card.md", "model/model.safetensors"} <= inside(
            site_folder_of(folder, site)
        )


@pytest.mark.parametrize("runtime", OTHERS)
def test_the_folder_of_a_site_is_the_same_in_every_runtime(runtime: str, seen: Runs) -> None:
    same_folders(runtime, seen)


def same_folders(runtime: str, seen: Runs) -> None:
    """The same files, with the same model, card and events. A node has more: its keys, its store and its ledger."""
    signature = SIGNATURE if runtime == "nodes" else 0
    for site in SITES:
        here, there = (site_folder_of(seen[r].run.folder or Path(), site) for r in (runtime, "memory"))
        assert {p for p in inside(here) if Path(p).parts[0] not in FILES_OF_NODES} == inside(there)
        weights, expected = (load_file(home / "model" / "model.safetensors") for home in (here, there))
        assert weights.keys() == expected.keys()
        for name, tensor in weights.items():
            assert tensor.numpy() == pytest.approx(expected[name].numpy(), rel=1e-4, abs=1e-5)
        assert facts(here) == facts(there)
        assert told(written(here), site, signature) == told(written(there), site)


@pytest.mark.parametrize("runtime", OTHERS)
def test_a_study_that_ends_early_ends_the_same_in_every_runtime(runtime: str, further: Runs) -> None:
    """Events, folders and report sections; all training is over before the last round."""
    run, expected = further[runtime].run, further["memory"].run
    trained = [e.round for e in expected.events if e.kind == "trained"]
    assert max(n for n in trained if n is not None) < further.study.rounds - 1
    signature = SIGNATURE if runtime == "nodes" else 0
    for site in SITES:
        assert of_site(run, site, signature) == of_site(expected, site)
    assert run.result.stopped == expected.result.stopped
    same_folders(runtime, further)
    assert sections(run) == sections(expected)
    assert only_here(run, expected) <= {row.kind for row in ONLY_IN if row.runtime == runtime}


def facts(home: Path) -> Any:
    """What a model's card states, but for when it was made."""
    card = tomllib.loads((home / "model" / "card.toml").read_text(encoding="utf-8"))
    return flat({key: value for key, value in card.items() if key != "made"})


def written(home: Path) -> list[Event]:
    """The events of a site's own journal."""
    return [event for event, _ in verified(home / "journal.jsonl")]


@pytest.mark.parametrize("runtime", OTHERS)
def test_the_report_has_the_same_sections(runtime: str, seen: Runs) -> None:
    assert len(sections(seen["memory"].run)) > 3
    assert sections(seen[runtime].run) == sections(seen["memory"].run)


def sections(run: Run) -> list[str]:
    return re.findall(r"<h[23][^>]*>(.*?)</h[23]>", run.report().read_text(encoding="utf-8"))


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_progress_moves_through_every_round(runtime: str, seen: Runs) -> None:
    progress = seen[runtime].progress
    assert progress == sorted(progress)
    assert set(progress) == set(range(6))


@pytest.mark.parametrize("runtime", OTHERS)
def test_training_alone_has_its_public_prior_in_every_runtime(runtime: str, tmp_path: Path) -> None:
    body = 'rounds = 1\nstrategy = "local"\npatience = 600.0\n[training]\ntune_alone = [{}, 0.7]\n'
    found = {}
    for median in (5.0, 500.0):
        folder = tmp_path / str(median)
        folder.mkdir()
        study = load(write_study(folder, body.format(median), records=60))
        run, expected = (start(r, study, folder / r) for r in (runtime, "memory"))
        same_models(run, expected, 1e-5)
        found[median] = [e.data["prior"] for e in run.events if e.kind == "fitted"]
    assert len(found[5.0]) == len(SITES)
    assert max(found[5.0]) < min(found[500.0])


@pytest.mark.parametrize("runtime", ["workers", "nodes"])
def test_a_split_by_date_is_the_same_in_every_runtime(runtime: str, tmp_path: Path) -> None:
    body = STUDY.partition("[churn]")[0] + '[data.split]\nby_date = 2025-01-01\ndate_column = "seen"\n'
    path = write_study(tmp_path, body.replace("rounds = 5", "rounds = 1"), records=60)
    for file in tmp_path.glob("site*.csv"):
        frame = pd.read_csv(file)
        frame["seen"] = ["2025-03-01" if n % 3 == 0 else "2024-12-31" for n in range(len(frame))]
        frame.to_csv(file, index=False)
    run, expected = (start(r, load(path), tmp_path / r) for r in (runtime, "memory"))
    for site, result in expected.sites.items():
        assert result.tested is not None
        assert result.tested.patients == -(-len(pd.read_csv(tmp_path / f"{site}.csv")) // 3)
        assert run.sites[site].tested == result.tested
        assert run.sites[site].metrics == pytest.approx(result.metrics, rel=1e-4)


@pytest.mark.parametrize("before", ["memory", "workers", RAY])
@pytest.mark.parametrize("after", ["memory", "workers", RAY])
def test_an_interrupted_simulation_goes_on_in_another_runtime(
    before: str, after: str, seen: Runs, tmp_path: Path
) -> None:
    def stop(event: Event) -> None:
        if event.kind == "trained" and event.round == 3:
            raise RuntimeError("the plug was pulled")

    study = seen["memory"].run.study
    with pytest.raises(RuntimeError, match="plug"):
        start(before, study, tmp_path / "run", listeners=(stop,))
    same_models(seen["memory"].run, resume(tmp_path / "run", **ENGINES[after]), 1e-5)


@pytest.mark.parametrize("number", [2, 3])
def test_an_interrupted_rehearsal_goes_on(
    number: int,
    seen: Runs,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    desk, study = Desk(tmp_path, monkeypatch, capsys), seen["nodes"].run.study
    with pytest.raises(asyncio.CancelledError):
        nodes_in_process(
            study, tmp_path / "run", interrupted=lambda e: (e.kind, e.round) == ("trained", number)
        )
    assert (tmp_path / "run" / "journal.jsonl").exists()
    journals = {p: p.read_bytes() for p in tmp_path.glob("run/sites/*/journal.jsonl")}
    assert "rehearse --resume run" in desk.refused("simulate", "--resume", "run")
    assert journals == {p: p.read_bytes() for p in tmp_path.glob("run/sites/*/journal.jsonl")} != {}
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


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_node_that_is_restarted_leaves_when_its_budget_ends(number: int, tmp_path: Path) -> None:
    """Neither a round before, because the charge of the interrupted round is in the ledger already, nor after."""
    study = load(write_study(tmp_path, FURTHER["leave"], records=60))
    expected = start("memory", study, tmp_path / "memory")
    with pytest.raises(asyncio.CancelledError):
        nodes_in_process(
            study, tmp_path / "run", interrupted=lambda e: (e.kind, e.round) == ("trained", number)
        )
    run = resume_rehearsal(tmp_path / "run", start_nodes=Tasks)
    for kind in ("left", "charged"):
        found, wanted = ([(e.site, e.round) for e in r.events if e.kind == kind] for r in (run, expected))
        assert sorted(set(found)) == sorted(wanted)
    left = {e.site: e.round for e in expected.events if e.kind == "left"}
    assert sorted(left.values()) == [2, 4, 5]

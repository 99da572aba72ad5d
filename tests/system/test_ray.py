"""A real Ray cluster of several node processes, one of which is killed in the middle of a run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from confrere.core.errors import StudyError
from confrere.core.events import Event
from confrere.simulation.backends import resume, simulate
from confrere.simulation.finished_run import Run
from confrere.study import Models, Study, load
from confrere.study.churn import Churn
from tests.conformance.table import ROWS
from tests.conformance.test_strategies import same_models, study
from tests.conftest import arrays, write_study
from tests.golden.golden import STUDIES, described, differences, recording, run_study

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'confrere[ray]'")
pytestmark = pytest.mark.slow

STORE = 80 * 2**20
QUICK_TO_NOTICE = {
    "health_check_initial_delay_ms": 0, "health_check_period_ms": 500,
    "health_check_failure_threshold": 4, "health_check_timeout_ms": 2000,
}  # fmt: skip


def patiently(start: Callable[[], Any]) -> Any:
    """Ray gives a node half a minute to start, which a busy machine may not manage at once."""
    for _ in range(3):
        try:
            return start()
        except Exception as error:
            if "timed out" not in str(error):
                raise
    return start()


class Nodes:
    """A cluster whose nodes can be lost."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        head = {"num_cpus": 1, "object_store_memory": STORE, "include_dashboard": False}
        self.cluster = patiently(
            lambda: Cluster(True, head_node_args={**head, "_system_config": QUICK_TO_NOTICE})
        )
        ray.init(address=self.cluster.address, log_to_driver=False)
        self.nodes: list[Any] = []
        self.add(2)

    def add(self, count: int) -> None:
        for _ in range(count):
            node = patiently(lambda: self.cluster.add_node(num_cpus=2, object_store_memory=STORE))
            self.nodes.append(node)
        self.cluster.wait_for_nodes()

    def kill_one(self) -> None:
        """As if somebody had pulled the plug of a machine."""
        self.cluster.remove_node(self.nodes.pop(0), allow_graceful=False)

    def close(self) -> None:
        ray.shutdown()
        self.cluster.shutdown()


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    found = Nodes()
    yield found
    found.close()


def of(row: str, **changes: Any) -> Study:
    return study(next(r for r in ROWS if r.id == row), **changes)


def both(found: Study, **more: Any) -> tuple[Run, Run]:
    return simulate(found, arrays(5), trainer="one"), simulate(
        found, arrays(5), trainer="one", engine="ray", workers=3, **more
    )


@pytest.mark.parametrize("row", ["proxyfl", "fedavg-star"])
def test_a_cluster_gives_what_one_process_gives(row: str, nodes: Nodes) -> None:
    rounds: list[int | None] = []
    churn = Churn(absent={"site0": [1]}, leave={"site1": 3})

    def progress(event: Event) -> None:
        if event.kind == "round-started":
            rounds.append(event.round)

    memory, cluster = both(of(row, rounds=4, churn=churn), listeners=(progress,))
    same_models(memory, cluster)
    assert memory.result == cluster.result
    assert rounds == [0, 1, 2, 3]


@pytest.mark.parametrize("name", STUDIES)
def test_a_cluster_gives_what_is_recorded_of_one_process(name: str, nodes: Nodes, tmp_path: Path) -> None:
    recorded = json.loads(recording(name).read_text(encoding="utf-8"))
    assert differences(recorded, "ray", described(run_study(name, "ray", tmp_path))) == []


@pytest.mark.parametrize("after", [0.0, 0.7])
def test_a_node_that_is_killed_costs_nothing_but_time(after: float, nodes: Nodes, tmp_path: Path) -> None:
    """At the start of a round, and at some instant while rounds go on."""
    killed: list[threading.Timer] = []

    def kill(event: Event) -> None:
        if event.kind == "round-started" and event.round == 2 and not killed:
            killed.append(threading.Timer(after, nodes.kill_one))
            killed[0].start()
            if after == 0:
                killed[0].join()

    memory, cluster = both(of("proxyfl", rounds=40), listeners=(kill,), out=tmp_path / "run")
    killed[0].join()
    lost = [e.data["text"] for e in cluster.events if e.kind == "notice" and "was lost" in e.data["text"]]
    assert lost
    assert all("go on from the end of round" in text for text in lost)
    same_models(memory, cluster)
    assert {n: s.privacy for n, s in cluster.sites.items()} == {n: s.privacy for n, s in memory.sites.items()}
    charged = [sum(e.kind == "charged" for e in run.events) for run in (memory, cluster)]
    assert charged[0] == charged[1] == 5 * 40
    nodes.add(1)


def test_an_interrupted_run_goes_on_on_a_cluster(nodes: Nodes, tmp_path: Path) -> None:
    found = of("proxyfl")
    whole = simulate(found, arrays(5), trainer="one")

    def stop(event: Event) -> None:
        if event.kind == "trained" and event.round == 3:
            raise RuntimeError("the plug was pulled")

    with pytest.raises(RuntimeError, match="plug"):
        simulate(found, arrays(5), trainer="one", out=tmp_path / "run", listeners=(stop,))
    again = resume(tmp_path / "run", arrays(5), trainer="one", engine="ray", workers=2)
    same_models(whole, again)


def on_ray(study: Path, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """`confrere simulate` with two workers on Ray; an empty variable of the environment is left out."""
    command = [sys.executable, "-m", "confrere", "simulate", str(study), "--engine", "ray", "--workers", "2"]
    changed = {k: v for k, v in {**os.environ, **environment}.items() if v or k not in environment}
    return subprocess.run(
        [*command, *options], capture_output=True, text=True, timeout=300, check=False, env=changed
    )


def test_the_command_finds_the_cluster_that_the_environment_names(nodes: Nodes, tmp_path: Path) -> None:
    path = write_study(tmp_path, 'name = "t"\nrounds = 2\nstrategy = "fedavg"\n', records=60)
    done = on_ray(path, "--out", str(tmp_path / "run"), "--json", RAY_ADDRESS=nodes.cluster.address)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["sites"].keys() == {"site0", "site1", "site2"}
    assert simulate(load(path)).mean == pytest.approx(json.loads(done.stdout)["mean"], abs=1e-5)


def test_without_an_address_a_cluster_that_was_killed_is_not_waited_for(tmp_path: Path) -> None:
    path = write_study(tmp_path, 'name = "t"\nrounds = 2\nstrategy = "fedavg"\n', records=60)
    with tempfile.TemporaryDirectory(dir="/tmp") as short:  # a socket's path must be short
        left_behind = Path(short) / "ray" / "ray_current_cluster"
        left_behind.parent.mkdir()
        left_behind.write_text("192.0.2.1:6379")  # an address for documentation: nothing answers
        done = on_ray(path, RAY_ADDRESS="", RAY_TMPDIR=short)
    assert done.returncode == 0, done.stderr


def test_what_cannot_travel_is_said_before_anything_is_started(nodes: Nodes) -> None:
    import torch

    own = of("proxyfl", models=Models(lambda: torch.nn.Linear(4, 1), "linear"))
    with pytest.raises(StudyError, match="by name"):
        simulate(own, arrays(3), engine="ray", workers=2)

"""A node whose clock is hours off works with the others all the same."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from confrere.core.events import Journal
from confrere.simulation.backends import simulate
from confrere.simulation.rehearsal import NodeProcess, RehearsalNodes
from confrere.site.open_sites import open_sites
from confrere.site.site_folder import site_folder_of
from confrere.study import load
from tests.conftest import write_study
from tests.system.invariants import check_nodes
from tests.system.test_node_failpoints import BODY

libfaketime = pytest.importorskip("libfaketime")


def node(folder: Path, name: str, shift: str) -> subprocess.Popen[str]:
    surroundings = {**os.environ, "OMP_NUM_THREADS": "1"}
    if shift:
        library = Path(libfaketime.__file__).parent / "vendor" / "libfaketime" / "src" / "libfaketime.so.1"
        surroundings |= {"LD_PRELOAD": str(library), "FAKETIME": shift, "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", "confrere.simulation.rehearsal", str(folder), name],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=surroundings,
    )  # fmt: skip


def hear(process: subprocess.Popen[str], told: list[Any], settled: threading.Event) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        told.append(json.loads(line))
        if told[-1]["data"].get("settled"):
            settled.set()


@pytest.mark.slow
@pytest.mark.parametrize("shift", ["+20h", "-20h"])
def test_a_clock_that_is_hours_off_changes_nothing(tmp_path: Path, shift: str) -> None:
    study = load(write_study(tmp_path, BODY, sites=2, records=60))
    whole, folder = simulate(study), tmp_path / "nodes"
    folder.mkdir()
    (folder / "study.toml").write_text(study.to_toml())
    rehearsed = RehearsalNodes(folder, sorted(study.sites), Journal(None))
    rehearsed.enroll(study, {n: d.declared for n, d in open_sites(study).sites.items()})
    processes = {n: node(folder, n, shift if n == "site1" else "") for n in study.sites}
    told: dict[str, list[Any]] = {n: [] for n in processes}
    settled = {n: threading.Event() for n in processes}
    threads = [threading.Thread(target=hear, args=(p, told[n], settled[n])) for n, p in processes.items()]
    try:
        for thread in threads:
            thread.start()
        assert all(event.wait(120) for event in settled.values())
    finally:
        for process in processes.values():
            process.send_signal(signal.SIGTERM)
            process.wait(30)
        for thread in threads:
            thread.join()
    apart = told["site1"][0]["time"] - told["site0"][0]["time"]
    assert abs(abs(apart) - 20 * 3600) < 600  # the clock was off
    rehearsed.nodes = {n: NodeProcess(n, finished=True) for n in processes}
    for name, state in rehearsed.states(study).items():
        for role, model in whole.models[name].items():
            assert getattr(state, role).params.distance(model.params) < 1e-5
    assert (
        check_nodes(study, open_sites(study), {n: site_folder_of(folder, n) for n in study.sites}).problems
        == []
    )

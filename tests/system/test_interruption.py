"""A simulation that is killed goes on where it was, and ends as if nothing had happened."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from confrere.simulation.backends import simulate
from confrere.study import load
from tests.conftest import write_study

BODY = """
rounds = 60
strategy = "avgpush"
[churn]
absent = { site0 = [3] }
probability = 0.2
[training]
epochs = 3
tune = false
[privacy]
epsilon = 8.0
delta = 1e-4
steps = 2
"""


def command(*words: object) -> list[str]:
    return [sys.executable, "-m", "confrere", "simulate", *map(str, words), "--json"]


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1"}


def whole(study: Path) -> Any:
    """What comes of it when nothing happens."""
    return simulate(load(study)).result.as_json()


def killed_after(folder: Path, study: Path, rounds: int, how: signal.Signals) -> int:
    """Start a run and end it by a signal once so many rounds are kept; its exit code."""
    run = subprocess.Popen(
        command(study, "--out", folder / "part"),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=environment(),
        # tests that were started in the background have Ctrl-C ignored, and so would their children
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    kept = folder / "part" / "checkpoints" / f"round-{rounds:05d}.safetensors"
    late = folder / "part" / "checkpoints" / f"round-{rounds + 1:05d}.safetensors"
    deadline = time.monotonic() + 120
    while not kept.exists() and not late.exists():
        assert run.poll() is None, run.stderr.read() if run.stderr else ""
        assert time.monotonic() < deadline
        time.sleep(0.005)
    run.send_signal(how)
    code = run.wait(60)
    complaint = run.stderr.read().decode() if run.stderr else ""
    assert "Traceback" not in complaint
    return code


def resumed(folder: Path) -> Any:
    done = subprocess.run(
        command("--resume", folder / "part"), capture_output=True, text=True, check=False, env=environment()
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_run_that_is_killed_ends_like_one_that_was_not(tmp_path: Path) -> None:
    study = write_study(tmp_path, BODY, records=80)
    assert killed_after(tmp_path, study, 5, signal.SIGKILL) == -signal.SIGKILL
    assert not (tmp_path / "part" / "result.json").exists()
    found, expected = resumed(tmp_path), whole(study)
    assert (found["sites"], found["mean"], found["study"]) == (
        expected["sites"],
        expected["mean"],
        expected["study"],
    )


@pytest.mark.slow
@pytest.mark.parametrize("rounds", [1, 30])
def test_control_c_says_stopped_and_the_run_can_go_on(tmp_path: Path, rounds: int) -> None:
    study = write_study(tmp_path, BODY, records=80)
    expected = whole(study)
    assert killed_after(tmp_path, study, rounds, signal.SIGINT) == 130
    assert resumed(tmp_path)["sites"] == expected["sites"]


@pytest.mark.parametrize("seconds", [0.0, 0.5])
def test_a_rehearsal_that_is_interrupted_while_its_nodes_start_ends_quietly(
    seconds: float, tmp_path: Path
) -> None:
    study = write_study(tmp_path, 'rounds = 4\nstrategy = "fedavg"\n[training]\ntune = false\n', records=60)
    out = tmp_path / "run"
    run = subprocess.Popen(
        [sys.executable, "-m", "confrere", "rehearse", str(study), "--out", str(out)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=environment(),
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    deadline = time.monotonic() + 120
    while not (out / "sites" / "roster.toml").exists():
        assert run.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.005)
    time.sleep(seconds)
    os.killpg(run.pid, signal.SIGINT)  # as a terminal does
    printed, _ = run.communicate(timeout=50)
    assert run.returncode == 130
    assert printed.decode().strip() == ""
    nodes = subprocess.run(
        ["pgrep", "-f", f"confrere.simulation.rehearsal {out}"], capture_output=True, check=False
    )
    assert nodes.stdout == b""

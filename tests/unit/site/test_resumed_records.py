"""A run goes on with the records that it was started with, and with no others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from confrere.core.errors import CheckpointError
from confrere.core.events import Event
from confrere.simulation.backends import resume, simulate
from tests.conftest import arrays
from tests.unit.quick import quick

PLAN = quick("fedavg", rounds=3)


def interrupted(folder: Path, sites: dict[str, Any]) -> None:
    def stop(event: Event) -> None:
        if event.kind == "round-started" and event.round == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        simulate(PLAN, sites, out=folder, listeners=(stop,))


def test_a_run_does_not_go_on_with_other_records(tmp_path: Path) -> None:
    sites = dict(arrays(2, 60))
    interrupted(tmp_path / "run", sites)
    inputs, targets = sites["site1"][:2]
    with pytest.raises(CheckpointError, match=r'site "site1".*started with'):
        resume(tmp_path / "run", {**sites, "site1": (inputs[:-1], targets[:-1])})


def test_a_run_goes_on_with_its_own_records_to_the_same_end(tmp_path: Path) -> None:
    sites = dict(arrays(2, 60))
    interrupted(tmp_path / "run", sites)
    assert resume(tmp_path / "run", sites).sites == simulate(PLAN, sites).sites

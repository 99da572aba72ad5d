"""A ledger that was put back to an older copy is noticed by what peers remember of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from confrere.core.errors import PrivacyError
from confrere.simulation.backends import resume, simulate
from confrere.site import snapshot
from confrere.study import Privacy, Study, Training
from tests.conftest import arrays

STUDY = Study(
    rounds=6,
    strategy="fedavg",
    training=Training(tune=False),
    privacy=Privacy(epsilon=8.0, delta=1e-4),
)


def interrupted(folder: Path) -> Path:
    def stop(event: Any) -> None:
        if event.kind == "sent" and event.round == 4:
            raise RuntimeError("the plug was pulled")

    with pytest.raises(RuntimeError, match="plug"):
        simulate(STUDY, arrays(), out=folder, listeners=(stop,))
    return sorted((folder / "checkpoints").glob("*.safetensors"))[-1]


def test_peers_remember_the_ledger_counter_that_came_with_every_model(tmp_path: Path) -> None:
    kept = snapshot.load(interrupted(tmp_path / "run"))
    assert kept["sites"]["site0"]["counters"] == {"site1": 4, "site2": 4}


def test_a_ledger_that_was_rolled_back_refuses_to_go_on(tmp_path: Path) -> None:
    path = interrupted(tmp_path / "run")
    kept = snapshot.load(path)
    kept["sites"]["site1"]["ledger"] = kept["sites"]["site1"]["ledger"][:2]
    for old in path.parent.glob("*.safetensors"):
        old.unlink()
    snapshot.save(path, kept)
    with pytest.raises(PrivacyError, match=r"peers saw entry 4.*rolled back"):
        resume(tmp_path / "run", arrays())


def test_without_what_peers_remember_it_would_go_unnoticed(tmp_path: Path) -> None:
    path = interrupted(tmp_path / "run")
    kept = snapshot.load(path)
    kept["sites"]["site1"]["ledger"] = kept["sites"]["site1"]["ledger"][:2]
    for site in kept["sites"].values():
        site["counters"] = {}
    for old in path.parent.glob("*.safetensors"):
        old.unlink()
    snapshot.save(path, kept)
    spent = resume(tmp_path / "run", arrays()).sites
    epsilon = {name: site.privacy.epsilon for name, site in spent.items() if site.privacy is not None}
    assert epsilon["site1"] < epsilon["site0"]

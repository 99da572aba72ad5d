"""Memory is estimated before anything is built, and a study that would not fit is refused with a suggestion."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from confrere.core.errors import StudyError
from confrere.simulation import memory_estimate as module
from confrere.simulation.backends import simulate
from confrere.simulation.memory_estimate import FIXED, available, check_memory, estimate_memory
from confrere.simulation.simulation import Simulation
from confrere.site.open_sites import open_sites
from confrere.study import Models, Privacy, Study, Training

WIDE = {"name": "mlp", "hidden": [1000]}


def many(sites: int, records: int = 20) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(0)
    return {
        f"site{k}": (rng.normal(size=(records, 4)).astype("float32"), np.arange(records) % 2)
        for k in range(sites)
    }


def of(**changes: object) -> Study:
    base = Study(
        name="memory", rounds=1, strategy="proxyfl", models=Models(WIDE, WIDE), training=Training(tune=False),
        privacy=Privacy(epsilon=8.0, delta=1e-4, steps=1),
    )  # fmt: skip
    return base.with_(**changes)


def test_the_estimate_adds_up_weights_optimisers_and_records() -> None:
    study = of(
        training=Training(tune=False, optimiser="adam", protected={"optimiser": "sgd", "momentum": 0.9})
    )
    found = estimate_memory(study, open_sites(study, many(3)))
    weights = 4 * 1000 + 1000 + 1000 + 1
    assert found.weights == 3 * 4 * (weights + 2 * weights)  # private; proxy, and what peers sent
    assert found.optimisers == 3 * 4 * (2 * weights + weights)  # Adam keeps two moments, momentum one
    assert found.records == 3 * 20 * (4 * 4 + 8)
    assert found.total == found.records + found.weights + found.optimisers + 3 * FIXED


@pytest.mark.parametrize(
    ("strategy", "compression"),
    [
        *((strategy, "int8") for strategy in ("fedavg", "proxyfl", "swarm", "weight_erosion")),
        *((strategy, {"name": "top-k", "share": 0.1}) for strategy in ("proxyfl", "cwt", "weight_erosion")),
    ],
)
def test_what_compressed_parcels_leave_unsent_is_counted(strategy: str, compression: Any) -> None:
    study = of(strategy=strategy, compression=compression, privacy=None, rounds=4)
    federation = open_sites(study, many(4))
    simulation = Simulation(study, federation)
    simulation.run()
    kept = 0
    for peers in simulation.peers.values():
        parts = [t for m in peers.packing.memory.values() for t in (m.rest, m.told, m.own) if t is not None]
        starts = [found[0] for found in peers.packing._starts.values() if found is not None]
        kept += sum(t.numel() * t.element_size() for t in (*parts, *starts))
    found = estimate_memory(study, federation)
    assert found.unsent == kept > 0
    plain = estimate_memory(study.with_(compression=None), federation)
    assert found.to_come - plain.to_come == kept


def test_a_model_that_only_some_sites_have_counts_there() -> None:
    study = of(models=Models("linear", "linear", sites={"site0": {"private": WIDE}}))
    plain = of(models=Models("linear", "linear"))
    federation = open_sites(study, many(3))
    assert estimate_memory(study, federation).weights - estimate_memory(plain, federation).weights == 4 * (
        6001 - 5
    )


def test_more_sites_than_memory_holds_are_refused_before_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    study = of()
    federation = open_sites(study, many(10))
    needed = estimate_memory(study, federation).to_come
    check_memory(study, federation, free=needed)
    with pytest.raises(StudyError, match=r"10 sites need about .* about 5 sites fit.*smaller models"):
        check_memory(study, federation, free=needed * 55 // 100)
    monkeypatch.setattr(module, "available", lambda: needed // 2)
    with pytest.raises(StudyError, match="more memory"):
        simulate(study, many(10))


def test_the_machine_says_how_much_is_free() -> None:
    free = available()
    assert free is None or 10**6 < free < 10**14


def test_sites_of_one_process_share_their_networks() -> None:
    study = of()
    simulation = Simulation(study, open_sites(study, many(4)))
    simulation.prepare()
    name = simulation.sites["site0"].architecture("private").name
    assert len({id(s.network("private", name)) for s in simulation.sites.values()}) == 1

"""Masked sums give the same in every runtime that has them, with masks and without."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from confrere.core.events import Event
from confrere.core.registry import strategies
from confrere.simulation.backends import simulate
from confrere.simulation.finished_run import Run
from confrere.site.masked_messages import is_masked
from confrere.site.site_folder import site_folder_of
from confrere.study import Models, Study, load
from confrere.study.churn import Churn
from confrere.study.masked_settings import Masked, strategies_with_sums
from tests.conformance.table import FILES_OF_NODES, MASKED_ROWS, Row
from tests.conformance.test_runtimes import inside, told
from tests.conformance.test_strategies import PRIVACY, TRAINING, same_models
from tests.conftest import arrays, write_study
from tests.nodes import nodes_in_process


def test_every_strategy_with_a_masked_form_has_a_row() -> None:
    ours = {n for n in strategies_with_sums() if strategies[n].__module__.startswith("confrere.")}
    assert {row.name for row in MASKED_ROWS} == ours


EACH = pytest.mark.parametrize("row", MASKED_ROWS, ids=lambda r: r.id)


def study(row: Row, mode: Any = "sums") -> Study:
    return Study(
        name="masked",
        rounds=4,
        strategy=row.strategy,
        topology=row.topology,
        combiner="masked-sum",
        masked=Masked(1, 1, mode),
        training=TRAINING,
        privacy=PRIVACY_OF_ONE_STEP,
        models=Models("linear", row.proxy),
        churn=Churn(absent={"site1": [1]}, join={"site4": 2}),
    )


PRIVACY_OF_ONE_STEP = type(PRIVACY)(epsilon=PRIVACY.epsilon, delta=PRIVACY.delta)


@cache
def in_memory(row: str) -> Run:
    return simulate(study(next(r for r in MASKED_ROWS if r.id == row)), arrays(5, 60))


def same(one: Run, two: Run) -> None:
    """What is common is the same to the bit. Private models that are trained in other groups differ by rounding."""
    for site, models in one.models.items():
        role = "model" if "model" in models else "proxy"
        assert models[role].params.equals(two.models[site][role].params)
    same_models(one, two, 1e-5)
    for name, site in one.sites.items():
        assert site.privacy == two.sites[name].privacy


@EACH
def test_with_masks_it_is_the_same_to_the_bit(row: Row) -> None:
    same(in_memory(row.id), simulate(study(row, "masks"), arrays(5, 60)))


@EACH
@pytest.mark.parametrize("mode", ["sums", "masks"])
def test_workers_give_the_same(row: Row, mode: str) -> None:
    same(in_memory(row.id), simulate(study(row, mode), arrays(5, 60), workers=2))


@pytest.mark.slow
@EACH
def test_ray_gives_the_same(row: Row) -> None:
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'confrere[ray]'")
    same(in_memory(row.id), simulate(study(row), arrays(5, 60), workers=2, engine="ray"))


@EACH
def test_all_sites_share_one_model_and_it_learns(row: Row) -> None:
    run = in_memory(row.id)
    role = "model" if "model" in run.models["site0"] else "proxy"
    first, *others = [models[role].params for models in run.models.values()]
    assert all(first.equals(other) for other in others)
    assert all(site.privacy is not None and site.privacy.condition for site in run.sites.values())
    assert run.mean["accuracy"] > 0.7


def without_bytes(events: list[Event]) -> list[Event]:
    """A node adds signatures and marks to what it sends, and its ledger counts the facts of attempts too."""
    return [
        replace(e, data={k: v for k, v in e.data.items() if k != "bytes"}) if e.kind == "sent" else e
        for e in events
    ]


@EACH
def test_nodes_give_the_same_models_events_and_folders(row: Row, tmp_path: Path) -> None:
    loaded = load(write_study(tmp_path, records=60, sites=5))
    found = replace(study(row, "masks"), sites=loaded.sites, schema=loaded.schema, patience=600.0)
    memory = simulate(found, out=tmp_path / "memory")
    nodes = nodes_in_process(found, tmp_path / "nodes")
    same(memory, nodes)
    assert any(e.kind == "sent" and is_masked(e.data["phase"]) for e in nodes.events)
    for name in found.sites:
        assert told(without_bytes(nodes.events), name) == told(without_bytes(memory.events), name)
        here, there = (site_folder_of(tmp_path / run, name) for run in ("nodes", "memory"))
        assert {p for p in inside(here) if Path(p).parts[0] not in FILES_OF_NODES} == inside(there)
        weights, expected = (load_file(home / "model" / "model.safetensors") for home in (here, there))
        for key, tensor in weights.items():
            assert tensor.numpy() == pytest.approx(expected[key].numpy(), rel=1e-4, abs=1e-5)

"""Masked sums between nodes in one process: they are opened, one site may be missing, and a node may die at any step."""

from __future__ import annotations

from pathlib import Path

import pytest

from confrere.node.failpoints import MASKED_POINTS
from confrere.study import Study
from tests.masked_nodes import Plug, World, check_common, masked_study, states, sum_books
from tests.unit.node.sites import settings

PATIENT = 60.0


def world(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    plug: Plug,
    study: Study | None = None,
    rehearsal: bool = False,
) -> World:
    places = settings(folder, study or masked_study(), sites=4, rehearsal=rehearsal)
    return World(places, plug.install(monkeypatch)).watch(monkeypatch)


def test_without_any_fault_every_sum_is_opened_by_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = world(tmp_path, monkeypatch, Plug(), masked_study(patience=PATIENT)).run()
    assert found.check() == 3
    versions = {state.common.version for state in states(found).values()}
    assert len(versions) == 1
    assert all(state.common.steps == 3 for state in states(found).values())
    check_common(found)
    books = sum_books({name: place.ledger for name, place in found.places.items()})
    assert (books.charges, books.vectors, books.votes) == (12, 12, 12)


@pytest.mark.parametrize("point", MASKED_POINTS)
def test_a_node_that_dies_there_opens_nothing_twice(
    point: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = world(tmp_path, monkeypatch, Plug(point, 2)).run()
    assert len(found.plug.deaths) == 1
    found.check()
    check_common(found)

"""Masked sums between nodes in one process: they are opened, one site may be missing, and a node may die at any step."""

from __future__ import annotations

from pathlib import Path

import pytest

from confrere.exchange.secure.messages import MaskedVector, SumResult
from confrere.node import node_sums, sum_messages
from confrere.node.failpoints import MASKED_POINTS
from confrere.study import Study
from confrere.study.masked_settings import Masked
from tests.masked_nodes import Plug, World, check_common, masked_study, states, sum_books
from tests.unit.node.sites import settings

PATIENT = 600.0
"""So long that no step of a sum fails because the machine is slow."""


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
    assert set(MASKED_POINTS) <= set(found.plug.passed)


@pytest.mark.parametrize("point", MASKED_POINTS)
def test_a_node_that_dies_there_opens_nothing_twice(
    point: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What holds wherever it dies, whether or not the sum is opened after all."""
    found = world(tmp_path, monkeypatch, Plug(point, 2)).run()
    assert len(found.plug.deaths) <= 1
    found.check()
    check_common(found)


@pytest.mark.slow
def test_a_site_that_is_missing_is_left_out_of_the_sums(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = world(tmp_path, monkeypatch, Plug(), masked_study(patience=20.0))
    del (places := dict(found.places))["site3"]
    found.places = places
    found.run(over=lambda w: len(w.nodes) == 3 and all(n.doing == "finished" for n in w.nodes.values()))
    assert found.check() == 3
    assert {len(m.certificate.survivors) for _, _, m in found.messages() if isinstance(m, SumResult)} == {3}
    assert len({state.common.version for state in states(found).values()}) == 1


def test_a_summing_site_that_is_lost_has_a_successor_that_opens_the_same_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is cut off when all vectors are made and before it has all of them; no second charge is needed."""
    found = world(tmp_path, monkeypatch, Plug(), masked_study(rounds=1, patience=PATIENT))
    others = {"site1", "site2", "site3"}

    def pull(point: str) -> None:
        found.plug.passed[point] += 1
        if point == "sum-vector-sent" and found.plug.passed[point] == 3:
            found.network.cut |= {frozenset(("site0", name)) for name in others}

    monkeypatch.setattr(node_sums, "reach", pull)
    found.run(over=lambda w: all(w.nodes[n].doing == "finished" for n in others if n in w.nodes))
    assert found.check() == 1
    results = [m for _, _, m in found.messages() if isinstance(m, SumResult)]
    assert {(m.site, m.certificate.survivors) for m in results} == {("site1", ("site1", "site2", "site3"))}
    assert {state.common.steps for name, state in states(found).items() if name in others} == {1}
    assert sum_books({name: found.places[name].ledger for name in others}).charges == 3
    assert any("does not answer" in str(e.data.get("text")) for e in found.events["site2"])


def test_an_attempt_that_loses_too_many_is_charged_and_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With no dropouts allowed one restart ends the attempt; the second one has its own keys, noise and charge."""
    monkeypatch.setattr(sum_messages, "LONGEST_GRACE", 100.0)  # however long the restart takes
    study = masked_study(rounds=1, patience=PATIENT, masked=Masked(1, 0))
    found = world(tmp_path, monkeypatch, Plug("sum-recorded", 4), study).run()
    assert len(found.plug.deaths) == 1
    assert found.check() == 1
    books = sum_books({name: place.ledger for name, place in found.places.items()})
    assert books.charges == 8
    assert {state.common.steps for state in states(found).values()} == {1}
    contexts = {m.context for _, _, m in found.messages() if isinstance(m, MaskedVector)}
    assert len(contexts) == 2

"""Nodes with compressed parcels: they end where the simulation ends, also when one dies, and take no other form."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from confrere.core.custody import public
from confrere.core.parcel import Parcel
from confrere.exchange.compression import ParcelContext
from confrere.node.node import Node
from confrere.simulation.backends import simulate
from confrere.transport import wire
from confrere.transport.receipt import Outcome
from tests.conftest import arrays
from tests.system.test_node_deaths import agree, die_at, until_all_is_done
from tests.unit.node.sites import settings
from tests.unit.node.wires import Network
from tests.unit.quick import quick

KINDS: dict[str, Any] = {"int8": "int8", "top-k": {"name": "top-k", "share": 0.4}}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("point", ["debited", "taken", "round-kept"])
def test_what_was_not_said_survives_a_death(
    kind: str, point: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = quick("proxyfl", rounds=3, patience=60.0, compression=KINDS[kind])
    whole = simulate(study, arrays(2, 60))
    die_at(point, 3, monkeypatch)  # in the second round of one of the two
    deaths: list[str] = []
    places = settings(tmp_path, study, sites=2)
    nodes = asyncio.run(until_all_is_done(places, deaths))
    assert len(deaths) == 1
    agree(whole, nodes, study, places)


def test_a_node_takes_in_the_form_that_the_study_says_and_no_other(tmp_path: Path) -> None:
    study = quick("avgpush", rounds=4, patience=5.0, compression=KINDS["top-k"])

    async def story() -> list[Outcome]:
        places = settings(tmp_path, study)
        node, key = Node(places["site0"], connect=Network().connect), places["site1"].identity.key
        whole = node.site.build("proxy")
        route = ParcelContext(places["site0"].run, 0, 0, "site1")
        packed = node.peers.packing.pack(whole, route, epoch=0, leaving=public(1.0))
        node.peers.packing.restore({})
        indices = packed.params[":indices"].clone()
        indices[1] = indices[0]
        twice = replace(packed, params=type(packed.params)({**packed.params, ":indices": indices}))
        outcomes = []
        for sequence, model in enumerate([whole, twice, packed], 1):
            parcel = Parcel(route.run, 0, 0, 0, "site1", "site0", sequence, model, {"mass": public(1.0)})
            sent = wire.encode(wire.sign(parcel, key))
            outcomes.append((await node.parcel_receiver.deliver("site1", sent)).outcome)
        node.close()
        return outcomes

    assert asyncio.run(story()) == [Outcome.REFUSED, Outcome.REFUSED, Outcome.ACCEPTED]

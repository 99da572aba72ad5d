"""Sites that come later or spend less than the others, as real nodes."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

from confrere.node.node import Node
from confrere.study import Caps, SiteConfig
from confrere.study.churn import Churn
from tests.system.test_node_faults import books, events, same_as_simulated, start, study_of, through
from tests.unit.node.sites import settings
from tests.unit.node.wires import Network


def test_a_site_that_joins_later_takes_part_from_its_round_on_and_mass_begins_anew(tmp_path: Path) -> None:
    study, network = study_of(5, topology="complete", churn=Churn(join={"site2": 2})), Network()
    places = settings(tmp_path, study)

    async def story() -> dict[str, Node]:
        nodes = start(places, network)
        await through(*nodes.values())
        return nodes

    same_as_simulated(study, asyncio.run(story()))
    assert {e.round for e in events(places["site2"], "sent")} == {2, 3, 4}
    assert {e.round for e in events(places["site2"], "charged")} == {2, 3, 4}
    seen = {e.round: (e.data["members"], e.data["epoch"]) for e in events(places["site0"], "round-started")}
    assert seen[1] == (["site0", "site1"], 0)
    assert seen[2] == (["site0", "site1", "site2"], 1)
    books(study, places)


def test_a_site_that_allows_less_than_the_study_spends_less(tmp_path: Path) -> None:
    study, network = study_of(4, topology="complete"), Network()
    places = settings(tmp_path, study, rehearsal=False)
    own = study.with_(sites={"site0": SiteConfig(caps=Caps(epsilon=1.0))})
    places["site0"] = replace(places["site0"], study=own, caps=Caps(epsilon=1.0))

    async def story() -> None:
        await through(*start(places, network).values())

    asyncio.run(story())
    spent = {name: events(place, "charged")[-1].data["epsilon"] for name, place in places.items()}
    assert spent["site0"] <= 1.0 < spent["site1"]

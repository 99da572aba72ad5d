"""Sites that come later or spend less than the others, as real nodes."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from confrere.node.delivery import Links, PeerSender
from confrere.node.node import Node
from confrere.study import Caps, SiteConfig
from confrere.study.churn import Churn
from confrere.transport.body import Body
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


def test_a_site_that_is_slow_to_receive_still_gets_the_last_parcels_before_a_change_of_members(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sender has closed the round, and counts the new members, while its parcel still waits in the outbox."""
    study = study_of(5, topology="complete", patience=60.0, churn=Churn(leave={"site2": 2}))
    places, network, hand_over = settings(tmp_path, study), Network(), PeerSender._hand_over

    async def slowly(self: PeerSender, links: Links, sequence: int, body: Body) -> bool:
        done = await hand_over(self, links, sequence, body)
        if self.me == "site0":
            await asyncio.sleep(0.5)
        return done

    monkeypatch.setattr(PeerSender, "_hand_over", slowly)

    async def story() -> dict[str, Node]:
        nodes = start(places, network)
        await through(*nodes.values())
        return nodes

    same_as_simulated(study, asyncio.run(story()))


def test_a_node_does_not_wait_at_its_end_for_a_site_that_has_left_and_cannot_be_reached(
    tmp_path: Path,
) -> None:
    places = settings(tmp_path, study_of(2, topology="complete", churn=Churn(leave={"site2": 1})))

    async def story() -> None:
        nodes = start(places, Network())
        node = nodes["site0"]
        node.done = 1
        assert node._still_expected({"site1": 1, "site2": 3}) == ["site1"]
        node.done = 0  # the last round of the site that leaves: it needs what this site sends
        assert node._still_expected({"site1": 1, "site2": 3}) == ["site1", "site2"]
        for one in nodes.values():
            one.close()

    asyncio.run(story())


def test_a_node_that_is_interrupted_twice_leaves_its_folder_free(tmp_path: Path) -> None:
    places = settings(tmp_path, study_of(4, topology="complete"))

    async def story() -> None:
        node = start({"site0": places["site0"]}, Network())["site0"]
        running = asyncio.create_task(node.run())
        await asyncio.sleep(0.2)
        stop = node.links.stop

        async def interrupted_again() -> None:
            running.cancel()
            await asyncio.sleep(0)
            await stop()

        node.links.stop = interrupted_again  # type: ignore[method-assign]
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert running.cancelled()
        Node(places["site0"], connect=Network().connect).close()

    asyncio.run(story())

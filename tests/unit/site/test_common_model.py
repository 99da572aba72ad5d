"""The common model reaches the sites that were not there, whether their absence was planned or not."""

from __future__ import annotations

import asyncio

import torch

from confrere.core.custody import Custody, public
from confrere.core.events import Journal
from confrere.core.model import Model
from confrere.core.params import Params
from confrere.exchange.topology import Complete, Star
from confrere.privacy.gate import Gate
from confrere.site.peers import SitePeers
from confrere.study.churn import Churn
from confrere.transport.memory import MemoryNetwork

NAMES = ("a", "b", "c")


def model(value: float) -> Model:
    return Model(Params({"w": torch.full((3,), value)}), "three", Custody.PROTECTED)


def connected(topology: Complete | Star) -> dict[str, SitePeers]:
    network = MemoryNetwork()
    found = {
        n: SitePeers(n, "run", NAMES, topology, Churn(), Gate(), network.open(n), Journal(), patience=0.05)
        for n in NAMES
    }
    assert all(peers.receive_directly() for peers in found.values())
    return found


async def one_round(sites: dict[str, SitePeers], present: str, number: int) -> None:
    rounds = {n: sites[n].round(number) for n in present}
    await asyncio.gather(*(rounds[n].exchange(model(0.0)) for n in present))
    for n in present:
        await rounds[n].send_common(model(10.0 + number), since=public(number))


def test_a_site_that_was_missing_unplanned_is_sent_the_common_model() -> None:
    async def story() -> None:
        sites = connected(Complete())
        await one_round(sites, "ac", 0)
        await one_round(sites, "ac", 1)
        (found,) = await sites["b"].round(2).latest_common()
        assert found.model is not None
        assert float(found.model.params["w"][0]) == 11.0
        assert found.scalar("since").value == 1
        assert await sites["a"].round(2).latest_common() == ()

    asyncio.run(story())


def test_no_common_model_is_sent_where_the_centre_was_missing() -> None:
    async def story() -> None:
        sites = connected(Star(leader="b"))
        await one_round(sites, "ac", 0)
        assert await sites["b"].round(1).latest_common() == ()

    asyncio.run(story())

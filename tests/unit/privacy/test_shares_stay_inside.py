"""A share of a masked sum has too little noise to be seen: every way to let it out unmasked is refused."""

from __future__ import annotations

import asyncio
import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch

from confrere.core.custody import Custody, Scalar, Share, custody_of, public
from confrere.core.errors import ConfrereError, CustodyError
from confrere.core.model import Model, mix
from confrere.core.params import Params
from confrere.core.parcel import Parcel
from confrere.learning.objectives import Supervised
from confrere.privacy.gate import Gate
from confrere.simulation.simulation import Simulation
from confrere.site import snapshot
from confrere.site.masked_messages import MESSAGE, as_message
from confrere.site.participant import Participant
from confrere.site.site_round import SiteRound
from confrere.study import Models, Privacy, Study, Training
from confrere.study.masked_settings import Masked
from confrere.transport import batch, wire
from tests.property.test_gradient_sums import federation


def simulation(**changes: Any) -> Simulation:
    study = Study(
        name="shares", rounds=2, strategy="fedavg", combiner="masked-sum", masked=Masked(1, 1),
        models=Models("linear", "linear"), privacy=Privacy(epsilon=4.0, delta=1e-4), training=Training(tune=False),
    )  # fmt: skip
    found = Simulation(study.with_(**changes), federation([60, 50, 40, 30]))
    found.prepare()
    return found


def share_of(site: Participant) -> Share:
    found = asyncio.run(SiteRound(site, 0).gradient_sum(Supervised(), at=site.build("proxy")))
    assert isinstance(found, Share)
    return found


@pytest.fixture(scope="module")
def share() -> Share:
    return share_of(simulation().sites["site0"])


def parcel(held: Any) -> Parcel:
    return Parcel("run", 0, 0, 0, "a", "b", 1, held, {})


OPEN = Gate(accept_unproven=True)
WAYS: dict[str, Callable[[Any], Any]] = {
    "through the gate": lambda share: OPEN.admit(share),
    "through the gate as a number": lambda share: OPEN.admit(None, {"weight": share}),
    "over the wire": lambda share: wire.encode(parcel(share)),
    "measured for the wire": lambda share: wire.size(parcel(share)),
    "in a batch between workers": lambda share: batch.encode([parcel(share)]),
    "as a number in a batch": lambda share: batch.encode(
        [Parcel("run", 0, 0, 0, "a", "b", 1, None, {"weight": share})]
    ),
    "pickled": pickle.dumps,
    "copied": copy.copy,
    "copied deeply": copy.deepcopy,
    "in a checkpoint": lambda share: snapshot.dumps({"state": share}),
    "as a number": lambda share: Scalar(share, Custody.PUBLIC),  # type: ignore[arg-type]
    "mixed with a model": lambda share: mix([(public(1.0), share)]),
    "as weights": lambda share: Params({"w": share}),
    "by arithmetic": lambda share: share * 1.0,
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())
def test_a_share_does_not_leave(share: Share, way: Callable[[Any], Any]) -> None:
    with pytest.raises((ConfrereError, TypeError, AttributeError)):
        way(share)


def test_a_share_shows_nothing_and_counts_as_private(share: Share) -> None:
    assert repr(share) == str(share) == "Share(opens_as=PROTECTED)"
    assert custody_of(share) is share.custody is Custody.PRIVATE
    assert not hasattr(share, "__dict__")


def test_a_share_is_no_input_of_training() -> None:
    found = simulation()
    site = found.sites["site0"]
    share: Any = share_of(site)
    plain = site.build("proxy")
    for objective, models in (
        ({"model": Supervised()}, {"model": share}),
        ({"model": Supervised()}, {"model": plain, "teacher": share}),
    ):
        with pytest.raises(CustodyError, match="only a part of the noise"):
            asyncio.run(SiteRound(site, 0).train(objective, models, protect=["model"]))
    with pytest.raises(CustodyError, match="only a part of the noise"):
        asyncio.run(SiteRound(site, 0).gradient_sum(Supervised(), at=share))


def test_a_share_is_not_sent_to_peers_outside_of_a_masked_sum() -> None:
    found = simulation()
    share: Any = share_of(found.sites["site0"])
    at = found.peers["site0"].round(0)
    for sending in (at.exchange(share), at.answer({"site1": share}), at.send_common(share)):
        at._asked = ["site1"]
        at._missing.add("site1")
        with pytest.raises(CustodyError):
            asyncio.run(sending)
    unmasked = simulation(combiner=None, masked=None, strategy={"name": "fedavg", "exchange": "gradients"})
    with pytest.raises(CustodyError, match="no masked sums"):
        asyncio.run(unmasked.peers["site0"].round(0).sum(share, since=0))


def test_a_masked_sum_takes_only_shares_that_a_site_made() -> None:
    found = simulation()
    model = found.sites["site0"].build("proxy")
    for vector in (model, None):
        with pytest.raises(CustodyError, match=r"only site\.gradient_sum"):
            asyncio.run(found.peers["site0"].round(0).sum(vector, since=0))
    made_up = Share(torch.ones(3), Custody.PUBLIC)
    with pytest.raises(ConfrereError, match=r"only site\.gradient_sum"):
        asyncio.run(found.peers["site0"].round(0).sum(made_up, since=0))


def test_the_gate_gives_out_a_share_only_if_its_sum_may_leave() -> None:
    site = simulation().sites["site0"]
    unproven = Share(share_of(site)._held, Custody.UNPROVEN)
    with pytest.raises(CustodyError, match="without a proven privacy guarantee"):
        Gate().admit_share(unproven)
    assert Gate(accept_unproven=True).admit_share(unproven) is unproven._held
    with pytest.raises(CustodyError):
        Share(object(), Custody.PRIVATE)
    with pytest.raises(CustodyError):
        Gate().admit_share(site.build("proxy"))  # type: ignore[arg-type]


def test_what_a_share_opens_as_follows_from_what_it_read() -> None:
    site = simulation().sites["site0"]
    for custody, opens in ((Custody.PUBLIC, Custody.PROTECTED), (Custody.UNPROVEN, Custody.UNPROVEN)):
        at = site.build("proxy").held(custody)
        found = asyncio.run(SiteRound(site, 0).gradient_sum(Supervised(), at=at))
        assert isinstance(found, Share)
        assert found.opens_as is opens
    own = site.build("proxy").held(Custody.PRIVATE)
    with pytest.raises(CustodyError):
        asyncio.run(SiteRound(site, 0).gradient_sum(Supervised(), at=own))


def test_a_strategy_cannot_send_what_looks_like_a_masked_message() -> None:
    forged = as_message(b"anything", Custody.PUBLIC)
    gate = Gate(architectures={"linear"})
    with pytest.raises(CustodyError, match="none of the study's"):
        gate.admit(forged)
    found = simulation()
    peers = found.peers["site0"]
    strange = Model(Params({"w": torch.ones(3)}), "linear", Custody.PUBLIC)
    peers.receive(Parcel("run", 0, 0, 16, "site1", "site0", 1, strange, {}))
    (kept,) = peers.mailbox.waiting()
    assert kept.model is None
    assert MESSAGE not in found.sites["site0"].architectures

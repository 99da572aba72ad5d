"""In a rehearsal, a training is free of charge only if it repeats one that was charged, to the bit."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from confrere.core.custody import public
from confrere.core.model import Model, mix
from confrere.core.protocols import Loss
from confrere.learning.objectives import Near, Supervised
from confrere.privacy.ledger import Ledger
from confrere.simulation.simulation import Simulation
from confrere.site.open_sites import open_sites
from confrere.site.participant import Participant
from confrere.site.site_round import SiteRound
from confrere.study import Privacy
from tests.conftest import arrays
from tests.unit.quick import quick


@pytest.fixture
def site() -> Participant:
    study = quick("fedavg", privacy=Privacy(noise_multiplier=20.0, delta=1e-4, steps=1))
    simulation = Simulation(study, open_sites(study, arrays()), trainer="one")
    simulation.prepare()
    return simulation.sites["site0"]


def train(handle: SiteRound, roles: Sequence[str], model: Model, loss: Loss | None = None) -> None:
    asyncio.run(
        handle.train({r: loss or Supervised() for r in roles}, dict.fromkeys(roles, model), protect=roles)
    )


def steps(site: Participant) -> int:
    return sum(charge.count for charge in site.ledger.charges())


@pytest.mark.parametrize(
    ("first", "second"),
    [(["x/2"], ["x"]), (["x", "y"], ["x+y"]), (["x+y"], ["x", "y"]), (["x%2F2"], ["x/2"])],
)
def test_no_two_lists_of_roles_share_a_ledger_key(
    site: Participant, first: list[str], second: list[str]
) -> None:
    model = site.build("proxy")
    for roles in (first, second):  # each as the first training of its round, and then as the second
        site.trainings.clear()
        train(SiteRound(site, 0), roles, model)
    train(SiteRound(site, 0), first, model)
    keys = {entry["key"] for entry in site.ledger.entries()}
    assert len(keys) == site.ledger.counter == 3
    assert steps(site) == 2 * len(first) + len(second)


def test_every_training_of_a_round_is_charged_whichever_handle_it_is_asked_of(site: Participant) -> None:
    model, kept = site.build("proxy"), SiteRound(site, 0)
    train(SiteRound(site, 0), ["proxy"], model)
    train(kept, ["proxy"], model)
    train(SiteRound(site, 1), ["proxy"], model)
    train(kept, ["proxy"], model)
    assert steps(site) == 4
    assert len({entry["key"] for entry in site.ledger.entries()}) == 4


@pytest.mark.parametrize("changed", ["weights", "loss", "what the loss reads"])
def test_a_replay_that_would_compute_something_else_is_charged(site: Participant, changed: str) -> None:
    model, loss = site.build("proxy"), Near("anchor", 0.1)
    other = mix([(public(3.0), model)])

    def once(start: Model, loss: Near, anchor: Model) -> None:
        site.trainings.clear()  # as after a restart
        models = {"proxy": start, "anchor": anchor}
        asyncio.run(SiteRound(site, 0).train({"proxy": loss}, models, protect=["proxy"]))

    once(model, loss, model)
    once(model, loss, model)
    assert steps(site) == 1
    once(
        other if changed == "weights" else model,
        Near("anchor", 0.2) if changed == "loss" else loss,
        other if changed == "what the loss reads" else model,
    )
    assert steps(site) == 2


def test_entries_of_earlier_versions_are_still_recognised_as_replays(site: Participant) -> None:
    charges = site.private_steps(["proxy"]).charges
    site.ledger = Ledger(dataset=site.name)
    site.ledger.spend(charges, key=f"{site.run}/0/proxy", budget=None, records=site.fingerprint)
    train(SiteRound(site, 0), ["proxy"], site.build("proxy"))
    assert steps(site) == 1

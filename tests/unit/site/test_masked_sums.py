"""Masked sums in a simulation: one step on the records of all sites, the noise of one release, and what is given up."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import numpy as np
import pytest
import torch

from confrere.core.custody import Custody
from confrere.core.errors import PrivacyError, StudyError
from confrere.core.events import Event
from confrere.learning.objectives import Supervised
from confrere.simulation.backends import simulate
from confrere.simulation.finished_run import Run
from confrere.simulation.simulation import Simulation
from confrere.site import masked_turns
from confrere.site.faults import Fault
from confrere.site.mailbox import MASKED
from confrere.site.masked_share import SiteShare
from confrere.site.masked_sums import longest_sum
from confrere.site.peers import SitePeers
from confrere.site.site_round import SiteRound
from confrere.study import Caps, Models, Privacy, SiteConfig, Study, Training
from confrere.study.churn import Churn
from confrere.study.masked_settings import Masked
from tests.conftest import arrays
from tests.property.test_gradient_sums import federation

GRADIENTS = {"name": "fedavg", "exchange": "gradients"}
PRIVACY = Privacy(epsilon=4.0, delta=1e-4)
CONDITION = "if at most 1 of the other 3 sites pool what they see or depart from the protocol"


def study(**changes: Any) -> Study:
    base = Study(
        name="masked", rounds=4, strategy="fedavg", combiner="masked-sum", masked=Masked(1, 1),
        models=Models("linear", "linear"), privacy=PRIVACY,
        training=Training(tune=False, optimiser="sgd", learning_rate=0.5, momentum=0.5),
    )  # fmt: skip
    return base.with_(**changes)


def same(run: Run) -> None:
    """All sites have the same model, to the bit."""
    first, *others = [m["model"].params for m in run.models.values()]
    assert all(first.equals(other) for other in others)


def charges(run: Run) -> dict[str, int]:
    found: dict[str, int] = {}
    for event in run.events:
        if event.kind == "charged" and event.site is not None:
            found[event.site] = found.get(event.site, 0) + 1
    return found


def texts(run: Run) -> list[str]:
    return [str(e.data.get("text")) for e in run.events if e.kind in ("notice", "budget-spent")]


@pytest.mark.parametrize("topology", ["complete", "star"])
def test_opened_sums_are_the_same_to_the_bit_with_and_without_masks(topology: str) -> None:
    churn = Churn(absent={"site1": [1], "site3": [2]})
    plain = simulate(study(topology=topology, churn=churn), arrays(4, 60))
    masked = simulate(
        study(topology=topology, churn=churn, masked=Masked(1, 1, simulate="masks")), arrays(4, 60)
    )
    same(plain)
    for site, models in plain.models.items():
        assert models["model"].params.equals(masked.models[site]["model"].params)
    assert charges(plain) == charges(masked)


def test_every_release_is_charged_once_and_states_what_it_assumes() -> None:
    run = simulate(study(), arrays(4, 60))
    assert charges(run) == dict.fromkeys(run.models, 4)
    for site in run.sites.values():
        assert site.privacy is not None
        assert site.privacy.condition == CONDITION
        assert site.privacy.accountant == "rdp"
        assert 3.9 < site.privacy.epsilon <= 4.0
    assert all(m["model"].custody is Custody.PROTECTED for m in run.models.values())


def test_the_noise_of_the_sum_is_that_of_one_release() -> None:
    """What the models move by, without gradients, is the noise: its variance is σ²·n/h, as all members are there."""
    wide = Models("linear", {"name": "mlp", "hidden": [64]})
    loud = Privacy(noise_multiplier=1000.0, delta=1e-4, clipping={"name": "flat", "norm": 1e-3})
    simulation = Simulation(study(privacy=loud, models=wide), federation([60, 50, 40, 30]))
    simulation.prepare()
    opened: list[Any] = []
    real = masked_turns.masked_sum

    async def kept(*given: Any) -> Any:
        opened.append(await real(*given))
        return opened[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("confrere.site.peers.masked_sum", kept)
        simulation.run()
    numbers = torch.cat([o.opened.vector.params.flatten() for o in opened[::4]])
    assert numbers.numel() > 1000
    std = 1000.0 * 1e-3 * math.sqrt(4 / 2)
    assert float(numbers.std()) == pytest.approx(std, rel=4 / math.sqrt(2 * numbers.numel()))


def test_without_noise_to_speak_of_it_is_the_sum_of_all_gradients() -> None:
    quiet = Privacy(noise_multiplier=0.01, delta=1e-4, clipping={"name": "flat", "norm": 5.0})
    four = federation([60, 50, 40, 30])
    masked = simulate(study(privacy=quiet), four)
    plain = simulate(study(privacy=None, combiner=None, masked=None, strategy=GRADIENTS), four)
    one, other = (run.models["site0"]["model"].params.flatten() for run in (masked, plain))
    torch.testing.assert_close(one, other, rtol=0, atol=0.005)


def test_a_round_below_the_quorum_is_given_up_and_costs_nothing() -> None:
    run = simulate(study(churn=Churn(absent={"site1": [1], "site2": [1]})), arrays(4, 60))
    assert any("was given up: 2 of 4 members are there, and the noise needs 3" in text for text in texts(run))
    assert not any(e.kind == "charged" and e.round == 1 for e in run.events)
    same(run)


@pytest.mark.parametrize("mode", ["sums", "masks"])
@pytest.mark.parametrize("point", ["before-exchange", "before-answer"])
@pytest.mark.parametrize("lost", ["site1", "site2"])
def test_a_site_that_is_lost_in_the_middle_of_a_sum_comes_back_to_the_common_state(
    mode: Any, point: Any, lost: str
) -> None:
    run = simulate(study(rounds=6, masked=Masked(1, 1, mode)), arrays(4, 60), faults=(Fault(lost, 2, point),))
    same(run)


def test_a_site_whose_budget_is_spent_adds_its_noise_and_is_left_out_of_the_divisor() -> None:
    seen: list[tuple[str, bool]] = []
    real = SiteShare.draw

    def watched(self: SiteShare) -> Any:
        seen.append((self.site.name, self.counts))
        return real(self)

    base = study(rounds=5, sites={f"site{k}": SiteConfig() for k in range(4)})
    capped = base.with_(sites={**base.sites, "site0": SiteConfig(caps=Caps(epsilon=2.0))})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SiteShare, "draw", watched)
        run = simulate(capped, arrays(4, 60))
    own = [counts for name, counts in seen if name == "site0"]
    assert own[0]
    assert not own[-1]
    assert len(own) == 5
    assert all(counts for name, counts in seen if name != "site0")
    assert charges(run)["site0"] == sum(own)
    assert any("is spent; the site adds its part of the noise" in text for text in texts(run))
    privacy = run.sites["site0"].privacy
    assert privacy is not None
    assert privacy.epsilon <= 2.0
    same(run)


def test_a_sum_beyond_what_honest_sites_add_up_to_is_discarded() -> None:
    real = SiteShare.draw

    def dishonest(self: SiteShare) -> Any:
        found = real(self)
        return found * 10**6 if (self.site.name, self.round) == ("site3", 1) else found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SiteShare, "draw", dishonest)
        run = simulate(study(), arrays(4, 60))
    assert sum("round 2 is discarded" in text for text in texts(run)) == 4
    same(run)
    largest = max(m["model"].params.largest() for m in run.models.values())
    assert largest < 10


def test_the_bound_of_an_opened_sum_holds_for_honest_sites_at_their_worst() -> None:
    simulation = Simulation(study(), federation([60, 50, 40, 30]))
    simulation.prepare()
    site = simulation.sites["site0"]
    masks = simulation.peers["site0"].masks
    assert masks is not None
    terms = site.mechanism.terms  # type: ignore[union-attr]
    agreement = masks.agreement(sorted(simulation.sites), terms, 0)
    rng = np.random.default_rng(0)
    worst = terms.clip * sum(m.declared for m in agreement.members)
    noise = rng.normal(0, terms.noise_std * math.sqrt(4 / terms.honest), terms.size)
    assert worst + float(np.linalg.norm(noise)) < longest_sum(agreement, agreement.names)


def test_a_new_epoch_of_membership_divides_the_noise_anew() -> None:
    run = simulate(study(churn=Churn(join={"site4": 2})), arrays(5, 60))
    events = [e for e in run.events if e.kind == "charged" and e.site == "site0"]
    members = ['"members":"4"' in e.data["mechanism"] for e in events]
    assert members == [True, True, False, False]
    same(run)


def test_a_resumed_rehearsal_is_not_charged_twice(tmp_path: Any) -> None:
    simulation = Simulation(study(), federation([60, 50, 40, 30]))
    simulation.prepare()
    site = simulation.sites["site0"]
    model = site.build("proxy")

    async def twice() -> None:
        for _ in range(2):
            share = await SiteRound(site, 0).gradient_sum(Supervised(), at=model)
            held = share._held  # type: ignore[union-attr]
            held.charge()
            site.trainings.clear()

    asyncio.run(twice())
    assert site.ledger.counter == 1


def test_noise_is_drawn_once_and_only_after_the_charge() -> None:
    simulation = Simulation(study(), federation([60, 50, 40, 30]))
    simulation.prepare()
    site = simulation.sites["site0"]
    share = asyncio.run(SiteRound(site, 0).gradient_sum(Supervised(), at=site.build("proxy")))
    held = share._held  # type: ignore[union-attr]
    with pytest.raises(PrivacyError, match="was not charged"):
        held.draw()
    held.charge()
    held.draw()
    with pytest.raises(PrivacyError, match="nothing more was released"):
        held.draw()


def test_no_vector_leaves_before_the_charge_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[tuple[str, str]] = []
    real = SitePeers.receive

    def watched(self: SitePeers, parcel: Any) -> None:
        if parcel.phase == MASKED + 2:
            order.append(("vector", parcel.sender))
        real(self, parcel)

    monkeypatch.setattr(SitePeers, "receive", watched)
    simulation = Simulation(study(rounds=1), federation([60, 50, 40, 30]))

    def listen(event: Event) -> None:
        if event.kind == "charged":
            order.append(("charge", str(event.site)))

    simulation.run(listeners=(listen,))
    for name in {site for what, site in order if what == "vector"}:
        assert order.index(("charge", name)) < order.index(("vector", name))


def test_a_second_step_on_a_share_is_refused() -> None:
    simulation = Simulation(study(), federation([60, 50, 40, 30]))
    simulation.prepare()
    site = simulation.sites["site0"]
    model = site.build("proxy")
    with pytest.raises(PrivacyError, match="has only a part of"):
        asyncio.run(SiteRound(site, 0).train({"model": Supervised()}, {"model": model}, protect=["model"]))
    assert site.ledger.counter == 0


def test_too_coarse_a_grid_and_too_few_members_are_refused_before_a_round() -> None:
    quiet = Privacy(noise_multiplier=0.002, delta=1e-4)
    with pytest.raises(PrivacyError, match="too coarse for the noise"):
        Simulation(study(privacy=quiet), federation([60, 50, 40, 30])).prepare()
    with pytest.raises(StudyError, match="at most 0 may drop out"):
        Simulation(study(), federation([60, 50, 40]))
    with pytest.raises(StudyError, match="at least 3 members, not 2"):
        Simulation(study(), federation([60, 50]))
    with pytest.raises(StudyError, match=r"from round 3 on: .*at most 0 may drop out"):
        Simulation(study(churn=Churn(leave={"site3": 2})), federation([60, 50, 40, 30])).prepare()

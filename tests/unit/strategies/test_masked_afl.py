"""AFL on sums of gradients: the step is that of the mixture, and a share is charged for the weight that it has."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
import torch
from torch import Tensor

from confrere.core.custody import Custody, Scalar, private, public
from confrere.core.errors import CustodyError, PrivacyError, StudyError
from confrere.core.model import Architecture, Model
from confrere.core.params import Params
from confrere.core.sum_terms import SumTerms
from confrere.exchange.secure.agreement import Agreement
from confrere.exchange.secure.in_process import simulated_members
from confrere.learning.common_state import CommonState
from confrere.learning.objectives import Supervised, supervised_loss
from confrere.privacy.accounting import epsilon
from confrere.privacy.charges import gaussian, masked
from confrere.privacy.masked_mechanism import MaskedMechanism
from confrere.privacy.masked_release import MaskedRelease
from confrere.privacy.noise import Seeded
from confrere.simulation.backends import simulate
from confrere.simulation.finished_run import Run
from confrere.simulation.simulation import Simulation
from confrere.site.masked_share import SiteShare
from confrere.site.masked_sums import longest_sum
from confrere.site.site_round import SiteRound
from confrere.strategies.afl import AgnosticFederatedLearning, _shares, _weights
from confrere.study import Models, Privacy, Study, Training
from confrere.study.churn import Churn
from confrere.study.masked_settings import Masked
from tests.property.test_gradient_sums import federation

SIZES = [60, 50, 40, 30]
RATE = 0.5
QUIET = Privacy(noise_multiplier=0.01, delta=1e-4, clipping={"name": "flat", "norm": 5.0})
TERMS = SumTerms(4, 1, 1, noise_std=3.0, clip=2.0, size=100)


def study(**changes: Any) -> Study:
    base = Study(
        name="afl", rounds=3, strategy={"name": "afl", "ascent": 2.0}, topology="complete",
        combiner="masked-sum", masked=Masked(1, 1), models=Models("linear", "linear"), privacy=QUIET,
        training=Training(tune=False, optimiser="sgd", learning_rate=RATE, momentum=0.0, weight_decay=0.0),
    )  # fmt: skip
    return base.with_(**changes)


def mixtures(run: Run) -> list[dict[str, float]]:
    found = {e.round: e.data["weights"] for e in run.events if e.kind == "weighed" and e.site == "site0"}
    return [found[r] for r in sorted(found, key=lambda r: r or 0)]


def descended(simulation: Simulation, rounds: list[dict[str, float]]) -> Tensor:
    """Gradient descent on Σ λ·(mean loss), written out: the mixture of each round weighs the sites' means."""
    simulation.prepare()
    site = simulation.sites["site0"]
    start = site.build("proxy")
    module = site.network("model", start.architecture).module
    module.load_state_dict(dict(start.params))
    for shares in rounds:
        module.zero_grad()
        for name, share in shares.items():
            records = simulation.federation.sites[name].train
            mean = supervised_loss(module(records.inputs), records.targets).mean()
            (share / sum(shares.values()) * mean).backward()
        with torch.no_grad():
            for weight in module.parameters():
                weight -= RATE * weight.grad  # type: ignore[operator]
    state = module.state_dict()
    return torch.cat([state[name].reshape(-1) for name in sorted(state)])


@pytest.mark.parametrize("topology", ["complete", "star"])
@pytest.mark.parametrize("form", ["masked", "gradients"])
def test_a_round_is_one_step_on_the_mixture_of_the_sites(form: str, topology: str) -> None:
    asked = study(topology=topology)
    if form == "gradients":
        plain = {"name": "afl", "ascent": 2.0, "exchange": "gradients"}
        asked = study(topology=topology, strategy=plain, combiner=None, masked=None, privacy=None)
    run = simulate(asked, federation(SIZES))
    after = mixtures(run)
    assert max(after[1].values()) > 0.3, "the shares must differ, or the test shows nothing"
    before = [dict.fromkeys(after[0], 0.25), *after[:-1]]
    expected = descended(Simulation(asked, federation(SIZES)), before)
    for models in run.models.values():
        torch.testing.assert_close(models["model"].params.flatten(), expected, rtol=0, atol=0.005)
    equal = descended(Simulation(asked, federation(SIZES)), [before[0]] * 3)
    assert float((equal - expected).abs().max()) > 0.02, "equal shares would give another model"


def charged(run: Run, site: str, role: str) -> list[float]:
    events = [e for e in run.events if e.kind == "charged" and e.site == site and e.data["role"] == role]
    return [float(json.loads(e.data["mechanism"])["noise_multiplier"]) for e in events]


def test_a_share_is_charged_for_its_weight_and_the_loss_in_full() -> None:
    slowly = {"name": "afl", "ascent": 0.2}  # no share falls to 0
    asked = study(strategy=slowly, privacy=Privacy(epsilon=4.0, delta=1e-4))
    run = simulate(asked, federation(SIZES))
    simulation = Simulation(asked, federation(SIZES))
    simulation.prepare()
    mechanism = simulation.sites["site0"].mechanism
    assert isinstance(mechanism, MaskedMechanism)
    noise = mechanism.terms.noise_std / mechanism.terms.clip
    shares = dict.fromkeys(run.sites, 0.25)
    for number, after in enumerate(mixtures(run)):
        per_record = {f"site{k}": shares[f"site{k}"] / size for k, size in enumerate(SIZES)}
        for name, share in per_record.items():
            weight = share / max(per_record.values())
            assert charged(run, name, "model")[number] == pytest.approx(noise / weight)
            assert charged(run, name, "loss_sum")[number] == pytest.approx(noise)
        shares = after
    for site in run.sites.values():
        assert site.privacy is not None
        assert site.privacy.condition
        assert site.privacy.epsilon <= 4.0
    assert max(s.privacy.epsilon for s in run.sites.values() if s.privacy) > 3.0


def test_the_noise_lasts_for_a_share_and_a_loss_in_every_round() -> None:
    """Checked from first principles: the site with the largest weight in all rounds spends no more than ε."""
    simulation = Simulation(study(rounds=7, privacy=Privacy(epsilon=2.0, delta=1e-4)), federation(SIZES))
    simulation.prepare()
    mechanism = simulation.sites["site0"].mechanism
    assert isinstance(mechanism, MaskedMechanism)
    noise = mechanism.terms.noise_std / mechanism.terms.clip
    spent = epsilon([masked(mechanism.terms, 7), gaussian(noise, 1, 7)], 1e-4, "rdp")
    assert 1.97 < spent <= 2.0


@pytest.mark.parametrize("weight", [1.0, 0.5, 0.01])
def test_one_record_moves_a_weighted_share_by_the_weight_times_the_clipping_norm(weight: float) -> None:
    """The charge is that of Δ = w·C + γ√P, and what is released moves by no more."""
    record = torch.randn(100, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    record *= TERMS.clip / torch.linalg.vector_norm(record)
    others = torch.linspace(-1, 1, 100, dtype=torch.float64)

    def released(total: Tensor) -> Tensor:
        share = MaskedRelease("model", TERMS, 50, Seeded(3), weight, simulated=True)
        return torch.from_numpy(share.release(total)).double() * TERMS.grid

    moved = float(torch.linalg.vector_norm(released(others + record) - released(others)))
    sensitivity = weight * TERMS.clip + TERMS.grid * 10
    assert moved <= sensitivity
    assert moved >= weight * TERMS.clip - TERMS.grid * 10
    expected = epsilon([gaussian(TERMS.noise_std / sensitivity)], 1e-5, "rdp")
    assert epsilon([masked(TERMS, weight=weight)], 1e-5) == pytest.approx(expected)


def test_a_sum_is_projected_onto_the_ball_of_its_weight() -> None:
    share = MaskedRelease("model", TERMS, 50, Seeded(3), 0.1, simulated=True)
    noise = MaskedRelease("model", TERMS, 50, Seeded(3), 0.1, simulated=True).noise_only()
    far = torch.full((100,), 1e6, dtype=torch.float64)
    steps = torch.from_numpy(share.release(far) - noise).double()
    assert float(torch.linalg.vector_norm(steps)) * TERMS.grid == pytest.approx(0.1 * 50 * 2.0, rel=1e-4)


@pytest.mark.parametrize("weight", [0.0, -0.5, 1.5, float("nan")])
def test_a_weight_beyond_one_is_refused_before_anything_is_charged(weight: float) -> None:
    with pytest.raises(PrivacyError, match="at most 1"):
        MaskedRelease("model", TERMS, 50, Seeded(3), weight, simulated=True)
    with pytest.raises(PrivacyError, match="at most 1"):
        masked(TERMS, weight=weight)


def share_of(weights: dict[str, Scalar]) -> tuple[Any, SiteShare]:
    simulation = Simulation(study(privacy=Privacy(epsilon=4.0, delta=1e-4)), federation(SIZES))
    simulation.prepare()
    site = simulation.sites["site0"]
    share: Any = asyncio.run(
        SiteRound(site, 0).gradient_sum(Supervised(), at=site.build("proxy"), weights=weights)
    )
    return site, share._held


def test_a_share_without_weight_is_noise_alone_and_costs_nothing() -> None:
    rest = {f"site{k}": Scalar(1.0, Custody.PROTECTED) for k in (1, 2, 3)}
    site, share = share_of({"site0": Scalar(0.0, Custody.PROTECTED), **rest})
    assert share.total is None
    assert share.counts, "its numbers, the loss among them, are part of the sum"
    share.charge()
    share.draw()
    assert site.ledger.counter == 0


def test_weights_that_may_not_leave_or_do_not_name_the_site_are_refused() -> None:
    with pytest.raises(CustodyError):
        share_of({"site0": private(0.5), "site1": public(1.0)})
    for wrong in ({"site1": public(1.0)}, {"site0": public(1.1)}, {"site0": public(-0.1)}):
        with pytest.raises(StudyError, match="from 0 to 1"):
            share_of(wrong)


def test_the_largest_plausible_sum_follows_the_weights() -> None:
    members, _ = simulated_members({f"site{k}": size for k, size in enumerate(SIZES)})
    agreement = Agreement(members, TERMS)
    names = [m.name for m in members]
    weights = {"site0": 0.5, "site1": 0.0, "site2": 1.0, "site3": 0.25}
    apart = longest_sum(agreement, names) - longest_sum(agreement, names, weights)
    records = sum(size * (1 - weights[f"site{k}"]) for k, size in enumerate(SIZES))
    assert apart == pytest.approx(TERMS.clip * records)


def test_a_site_that_returns_has_the_same_shares_as_the_others() -> None:
    asked = study(rounds=6, churn=Churn(absent={"site2": [1, 2]}), privacy=Privacy(epsilon=4.0, delta=1e-4))
    run = simulate(asked, federation(SIZES))
    last = [e.data["weights"] for e in run.events if e.kind == "weighed" and e.round == 5]
    assert len(last) == 4
    assert all(found == last[0] for found in last)
    first, *others = [m["model"].params for m in run.models.values()]
    assert all(first.equals(other) for other in others)


def test_more_sites_than_a_parcel_has_numbers_for_are_refused() -> None:
    strategy = AgnosticFederatedLearning(exchange="gradients")
    strategy.check_members([f"site{k}" for k in range(48)], True)
    with pytest.raises(StudyError, match="at most 48 sites"):
        strategy.check_members([f"site{k}" for k in range(49)], True)


def test_shares_that_a_hostile_site_sends_are_not_taken_for_weights() -> None:
    """A negative share would be refused in every later round; one too small for a charge would ask for endless noise."""
    names = ["a", "b", "c"]
    nothing = Model(Params({}), Architecture("none", torch.nn.Identity), Custody.PUBLIC)
    common = CommonState(
        nothing, numbers={f"share {k}": public(v) for k, v in enumerate((-1.0, 7.0, 1e-320))}
    )
    shares = _shares(common, names, names)
    assert [shares[name].value for name in names] == [1 / 3, 1 / 3, 1e-320]
    weights = _weights(shares, dict.fromkeys(names, 50))
    assert [weights[name].value for name in names] == [1.0, 1.0, 0.0]

"""AFL: shares follow losses, losses leave only as charged releases, and nobody's share is lost."""

from __future__ import annotations

import asyncio
from statistics import fmean, stdev
from typing import Any

import pytest
import torch

from confrere.core.custody import Custody
from confrere.core.errors import StudyError
from confrere.core.events import Event
from confrere.learning.objectives import supervised_loss
from confrere.learning.private_loss_sum import mean_loss
from confrere.privacy.gate import Gate
from confrere.simulation.backends import simulate
from confrere.simulation.finished_run import Run
from confrere.simulation.simulation import Simulation
from confrere.site.open_sites import open_sites
from confrere.site.participant import Participant
from confrere.site.site_round import SiteRound
from confrere.strategies.afl import threshold
from confrere.study import Models, Privacy, Study, Training
from confrere.study.churn import Churn
from tests.conftest import arrays

PRIVACY = Privacy(epsilon=4.0, delta=1e-4, steps=2)


def study(rounds: int = 4, topology: Any = None, privacy: Privacy | None = None, **options: Any) -> Study:
    training = Training(
        tune=False, learning_rate=0.05, batch_size=32, protected={"optimiser": "sgd", "learning_rate": 0.5}
    )
    return Study(
        name="afl", rounds=rounds, strategy={"name": "afl", **options}, topology=topology, training=training,
        privacy=privacy, models=Models("linear", "linear"),
    )  # fmt: skip


def one_against_all() -> dict[str, Any]:
    """Three sites, of which one has the opposite rule."""
    found = arrays(records=300)
    x, y = found["site1"]
    return {**found, "site1": (x, 1 - y)}


def shares(run: Run) -> list[dict[str, float]]:
    """The mixture after each round, as the site says that combined."""
    by_round: dict[int, dict[str, float]] = {}
    for e in run.events:
        if e.kind == "weighed" and e.round is not None:
            by_round[e.round] = e.data["weights"]
    return [by_round[r] for r in sorted(by_round)]


def test_the_projection_keeps_the_sum_and_is_the_nearest_point() -> None:
    rng = torch.Generator().manual_seed(0)
    for _ in range(20):
        values = (torch.randn(5, generator=rng, dtype=torch.float64)).tolist()
        off = threshold(values, 1.0)
        point = [max(0.0, v - off) for v in values]
        assert sum(point) == pytest.approx(1.0)
        distance = sum((v - p) ** 2 for v, p in zip(values, point, strict=True))
        for _ in range(50):
            other = torch.rand(5, generator=rng, dtype=torch.float64)
            other /= other.sum()
            assert distance <= sum((v - float(p)) ** 2 for v, p in zip(values, other, strict=True)) + 1e-9


@pytest.mark.parametrize("privacy", [None, PRIVACY], ids=["plain", "private"])
def test_the_site_that_does_worst_counts_for_more_and_is_served_better_than_by_the_mean(privacy: Any) -> None:
    last, worst, by_mean = [], [], []
    for seed in range(5 if privacy else 1):  # noise may hide it in a single run
        one = study(14, privacy=privacy, ascent=0.3).with_(seed=seed)
        run, mean = (simulate(s, one_against_all()) for s in (one, one.with_(strategy="fedavg")))
        assert all(sum(mixture.values()) == pytest.approx(1) for mixture in shares(run))
        last.append(shares(run)[-1])
        worst.append(run.sites["site1"].metrics.log_loss)
        by_mean.append(mean.sites["site1"].metrics.log_loss)
    share = {name: fmean(mixture[name] for mixture in last) for name in last[0]}
    assert share["site1"] > 0.4 > max(share["site0"], share["site2"])
    assert fmean(worst) < fmean(by_mean)


def test_star_and_complete_come_to_the_same_shares() -> None:
    one, other = (shares(simulate(study(5, topology=t), one_against_all())) for t in ("star", "complete"))
    for a, b in zip(one, other, strict=True):
        assert a == pytest.approx(b, abs=1e-5)


def test_what_leaves_of_a_loss_is_protected_and_paid_for(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Custody] = []
    through = Gate.admit

    def tapped(self: Gate, model: Any, scalars: Any = None, **more: Any) -> Any:
        found = through(self, model, scalars, **more)
        seen.extend(found[1][name].custody for name in ("loss", "threshold") if name in found[1])
        return found

    monkeypatch.setattr(Gate, "admit", tapped)
    run = simulate(study(4, privacy=PRIVACY), arrays())
    assert seen
    assert set(seen) == {Custody.PROTECTED}
    charged = [e.data["role"] for e in run.events if e.kind == "charged" and e.site == "site0"]
    assert charged == ["loss_sum", "model"] * 4
    assert 3.9 < run.sites["site0"].privacy.epsilon <= 4.0  # the budget lasts for both, to the end
    assert not any(e.kind == "budget-spent" for e in run.events)


def sites_of(privacy: Privacy | None, **changes: Any) -> dict[str, Participant]:
    plan = study(4, privacy=privacy, **changes)
    simulation = Simulation(plan, open_sites(plan, arrays(records=400)))
    simulation.prepare()
    return simulation.sites


def test_the_loss_is_that_of_the_training_records_when_nothing_is_private() -> None:
    site = sites_of(None, bound=0.6)["site0"]
    model = site.build("proxy")
    found = asyncio.run(mean_loss(SiteRound(site, 0), model, 0.6))
    assert found is not None
    assert found.custody == Custody.UNPROVEN
    each = supervised_loss(site.outputs(model, site.data.train), site.data.train.targets)
    assert found.value == pytest.approx(float(each.clamp(max=0.6).mean()), rel=1e-5)


@pytest.mark.parametrize(
    "clipping", ["flat", {"name": "flat", "norm": 0.05}, "adaclip", "quantile"], ids=["flat", "tight", "adaclip", "quantile"]
)  # fmt: skip
def test_under_privacy_the_loss_has_the_noise_that_it_is_charged_for(clipping: Any) -> None:
    privacy = Privacy(noise_multiplier=5.0, delta=1e-4, steps=2, clipping=clipping)
    site, bound = sites_of(privacy)["site0"], 2.0
    site.ceiling = 1e4  # two hundred rounds
    model, found = site.build("proxy"), []
    for number in range(200):
        said = asyncio.run(mean_loss(SiteRound(site, number), model, bound))
        assert said is not None
        assert said.custody == Custody.PROTECTED
        found.append(said.value)
    each = supervised_loss(site.outputs(model, site.data.train), site.data.train.targets)
    truth = float(each.clamp(max=bound).sum()) / site.mechanism_of("loss_sum").expected_batch
    charge = site.mechanism_of("loss_sum").charge(1)
    assert charge.event == site.mechanism_of("model").charge(1).event
    noise = site.mechanism_of("loss_sum").noise_multiplier
    expected = bound * noise / site.mechanism_of("loss_sum").expected_batch / 2**0.5
    assert fmean(found) == pytest.approx(truth, abs=5 * expected / 200**0.5)
    assert stdev(found) == pytest.approx(expected, rel=0.25)


def test_one_record_more_moves_the_tally_by_no_more_than_it_may() -> None:
    """The sum before the noise: each record adds between 0 and 1, however large its loss."""
    site = sites_of(None, bound=0.1)["site0"]
    model = site.build("proxy")
    found = asyncio.run(mean_loss(SiteRound(site, 0), model, 0.1))
    assert found is not None
    assert 0 <= found.value <= 0.1 + 1e-7


def test_a_site_that_is_away_keeps_its_share_and_nothing_is_lost() -> None:
    churn = Churn(absent={"site1": [2, 3]})
    course = shares(simulate(study(6, ascent=0.3).with_(churn=churn), one_against_all()))
    held = course[1]["site1"]
    for mixture in course[2:4]:
        assert "site1" not in mixture
        assert sum(mixture.values()) == pytest.approx(1 - held)
    assert sum(course[4].values()) == pytest.approx(1)


def test_a_site_whose_budget_is_spent_keeps_its_share_and_measures_nothing() -> None:
    privacy = Privacy(epsilon=1.0, noise_multiplier=8.0, delta=1e-4)
    run = simulate(study(10, privacy=privacy), arrays())
    assert any(e.kind == "budget-spent" for e in run.events)
    last = [e for e in run.events if e.kind == "weighed"][-1]
    assert isinstance(last, Event)
    assert sum(last.data["weights"].values()) == pytest.approx(1)
    assert run.sites["site0"].privacy.epsilon <= 1.0


def test_options_that_mean_nothing_are_refused() -> None:
    for name in ("ascent", "bound"):
        with pytest.raises(StudyError, match=name):
            study(1, **{name: 0.0})

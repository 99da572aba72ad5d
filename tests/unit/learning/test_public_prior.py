"""How far a small site leans on the proxy: a public prior times the site's own evidence."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from confrere.core.custody import Custody, private, public
from confrere.core.model import Model
from confrere.core.params import Params
from confrere.core.protocols import Fitted, Loss, Metrics
from confrere.learning.fit.exact_regression import head_of, newton
from confrere.learning.fit.public_prior import DECADES, STRENGTHS, PublicPrior
from confrere.learning.fit.tuning import NOTHING, near_best
from confrere.learning.mutual import fit_on_top
from confrere.learning.objectives import Stacked, Supervised
from confrere.simulation.backends import simulate
from confrere.simulation.finished_run import Run
from confrere.study import Models, Privacy, Study, Training
from tests.conftest import arrays

PRIOR = PublicPrior()


def test_strengths_are_half_decades_up_to_one_that_leaves_only_the_constant() -> None:
    assert len(STRENGTHS) == 13
    assert STRENGTHS[0] == 0.1
    assert STRENGTHS[-1] == NOTHING
    assert np.diff(np.log10(STRENGTHS)) == pytest.approx([0.5] * 12, abs=1e-3)
    assert DECADES == (0.1, 1.0, 10.0, 100.0, 1000.0)


def test_half_of_the_prior_is_without_the_proxy_and_a_quarter_each_with_half_and_all_of_it() -> None:
    table = PRIOR.shares(3, STRENGTHS).reshape(3, -1)
    assert table.sum(1) == pytest.approx([0.5, 0.25, 0.25])
    away = [(math.log(s / 5) / 0.7, math.log(s / 100) / 2) for s in STRENGTHS]
    own, on_proxy = (np.exp([-0.5 * a[k] ** 2 for a in away]) for k in (0, 1))
    assert table[0] == pytest.approx(0.5 * own / own.sum())
    assert table[1] == pytest.approx(0.25 * on_proxy / on_proxy.sum())
    assert table[2] == pytest.approx(table[1])


def test_alone_has_the_same_prior_as_candidates_without_the_proxy() -> None:
    assert 0.5 * PRIOR.shares(1, STRENGTHS) == pytest.approx(PRIOR.shares(3, STRENGTHS)[: len(STRENGTHS)])


def test_each_prior_of_a_strength_has_its_own_spread() -> None:
    wide = PublicPrior(own=(5.0, 2.0)).shares(3, STRENGTHS)[: len(STRENGTHS)]
    expected = np.exp([-0.5 * (math.log(s / 5) / 2) ** 2 for s in STRENGTHS])
    assert wide == pytest.approx(0.5 * expected / expected.sum())


def test_alone_has_a_prior_too() -> None:
    found = PRIOR.shares(1, STRENGTHS)
    expected = np.exp([-0.5 * (math.log(s / 5) / 0.7) ** 2 for s in STRENGTHS])
    assert found == pytest.approx(expected / expected.sum())


def test_strengths_that_a_study_lists_count_equally() -> None:
    assert PRIOR.shares(1, (0.0, 7.0), flat=True) == pytest.approx([0.5, 0.5])
    assert PRIOR.shares(3, (0.0, 7.0), flat=True) == pytest.approx([0.25, 0.25, *[0.125] * 4])


def test_a_share_is_its_prior_times_what_the_standard_errors_behind_the_best_leave() -> None:
    """Four records. The second is .2 behind with a standard error of .1, the third .1 behind with .1."""
    best = np.array([0.5, 0.4, 0.7, 0.2])
    judged = best + np.array([[0.0] * 4, [0.4, 0.0, 0.4, 0.0], [0.3, -0.1, 0.3, -0.1]])
    assert (judged[1] - best).std() / 2 == pytest.approx(0.1)
    assert (judged[2] - best).std() / 2 == pytest.approx(0.1)
    counts = np.array([0.2, 0.5 * math.exp(-(2.0**2) / 2), 0.3 * math.exp(-(1.0**2) / 2)])
    assert near_best(judged, [0.2, 0.5, 0.3]) == pytest.approx(counts / counts.sum())


@pytest.mark.parametrize("judged", [np.zeros((3, 0)), np.full((3, 20), 0.6)])
def test_without_evidence_the_prior_decides(judged: np.ndarray) -> None:
    assert near_best(judged, [0.2, 0.5, 0.3]) == pytest.approx([0.2, 0.5, 0.3])


# -- what is on offer ----------------------------------------------------------------------------------


class Offered:
    """A site that notes the losses on offer. Its proxy fits its records with the given scale."""

    name, size = "a", 10

    def __init__(self, scale: float, outputs: int = 1) -> None:
        self.scale, self.network = scale, nn.Sequential(nn.Flatten(), nn.Linear(3, outputs))
        self.losses: Sequence[Loss] = ()

    def build(self, role: str) -> Model:
        return model()

    def module(self, role: str) -> nn.Module:
        return self.network

    async def evaluate(self, models: Mapping[str, Model]) -> Mapping[str, Metrics]:
        return {"proxy": {"scale": private(self.scale)}}

    async def fit(self, losses: Sequence[Loss], role: str, models: Mapping[str, Model]) -> Fitted:
        self.losses = losses
        return Fitted(model(), 0, (0.2, 0.3, 0.5, 0.0)[: len(losses)])


def model() -> Model:
    return Model(Params({"w": torch.zeros(1)}), "net", Custody.PROTECTED)


def on_top(scale: float, outputs: int = 1) -> tuple[list[float], float]:
    """The parts of the proxy on offer, and the one that the result uses."""
    site = Offered(scale, outputs)
    _, weight = asyncio.run(fit_on_top(site, model(), public(0.1)))  # type: ignore[arg-type]
    assert site.losses[0] == Supervised()
    assert weight.custody == Custody.PRIVATE
    return [loss.weight.value for loss in site.losses[1:] if isinstance(loss, Stacked)], weight.value


def test_half_and_all_of_the_proxy_are_on_offer_whatever_scale_fits_the_records() -> None:
    assert on_top(0.1) == ([0.5, 1.0], pytest.approx(0.3 * 0.5 + 0.5 * 1.0))
    assert on_top(2.0)[0] == [0.5, 1.0]


def test_other_networks_try_multiples_of_the_scale() -> None:
    assert on_top(2.0, outputs=4) == ([0.5, 1.0, 2.0], pytest.approx(0.3 * 0.5 + 0.5 * 1.0))


@pytest.mark.parametrize("outputs", [1, 4])
def test_a_proxy_that_points_the_wrong_way_is_not_on_offer(outputs: int) -> None:
    assert on_top(0.0, outputs) == ([], 0.0)


def test_with_half_of_the_proxy_the_model_learns_on_top_of_half_of_its_outputs() -> None:
    """Half of a proxy that is twice too sure leaves nothing to explain; all of it has to be undone."""
    rng = np.random.default_rng(0)
    x = np.c_[rng.normal(size=(4000, 2)), np.ones(4000)]
    truth = x @ [1.0, -1.0, 0.0]
    y = (truth + rng.logistic(size=4000) > 0).astype(float)
    half, all_of_it = (newton(x, y, 1.0, s * 2 * truth) for s in (0.5, 1.0))
    assert half == pytest.approx([0, 0, 0], abs=0.15)
    assert all_of_it == pytest.approx([-1, 1, 0], abs=0.15)


# -- in a federation -----------------------------------------------------------------------------------


def run(strategy: str, sites: Any, **training: Any) -> Run:
    study = Study(
        rounds=10, strategy=strategy, training=Training(**training), models=Models("linear", "linear"),
        topology="complete", privacy=Privacy(epsilon=3.0, delta=1e-4),
    )  # fmt: skip
    return simulate(study, sites)


def contrary(records: dict[str, int], site: str) -> dict[str, Any]:
    """Sites of these sizes that follow one rule, but for one that follows the opposite rule."""
    found = arrays(len(records), records=1000)
    sized = {name: (x[:n], y[:n]) for (name, n), (x, y) in zip(records.items(), found.values(), strict=True)}
    x, y = sized[site]
    return {**sized, site: (x, 1 - y)}


def shares(run: Run) -> dict[str, list[float]]:
    return {str(e.site): e.data["shares"] for e in run.events if e.kind == "fitted"}


def test_honest_sites_gain_and_a_site_with_the_opposite_rule_comes_to_no_harm() -> None:
    sites = contrary({**{f"site{k}": 60 for k in range(5)}, "site5": 300}, "site2")
    alone, together = run("local", sites), run("proxyfl", sites)
    gains = {n: alone.sites[n].metrics.log_loss - together.sites[n].metrics.log_loss for n in sites}
    assert sum(gain for name, gain in gains.items() if name != "site2") / 5 > 0.01
    assert gains["site2"] > -0.01
    assert shares(together)["site2"][0] > 0.97


def test_a_useless_proxy_gets_next_to_nothing_at_a_site_with_enough_records() -> None:
    """What the others have learned is about other inputs: for this site it is noise of the same size as a good proxy."""
    sites: dict[str, Any] = dict(arrays(4, records=700))
    x, y = sites["site3"]
    sites["site3"] = (np.roll(x, 2, axis=1), y)
    alone, together = run("local", sites), run("proxyfl", sites)
    found = shares(together)["site3"]
    assert len(found) == 3
    assert found[0] > 0.8  # on top of a proxy, a model with enough records can undo it
    losses = [r.sites["site3"].metrics.log_loss for r in (alone, together)]
    assert losses[1] == pytest.approx(losses[0], abs=0.005)


def test_without_trust_a_site_has_the_candidates_without_the_proxy_only() -> None:
    sites = arrays(2, records=60)
    trusting, wary = run("proxyfl", sites), run("proxyfl", sites, tune_trust=0.0)
    assert all(found[0] < 0.9 for found in shares(trusting).values())
    assert [found[0] for found in shares(wary).values()] == pytest.approx([1.0, 1.0])


def test_the_prior_of_training_alone_is_the_studys() -> None:
    sites = arrays(2, records=60)

    def length(**training: Any) -> float:
        found = run("local", sites, **training).models["site0"]["model"].params
        return float(sum(t.square().sum() for name, t in found.items() if name.endswith("weight")))

    assert length(tune_alone=(1000.0, 0.5)) < 0.2 * length() < length(tune_alone=(0.1, 0.5))


def test_the_head_of_a_linear_network_is_what_the_prior_is_about() -> None:
    assert head_of(Offered(1.0).network) is not None
    assert head_of(Offered(1.0, outputs=4).network) is None

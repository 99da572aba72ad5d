"""FedMA goes through its layers with whoever is there; PFNM merges what was learned apart."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from torch import nn

from confrere.core.errors import StudyError
from confrere.simulation.backends import simulate
from confrere.simulation.finished_run import Run
from confrere.site.faults import Fault
from confrere.study import Models, Study, Training
from confrere.study.churn import Churn
from tests.conftest import arrays

MLP = {"name": "mlp", "hidden": [6, 5]}


def study(
    rounds: int, strategy: str = "fedma", proxy: Any = MLP, topology: Any = None, **options: Any
) -> Study:
    training = Training(tune=False, learning_rate=0.05, batch_size=32)
    return Study(
        name="fedma", rounds=rounds, strategy={"name": strategy, **options}, topology=topology,
        training=training, models=Models("linear", proxy),
    )  # fmt: skip


def width(run: Run, site: str = "site0", layer: str = "1.weight") -> int:
    return int((run.models[site]["model"].params[layer].flatten(1).abs().sum(1) > 0).sum())


def common(run: Run) -> bool:
    """Whether all sites use the same weights; their places among the common units are their own."""
    models = [{n: t for n, t in m["model"].params.items() if "places" not in n} for m in run.models.values()]
    return all(m.keys() == models[0].keys() and all((m[n] == models[0][n]).all() for n in m) for m in models)


@pytest.mark.parametrize("topology", [None, "complete", {"name": "star", "leader": "site1"}])
def test_after_as_many_rounds_as_layers_everybody_has_the_same_network(topology: Any) -> None:
    two, three = (simulate(study(n, topology=topology), arrays()) for n in (2, 3))
    assert not common(two)
    assert common(three)
    assert three.models["site0"]["model"].architecture.startswith("matched(")
    assert simulate(study(6, topology=topology), arrays(records=400)).mean["accuracy"] > 0.85


def test_the_network_grows_when_units_are_unlike_and_no_further_than_it_may() -> None:
    assert width(simulate(study(3, spread=100.0), arrays())) == 6
    assert width(simulate(study(3, spread=0.001), arrays())) == 9
    assert width(simulate(study(3, spread=0.001, growth=1.0), arrays())) == 6


def test_common_layers_are_not_trained_before_the_pass_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    from confrere.strategies.fedma import FedMA

    seen: list[tuple[int, Any]] = []
    once = FedMA.round

    async def watched(self: FedMA, state: Any, site: Any, peers: Any) -> Any:
        after = await once(self, state, site, peers)
        if site.name == "site0":
            seen.append((after.stage, after.own.params))
        return after

    monkeypatch.setattr(FedMA, "round", watched)
    simulate(study(4), arrays())
    assert [stage for stage, _ in seen] == [1, 2, 0, 1]
    assert seen[0][1]["1.weight"].equal(
        seen[1][1]["1.weight"]
    )  # the first layer while the second was matched
    assert not seen[0][1]["3.bias"].equal(seen[1][1]["3.bias"])  # the layers above learned on


def test_a_site_that_was_away_receives_what_the_others_have() -> None:
    churn = Churn(absent={"site0": [1]}, join={"site2": 1})
    run = simulate(study(6).with_(churn=churn), arrays(records=300))
    assert common(run)
    assert run.mean["accuracy"] > 0.8


def test_when_the_leader_is_lost_the_same_layer_is_tried_again() -> None:
    """The leader of the first round dies for good after it has received everything, and it would lead the fourth too."""
    fault = Fault("site0", 0, "before-answer", True)
    run = simulate(study(5), arrays(), faults=(fault,))
    stages = {e.round for e in run.events if e.kind == "trained" and e.site == "site1"}
    assert stages == {0, 1, 2, 3, 4}
    left = {n: run.models[n]["model"].params for n in ("site1", "site2")}
    assert left["site1"]["5.weight"].equal(left["site2"]["5.weight"])
    assert "places_1" in left["site1"]  # rounds 2, 3 and 5 made a whole pass of three layers


def test_pictures_with_convolutions_work_with_fedma_and_not_with_pfnm() -> None:
    rng = np.random.default_rng(0)
    pictures = {
        f"site{k}": (rng.normal(size=(60, 1, 12, 12)).astype(np.float32), rng.integers(0, 3, 60))
        for k in range(2)
    }
    run = simulate(study(5, proxy="lenet5", spread=0.01), pictures)
    assert common(run)
    with pytest.raises(StudyError, match="pfnm merges fully connected networks"):
        simulate(study(1, "pfnm", proxy="lenet5"), pictures)


def test_a_function_that_makes_a_network_is_matched_too() -> None:
    def mine() -> nn.Module:
        return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1))

    for growth in (1.0, 2.0):
        assert common(simulate(study(2, proxy=mine, growth=growth), arrays()))


def test_networks_that_are_no_chains_are_refused_before_training() -> None:
    for strategy in ("fedma", "pfnm"):
        with pytest.raises(StudyError, match="chains of dense and convolutional layers"):
            simulate(study(1, strategy, proxy={"name": "lstm", "hidden": 4}), arrays())


def test_sites_with_other_architectures_are_refused_before_training() -> None:
    models = Models(MLP, "linear", sites={"site1": {"private": {"name": "mlp", "hidden": [3]}}})
    for strategy in ("fedma", "pfnm", "coln"):
        with pytest.raises(StudyError, match="differs between sites"):
            simulate(study(1, strategy, architecture="private").with_(models=models), arrays())


def test_pfnm_sends_nothing_back_into_training() -> None:
    """What a site trains does not depend on its peers: it is what it would have trained alone."""
    run = simulate(study(3, "pfnm"), arrays())
    assert common(run)
    other = simulate(study(3, "pfnm"), {n: records for n, records in arrays().items() if n != "site2"})
    losses = [
        [e.data["losses"]["model"] for e in r.events if e.kind == "trained" and e.site == "site0"]
        for r in (run, other)
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    assert not common(simulate(study(3, "pfnm", topology="none"), arrays()))


def test_options_that_mean_nothing_are_refused() -> None:
    for strategy in ("fedma", "pfnm"):
        with pytest.raises(StudyError, match="growth"):
            study(1, strategy, growth=0.5)
        with pytest.raises(StudyError, match="spread"):
            study(1, strategy, spread=0.0)

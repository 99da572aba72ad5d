"""What Weight Erosion promises its users, and what it costs those who answer them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from confrere.core.errors import StudyError
from confrere.core.events import Event, Journal
from confrere.core.protocols import Site
from confrere.data.records import Federation
from confrere.learning.local_training.one_site import Job, OneAtATime, Trained, train_site
from confrere.privacy.noise import Secure
from confrere.simulation.backends import simulate
from confrere.simulation.finished_run import Run
from confrere.simulation.simulation import Simulation
from confrere.site.open_sites import open_sites
from confrere.site.site_round import SiteRound
from confrere.strategies.weight_erosion import WeightErosion
from confrere.study import Data, Models, Privacy, Study, Training, load
from confrere.study.churn import Churn
from confrere.study.data_settings import Split
from tests.conftest import arrays, write_study
from tests.nodes import nodes_in_process

PRIVACY = Privacy(epsilon=8.0, delta=1e-4)
TRAINING = Training(optimiser="sgd", learning_rate=0.5, batch_size=40)


def study(
    privacy: Privacy | None = None, rounds: int = 6, churn: Churn | None = None, **options: Any
) -> Study:
    return Study(
        name="erosion",
        rounds=rounds,
        strategy={"name": "weight_erosion", **options},
        training=TRAINING,
        privacy=privacy,
        churn=churn or Churn(),
    )


def weights(run: Run, site: str) -> list[dict[str, float]]:
    return [e.data["weights"] for e in run.events if e.kind == "weighed" and e.site == site]


def with_a_stranger() -> dict[str, Any]:
    """Three sites that follow one rule, and one whose labels are the other way round."""
    found = arrays(4, records=300)
    x, y = found["site3"]
    return {**found, "site3": (x, 1 - y)}


@pytest.mark.parametrize("privacy", [None, PRIVACY], ids=["plain", "private"])
def test_a_stranger_fades_and_the_alike_stay(privacy: Privacy | None) -> None:
    run = simulate(study(privacy, rounds=12, user="site0", p_d=0.02), with_a_stranger())
    last = weights(run, "site0")[-1]
    assert last["site3"] < 0.5 * min(last["site1"], last["site2"])
    assert run.sites["site0"].metrics.accuracy > 0.8


def test_all_at_once_gives_each_user_the_run_that_it_would_have_had_by_itself() -> None:
    together = simulate(study(), arrays())
    for name in together.sites:
        single = simulate(study(user=name), arrays())
        assert weights(together, name) == [pytest.approx(w) for w in weights(single, name)]
        one, two = together.models[name]["model"].params, single.models[name]["model"].params
        for key, tensor in one.items():
            torch.testing.assert_close(tensor, two[key])


def test_all_at_once_costs_each_site_a_gradient_for_every_user() -> None:
    together = simulate(study(PRIVACY), arrays())
    single = simulate(study(PRIVACY, user="site1"), arrays())
    for run, gradients in ((together, 3), (single, 1)):
        charged = [e for e in run.events if e.kind == "charged" and e.site == "site0"]
        assert len(charged) == 6 * gradients
        assert 7.5 < run.sites["site0"].privacy.epsilon <= 8.0  # the budget lasts, and is used
    noise = [e.data["noise_multiplier"] for r in (together, single) for e in r.events if e.kind == "charged"]
    assert noise[0] / noise[-1] == pytest.approx(np.sqrt(3), rel=0.1)


def test_only_the_user_asks_and_everybody_answers_it() -> None:
    run = simulate(study(user="site1"), arrays())
    sent = {(e.site, e.data["to"], e.data["phase"]) for e in run.events if e.kind == "sent"}
    assert sent == {
        ("site1", "site0", 0),
        ("site1", "site2", 0),
        ("site0", "site1", 1),
        ("site2", "site1", 1),
    }


def test_an_absent_peer_keeps_its_weight_and_a_late_one_starts_at_the_median() -> None:
    churn = Churn(absent={"site1": [2, 3]}, join={"site2": 3})
    course = weights(simulate(study(churn=churn, user="site0", p_d=0.05), arrays()), "site0")
    assert course[1]["site1"] == course[2]["site1"] == course[3]["site1"] > course[4]["site1"]
    assert "site2" not in course[2]
    middle = (1 + course[2]["site1"]) / 2  # of the user and the one peer
    assert middle - 0.3 < course[3]["site2"] < middle


def test_an_absent_user_asks_nobody_and_nobody_pays() -> None:
    run = simulate(study(PRIVACY, churn=Churn(absent={"site1": [2, 3]}), user="site1"), arrays())
    assert {e.round for e in run.events if e.kind == "charged"} == {0, 1, 4, 5}


def test_a_user_whose_gradient_is_nothing_stops() -> None:
    x = np.zeros((60, 4), np.float32)
    y = np.tile([0, 1], 30)  # at weights of zero nothing is left to learn
    options = Training(optimiser="sgd", learning_rate=0.5, batch_size=1000)
    halves = Data(split=Split(method="stratified"))
    found = study(user="site0").with_(training=options, models=_still(), data=halves)
    run = simulate(found, {**arrays(), "site0": (x, y)})
    notes = [e.data["note"] for e in run.events if e.kind == "weighed"]
    assert notes == ["stopped"]
    assert {e.round for e in run.events if e.kind == "sent" and e.data["model"]} == {0}


def _still() -> Models:
    def zero() -> torch.nn.Module:
        layer = torch.nn.Linear(4, 1)
        torch.nn.init.zeros_(layer.weight)
        torch.nn.init.zeros_(layer.bias)
        return layer

    return Models(zero, zero)


def test_a_spent_budget_silences_a_site_and_stops_nobody() -> None:
    privacy = Privacy(epsilon=1.0, delta=1e-4, noise_multiplier=12.0)
    run = simulate(study(privacy, rounds=30, user="site0"), arrays())
    assert any(e.kind == "budget-spent" for e in run.events)
    assert all(s.privacy.epsilon <= 1.0 for s in run.sites.values())


def on_nodes(k_min: int) -> Run:
    """A run whose sites draw their noise from the secure source, as nodes do."""
    simulation = Simulation(study(PRIVACY, user="site0", k_min=k_min), _fed())
    simulation.prepare(journal := Journal(None))
    for site in simulation.sites.values():
        site.randomness = Secure()
    return simulation.run_rounds(journal, None, False)


def test_on_a_node_a_user_goes_on_alone_rather_than_reveal_a_single_peer() -> None:
    notes = {e.data["note"] for e in on_nodes(k_min=2).events if e.kind == "weighed"}
    assert notes <= {"", "hidden by noise"}  # two peers are enough
    run = on_nodes(k_min=3)
    assert [e.data["note"] for e in run.events if e.kind == "weighed"] == ["alone"] * 6
    assert {e.round for e in run.events if e.kind == "sent" and e.data["model"]} == {0}  # it asks no more


def _fed() -> Federation:
    return open_sites(study(), arrays())


def test_fewer_peers_than_k_min_are_said_in_a_rehearsal_and_refused_on_a_node() -> None:
    rule = WeightErosion(k_min=3)
    assert "nodes would refuse" in rule.check_members(["a", "b", "c"], rehearsal=True)[0]
    with pytest.raises(StudyError, match="2 peers here and k_min is 3"):
        rule.check_members(["a", "b", "c"], rehearsal=False)
    assert rule.check_members(["a", "b", "c", "d"], rehearsal=False) == []
    told: list[Event] = []
    simulate(study(rounds=1), arrays(), listeners=(told.append,))
    assert any(e.kind == "notice" and "k_min" in e.data["text"] for e in told)


def test_an_unknown_user_is_an_error_that_names_the_nearest_site() -> None:
    with pytest.raises(StudyError, match=r'"site9".*did you mean "site'):
        simulate(study(user="site9"), arrays())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"p_d": -1.0}, "p_d"),
        ({"k_min": -1}, "k_min"),
        ({"learning_rate": 0.0}, "learning_rate"),
        ({"newcomer": "max"}, "newcomer"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(StudyError, match=words):
        study(**options)


def test_a_round_is_one_batch_or_a_whole_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    worked: list[int] = []

    async def watched(self: Any, job: Job) -> Trained:
        worked.append(len(job.records))
        return train_site(job)

    monkeypatch.setattr(OneAtATime, "run", watched)
    for update in ("gradient", "local"):
        simulate(study(rounds=1, user="site0", update=update), arrays(), trainer="one")
    assert worked[:3] == [40, 40, 40]  # batches of the study's size
    assert min(worked[3:]) > 80


def test_passes_and_noise_are_public_numbers_of_the_declared_count() -> None:
    simulation = Simulation(study(PRIVACY), _fed())
    simulation.prepare()
    site = simulation.sites["site1"]
    effort = site.effort("for site1 (protected)", site.build("proxy"))
    assert site.mechanism is not None
    std = site.mechanism.noise_multiplier / site.mechanism.expected_batch
    assert effort.noise.value == pytest.approx(5 * std**2)
    assert effort.passes == 1.0
    plain = Simulation(study(), _fed())
    plain.prepare()
    found: Site = SiteRound(plain.sites["site1"], 0)
    assert found.effort("for site1", found.build("proxy")).passes_of_a_batch == pytest.approx(40 / found.size)


def test_workers_and_nodes_agree_for_a_single_user(tmp_path: Any) -> None:
    loaded = load(write_study(tmp_path, records=60))
    found = study(PRIVACY, rounds=3, user="site1").with_(sites=loaded.sites, schema=loaded.schema)
    memory = simulate(found)
    for apart in (simulate(found, workers=2), nodes_in_process(found, tmp_path / "run")):
        assert apart.mean == pytest.approx(memory.mean, abs=1e-6)
        assert weights(apart, "site1") == [pytest.approx(w, abs=1e-6) for w in weights(memory, "site1")]

"""Whom to learn from, on sites whose likeness is known: two follow the user's rule, one the opposite."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from confrere.data.records import Records
from confrere.data.split.holdout import folds
from confrere.learning.networks.architectures import architecture
from confrere.learning.networks.network import Network
from confrere.partners.approaches import (
    alone,
    fine_tuned,
    interpolated_data,
    interpolated_models,
    together,
)
from confrere.partners.clusters import cluster, cluster_ranking
from confrere.partners.gradient_similarity import PeerGradients, similarity_ranking
from confrere.partners.influence import cross_fit, influence_rankings, running_ranking
from confrere.partners.learner import Learner, joined, losses_of, patients_in
from confrere.partners.profiles import RecordProfile, features, profile_ranking
from confrere.partners.ranking import Criteria
from confrere.partners.transfer import HomeLoss, home_loss, transfer_ranking
from confrere.statistics.fixed_model_gain import JudgedPatients

RULE = torch.tensor([1.5, -1.0, 0.5, 0.0])


def records(count: int, seed: int, sign: float = 1.0) -> Records:
    source = torch.Generator().manual_seed(seed)
    inputs = torch.randn(count, 4, generator=source)
    noise = torch.randn(count, generator=source) * 0.7
    return Records(inputs, ((sign * (inputs @ RULE) + noise) > 0).long())


@pytest.fixture(scope="module")
def learner() -> Learner:
    network = Network(architecture("linear", (4,), 1))
    return Learner(network, network.params())


@pytest.fixture(scope="module")
def peers() -> dict[str, Records]:
    return {"like": records(300, 1), "alike": records(250, 2), "unlike": records(300, 3, -1.0)}


USER = records(60, 0)


def test_training_finds_the_rule_and_weights_say_which_records_count(learner: Learner) -> None:
    both = joined([records(200, 5), records(200, 6, -1.0)])
    weights = torch.cat([torch.ones(200), torch.zeros(200)])
    one = learner.losses(learner.learn(both, weights), records(200, 7)).mean()
    two = learner.losses(learner.learn(records(200, 5)), records(200, 7)).mean()
    assert one == pytest.approx(two, abs=0.02)
    assert learner.losses(learner.learn(both), records(200, 7)).mean() > 0.6


def test_a_strong_pull_keeps_the_centre(learner: Learner) -> None:
    centre = learner.learn(records(300, 1))
    assert learner.learn(USER, prior=1e7, centre=centre).distance(centre) < 0.01
    assert learner.learn(USER, prior=0.1, centre=centre).distance(centre) > 0.1


def test_larger_networks_learn_in_passes_and_repeat_themselves() -> None:
    network = Network(architecture({"name": "mlp", "hidden": [200, 100]}, (4,), 1))
    deep = Learner(network, network.params())
    first, second = (deep.learn(records(400, 1)) for _ in range(2))
    assert first.equals(second)
    assert deep.losses(first, records(300, 9)).mean() < 0.45


def test_folds_leave_every_record_out_once_and_keep_patients_together() -> None:
    units = torch.arange(60) // 3
    judged = [b for _, b in folds(Records(USER.inputs, USER.targets, units), 0)]
    assert sorted(torch.cat(judged).tolist()) == list(range(60))
    assert all(len(set(units[b].tolist())) * 3 == len(b) for b in judged)


def test_influence_tells_who_helps_from_who_harms(learner: Learner, peers: dict[str, Records]) -> None:
    left, added = influence_rankings(cross_fit(learner, USER, peers, 0), Criteria("user"))
    assert left.scores[-1].peer == added.scores[-1].peer == "unlike"
    harm = added.scores[-1]
    assert harm.value < -3 * harm.error
    assert "worse" in harm.sentence
    assert set(added.chosen) <= {"like", "alike"}
    assert "unlike" not in left.chosen
    assert left.simulation_only


def test_with_two_sites_leaving_one_out_is_adding_it(learner: Learner, peers: dict[str, Records]) -> None:
    left, added = influence_rankings(cross_fit(learner, USER, {"like": peers["like"]}, 0), Criteria("user"))
    assert left.scores[0].value == pytest.approx(added.scores[0].value)


def test_the_error_of_an_influence_is_that_of_a_mean_over_the_users_records() -> None:
    gains = np.array([0.1, 0.3, -0.1, 0.1])
    one_each = JudgedPatients(np.arange(4), 2)
    found = running_ranking({"a": gains}, one_each, Criteria("user", released=True)).scores[0]
    assert found.value == pytest.approx(0.1)
    assert found.error == pytest.approx(gains.std(ddof=1) / 2)
    assert found.finding == "too few"
    assert "too few held-out patients" in found.sentence


def test_a_peer_helps_only_where_the_interval_over_patients_says_so_for_all_peers_together() -> None:
    rng, patients = np.random.default_rng(1), JudgedPatients(np.arange(200), 60)
    noise = rng.normal(0, 1, 200)
    noise = (noise - noise.mean()) / noise.std(ddof=1)

    def finding(error_units: float, others: int) -> str:
        gains = {"a": noise + error_units / np.sqrt(200)}
        gains |= {f"other {k}": noise for k in range(others)}
        scores = running_ranking(gains, patients, Criteria("user")).scores
        return next(s.finding for s in scores if s.peer == "a")

    assert finding(1.5, 0) == "unclear"  # one standard error is not enough
    assert finding(2.3, 0) == "yes"
    assert finding(-2.3, 0) == "no"
    assert finding(2.3, 7) == "unclear"  # corrected for the number of peers
    assert finding(3.0, 7) == "yes"


def test_records_of_one_patient_do_not_count_as_many() -> None:
    gains = np.repeat(np.random.default_rng(0).normal(0.1, 1, 50), 20)
    alone, together = JudgedPatients(np.arange(1000), 500), JudgedPatients(np.repeat(np.arange(50), 20), 25)
    assert together.effect(gains).variance == pytest.approx(20 * alone.effect(gains).variance, rel=0.05)


def test_transfer_loss_shows_both_terms_and_is_not_fooled_by_a_model_that_is_bad_everywhere(
    learner: Learner, peers: dict[str, Records]
) -> None:
    coin = Records(torch.randn(300, 4, generator=torch.Generator().manual_seed(8)), torch.arange(300) % 2)
    there = {**peers, "coin": coin}
    on_user = {n: learner.losses(learner.learn(r), USER) for n, r in there.items()}
    home = {n: home_loss(learner, r, 0) for n, r in there.items()}
    found = transfer_ranking(on_user, home, float(np.log(2)), patients_in(USER), Criteria("user"))
    standing = {s.peer: s for s in found.scores}
    assert abs(standing["coin"].value) < 0.1  # as bad at home as there
    assert not standing["coin"].chosen
    assert standing["coin"].finding == "unclear"  # useless, and not misleading
    assert "no more about the patients" in standing["coin"].sentence
    assert found.scores[-1].peer == "unlike"
    assert found.scores[-1].finding == "no"
    assert standing["like"].terms.keys() == {"loss_on_user", "loss_at_home", "knowing_nothing"}
    assert "like" in found.chosen


def test_a_loss_at_home_that_noise_hides_is_not_relied_on() -> None:
    losses = {"a": np.full(50, 0.3) + 0.01 * np.arange(50)}
    patients = JudgedPatients(np.arange(50), 25)
    found = transfer_ranking(
        losses, {"a": HomeLoss(0.0, 2.0)}, 0.9, patients, Criteria("user", released=True)
    )
    assert "hidden by noise" in found.scores[0].sentence


def test_a_model_that_noise_made_useless_says_nothing_against_its_site() -> None:
    losses = np.full(60, 1.5) + 0.01 * np.arange(60)
    patients = JudgedPatients(np.arange(60), 30)

    def finding(home: HomeLoss) -> str:
        found = transfer_ranking({"a": losses}, {"a": home}, 0.6, patients, Criteria("user", released=True))
        return found.scores[0].finding

    assert finding(HomeLoss(0.4, 0.05)) == "no"  # good at home, and misleading here
    assert finding(HomeLoss(1.8, 0.05)) == "unclear"  # as bad at home
    assert finding(HomeLoss(0.4, 2.0)) == "unclear"  # noise hides how good it is at home


def test_similarity_needs_rounds_in_which_something_could_be_told() -> None:
    peers = {
        "a": PeerGradients([0.99] * 9, [0.5], [0.01]),
        "b": PeerGradients([0.9] * 9, [0.5, 0.6, 0.5, 0.4], [0.01] * 4),
    }
    found = similarity_ranking(peers, Criteria("user", released=True))
    assert found.chosen == ["b"]
    assert "Noise hid" in next(s.sentence for s in found.scores if s.peer == "a")


def test_groups_put_like_with_like(learner: Learner, peers: dict[str, Records]) -> None:
    sites = {"user": USER, **peers}
    found = cluster(learner, sites, "user", 2)
    assert found.others_in_cluster("user") == ["alike", "like"]
    ranking = cluster_ranking(learner, found, sites, Criteria("user"))
    assert ranking.scores[-1].peer == "unlike"
    assert ranking.chosen == [s.peer for s in ranking.scores[:2]]
    assert cluster(learner, sites, "user", 1).others_in_cluster("user") == ["alike", "like", "unlike"]


def test_interpolation_leans_on_oneself_where_the_others_differ(learner: Learner) -> None:
    strangers, test = [records(400, 11, -1.0)], records(500, 12)
    large = records(400, 13)
    own = losses_of(alone(learner, large, 0).predict(test), test).mean()
    for way in (interpolated_models, interpolated_data, fine_tuned):
        found = way(learner, large, strangers, 0)
        assert losses_of(found.predict(test), test).mean() < own + 0.05
    assert interpolated_models(learner, large, strangers, 0).note.startswith("λ = 1.0")


def test_interpolation_leans_on_the_others_where_they_are_alike(learner: Learner) -> None:
    alike, test, few = [records(600, 21)], records(500, 22), records(25, 23)
    own = losses_of(alone(learner, few, 0).predict(test), test).mean()
    common = losses_of(together(learner, few, alike, 0, "all").predict(test), test).mean()
    assert common < own
    for way in (interpolated_models, interpolated_data, fine_tuned):
        assert losses_of(way(learner, few, alike, 0).predict(test), test).mean() < own


def test_profiles_tell_unlike_records_and_their_noise_is_taken_out() -> None:
    def profile(found: Records, noise: float = 0.0, seed: int = 0) -> RecordProfile:
        rows = features(found, 2, 0)
        assert torch.allclose(rows.norm(dim=1), torch.ones(len(rows), dtype=torch.float64))
        draw = np.random.default_rng(seed).normal(0, noise, rows.shape[1])
        mean = (rows.sum(0).numpy() + draw) / len(rows)
        return RecordProfile(mean, len(rows), rows.shape[1] * (noise / len(rows)) ** 2)

    own = profile(records(200, 30))
    there = {"like": profile(records(300, 31)), "unlike": profile(records(300, 32, -1.0))}
    found = profile_ranking(own, there, Criteria("user"))
    assert found.chosen == ["like"]
    noisy = [
        profile_ranking(own, {"like": profile(records(300, 31), 5.0, s)}, Criteria("user", released=True))
        for s in range(40)
    ]
    values = [r.scores[0].value for r in noisy]
    assert abs(np.mean(values)) < 3 * np.std(values) / np.sqrt(40) + 0.01
    assert np.std(values) == pytest.approx(np.mean([r.scores[0].error for r in noisy]), rel=0.5)

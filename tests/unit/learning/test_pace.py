"""Private training goes as far as its noise lets it, where a study does not say how far."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from confrere.learning.optimisers import SGD
from confrere.learning.step_schedule import LONGEST, paced, time_for, time_for_unit_records
from confrere.privacy.accounting import calibrate
from confrere.simulation.simulation import Simulation
from confrere.site.open_sites import open_sites
from confrere.study import Privacy, Study, Training
from tests.conftest import arrays


def test_noise_of_the_length_one_comes_into_the_mean_of_the_weights() -> None:
    """Made up of noise alone: four sites, 30 steps with momentum, 50 weights."""
    steps, sites, weights = 30, 4, 50
    time = time_for(noise_multiplier=8.0, steps=steps, batch=200.0, clip=0.7, parameters=weights, sites=sites)
    rule, lengths = paced(time, steps), []
    generator = torch.Generator().manual_seed(0)
    for _ in range(40):
        mean = torch.zeros(weights)
        for _ in range(sites):
            at = torch.zeros(weights)
            state = rule.start(weights)
            for _ in range(steps):
                rule.update(at, torch.randn(weights, generator=generator) * 8.0 * 0.7 / 200, state)
            mean += at / sites
        lengths.append(float(mean.norm()))
    assert np.mean(lengths) == pytest.approx(1.0, abs=0.1)


def test_the_number_of_steps_makes_no_difference_at_one_epsilon() -> None:
    """More steps need more noise each, and are shorter each: it comes to the same."""
    found = [
        time_for(
            noise_multiplier=calibrate(3.0, 1e-5, sample_rate=1, steps=steps), steps=steps,
            batch=500, clip=1.0, parameters=20, sites=3,
        )
        for steps in (10, 40)
    ]  # fmt: skip
    assert found[0] == pytest.approx(found[1], rel=0.02)


def test_with_many_records_it_is_far_enough_all_the_same() -> None:
    assert time_for(noise_multiplier=1.0, steps=20, batch=1e7, clip=1.0, parameters=5, sites=2) == LONGEST


def test_a_study_that_says_nothing_is_paced_and_one_that_says_how_is_obeyed() -> None:
    def rule(training: Training) -> object:
        study = Study(rounds=10, training=training, privacy=Privacy(epsilon=3.0, delta=1e-4))
        simulation = Simulation(study, open_sites(study, arrays(3, 200)))
        simulation.prepare()
        return simulation.sites["site0"].build_optimiser(protected=True)

    told = rule(Training(protected={"optimiser": "sgd", "learning_rate": 0.25, "momentum": 0.0}))
    assert told == SGD(0.25, 0.0, 1e-4)
    own = rule(Training(batch_size=32))
    assert isinstance(own, SGD)
    assert own.momentum == 0.5
    assert 0 < own.learning_rate * 10 / 0.5 < LONGEST


@pytest.mark.parametrize("name", ["flat", "per-layer", "adaclip"])
def test_every_clipping_is_paced_by_its_own_bound(name: str) -> None:
    def rate(norm: float) -> float:
        privacy = Privacy(epsilon=1.0, delta=1e-4, clipping={"name": name, "norm": norm})
        study = Study(rounds=10, privacy=privacy)
        simulation = Simulation(study, open_sites(study, arrays(3, 200)))
        simulation.prepare()
        rule = simulation.sites["site0"].build_optimiser(protected=True)
        assert isinstance(rule, SGD)
        return rule.learning_rate

    assert rate(0.5) == pytest.approx(2 * rate(1.0))


def test_records_of_norm_one_are_learned_from_until_noise_moves_their_outputs_by_one() -> None:
    # the noise of a weight is time/steps·noise·clip/batch per step; an output sees one such number per site and step
    time = time_for_unit_records(noise_multiplier=14.0, steps=100, batch=1000.0, clip=0.5, sites=8)
    per_step = time / 100 * 14.0 * 0.5 / 1000
    assert per_step * math.sqrt(100 / 8) == pytest.approx(1.0)
    louder = time_for_unit_records(noise_multiplier=28.0, steps=100, batch=1000.0, clip=0.5, sites=8)
    assert louder == pytest.approx(time / 2)

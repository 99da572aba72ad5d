"""Kills, losses, repetitions and reordering at random: a sum is opened once and exactly, or nothing is."""

from __future__ import annotations

import pytest

from tests.masked_world import World

FEDERATIONS = [(3, 1, 0), (4, 1, 1), (5, 2, 1), (6, 1, 2), (8, 2, 2)]
ATTEMPTS = 2


def run(seed: int, loss: float, deaths: float, in_writes: float) -> int:
    """Two attempts of one federation under one schedule."""
    world = World(seed, *FEDERATIONS[seed % len(FEDERATIONS)], death=in_writes)
    for attempt in range(ATTEMPTS):
        world.begin(attempt)
        for _ in range(60 * world.agreement.n):
            if world.finished:
                break
            world.step(loss, deaths)
    return world.check(ATTEMPTS)


@pytest.mark.parametrize("block", range(4))
def test_a_sum_is_opened_once_and_exactly_or_not_at_all(block: int) -> None:
    opened = 0
    for seed in range(25 * block, 25 * (block + 1)):
        opened += run(
            seed,
            loss=[0.0, 0.02, 0.04, 0.02][block],
            deaths=[0.0, 0.005, 0.01, 0.03][block],
            in_writes=0.01 * block,
        )
    assert opened >= [50, 15, 3, 3][block]  # the schedules are not so wild that nothing ever happens


@pytest.mark.slow
def test_a_thousand_schedules() -> None:
    opened = [run(seed, 0.02, 0.01, 0.01) for seed in range(1000, 2000)]
    assert sum(opened) > 300

"""Kills, losses, repetitions, reordering, failing and restored ledgers at random: a sum is opened once and exactly, or not."""

from __future__ import annotations

import pytest

from tests.masked_world import World

FEDERATIONS = [(3, 1, 0), (4, 1, 1), (5, 2, 1), (6, 1, 2), (8, 2, 2)]
ATTEMPTS = 2


def run(seed: int, loss: float, deaths: float, in_writes: float, restores: float = 0.0) -> int:
    """Two attempts of one federation under one schedule."""
    numbers = FEDERATIONS[seed % len(FEDERATIONS)]
    world = World(seed, *numbers, death=in_writes, failure=in_writes / 2, restores=restores)
    for attempt in range(ATTEMPTS):
        world.begin(attempt)
        for _ in range(60 * world.agreement.n):
            if world.finished:
                break
            world.step(loss, deaths)
    return world.check()


@pytest.mark.parametrize("block", range(5))
def test_a_sum_is_opened_once_and_exactly_or_not_at_all(block: int) -> None:
    opened = 0
    for seed in range(25 * block, 25 * (block + 1)):
        opened += run(
            seed,
            loss=[0.0, 0.02, 0.04, 0.02, 0.0][block],
            deaths=[0.0, 0.005, 0.01, 0.03, 0.02][block],
            in_writes=[0.0, 0.01, 0.02, 0.03, 0.01][block],
            restores=[0.0, 0.0, 0.0, 0.0, 0.5][block],
        )
    assert opened >= [50, 15, 3, 3, 8][block]  # the schedules are not so wild that nothing ever happens


@pytest.mark.slow
def test_a_thousand_schedules() -> None:
    opened = [run(seed, 0.02, 0.01, 0.01, 0.3 if seed % 2 else 0.0) for seed in range(1000, 2000)]
    assert sum(opened) > 600

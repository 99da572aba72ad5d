"""Records that are drawn for many sites at once are those that each site would have drawn alone."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch

from confrere.privacy import stacked_steps
from confrere.privacy.clipping import Flat
from confrere.privacy.mechanism import Mechanism
from confrere.privacy.noise import Secure, Seeded
from confrere.privacy.sampling import FullBatch, Poisson, Sampling

SIZES = [40, 7, 1, 90]


def mechanisms(*samplings: Sampling) -> list[Mechanism]:
    return [Mechanism(s, Flat(1.0), 1.0, 5.0) for s in samplings]


@pytest.mark.parametrize(
    "samplings",
    [
        [Poisson(Fraction(1, 3))] * 4,
        [Poisson(Fraction(1, n)) for n in (2, 3, 50, 9)],
        [FullBatch()] * 4,
        [FullBatch(), Poisson(Fraction(1, 3)), FullBatch(), Poisson(Fraction(1, 2))],
    ],
)
def test_the_rows_and_the_noise_after_them_are_those_of_each_site_alone(samplings: list[Sampling]) -> None:
    together, alone = [Seeded(k) for k in range(4)], [Seeded(k) for k in range(4)]
    party = stacked_steps.StackedMechanism(mechanisms(*samplings), SIZES, together)
    for _ in range(5):
        rows, counts = party.draw(4)
        for k, sampling in enumerate(samplings):
            want = sampling.draw(SIZES[k], alone[k])
            assert counts[k] == len(want)
            assert torch.equal(rows[k, : counts[k]], want)
            assert not rows[k, counts[k] :].any()
            assert torch.equal(together[k].normal(3, 1.0), alone[k].normal(3, 1.0))


def test_nobody_drawn_leaves_one_column_of_padding() -> None:
    sources = [Seeded(0), Seeded(1)]
    rows, counts = stacked_steps.StackedMechanism(
        mechanisms(*[Poisson(Fraction(1, 10**9))] * 2), [5, 3], sources
    ).draw(2)
    assert (rows.tolist(), counts) == ([[0], [0]], [0, 0])


def test_secure_sources_are_asked_one_by_one() -> None:
    rate = Poisson(Fraction(1, 2))
    rows, counts = stacked_steps.StackedMechanism(
        mechanisms(rate, rate), [1000, 1000], [Secure(), Secure()]
    ).draw(2)
    assert all(400 < n < 600 for n in counts)
    assert not torch.equal(rows[0, :400], rows[1, :400])

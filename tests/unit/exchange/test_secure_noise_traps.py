"""What the rules about noise prevent: the break with a rule switched off, and what the rule leaves."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.special import log_ndtr, logsumexp
from scipy.stats import norm

from confrere.core.errors import PeerError, PrivacyError, StudyError
from confrere.core.sum_terms import SumTerms
from confrere.exchange.secure.agreement import Agreement
from confrere.exchange.secure.in_process import GivenVector, open_sum, plain_sum
from confrere.exchange.secure.messages import AttemptId
from confrere.privacy.accounting import epsilon
from confrere.privacy.charges import Charge, gaussian, masked
from confrere.privacy.masked_release import MaskedRelease
from confrere.privacy.noise import Seeded
from tests.masked_world import AGREED, SIZE, agreement_of

NAMES = [f"site-{k:02}" for k in range(8)]

# -- retries --------------------------------------------------------------------------------------------


def opened_twice(draw: Callable[[int, str], NDArray[np.int64]]) -> NDArray[np.int64]:
    """What lies between the sums of two attempts, the second without the last member."""
    agreement = agreement_of(4, 1, 1)
    keys = AGREED[4][1]
    sums = []
    for attempt, missing in ((0, ()), (1, agreement.names[-1:])):
        sources = {name: GivenVector(draw(attempt, name)) for name in agreement.names}
        found = open_sum(agreement, AttemptId("run", 0, "proxy", 0, attempt), sources, keys, silent=missing)
        sums.append(found.steps)
    return np.asarray(sums[0] - sums[1])


def test_noise_that_serves_two_attempts_would_be_differenced_away() -> None:
    drawn = {name: np.random.default_rng(k).integers(-(2**30), 2**30, SIZE) for k, name in enumerate(NAMES)}
    assert (opened_twice(lambda _, name: drawn[name]) == drawn["site-03"]).all()
    fresh = opened_twice(
        lambda at, name: drawn[name] + np.random.default_rng([at, NAMES.index(name)]).integers(1, 2**20, SIZE)
    )
    assert not (fresh == drawn["site-03"]).any()


# -- t = 0 ------------------------------------------------------------------------------------------------


def test_without_colluding_members_the_noise_would_be_too_small_for_any_of_them() -> None:
    """Every member sees the sum and can subtract its own noise: what is left must still have a variance of σ²."""
    n, noise = 4, 1.5
    claimed = epsilon([gaussian(noise)], 1e-5, "rdp")

    def seen_by_one(t: int) -> float:
        return epsilon([gaussian(noise * math.sqrt((n - 1) / (n - t)))], 1e-5, "rdp")

    assert seen_by_one(0) > 1.15 * claimed
    assert seen_by_one(1) <= claimed
    with pytest.raises(StudyError, match="unsound"):
        SumTerms(n, 0, 0, noise_std=noise, clip=1.0, size=SIZE)
    event = masked(SumTerms(n, 1, 0, noise_std=noise, clip=1.0, size=SIZE)).event
    with pytest.raises(PrivacyError, match="colluding = 0"):
        Charge(event.replace('"colluding":"1"', '"colluding":"0"'), 1)


# -- overflow ---------------------------------------------------------------------------------------------


class Unchecked(SumTerms):
    """Terms without the check of the sum."""

    def check_sum(self, declared: int) -> None:
        """Anything goes."""


def test_sums_that_wrap_would_be_wrong_and_are_refused() -> None:
    members = tuple(replace(member, declared=3000) for member in AGREED[8][0])
    size = 262_144
    fine = Agreement(members, SumTerms(8, 2, 2, noise_std=1.5, clip=1.0, size=size))
    one_direction = np.zeros(size, dtype=np.int64)
    one_direction[0] = round(3000 / fine.terms.grid)  # all records of all members have the same gradient
    vectors = dict.fromkeys(fine.names, one_direction)
    assert plain_sum(fine, vectors).values[0] == pytest.approx(24_000)
    narrow = Agreement(members, Unchecked(8, 2, 2, noise_std=1.5, clip=1.0, size=size, bits=32))
    assert plain_sum(narrow, vectors).values[0] != pytest.approx(24_000, rel=0.1)
    with pytest.raises(PrivacyError, match="wrap around"):
        Agreement(members, replace(fine.terms, bits=32))


# -- rounded instead of discrete noise ------------------------------------------------------------------

Logs = NDArray[np.float64]


def log_rounded(places: NDArray[np.int64], scale: float) -> Logs:
    """The logarithm of the chance of each whole number under a rounded Gaussian."""
    above, beyond = (log_ndtr(-(np.abs(places) + side) / scale) for side in (-0.5, 0.5))
    found = above + np.log1p(-np.exp(beyond - above))
    found[places == 0] = math.log1p(-2 * norm.sf(0.5 / scale))
    return np.asarray(found)


def log_discrete(places: NDArray[np.int64], scale: float) -> Logs:
    found = -(places**2) / (2 * scale**2)
    return np.asarray(found - logsumexp(found))


def of_sum(one: Logs, count: int) -> Logs:
    found = one
    for _ in range(count - 1):
        wider = np.full(len(found) + len(one) - 1, -np.inf)
        for at, value in enumerate(found):
            wider[at : at + len(one)] = np.logaddexp(wider[at : at + len(one)], value + one)
        found = wider
    return found


def divergence(noise: Logs, order: float) -> float:
    """The Rényi divergence of a noise from the same moved by one step."""
    return float(logsumexp(order * noise[1:] + (1 - order) * noise[:-1])) / (order - 1)


def test_sums_of_rounded_noise_would_cost_more_than_is_charged() -> None:
    """On a grid that is coarse for the noise. Finer ones, which the agreement asks for, are proven for discrete noise only."""
    scale, members, order = 0.2, 4, 3.0
    places = np.arange(-40, 41)
    gaussian_cost = order / (2 * members * scale**2)
    assert divergence(of_sum(log_rounded(places, scale), members), order) > 1.5 * gaussian_cost
    tau = 10 * sum(math.exp(-2 * math.pi**2 * scale**2 * k / (k + 1)) for k in range(1, members))
    charged = order / 2 * (1 / (math.sqrt(members) * scale) + tau) ** 2
    assert divergence(of_sum(log_discrete(places, scale), members), order) <= charged
    with pytest.raises(PrivacyError, match="too coarse for the noise"):
        SumTerms(6, 1, 1, noise_std=scale * 2 * 1e-3, clip=1.0, size=1, grid=1e-3)


# -- a second step on a share ---------------------------------------------------------------------------


Vector = NDArray[np.float64]


def advantage(read: Callable[[Vector, Vector], Vector]) -> float:
    """How much more often than not an observer of two opened sums is right about one record; each number is one trial.

    `read` chooses what the second gradient is taken at: this site's own share, or the opened sum. Four hundred other
    records of the site have clipped gradients that point to either side of that place.
    """
    honest, std, grid, trials = 6, 2.0, 2.0**-20, 6000
    there = np.arange(trials) % 2
    terms = SumTerms(8, 1, 1, noise_std=std, clip=1.0, size=trials, grid=grid)
    release = MaskedRelease("proxy", terms, declared=10**6, randomness=Seeded(0), simulated=True)
    share = release.release(torch.from_numpy(there).double()) * grid
    others, second = (
        np.random.default_rng(0).normal(size=(2, trials)) * std * math.sqrt((honest - 1) / honest)
    )
    second_sum = 400 * np.sign(read(share, share + others) - 0.5) + second
    return 2 * float(((second_sum > 0) == there).mean()) - 1


def test_a_second_step_on_a_share_would_leak_more_than_two_charges_allow() -> None:
    allowed = 2 * norm.cdf(math.sqrt(2) / 2 / 2) - 1  # two Gaussian releases with noise 2
    assert advantage(lambda share, opened: share) > allowed + 0.1
    assert advantage(lambda share, opened: opened) < allowed


def test_a_share_is_given_out_once() -> None:
    terms = SumTerms(8, 1, 1, noise_std=2.0, clip=1.0, size=1)
    release = MaskedRelease("proxy", terms, declared=9, randomness=Seeded(0), simulated=True)
    release.release(torch.zeros(1, dtype=torch.float64))
    with pytest.raises(PrivacyError, match="nothing more was released"):
        release.release(torch.zeros(1, dtype=torch.float64))


def test_an_attempt_takes_one_vector_from_its_source() -> None:
    class Counted(GivenVector):
        charges = draws = 0

        def charge(self) -> None:
            type(self).charges += 1

        def draw(self) -> NDArray[np.int64]:
            assert type(self).charges > type(self).draws  # paid for before
            type(self).draws += 1
            return super().draw()

    agreement = agreement_of(4, 1, 1)
    sources = {name: Counted(np.zeros(SIZE, dtype=np.int64)) for name in agreement.names}
    open_sum(agreement, AttemptId("run", 0, "proxy", 0, 0), sources, AGREED[4][1])
    assert Counted.charges == Counted.draws == 4


def test_nothing_is_charged_before_enough_members_have_shared_out_their_secrets() -> None:
    class Charged(GivenVector):
        def charge(self) -> None:
            raise AssertionError("charged too early")

    agreement = agreement_of(4, 1, 1)
    sources = {name: Charged(np.zeros(SIZE, dtype=np.int64)) for name in agreement.names[:2]}
    with pytest.raises(PeerError, match="only 2 members answered"):
        open_sum(agreement, AttemptId("run", 0, "proxy", 0, 0), sources, AGREED[4][1])

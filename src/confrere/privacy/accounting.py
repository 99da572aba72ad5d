"""What a mechanism costs: from counted events to (ε, δ), and from a target ε back to the noise.

The truth is a list of charges: mechanism events in exact text, each with an integer count. ε is always
derived from them, never added up. Two records, or two patients, are neighbours when one is added or removed.

Accountants, both from Google's dp-accounting:

``pld``  privacy loss distributions (Koskela et al. 2020; Gopi, Lee, Wutschitz 2021), tight and the default.
         Losses are rounded so that ε is never understated (connect-the-dots, Doroshenko et al. 2022).
``rdp``  Rényi orders (Mironov 2017; Mironov, Talwar, Zhang 2019), looser; what most papers report.

Without subsampling the Gaussian mechanism has a closed form (Balle and Wang 2018), used for ``pld``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Any, cast

import dp_accounting
import numpy as np
from dp_accounting.pld import privacy_loss_distribution as loss_distributions
from dp_accounting.rdp import RdpAccountant, compute_epsilon
from scipy.stats import binom

from confrere.core.errors import PrivacyError, StudyError
from confrere.privacy.charges import (
    Accountant,
    Charge,
    Guarantee,
    Spent,
    Unit,
    exact_rate,
    gaussian,
    laplace,
    read_event,
    rounded_up,
    unlabelled,
)
from confrere.privacy.losses import Losses, epsilon_at

__all__ = [
    "Accountant",
    "Charge",
    "Guarantee",
    "Spent",
    "Unit",
    "calibrate",
    "capacity",
    "check_delta",
    "check_epsilon",
    "epsilon",
    "exact_rate",
    "gaussian",
    "laplace",
    "rounded_up",
]

PUBLISHED_ORDERS = tuple(1 + x / 10 for x in range(1, 100)) + tuple(float(x) for x in range(12, 64))
"""The Rényi orders that Opacus and most published tables use."""

RELATIVE_ERROR = 1e-4
"""How far above the exact value a PLD's ε may lie, as a share of ε. It is never below it."""

ABSOLUTE_ERROR = 1e-5
"""A tiny ε is not resolved any finer than this."""

FINEST = 2.0**-22
"""The finest grid of privacy losses that is ever used."""

MOST_EPSILON = 1e4
"""Beyond this no guarantee is left to speak of, and the search for its noise would not end."""

SMALLEST_DELTA = 1e-12
"""Below this the double precision of a PLD no longer resolves δ."""

HARDLY_ANY = 0.02
"""Below this noise a step costs an ε in the hundreds, on grids that fill the memory. It is then stated as if
everybody took part, which is never less than it is."""

MOST_STEPS = 1 << 24
"""Where `capacity` stops looking."""


def epsilon(charges: Sequence[Charge], delta: float, accountant: Accountant = "pld") -> float:
    """The ε of all charges composed, at this δ.

    >>> round(epsilon([gaussian(1.4, Fraction(1, 74), 30 * 74)], 1e-5), 3)
    2.159
    """
    check_delta(delta)
    return _epsilon(_merged(charges), float(delta), _known(accountant))


def calibrate(
    target_epsilon: float,
    delta: float,
    *,
    sample_rate: Fraction | float,
    steps: int,
    accountant: Accountant = "pld",
    prior: Sequence[Charge] = (),
) -> float:
    """The smallest noise multiplier, to four decimals, with which these steps keep within ε.

    It is rounded up, so `epsilon` of the result never exceeds the target. `prior` is what the data set
    has been charged already.
    """
    check_epsilon(target_epsilon)
    if target_epsilon > MOST_EPSILON:
        raise PrivacyError(
            f"ε = {target_epsilon:g} protects nobody; noise is found for at most ε = {MOST_EPSILON:,.0f}, and usual budgets lie"
            " between 0.5 and 10"
        )
    check_delta(delta)
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise StudyError(f"steps must be a whole number of at least 1, not {steps!r}")
    rate = exact_rate(sample_rate)
    if (spent := epsilon(prior, delta, accountant)) >= target_epsilon:
        raise PrivacyError(
            f"ε = {rounded_up(spent)} is spent already, so no noise keeps within ε = {target_epsilon:g}; "
            "raise the budget or use a fresh data set"
        )

    def cost(noise_multiplier: float, relative_error: float = RELATIVE_ERROR) -> float:
        charges = _merged([*prior, gaussian(noise_multiplier, rate, steps)])
        return _epsilon(charges, float(delta), accountant, relative_error)

    guess = _guessed_noise(target_epsilon, delta, float(rate), steps)
    if accountant == "rdp" and cost(1e3 * guess) > target_epsilon:  # its orders end at 63
        raise PrivacyError(
            f"the Rényi accountant cannot show ε = {target_epsilon:g} at δ = {delta:g}, however large the "
            "noise; raise ε or use the PLD accountant"
        )
    steeper = _guessed_noise(1.02 * target_epsilon, delta, float(rate), steps)
    slope = math.log(1.02) / math.log(steeper / guess)
    noise, slope = _falling_root(lambda z: cost(z, 20 * RELATIVE_ERROR), target_epsilon, guess, slope)
    noise, _ = _falling_root(cost, target_epsilon, noise, slope, rounds=1)
    ticks, stride = math.ceil(noise * 10_000), 1
    while cost(ticks / 10_000) > target_epsilon:
        ticks, stride = ticks + stride, 2 * stride
    return ticks / 10_000


@lru_cache(maxsize=4096)
def capacity(
    event: str, others: tuple[Charge, ...], budget: float, delta: float, accountant: Accountant = "pld"
) -> int:
    """How often `event` may happen in all, beside `others`, before ε exceeds `budget`; at most MOST_STEPS."""

    def cost(count: int, relative_error: float = RELATIVE_ERROR) -> float:
        return _epsilon(_merged([*others, Charge(event, count)]), delta, accountant, relative_error)

    nearly = _last_that_fits(lambda count: cost(count, 20 * RELATIVE_ERROR), budget, start=1)
    return _last_that_fits(cost, budget, start=max(nearly, 1))


def check_epsilon(value: float) -> None:
    if not (math.isfinite(value) and value > 0):
        raise PrivacyError(f"ε must be a number above 0, not {value}; usual budgets lie between 0.5 and 10")


def check_delta(value: float, records: int | None = None) -> None:
    """δ is a public constant below 1/n: at 1/n, publishing one record at random would be «private»."""
    if not 0 < value < 1:
        raise PrivacyError(f"δ must lie between 0 and 1, not {value}; 1e-6 is usual")
    if value < SMALLEST_DELTA:
        raise PrivacyError(f"δ = {value:g} is finer than double precision resolves; take {SMALLEST_DELTA:g}")
    if records is not None and value > 1 / records:
        raise PrivacyError(
            f"δ = {value:g} is more than 1/n = {1 / records:.3g} for n = {records}: "
            "that would allow to publish a whole record; take a smaller δ"
        )


def _merged(charges: Iterable[Charge]) -> tuple[tuple[str, int], ...]:
    """One count per event, whatever it was labelled with: what the caches and the accountants take."""
    counts: dict[str, int] = {}
    for charge in charges:
        if charge.count:
            event = unlabelled(charge.event)
            counts[event] = counts.get(event, 0) + charge.count
    return tuple(sorted(counts.items()))


def _known(accountant: str) -> Accountant:
    if accountant not in ("pld", "rdp"):
        raise StudyError(f"the accountant is «pld» or «rdp», not {accountant!r}")
    return cast("Accountant", accountant)


@lru_cache(maxsize=8192)
def _epsilon(
    merged: tuple[tuple[str, int], ...],
    delta: float,
    accountant: Accountant,
    relative_error: float = RELATIVE_ERROR,
) -> float:
    events = [(event, read_event(event), count) for event, count in merged]
    if any(event.noise == 0 for _, event, _ in events):
        return math.inf
    if not events:
        return 0.0
    if accountant == "rdp":
        rdp = sum(count * np.asarray(_renyi(text)) for text, _, count in events)
        return float(compute_epsilon(PUBLISHED_ORDERS, rdp, delta)[0])
    tiny = any(event.noise < HARDLY_ANY for _, event, _ in events)
    if all(event.kind == "gaussian" and (event.rate == 1 or tiny) for _, event, _ in events):
        precision = sum(count * (event.group / event.noise) ** 2 for _, event, count in events)
        return float(dp_accounting.get_epsilon_gaussian(1 / math.sqrt(precision), delta))
    return _pld_epsilon(merged, delta, relative_error)


def _pld_epsilon(events: tuple[tuple[str, int], ...], delta: float, relative_error: float) -> float:
    """ε by PLD, on a grid of losses just fine enough.

    Discretising to a grid of width w adds an error to ε that is always upwards and falls with w². So two
    coarse passes, the second four times as fine, tell how large it is (a fifteenth of what lies between
    them; an eighth is taken, to be safe), and how fine the last pass must be.
    """

    def value_at(width: float) -> float:
        return epsilon_at(_composed(events, width), delta)

    width = _power_of_two(math.sqrt(0.05 / sum(n for _, n in events)))
    value = value_at(width)
    while 0 < value < math.inf and width > FINEST:
        before, width = value, max(width / 4, FINEST)
        value = value_at(width)
        error, allowed = (before - value) / 8, relative_error * max(value, ABSOLUTE_ERROR / RELATIVE_ERROR)
        if error <= allowed:
            break
        if error < 100 * allowed:  # the estimate can be trusted: go there directly
            return value_at(_power_of_two(width * math.sqrt(allowed / error)))
    return value


def _power_of_two(width: float) -> float:
    return float(max(2.0 ** min(math.floor(math.log2(width)), -6), FINEST))


def _composed(events: tuple[tuple[str, int], ...], width: float) -> Any:
    out = None
    for text, count in events:
        losses = _losses(text, width).self_compose(count)
        out = losses if out is None else out.compose(losses)
    return out


@lru_cache(maxsize=64)
def _losses(text: str, width: float) -> Losses:
    return Losses(_of_one_step(text, width))


def _of_one_step(text: str, width: float) -> Any:
    event = read_event(text)
    if event.kind == "laplace":
        return loss_distributions.from_laplace_mechanism(event.noise, value_discretization_interval=width)
    if event.group == 1:
        return loss_distributions.from_gaussian_mechanism(
            event.noise, sampling_prob=event.rate, value_discretization_interval=width
        )
    drawn = np.arange(event.group + 1)
    return loss_distributions.from_mixture_gaussian_mechanism(
        event.noise, drawn, binom.pmf(drawn, event.group, event.rate), value_discretization_interval=width
    )


@lru_cache(maxsize=1024)
def _renyi(text: str) -> tuple[float, ...]:
    event = read_event(text)
    if event.group != 1 and event.rate != 1:
        raise PrivacyError(
            "the Rényi accountant cannot count groups of sampled records; use the PLD accountant"
        )
    if event.kind == "laplace":
        query: Any = dp_accounting.LaplaceDpEvent(event.noise)
    else:
        query = dp_accounting.GaussianDpEvent(event.noise / event.group)
    if event.rate < 1:
        query = dp_accounting.PoissonSampledDpEvent(event.rate, query)
    accountant = RdpAccountant(PUBLISHED_ORDERS)
    accountant.compose(query)
    return tuple(float(x) for x in accountant.rdp)


def _guessed_noise(target: float, delta: float, rate: float, steps: int) -> float:
    """Where the central limit (Dong, Roth, Su 2019) puts the noise; good to some ten percent."""
    mu = 1 / float(dp_accounting.get_sigma_gaussian(target, delta))
    if rate == 1:
        return math.sqrt(steps) / mu
    return 1 / math.sqrt(math.log1p((mu / rate) ** 2 / steps))


def _falling_root(
    cost: Callable[[float], float], target: float, guess: float, slope: float, rounds: int = 20
) -> tuple[float, float]:
    """Where a cost that falls with the noise meets the target, by secants in logarithms; and how steeply."""
    x = math.log(guess)
    y = math.log(max(cost(guess), 1e-12) / target)
    for at in range(rounds):
        step = min(max(-y / slope, -0.7), 0.7)
        x += step
        if abs(step) < 3e-3 or at == rounds - 1:
            break
        value = math.log(max(cost(math.exp(x)), 1e-12) / target)
        slope = min((value - y) / step, -0.2)
        y = value
    return math.exp(x), slope


def _last_that_fits(cost: Callable[[int], float], budget: float, start: int) -> int:
    """The last count whose rising cost keeps within the budget, for a cost that is near to a power of it."""
    low, high, count, exponent = 0, MOST_STEPS + 1, start, 0.6
    known: dict[int, float] = {}
    while high - low > 1:
        known[count] = value = cost(count)
        low, high = (count, high) if value <= budget else (low, count)
        if 0 < low < high <= MOST_STEPS and 0 < known[low] < known[high] < math.inf:
            exponent = max(math.log(known[high] / known[low]) / math.log(high / low), 0.05)
        aim = count * min(max((budget / value) ** (1 / exponent), 0.125), 8.0) if value > 0 else 8.0 * count
        # Step past the aim, so that both ends close in; never outside of what is still open.
        count = min(max(math.floor(aim) + (value <= budget), low + 1), high - 1)
        if len(known) > 12:
            count = (low + high) // 2
    return low

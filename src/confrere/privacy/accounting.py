"""What a mechanism costs: from counted events to (ε, δ), and from a target ε back to the noise.

The truth is a list of charges: mechanism events in exact text, each with an integer count. ε is always
derived from them, never added up. Two records, or two patients, are neighbours when one is added or removed.

Accountants, both from Google's dp-accounting:

``pld``  privacy loss distributions (Koskela et al. 2020; Gopi, Lee, Wutschitz 2021), tight and the default.
         Losses are rounded so that ε is never understated (connect-the-dots, Doroshenko et al. 2022).
``rdp``  Rényi orders (Mironov 2017; Mironov, Talwar, Zhang 2019), looser; what most papers report.

Without subsampling the Gaussian mechanism has a closed form (Balle and Wang 2018), used for ``pld``.

The noise of a masked sum lies on a lattice, for which only Rényi divergences are proven. Charges that include one are
composed by ``rdp``, or the others by ``pld`` and the masked ones by ``rdp``, each at δ/2, whichever is lower.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import cast

import numpy as np
from scipy.special import log_ndtr

from confrere.core.errors import PrivacyError, StudyError
from confrere.privacy import loss_distribution, renyi
from confrere.privacy.charges import (
    Accountant,
    Charge,
    Events,
    Guarantee,
    Line,
    MechanismEvent,
    Unit,
    canonical,
    conditions,
    exact_rate,
    gaussian,
    parsed,
    read_event,
    rounded_up,
    unlabelled,
)
from confrere.privacy.loss_distribution import RELATIVE_ERROR, coarsest
from confrere.privacy.renyi import Orders

MOST_EPSILON = 1e4
"""Beyond this no guarantee is left to speak of, and the search for its noise would not end."""

LARGEST_DELTA = 0.01
"""Above this a small ε means little, however few records there are: with δ = 0.5 many releases have «ε = 0»."""

SMALLEST_DELTA = 1e-12
"""Below this the double precision of a PLD no longer resolves δ."""

HARDLY_ANY, IMMENSE = 0.02, 1e6
"""Below the first noise a step costs an ε in the hundreds, and above the second next to nothing, on grids that fill the
memory. It is then stated as if all records took part, which never understates it."""

NONE = 1e-100
"""Noise below this is taken for none."""

MOST_LOSS, MOST_CELLS = 1e3, 1 << 24
"""Where losses spread further, or over more cells of the coarsest grid, charges are stated without sampling too."""

MOST_STEPS = 1 << 24
"""Where `capacity` stops looking, and the longest training that is planned."""

UNRESOLVED = 1e-10
"""Up to this δ, rounding in the Fourier transform of a PLD may be as large as δ after very many steps."""

TINY = 1e-15
"""Added to a δ from a closed form, for rounding."""


def epsilon(
    charges: Sequence[Charge], delta: float, accountant: Accountant = "pld", orders: Orders | None = None
) -> float:
    """The ε of all charges composed, at this δ.

    The Rényi accountant takes the best of all orders, or of the given `orders`: published tables have theirs.

    >>> round(epsilon([gaussian(1.4, Fraction(1, 74), 30 * 74)], 1e-5), 3)
    2.159
    """
    check_delta(delta)
    if len({charge.unit for charge in charges}) > 1:
        raise PrivacyError(
            "charges per record and per patient have no common ε; read them per one unit first"
        )
    return _epsilon(_merged(charges), float(delta), _known(accountant), orders=orders)


def per_unit(charges: Iterable[Charge], unit: Unit, most_records: int | None = None) -> list[Charge] | None:
    """All charges as they concern one record, or one patient; None where any of them has no bound."""
    found = [charge.per(unit, most_records) for charge in charges]
    bounded = [charge for charge in found if charge is not None]
    return bounded if len(bounded) == len(found) else None


@lru_cache(maxsize=4096)
def guarantee_of(
    counts: Events, delta: float, unit: Unit | None, accountant: Accountant, ceiling: float | None = None
) -> Guarantee:
    """What these charges amount to for one unit, with the weakest claim among them and all that they assume.

    Without a unit: per patient if all of them are, per record otherwise. Computed once for all ledgers with the same counts,
    since the sites of a rehearsal mostly spend alike.
    """
    charges = [Charge(event, count) for event, count in counts]
    if unit is None:
        unit = "patient" if charges and all(c.unit == "patient" for c in charges) else "record"
    found = per_unit(charges, unit)
    spent = math.inf if found is None else epsilon(found, delta, accountant)
    condition = conditions(charges)
    accountant = "rdp" if condition else accountant
    proven = all(c.proven for c in charges)
    return Guarantee(spent, delta, unit, accountant, proven, ceiling, condition)


def counted(charges: Iterable[Charge]) -> Events:
    """One count for each event."""
    counts: dict[str, int] = {}
    for charge in charges:
        counts[charge.event] = counts.get(charge.event, 0) + charge.count
    return tuple(sorted(counts.items()))


def gaussian_mu(charges: Sequence[Charge]) -> float | None:
    """The μ of Gaussians without sampling, which compose exactly; None where anything else is among the charges."""
    merged = _merged(charges)
    events = [read_event(text) for text, _ in merged]
    plain = all(e.kind == "gaussian" and e.rate == 1 and e.noise > NONE for e in events)
    return _mu(merged) if plain else None


def deltas(charges: Sequence[Charge], epsilons: Line, accountant: Accountant = "pld") -> Line:
    """For each ε the δ at which all charges composed keep to it; never understated."""
    merged = _merged(charges)
    if not merged:
        return np.zeros_like(epsilons)
    if any(read_event(text).noise <= NONE for text, _ in merged):
        return np.ones_like(epsilons)
    if _known(accountant) == "rdp" or any(read_event(text).kind == "masked" for text, _ in merged):
        return renyi.delta_of(_bounded(merged), epsilons)
    if _too_fine(merged):
        return _deltas_without_sampling(merged, epsilons)
    return loss_distribution.delta_of(merged, epsilons)


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
    """δ is a public constant, at most 1/n and at most 0.01: above 1/n, publishing a record at random would be «private»."""
    if not 0 < value < 1:
        raise PrivacyError(f"δ must lie between 0 and 1, not {value}; 1e-6 is usual")
    if value < SMALLEST_DELTA:
        raise PrivacyError(f"δ = {value:g} is finer than double precision resolves; take {SMALLEST_DELTA:g}")
    if records is not None and value > 1 / records:
        raise PrivacyError(
            f"δ = {value:g} is more than 1/n = {1 / records:.3g} for n = {records}: "
            "that would allow to publish a whole record; take a smaller δ"
        )
    if value > LARGEST_DELTA:
        raise PrivacyError(
            f"δ = {value:g} is more than {LARGEST_DELTA:g}: a guarantee that may fail this often is none; 1e-6 is usual"
        )


def _merged(charges: Iterable[Charge]) -> Events:
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
    merged: Events,
    delta: float,
    accountant: Accountant,
    relative_error: float = RELATIVE_ERROR,
    orders: Orders | None = None,
) -> float:
    events = [(event, read_event(event), count) for event, count in merged]
    if any(event.noise <= NONE for _, event, _ in events):
        return math.inf
    if not events:
        return 0.0
    if accountant == "rdp":
        return renyi.epsilon_of(_bounded(merged), delta, orders)
    if any(event.kind == "masked" for _, event, _ in events):
        return _epsilon_with_masked(merged, delta, relative_error)
    if all(event.kind == "gaussian" and event.rate == 1 for _, event, _ in events) or _too_fine(merged):
        return _epsilon_without_sampling(merged, delta)
    found = loss_distribution.epsilon_of(merged, delta, relative_error)
    if delta <= UNRESOLVED:  # both are upper bounds, so the smaller one holds
        return min(found, renyi.epsilon_of(_bounded(merged), delta))
    return found


def _epsilon_with_masked(merged: Events, delta: float, relative_error: float) -> float:
    """Both are upper bounds, so the smaller one holds."""
    together = renyi.epsilon_of(_bounded(merged), delta)
    masked = tuple((text, count) for text, count in merged if read_event(text).kind == "masked")
    others = tuple((text, count) for text, count in merged if read_event(text).kind != "masked")
    if not others:
        return together
    apart = renyi.epsilon_of(masked, delta / 2) + _epsilon(others, delta / 2, "pld", relative_error)
    return min(together, apart)


def _extreme(event: MechanismEvent) -> bool:
    return not HARDLY_ANY <= event.noise <= IMMENSE


def _bounded(merged: Events) -> Events:
    """The same events, those with extreme noise as if all records took part."""
    events = [(text, count, read_event(text)) for text, count in merged]
    return tuple((_unsampled(t) if e.rate < 1 and _extreme(e) else t, count) for t, count, e in events)


def _too_fine(merged: Events) -> bool:
    """Whether the grid of a PLD would not fit into memory."""
    events = [(read_event(text), count) for text, count in merged]
    if any(_extreme(event) for event, _ in events):
        return True
    spread = 0.0
    for event, count in events:
        step = event.sensitivity / event.noise
        drawn = count * min(event.rate * event.group, 1.0)
        drift = step if event.kind == "laplace" else step**2 / 2
        spread += drawn * drift + 10 * math.sqrt(drawn) * step
    cells = spread / coarsest(sum(count for _, count in events))
    return spread > MOST_LOSS or cells > MOST_CELLS


def _split(merged: Events) -> tuple[float, float]:
    """An upper bound of all events by a Gaussian with this μ and, added to it, a pure ε: that of all Laplace noise."""
    events = [(read_event(text), count) for text, count in merged]
    gaussians = [(text, count) for text, count in merged if read_event(text).kind == "gaussian"]
    return _mu(gaussians), math.fsum(
        count / event.noise for event, count in events if event.kind == "laplace"
    )


def _epsilon_without_sampling(merged: Events, delta: float) -> float:
    mu, pure = _split(merged)
    if mu < delta:  # the total variation is below μ/2
        return pure
    if (
        mu > MOST_LOSS
    ):  # zero-concentrated privacy (Bun, Steinke 2016): the closed form leaves double precision
        return pure + mu**2 / 2 + mu * math.sqrt(2 * math.log(1 / delta))
    return pure + gaussian_epsilon(1 / mu, delta)


def gaussian_epsilon(noise: float, delta: float) -> float:
    """ε of one release with Gaussian noise of this many sensitivities (Balle and Wang 2018)."""
    if _log_delta(noise, 0.0) < math.log(delta):
        return 0.0
    low, high = 0.0, 1.0
    while _log_delta(noise, high) > math.log(delta):
        low, high = high, high * 10
    return _first_within(lambda e: _log_delta(noise, e) <= math.log(delta), low, high)


def gaussian_noise(epsilon: float, delta: float) -> float:
    """The least Gaussian noise, in sensitivities, of one release that costs ε (Balle and Wang 2018)."""
    low, high = 0.1, 1.0
    while _log_delta(low, epsilon) < math.log(delta):
        low, high = low / 10, low
    while _log_delta(high, epsilon) > math.log(delta):
        low, high = high, high * 10
    return _first_within(lambda z: _log_delta(z, epsilon) <= math.log(delta), low, high)


def _first_within(within: Callable[[float], bool], low: float, high: float) -> float:
    """The least number that is within a bound, by halving: `low` is not, `high` is, and so is what is returned."""
    while high - low > 1e-13 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if within(middle) else (middle, high)
    return high


def _log_delta(noise: float, epsilon: float) -> float:
    """The logarithm of δ at ε (Balle and Wang 2018, theorem 8), without cancellation where δ is tiny."""
    shift = epsilon * noise + 1 / (2 * noise)
    one, other = float(log_ndtr(1 / noise - shift)), epsilon + float(log_ndtr(-shift))
    return one + math.log1p(-math.exp(other - one)) if other < one else -math.inf


def _deltas_without_sampling(merged: Events, epsilons: Line) -> Line:
    mu, pure = _split(merged)
    left = np.maximum(epsilons - pure, 0.0)
    held = np.zeros_like(left)
    if mu > 0:  # Balle and Wang 2018, theorem 8
        beyond = np.exp(np.minimum(left + log_ndtr(-mu / 2 - left / mu), 0.0))
        held = np.exp(log_ndtr(mu / 2 - left / mu)) - beyond
    # below the pure ε: the total variation of a Gaussian, and that of anything with this pure ε
    held = held + np.where(epsilons < pure, -math.expm1(-pure), 0.0)
    return np.clip(held + TINY, 0.0, 1.0)


def _unsampled(text: str) -> str:
    """The same event with all records in the sample."""
    return canonical({**parsed(text), "sample_rate": "1"})


def _mu(merged: Iterable[tuple[str, int]]) -> float:
    """How far apart Gaussians without sampling put the two cases, in standard deviations: they compose exactly."""
    events = [(read_event(text), count) for text, count in merged]
    return math.sqrt(math.fsum(count * (event.sensitivity / event.noise) ** 2 for event, count in events))


def _guessed_noise(target: float, delta: float, rate: float, steps: int) -> float:
    """Where the central limit (Dong, Roth, Su 2019) puts the noise; good to some ten percent."""
    mu = 1 / gaussian_noise(target, delta)
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

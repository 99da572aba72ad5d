"""The Rényi accountant («rdp»): divergences of one step, and the ε that follows from them (Mironov 2017).

A step's worst case is a pair of distributions on a line, each a mixture of Gaussians of the same width. The divergence of
any order α > 1 is an integral over that line, which the trapezoidal rule solves to machine precision: the integrand is
smooth, and falls off like a Gaussian. So there is no order at which it fails to converge, at any sampling rate.

ε is the least over the orders that are tried. `PUBLISHED_ORDERS` are those of Opacus and of most published tables; without
them decades of orders are added for as long as the best order is at the end, and orders around the best one are tried.
"""

from __future__ import annotations

import math
from functools import cache, lru_cache

import numpy as np
from scipy.special import logsumexp

from confrere.privacy.charges import Events, Line, read_event

Orders = tuple[float, ...]

PUBLISHED_ORDERS: Orders = tuple(1 + x / 10 for x in range(1, 100)) + tuple(float(x) for x in range(12, 64))
"""The Rényi orders that Opacus and most published tables use."""

DECADES = range(-2, 6)
"""α − 1 lies between 0.01, where the conversion to ε is no longer stable, and a million."""

IN_A_DECADE, AROUND_THE_BEST = 25, 40
"""How many orders are tried first, and how many between the two neighbours of the best."""

REACH = 10.0
"""The integral goes this many standard deviations beyond the outermost peak."""


def epsilon_of(events: Events, delta: float, orders: Orders | None = None) -> float:
    """The ε of these counted events at this δ, with the given orders or with the best."""
    if orders is not None:
        return float(_converted(events, delta, orders).min())
    first = last = 0
    found = _converted(events, delta, _decade(0))
    while True:
        best = int(found.argmin())
        if best == 0 and first > DECADES[0]:
            first -= 1
            found = np.concatenate((_converted(events, delta, _decade(first)), found))
        elif best == len(found) - 1 and last < DECADES[-1]:
            last += 1
            found = np.concatenate((found, _converted(events, delta, _decade(last))))
        else:
            near = _converted(events, delta, _around(first * IN_A_DECADE + best))
            return float(min(found[best], near.min()))


def delta_of(events: Events, epsilons: Line) -> Line:
    """The least δ that can be shown for each ε, over all orders of the middle decades."""
    found = np.ones_like(epsilons)
    for decade in range(-1, 3):
        orders = np.asarray(_decade(decade))
        rdp = _composed(events, _decade(decade))
        exponents = (orders - 1) * (rdp + np.log1p(-1 / orders) - epsilons[:, None]) - np.log(orders)
        found = np.minimum(found, np.exp(np.minimum(exponents.min(1), 0.0)))
    return found


def _converted(events: Events, delta: float, orders: Orders) -> Line:
    """ε for each order (Canonne, Kamath, Steinke 2020, proposition 12)."""
    alpha, rdp = np.asarray(orders), _composed(events, orders)
    found = rdp + np.log1p(-1 / alpha) - np.log(delta * alpha) / (alpha - 1)
    # δ ≤ √(1 − e^−KL), and a divergence of a higher order is no smaller than KL
    held: Line = np.where(delta**2 + np.expm1(-rdp) > 0, 0.0, np.maximum(found, 0.0))
    return held


def _composed(events: Events, orders: Orders) -> Line:
    total = np.zeros(len(orders))
    for text, count in events:
        total += count * np.asarray(_of_one_step(text, orders))
    return total


@cache
def _decade(number: int) -> Orders:
    return tuple(1 + 10 ** (number + place / IN_A_DECADE) for place in range(IN_A_DECADE))


@cache
def _around(place: int) -> Orders:
    """Orders between the neighbours of the one at this place, counted from α = 2."""
    ends = ((place - 1) / IN_A_DECADE, (place + 1) / IN_A_DECADE)
    return tuple(1 + 10**power for power in np.linspace(*ends, AROUND_THE_BEST).tolist())


@lru_cache(maxsize=2048)
def _of_one_step(text: str, orders: Orders) -> tuple[float, ...]:
    """The divergence of each order, in the direction in which it is larger."""
    event = read_event(text)
    if event.kind == "laplace":
        return tuple(_laplace(event.noise, order) for order in orders)
    if event.rate == 1:
        return tuple(order * (event.sensitivity / event.noise) ** 2 / 2 for order in orders)
    (one, p), (other, q) = event.with_it(), event.without_it()
    return tuple(
        max(
            _divergence(event.noise, one, p, other, q, order),
            _divergence(event.noise, other, q, one, p, order),
        )
        for order in orders
    )


def _laplace(scale: float, order: float) -> float:
    """Mironov 2017, proposition 6."""
    high = math.log(order / (2 * order - 1)) + (order - 1) / scale
    low = math.log((order - 1) / (2 * order - 1)) - order / scale
    return float(np.logaddexp(high, low)) / (order - 1)


def _divergence(noise: float, one: Line, p: Line, other: Line, q: Line, order: float) -> float:
    """log ∫ P^α Q^(1−α) / (α − 1), for mixtures P and Q of Gaussians around `one` and `other`."""
    span = max(one.max(), other.max()) - min(one.min(), other.min())
    # the outermost peak of the integrand: α times as far out as P lies from Q
    ends = (one.min() - order * span, one.max() + order * span)
    low = min(0.0, ends[0] if one.min() < other.min() else other.min()) - REACH * noise
    high = max(0.0, ends[1] if one.max() > other.max() else other.max()) + REACH * noise
    step = min(noise / 5, noise**2 / 5)
    x = np.linspace(low, high, max(64, math.ceil((high - low) / step)))
    log_p, log_q = _log_density(x, one, p, noise), _log_density(x, other, q, noise)
    whole = logsumexp(order * log_p + (1 - order) * log_q) + math.log(x[1] - x[0])
    return max(float(whole), 0.0) / (order - 1)


def _log_density(x: Line, means: Line, chances: Line, noise: float) -> Line:
    terms = np.log(chances)[:, None] - (x - means[:, None]) ** 2 / (2 * noise**2)
    found: Line = np.logaddexp.reduce(terms, axis=0) - math.log(noise * math.sqrt(2 * math.pi))
    return found

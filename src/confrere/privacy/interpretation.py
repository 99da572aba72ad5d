"""What an ε means: for whom it holds, what an observer can tell, and the trade-off curve behind it.

An observer who guesses from all that was released whether somebody is in the data makes two kinds of mistakes. The
trade-off curve (Dong, Roth, Su 2022) is the least share of false negatives for each share of false positives. Every
(ε, δ) that holds bounds it from below, so all of them together do, whichever accountant they come from. Gaussians
without sampling have an exact curve with a single number μ; nothing else is forced into that shape.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from scipy.special import ndtr, ndtri

from confrere.privacy.accounting import deltas, epsilon, gaussian_mu, per_unit
from confrere.privacy.charges import Accountant, Charge, Line, Unit

FALSE_POSITIVES: tuple[float, ...] = (0.0, 0.001, 0.01, *(k / 40 for k in range(1, 41)))
"""Where a curve is stated."""

LEVELS = 240
"""How many (ε, δ) a curve is drawn from."""

CERTAIN = 1 - 1e-4
"""A guess that is right more often than this is taken for certain."""


@dataclass(frozen=True)
class TradeOff:
    """For shares of false positives, the share of false negatives that no test can go below.

    `mu` is the one number that describes the curve where it is exactly that of two Gaussians, None elsewhere.
    """

    points: tuple[tuple[float, float], ...]
    advantage: float
    """The total variation: no test has a larger 1 − (false positives + false negatives)."""
    mu: float | None = None

    def as_json(self) -> dict[str, Any]:
        return {"points": [list(point) for point in self.points], "mu": self.mu}


def trade_off(charges: Sequence[Charge], accountant: Accountant = "pld") -> TradeOff:
    """The trade-off curve of all charges composed; they must be of one unit.

    >>> trade_off([]).points[3]
    (0.025, 0.975)
    """
    return _trade_off(tuple(charges), accountant)


@lru_cache(maxsize=256)
def _trade_off(charges: tuple[Charge, ...], accountant: Accountant) -> TradeOff:
    at = np.asarray(FALSE_POSITIVES)
    mu = gaussian_mu(charges)
    if mu is not None:
        return TradeOff(_points(ndtr(ndtri(1 - at) - mu)), float(2 * ndtr(mu / 2) - 1), mu)
    top = min(epsilon(charges, 1e-9, accountant), 600.0)
    near_zero = np.linspace(0, min(top, 1.0), LEVELS // 4)
    levels = np.sort(np.concatenate((near_zero, np.linspace(0, top, LEVELS))))
    held = deltas(charges, levels, accountant)
    return TradeOff(_points(_bounded(at, levels, held)), float(held[0]))


def _bounded(at: Line, levels: Line, held: Line) -> Line:
    """The largest of what all (ε, δ) demand, and of what they demand with the two mistakes exchanged."""
    kept = (1 - held)[:, None]
    demands = np.maximum(kept - np.exp(levels)[:, None] * at, np.exp(-levels)[:, None] * (kept - at))
    found: Line = np.maximum(demands.max(0), 0.0)
    return found


def _points(false_negatives: Line) -> tuple[tuple[float, float], ...]:
    down = np.floor(false_negatives * 1e9) / 1e9  # a bound from below is rounded down
    return tuple(zip(FALSE_POSITIVES, down.tolist(), strict=True))


def readings(
    charges: Sequence[Charge],
    delta: float,
    unit: Unit,
    accountant: Accountant = "pld",
    *,
    file_group: int = 1,
    most_records: int | None = None,
) -> dict[str, float | None]:
    """ε per record, per patient, and for the whole file (per `unit`); None where there is no bound.

    Charges hold for the training part. `file_group` is how many units one unit of the whole file moves in or out of it, and
    `most_records` how many records a patient has at most, where that is public and enforced.
    """
    own = per_unit(charges, unit, most_records)
    whole = None if own is None else [charge.grouped(file_group) for charge in own]
    bounded = None if whole is None else [charge for charge in whole if charge is not None]
    if whole is not None and bounded is not None and len(bounded) < len(whole):
        bounded = None
    found = {
        "record": per_unit(charges, "record"),
        "patient": per_unit(charges, "patient", most_records),
        "file": bounded,
    }
    values = {
        name: math.inf if read is None else epsilon(read, delta, accountant) for name, read in found.items()
    }
    return {name: value if math.isfinite(value) else None for name, value in values.items()}


def accuracy(curve: TradeOff) -> float:
    """How often the best guess is right whether somebody is in the data, where both are as likely: a bound from above.

    A test with false positives α and false negatives β is right with probability 1 − (α + β)/2.

    >>> accuracy(trade_off([]))
    0.5
    """
    return (1 + curve.advantage) / 2


def meaning(curve: TradeOff | None, unit: Unit | str) -> str:
    """What a guarantee means to a patient, in a sentence; None is a guarantee that does not exist.

    >>> from confrere.privacy.charges import gaussian
    >>> meaning(trade_off([gaussian(1.0)]), "record")  # doctest: +ELLIPSIS
    'Guessing whether a record is in the data, an observer of all that leaves is right at most 69.2 % of the time ...'
    """
    right = 1.0 if curve is None else accuracy(curve)
    who = f"Guessing whether a {unit} is in the data, an observer of all that leaves"
    if right > CERTAIN:
        return f"{who} can be right practically every time: this protects nobody."
    places = next(p for p in range(1, 7) if right < 1 - 10.0 ** -(p + 2) or p == 6)
    shown = math.ceil(right * 10 ** (places + 2) - 1e-9) / 10**places
    return f"{who} is right at most {shown:g} % of the time (50 % is a coin toss)."

"""A budget: how much may be spent on a data set in total."""

from __future__ import annotations

from dataclasses import dataclass

from confrere.core.errors import PrivacyError
from confrere.privacy.accounting import check_delta, check_epsilon
from confrere.privacy.charges import Unit


@dataclass(frozen=True)
class Budget:
    """How much may be spent on a data set in all: ε at this δ, for one record or for one patient.

    >>> str(Budget(3, 1e-6))
    'ε = 3 (δ = 1e-06)'
    """

    epsilon: float
    delta: float
    unit: Unit = "record"

    def __post_init__(self) -> None:
        check_epsilon(self.epsilon)
        check_delta(self.delta)

    def __str__(self) -> str:
        return f"ε = {self.epsilon:g} (δ = {self.delta:g})"


def strictest(*budgets: Budget | None) -> Budget | None:
    """The budget that keeps to all of these: a site's own caps always win over a study's wishes."""
    given = [b for b in budgets if b is not None]
    if not given:
        return None
    if len({b.unit for b in given}) > 1:
        raise PrivacyError("a budget per record and a budget per patient cannot be compared; state one unit")
    return Budget(min(b.epsilon for b in given), min(b.delta for b in given), given[0].unit)

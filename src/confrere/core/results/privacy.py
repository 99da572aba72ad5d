"""The privacy that was spent, and what it means."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from confrere.core.results.document import Document


@dataclass(frozen=True)
class PrivacySpent(Document):
    """An ε with everything that gives it meaning."""

    OPTIONAL = ("units", "ceiling", "above_ceiling", "condition")

    epsilon: float
    delta: float
    unit: str = "record"
    proven: bool = False
    accountant: str | None = None
    budget: float | None = None
    units: Mapping[str, float | None] | None = None
    """ε for every unit that was ever drawn from these records; None where there is no bound."""
    ceiling: float | None = None
    """The site's ceiling on ε."""
    above_ceiling: bool | None = None
    condition: str | None = None
    """What ε assumes of the other sites, in words; None where it assumes nothing."""

    @property
    def others(self) -> tuple[tuple[str, float | None], ...]:
        """ε for the other units than the one that ε is stated for."""
        return tuple((unit, value) for unit, value in (self.units or {}).items() if unit != self.unit)

    @property
    def exceeded_ceiling(self) -> float | None:
        """The ceiling, if ε is above it."""
        return self.ceiling if self.above_ceiling else None


@dataclass(frozen=True)
class TradeOffCurve(Document):
    """For each share of false positives, the least share of false negatives that any test has."""

    points: tuple[tuple[float, float], ...]
    mu: float | None = None
    """The parameter of the curve, if it is that of two Gaussians."""


@dataclass(frozen=True)
class PrivacyMeaning(Document):
    """For whom an ε holds, and what a test could learn about them."""

    OPTIONAL = ("site",)

    unit: str
    readings: Mapping[str, float | None]
    """ε per record, per patient, and per unit of the whole file; None where there is no bound."""
    file_group: int
    """How many units of the training part one unit of the whole file moves."""
    sentence: str
    trade_off: TradeOffCurve | None = None
    site: str | None = None

"""Units of measurement: conversions, and detection of values in the wrong unit."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from confrere.core.errors import DataError
from confrere.data.column_kinds import Column

Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class Conversion:
    """`value * factor + offset` brings a number from one unit into the other."""

    source: str
    target: str
    factor: float
    offset: float = 0.0

    def __call__(self, values: Numbers) -> Numbers:
        return values * self.factor + self.offset


def _both(source: str, target: str, factor: float, offset: float = 0.0) -> tuple[Conversion, Conversion]:
    return (
        Conversion(source, target, factor, offset),
        Conversion(target, source, 1 / factor, -offset / factor),
    )


GENERAL: tuple[Conversion, ...] = (
    *_both("°F", "°C", 5 / 9, -160 / 9),
    *_both("lb", "kg", 0.45359237),
    *_both("in", "cm", 2.54),
    *_both("m", "cm", 100.0),
    *_both("mm", "cm", 0.1),
    *_both("g", "kg", 0.001),
    *_both("mmHg", "kPa", 0.133322),
    *_both("g/L", "g/dL", 0.1),
    *_both("mg/L", "mg/dL", 0.1),
    *_both("fraction", "%", 100.0),
    *_both("months", "years", 1 / 12),
    *_both("days", "years", 1 / 365.25),
    *_both("h", "days", 1 / 24),
    *_both("min", "h", 1 / 60),
)
SUBSTANCES: dict[str, tuple[Conversion, ...]] = {
    "glucose": _both("mg/dL", "mmol/L", 0.0555),
    "cholesterol": _both("mg/dL", "mmol/L", 0.02586),
    "hdl": _both("mg/dL", "mmol/L", 0.02586),
    "ldl": _both("mg/dL", "mmol/L", 0.02586),
    "triglycerides": _both("mg/dL", "mmol/L", 0.01129),
    "creatinine": _both("mg/dL", "µmol/L", 88.42),
    "bilirubin": _both("mg/dL", "µmol/L", 17.1),
    "urea": _both("mg/dL", "mmol/L", 0.1665),
    "bun": _both("mg/dL", "mmol/L", 0.357),
    "calcium": _both("mg/dL", "mmol/L", 0.2495),
    "albumin": _both("g/dL", "g/L", 10.0),
    "haemoglobin": _both("g/dL", "g/L", 10.0),
    "uric acid": _both("mg/dL", "µmol/L", 59.48),
    "t4": _both("µg/dL", "nmol/L", 12.87),
    "t3": _both("ng/dL", "nmol/L", 0.01536),
}


def converter(source: str, target: str, name: str) -> Conversion:
    """From the unit of a file to the unit of the schema."""
    candidates = (*substance(name), *GENERAL)
    for c in candidates:
        if (c.source, c.target) == (source, target):
            return c
    known = sorted({c.source for c in candidates if c.target == target})
    hint = (
        f"known for {target}: {', '.join(known)}"
        if known
        else f"nothing is known that converts into {target!r}"
    )
    raise DataError(f"column {name}: cannot convert {source} into {target or 'no unit'}; {hint}")


def substance(name: str) -> tuple[Conversion, ...]:
    """The conversions of what a column measures, found by its name or another name of it."""
    from confrere.data.reference_values import lookup

    found = lookup(name)
    return SUBSTANCES.get(found.name, ()) if found else SUBSTANCES.get(name.lower(), ())


@dataclass(frozen=True)
class Slip:
    """A conversion that would make most implausible values plausible."""

    column: str
    conversion: Conversion
    before: float
    after: float
    affected: float

    @property
    def sentence(self) -> str:
        c = self.conversion
        share = "all" if self.affected > 0.95 else f"about {self.affected:.0%} of the"
        if not c.source:
            size = "large" if c.factor < 1 else "small"
            times = 1 / c.factor if c.factor < 1 else c.factor
            return f"It looks as if {share} values of {self.column} were {times:g} times too {size}."
        return (
            f"It looks as if {share} values of {self.column} were in {c.source} (the schema has {c.target})."
        )


def likely_slip(values: Numbers, column: Column, at_least: float = 0.02) -> Slip | None:
    """The slip of unit that best explains values outside the plausible range, or none.

    It looks at the implausible values; where none is, at values of which hardly any is usual although
    after a conversion most would be.
    """
    values = values[np.isfinite(values)]
    if not column.traits.quantity or len(values) < 5:
        return None
    range_ = column.range or column.usual
    if range_ is None:
        return None
    usual = column.usual or range_
    outside = (values < range_[0]) | (values > range_[1])
    named = [c for c in (*substance(column.name), *GENERAL) if c.target == column.unit and column.unit]
    factors = [Conversion("", "", f) for f in (0.1, 0.01, 0.001, 10.0, 100.0, 1000.0)]
    if outside.mean() >= at_least:
        suspects, affected = values[outside], float(outside.mean())
    elif column.usual and _within(values, usual) < 0.05:
        suspects, affected = values, 1.0
    else:
        return None
    best: Slip | None = None
    for c in (*named, *factors):
        after = _within(c(suspects), usual if column.usual else range_)
        if after > 0.6 and (best is None or after > best.after + (0.0 if c.source else 0.1)):
            best = Slip(column.name, c, _within(suspects, usual), after, affected)
    return best


def _within(values: Numbers, interval: tuple[float, float]) -> float:
    return float(((values >= interval[0]) & (values <= interval[1])).mean())

"""Reject parcels whose numbers exceed what an honest site of this study can send.

The bounds follow from public facts (`site.exchange_limits.bounds_of`). A network has refused what is malformed before;
parcels that never were bytes, inside one process, meet the same rules here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from confrere.core.errors import BadParcel
from confrere.core.parcel import Parcel

LARGEST = 1e12
"""No number may be larger than this, whatever the study; the wire has the same bound."""


class Outlier(BadParcel):
    """A well-formed parcel whose numbers are out of the study's bounds."""


@dataclass(frozen=True)
class Bounds:
    """The largest weight and mass that a parcel of this study can have, and the range of other numbers in it."""

    weight: float = LARGEST
    mass: float = LARGEST
    numbers: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    per_unit: Mapping[str, tuple[str, float]] = field(default_factory=dict)
    """Numbers that are multiples of another one in the same parcel: its name, and the largest multiple."""


WIDEST = Bounds()


def screen(parcel: Parcel, bounds: Bounds, largest: float) -> None:
    """Returns if the parcel may be used; otherwise it is an Outlier. `largest` is the largest weight of its model."""
    for name, number in parcel.scalars.items():
        if not abs(number.value) <= LARGEST:  # what is no number is not smaller than anything
            raise Outlier(f'its number "{name[:80]}" is not finite or out of all proportion')
        if name == "mass" and not 0 <= number.value <= bounds.mass:
            raise Outlier(f"its mass is {number.value:g}; in this study it is between 0 and {bounds.mass:g}")
        low, high = bounds.numbers.get(name, (-LARGEST, LARGEST))
        if not low <= number.value <= high:
            raise Outlier(
                f'its number "{name}" is {number.value:g}; in this study it is from {low:g} to {high:g}'
            )
    for name, (unit, most) in bounds.per_unit.items():
        if name in parcel.scalars and not parcel.scalars[name].value <= most * parcel.scalar(unit, 0.0).value:
            raise Outlier(
                f'its number "{name}" is more than {most:g} times its "{unit}", the most in this study'
            )
    if not largest <= bounds.weight:
        raise Outlier(f"a weight of its model is {largest:g}; in this study none is beyond {bounds.weight:g}")

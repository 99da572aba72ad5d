"""A look at every parcel before it counts: what is not a finite number, or out of all proportion, is left aside.

A network refuses such parcels when it reads them; parcels that never were bytes, inside one process, meet the same rule here.
"""

from __future__ import annotations

from confrere.core.errors import BadParcel
from confrere.core.parcel import Parcel

LARGEST = 1e12
"""No weight and no number may be larger than this; the wire has the same bound."""


def screen(parcel: Parcel) -> None:
    """Returns if the parcel may be looked at; otherwise it is a BadParcel."""
    for name, number in parcel.scalars.items():
        if not abs(number.value) <= LARGEST:  # what is no number is not smaller than anything
            raise BadParcel(f'its number "{name[:80]}" is not finite or out of all proportion')
        if name == "mass" and number.value < 0:
            raise BadParcel("its mass is negative")
    if parcel.model is not None and not parcel.model.params.largest() <= LARGEST:
        raise BadParcel("its model is not finite or out of all proportion")

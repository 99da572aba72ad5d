"""The guarantee that follows from counted charges."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import lru_cache

from confrere.privacy.accounting import epsilon, per_unit
from confrere.privacy.charges import Accountant, Charge, Events, Guarantee, Unit, conditions


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

"""The rule for splitting by date: patients first seen before a given day train, later ones test.

Which part a record is in follows from its own date and, for a later record, from whether its patient has an earlier one:

    record                                   part
    before the day                           training or validation, by the keyed hash of its patient
    from the day on, of a new patient        test
    from the day on, of an earlier patient   none: it would tell the future of a patient who trains

So no patient is in two parts, nothing from the day on trains, and one record more changes the training and validation parts
by that record only, as with the split by hash.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date


@dataclass(frozen=True)
class DateCut:
    """The day of a split by date, and the column of the files that has the dates. PUBLIC."""

    column: str
    day: date
    form: str = ""
    """How dates are written, where that is not ISO 8601; by default as the schema says."""

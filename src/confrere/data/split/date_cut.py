"""A split by date: patients who were first seen before a day train, patients first seen later test.

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
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from confrere.core.errors import DataError
from confrere.core.registry import nearest
from confrere.data.read.table_origin import BadRows, counted, origin_of
from confrere.data.read.values import parse_dates
from confrere.data.schema import Schema


@dataclass(frozen=True)
class DateCut:
    """The day of a split by date, and the column of the files that has the dates. PUBLIC."""

    column: str
    day: date
    form: str = ""
    """How dates are written, where that is not ISO 8601; by default as the schema says."""

    def later(self, frame: pd.DataFrame, schema: Schema) -> NDArray[np.bool_]:
        """For each record of a table, whether it is from the day on. A record without a date is refused."""
        if self.column not in frame.columns:
            known = [str(c) for c in frame.columns]
            raise DataError(
                f"{origin_of(frame).name}: the column {self.column!r} of data.split.date_column is not there"
                f"{nearest(self.column, known)}"
            )
        dates = self._dates(frame, schema)
        unknown = dates.isna().to_numpy()
        if unknown.any():
            words = f"the record has no date ({counted(unknown.sum(), 'such record')})"
            raise BadRows(
                frame, unknown, self.column, f"{words}; data.split.by_date needs one in every record"
            )
        return np.array(dates >= pd.Timestamp(self.day), dtype=bool)

    def _dates(self, frame: pd.DataFrame, schema: Schema) -> pd.Series[Any]:
        described = next((c for c in schema.columns if c.name == self.column), None)
        form = self.form or (described.date_format if described else "")
        missing = described.missing if described else ()
        dates = parse_dates(frame, frame[self.column], self.column, missing, form, "data.split")
        return dates.dt.tz_localize(None) if dates.dt.tz is not None else dates

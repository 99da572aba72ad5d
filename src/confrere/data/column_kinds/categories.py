"""Categories and flags: the words that the schema lists."""

from __future__ import annotations

import numpy as np
import pandas as pd

from confrere.data.column_kinds import OTHER, Column, ColumnKind, Encoding, Fields, column_kind
from confrere.data.read.table_origin import BadRows, origin_of, some
from confrere.data.read.values import as_flags, as_words, kinds_of


@column_kind("flag")
class FlagColumn(ColumnKind):
    """Yes or no: one number."""

    def problems(self, column: Column) -> list[str]:
        out = []
        if column.categories and len(column.categories) != 2:
            out.append("a flag has two categories: how no and yes are written, in this order")
        if isinstance(column.typical, str):
            out.append(f"typical = {column.typical!r} must be a number")
        return out

    def no_and_yes(self, column: Column) -> tuple[str, ...]:
        return column.categories or ("no", "yes")

    def encode(self, fields: Fields) -> Encoding:
        column = fields.column
        flags, gaps = as_flags(fields.frame, fields.series, column)
        flags[gaps] = float(column.typical) if column.typical is not None else 0.0
        return flags[:, None], gaps


@column_kind("category")
class CategoryColumn(ColumnKind):
    """One of several words: one number, 0 or 1, for each."""

    def problems(self, column: Column) -> list[str]:
        out = []
        if not column.categories:
            out.append("a category needs its list of categories: it may not come from the records")
        if column.typical is not None and column.typical not in column.categories:
            out.append(f"typical = {column.typical!r} is not one of the categories")
        return out

    def features(self, column: Column) -> tuple[str, ...]:
        known = (*column.categories, OTHER) if column.unknown == "other" else column.categories
        return tuple(f"{column.name}={c}" for c in known)

    def encode(self, fields: Fields) -> Encoding:
        column, tally = fields.column, fields.tally
        decimal = origin_of(fields.frame).decimal
        own, kinds = kinds_of(
            fields.series, column.missing, decimal
        )  # each value once; the last stands for a gap
        if column.prefix:
            kinds = np.array([None if k is None else k[: column.prefix] for k in kinds], dtype=object)
        words = (*column.categories, *(written for written, _ in column.spellings))
        texts = pd.Series(as_words(kinds, words, decimal), dtype=object)
        if column.spellings:
            texts = texts.replace(dict(column.spellings))
        places = {c: i for i, c in enumerate(column.categories)}
        empty = texts.isna().to_numpy()
        gaps = empty[own]
        codes = np.array([-1 if empty[i] else places.get(t, -2) for i, t in enumerate(texts)])[own]
        width = len(column.categories)
        if (strange := codes == -2).any():
            if column.unknown == "refuse":
                new = sorted({str(texts[i]) for i in np.unique(own[strange])})
                message = f"{texts[own[strange][0]]!r} is not a category of the schema "
                message += (
                    f"({', '.join(column.categories)}); not known: {some(new)} in {strange.sum()} records. "
                )
                message += 'Add it, give its `spellings`, or set unknown = "missing".'
                raise BadRows(fields.frame, strange, column.name, message)
            if column.unknown == "other":
                codes[strange] = width
            else:
                gaps = gaps | strange
            after = f" of unknown category taken as {column.unknown}"
            tally.note(f"{column.name}: ", strange.sum(), "value", after, column.name)
        if column.typical is not None:
            codes[gaps] = column.categories.index(str(column.typical))
        known = width + (column.unknown == "other")
        return codes[:, None] == np.arange(known), gaps

"""The branches of a record, as a schema has them: all plain columns are one, each picture, series, bag or volume another."""

from __future__ import annotations

from typing import cast

from confrere.data.records import Branch, BranchKind
from confrere.data.schema import ARRAYS, TABLE, Schema

MASKED = ("series", "bag")


def branches_of(schema: Schema) -> tuple[Branch, ...]:
    """What lies where in an encoded record; nothing where there is but one branch and no mask in it."""
    plain = [c for c in schema.columns if c.kind not in ARRAYS]
    width = sum(len(c.features) for c in plain)
    found = [Branch(TABLE, 0, (width,))] if plain else []
    for column in schema.columns:
        if column.kind in ARRAYS:
            kind = cast("BranchKind", column.kind)
            found.append(Branch(column.name, width, column.array, kind, kind in MASKED))
            width += len(column.features)
    return tuple(found) if len(found) > 1 or any(b.mask for b in found) else ()

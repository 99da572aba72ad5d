"""Reference values for common measurements: what a schema draft may propose without reading any record.

The values (reference_values.toml) are adult reference intervals and plausible ranges as commonly printed. They serve
to scale numbers and to notice slips, not to diagnose.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, Literal

from confrere.data.column_kinds import Column


@dataclass(frozen=True)
class Measurement:
    """A common measurement: its unit, what is plausible and what is usual."""

    name: str
    meaning: str
    unit: str
    range: tuple[float, float]
    usual: tuple[float, float] | None = None
    scale: Literal["linear", "log"] = "linear"
    marks: bool = True
    also: tuple[str, ...] = ()

    def column(self, name: str) -> Column:
        return Column(name, meaning=self.meaning, unit=self.unit, range=self.range, usual=self.usual,
                      scale=self.scale, marks=self.marks and self.usual is not None)  # fmt: skip


@cache
def measurements() -> dict[str, Measurement]:
    """All of them, by name."""
    text = resources.files("confrere.data").joinpath("reference_values.toml").read_text(encoding="utf-8")
    return {name: _measurement(name, row) for name, row in tomllib.loads(text).items()}


def _measurement(name: str, row: dict[str, Any]) -> Measurement:
    usual = row.get("usual")
    return Measurement(
        name,
        row["meaning"],
        row["unit"],
        (float(row["range"][0]), float(row["range"][1])),
        (float(usual[0]), float(usual[1])) if usual else None,
        row.get("scale", "linear"),
        row.get("marks", True),
        tuple(row.get("also", [])),
    )


def lookup(name: str) -> Measurement | None:
    """The measurement that a column of this name holds, or None.

    >>> lookup("Body_Temp").unit
    '°C'
    """
    return _index().get(_key(name))


@cache
def _index() -> dict[str, Measurement]:
    return {_key(alias): m for m in measurements().values() for alias in (m.name, *m.also)}


def _key(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "", name.lower())

"""A first schema for a file: names and types from the file, ranges from clinical reference values.

What had to be drawn from the records is marked `private`; the draft cannot be used before a person has looked
at that. A draft never contains a column that looks identifying.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from confrere.core.errors import DataError
from confrere.data.identifiers import looks_identifying
from confrere.data.read.folders import PICTURE
from confrere.data.read.images import DICOM, PICTURES
from confrere.data.read.origin import origin_of, some
from confrere.data.read.values import NO, YES, as_text, guessed_date_format, parse_dates
from confrere.data.reference_values import lookup
from confrere.data.schema import Column, Label, Schema

LABELS = ("label", "target", "outcome", "diagnosis", "class", "y", "event", "status", "death", "died", "dead",
          "survived", "disease")  # fmt: skip
SITES = ("site", "centre", "center", "hospital", "institution", "inst", "clinic")
MOST_CATEGORIES = 20
UNDECIDED = "WHICH COLUMN?"


@dataclass(frozen=True)
class Draft:
    """A proposal, with a sentence on each column that says where it comes from."""

    schema: Schema
    comments: dict[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


def draft(frame: pd.DataFrame, *, label: str = "", patient: str = "", site: str = "") -> Draft:
    """Propose a schema. `label`, `patient` and `site` name columns; without them names are looked at.

    Several labels, each yes or no, are named with commas between them.
    """
    names = [str(c) for c in frame.columns]
    several = tuple(part.strip() for part in label.split(",")) if "," in label and label not in names else ()
    label = "" if several else label
    for role, stated in [
        ("label", label),
        ("patient", patient),
        ("site", site),
        *(("label", s) for s in several),
    ]:
        if stated and stated not in names:
            raise DataError(
                f"{origin_of(frame).name}: there is no column {stated!r} for the {role}; columns are {some(names, 12)}"
            )
    label = label or ("" if several else _named(names, LABELS, {patient, site}))
    site = site or _named(names, SITES, {label, patient, *several})
    sorted_out = _Sorted()
    for name in names:
        if name not in (label, patient, site, *several):
            sorted_out.take(frame, name, patient)
    if not label and not several:
        sorted_out.warnings.append(
            "which column is to be predicted? Fill in [schema.label], or say --label NAME"
        )
    asked = _label(frame[label], label) if label else Label(column=UNDECIDED)
    proposal = Schema(
        label=Label(kind="multilabel", columns=several) if several else asked,
        columns=tuple(sorted_out.columns),
        patient=patient,
        site=site,
        identifying=tuple(sorted_out.identifying),
        unused=tuple(sorted_out.unused),
    )
    return Draft(proposal, sorted_out.comments, tuple(sorted_out.warnings))


@dataclass
class _Sorted:
    """The columns of a file by what they can be used for."""

    columns: list[Column] = field(default_factory=list)
    identifying: list[str] = field(default_factory=list)
    unused: list[str] = field(default_factory=list)
    comments: dict[str, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    def take(self, frame: pd.DataFrame, name: str, patient: str) -> None:
        """Propose how a column is used, or set it aside."""
        series = frame[name]
        if (held := _array(name, series)) is not None:
            self.columns.append(held[0])
            self.comments[name] = held[1]
            return
        reason = looks_identifying(name)
        pictures = not reason and _names_pictures(frame, name)
        if not reason and not pictures:
            reason = _looks_like_numbers_of_records(series)
        if reason:
            self.identifying.append(name)
            if not patient and reason == "looks like a record number" and not self.warnings:
                self.warnings.append(f"{name} {reason}: if it tells patients apart, say patient = {name!r}")
            return
        if as_text(series).nunique() < 2:
            self.unused.append(name)
            return
        column, self.comments[name] = _pictures(name) if pictures else _column(name, series)
        if column is None:
            self.identifying.append(name)
        else:
            self.columns.append(column)


def _named(names: list[str], known: tuple[str, ...], taken: set[str]) -> str:
    found = [n for k in known for n in names if n.lower() == k and n not in taken]
    return found[0] if found else ""


def _column(name: str, series: pd.Series[Any]) -> tuple[Column | None, str]:
    texts = as_text(series)
    values = texts.dropna()
    kinds = set(values.str.lower().unique())
    if kinds <= {*NO, *YES}:
        return Column(name, kind="flag"), "yes or no"
    if _is_date(series):
        frame = pd.DataFrame({name: series})
        form = guessed_date_format(frame, series, name, ())
        years = parse_dates(frame, series, name, (), form).dt.year.dropna()
        span = (float(math.floor(years.min() / 10) * 10), float(math.ceil((years.max() + 1) / 10) * 10))
        return (
            Column(
                name, kind="date", coarsen="year", range=span, outside="missing", date_format=form,
                private=("range", *(["date_format"] if form else [])),
            ),
            "a date identifies people; the year is left of it",
        )  # fmt: skip
    numbers = pd.to_numeric(values, errors="coerce")
    if numbers.notna().mean() > 0.9:
        codes = tuple(sorted(set(values[numbers.isna()])))[:5]
        known = lookup(name)
        if known is not None:
            proposal = known.column(name)
            comment = f"range and reference interval of {known.meaning} in {known.unit or 'its usual unit'}"
            if codes:
                proposal = _with_codes(proposal, codes)
            return proposal, comment
        if numbers.nunique() <= 6 and (numbers.dropna() == numbers.dropna().round()).all() and not codes:
            return _category(
                name, values
            ), 'few whole numbers: categories? If it is a quantity: kind = "number"'
        private = ("range", "missing") if codes else ("range",)
        return (
            Column(name, range=_round_range(numbers), private=private, missing=codes),
            "no reference values are known for this name",
        )
    if values.nunique() <= MOST_CATEGORIES:
        return _category(name, values), "categories as your file spells them"
    if values.str.count(" ").mean() >= 3:
        return Column(name, kind="text", buckets=1024, ngrams=1), (
            "free text, as hashed words: make sure that no names are in it"
        )
    return None, "many different values: it may identify people"


def _array(name: str, series: pd.Series[Any]) -> tuple[Column, str] | None:
    """A column that holds arrays: by their dimensions a series or a volume."""
    held = [v for v in series if isinstance(v, np.ndarray)]
    if not held or len(held) < len(series):
        return None
    shapes = {v.shape for v in held}
    if len({len(s) for s in shapes}) > 1 or len(held[0].shape) not in (2, 3):
        raise DataError(f"column {name}: its arrays differ in kind, or are neither series nor volumes")
    numbers = pd.Series(np.concatenate([v.ravel() for v in held]).astype(np.float64))
    largest = tuple(max(s[i] for s in shapes) for i in range(len(held[0].shape)))
    drawn = _round_range(numbers)
    if len(largest) == 2:
        column = Column(name, kind="series", shape=largest, range=drawn, private=("range", "shape"))
        return column, 'steps and values of a step; if the order does not matter: kind = "bag"'
    return Column(name, kind="volume", shape=largest, range=drawn, private=("range",)), "depth, height, width"


def _with_codes(column: Column, codes: tuple[str, ...]) -> Column:
    from dataclasses import replace

    return replace(column, missing=codes, private=("missing",))


def _category(name: str, values: pd.Series[Any]) -> Column:
    kinds = tuple(sorted(str(v) for v in values.unique()))
    return Column(name, kind="category", categories=kinds, private=("categories",))


def _round_range(numbers: pd.Series[Any]) -> tuple[float, float]:
    """Outward to one significant digit: less of the extreme records shows, and others' values fit."""
    numbers = numbers[np.isfinite(numbers)]
    low, high = (float(numbers.min()), float(numbers.max())) if len(numbers) else (0.0, 1.0)
    span = max(abs(low), abs(high), 1e-9)
    step = 10.0 ** math.floor(math.log10(span))
    bottom = 0.0 if low >= 0 else math.floor(low / step) * step
    top = math.ceil(high / step) * step
    return (bottom, top) if bottom < top else (bottom, bottom + step)


def _label(series: pd.Series[Any], name: str) -> Label:
    texts = as_text(series).dropna()
    kinds = sorted(texts.unique())
    if set(texts.str.lower()) <= {*NO, *YES}:
        return Label(column=name)
    if len(kinds) == 2:
        return Label(column=name, classes=(kinds[0], kinds[1]), private=("classes",))
    numbers = pd.to_numeric(texts, errors="coerce")
    if numbers.notna().all() and len(kinds) > MOST_CATEGORIES:
        return Label(column=name, kind="regression", range=_round_range(numbers), private=("range",))
    if 2 < len(kinds) <= 100:
        return Label(column=name, kind="multiclass", classes=tuple(kinds), private=("classes",))
    raise DataError(
        f"column {name}: has {len(kinds)} different values; "
        "a label needs at least two, and at most 100 classes"
    )


def _is_date(series: pd.Series[Any]) -> bool:
    if pd.api.types.is_datetime64_any_dtype(series):
        return True
    if pd.api.types.is_numeric_dtype(series):
        return False
    texts = as_text(series).dropna()
    if not len(texts) or not texts.head(20).str.contains(r"\d{4}").all():
        return False
    try:
        frame = pd.DataFrame({"x": series})
        parse_dates(frame, series, "x", (), guessed_date_format(frame, series, "x", ()))
    except DataError:
        return False
    return True


def _pictures(name: str) -> tuple[Column, str]:
    comment = "picture files; all are brought to this size (height, width). For colour: channels = 3"
    return Column(name, kind="image", size=(64, 64)), comment


def _names_pictures(frame: pd.DataFrame, name: str) -> bool:
    """Whether every field is the name of a picture file."""
    series = frame[name]
    folder = origin_of(frame).path
    if name == PICTURE and folder and Path(folder).is_dir():
        return True  # a folder of pictures; those of DICOM may have no ending
    if pd.api.types.is_numeric_dtype(series):
        return False
    values = as_text(series).dropna()
    return len(values) > 0 and bool(values.str.lower().str.endswith((*PICTURES, *DICOM)).all())


def _looks_like_numbers_of_records(series: pd.Series[Any]) -> str | None:
    """Whole numbers that are all different and large or in order, or texts that are nearly all different."""
    if len(series) < 20 or _is_date(series):
        return None
    if pd.api.types.is_integer_dtype(series):
        values = series.to_numpy()
        if series.is_unique and (bool((np.diff(values) == 1).all()) or int(abs(values).min()) > 100_000):
            return "looks like a record number"
        return None
    if pd.api.types.is_numeric_dtype(series):
        return None
    texts = as_text(series).dropna()
    if len(texts) and pd.to_numeric(texts, errors="coerce").notna().mean() > 0.9:
        return None
    if len(texts) and texts.nunique() > 0.9 * len(texts) and texts.str.count(" ").mean() < 3:
        return "has a different value in nearly every record"
    return None

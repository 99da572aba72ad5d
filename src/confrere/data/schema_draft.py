"""A first schema for a file: names and types from the file, ranges from clinical reference values.

What had to be drawn from the records is marked `private`; the draft cannot be used before a person has looked
at that. A draft never contains a column that looks identifying.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from confrere.core.errors import DataError
from confrere.data.column_kinds import Column
from confrere.data.identifiers import looks_identifying
from confrere.data.read.folders import PICTURE
from confrere.data.read.image_files import DICOM, PICTURES
from confrere.data.read.table_origin import origin_of, some
from confrere.data.read.values import NO, YES, as_text, guessed_date_format, parse_dates
from confrere.data.reference_values import lookup
from confrere.data.schema import Schema
from confrere.data.tasks import Label

LABELS = ("label", "target", "outcome", "diagnosis", "class", "y", "event", "status", "death", "died", "dead",
          "survived", "disease")  # fmt: skip
SITES = ("site", "centre", "center", "hospital", "institution", "inst", "clinic")
MOST_CATEGORIES = 20
MANY = 20
"""From this many records on, a column that tells all of them apart looks like a record number."""
UNDECIDED = "WHICH COLUMN?"


@dataclass(frozen=True)
class Draft:
    """A proposal, with a sentence on each column that says where it comes from."""

    schema: Schema
    comments: dict[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


def draft(frame: pd.DataFrame, *, label: str = "", patient: str = "", site: str = "") -> Draft:
    """Propose a schema. `label`, `patient` and `site` name columns; without them they are guessed from the names.

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
    sorted_out = _Sorted(frame, patient)
    candidates = [name for name in names if name not in (label, patient, site, *several)]
    numbers = number_facts(frame, set(candidates))
    for name in candidates:
        if name in numbers:
            sorted_out.take_numbers(name, numbers[name])
        else:
            sorted_out.take(name)
    if not label and not several:
        sorted_out.warnings.append(
            "which column is to be predicted? Fill in [schema.label], or give --label NAME"
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


@dataclass(frozen=True)
class NumberFacts:
    """What a draft needs to know of a column that holds numbers, as the file's reader found them."""

    distinct: int
    """How many different numbers there are; gaps do not count."""
    low: float
    high: float
    whole: bool
    numbering: bool
    """Whether the numbers could be those of records: whole, all different, and large or in order."""
    few: tuple[float, ...]
    """The different numbers, where they are few enough to be categories."""


CELLS = 1 << 20
"""How many numbers are examined at a time."""
FEW = 6
"""Whole numbers with at most this many different values may be categories."""


def number_facts(frame: pd.DataFrame, names: set[str]) -> dict[str, NumberFacts]:
    """The facts of all columns of plain numbers, found for many columns at once."""
    alike: dict[Any, list[str]] = {}
    for name, kind in zip(map(str, frame.columns), frame.dtypes, strict=True):
        if pd.api.types.is_numeric_dtype(kind) and not pd.api.types.is_bool_dtype(kind):
            alike.setdefault(kind, []).append(name)
    out: dict[str, NumberFacts] = {}
    many = max(1, CELLS // max(len(frame), 1))
    for own in alike.values():
        wanted = [name for name in own if name in names]
        for start in range(0, len(wanted), many):
            part = wanted[start : start + many]
            out.update(zip(part, _block_facts(_numbers(frame[part])), strict=True))
    return out


def _numbers(part: pd.DataFrame) -> NDArray[Any]:
    """The numbers of columns of one type: whole ones without gaps as int64, all others as float64."""
    whole = pd.api.types.is_integer_dtype(part.dtypes.iloc[0]) and not part.isna().any(axis=None)
    return part.to_numpy(dtype=np.int64 if whole else np.float64, na_value=np.nan)


def _block_facts(values: NDArray[Any]) -> list[NumberFacts]:
    in_order = np.sort(values, axis=0)  # gaps come last
    known = ~np.isnan(in_order)
    new = known.copy()
    new[1:] &= in_order[1:] != in_order[:-1]
    distinct = new.sum(axis=0)
    finite = np.isfinite(in_order)
    low = np.where(finite, in_order, np.inf).min(axis=0, initial=np.inf)
    high = np.where(finite, in_order, -np.inf).max(axis=0, initial=-np.inf)
    with np.errstate(invalid="ignore"):
        whole = ((np.round(in_order) == in_order) | ~known).all(axis=0)
    numbering = np.zeros(values.shape[1], dtype=bool)
    if values.dtype == np.int64 and len(values) >= MANY:
        follows = (np.diff(values, axis=0) == 1).all(axis=0)
        numbering = (distinct == len(values)) & (follows | (np.abs(values).min(axis=0) > 100_000))
    return [
        NumberFacts(
            int(distinct[i]),
            float(low[i]),
            float(high[i]),
            bool(whole[i]),
            bool(numbering[i]),
            tuple(in_order[new[:, i], i].tolist()) if distinct[i] <= FEW else (),
        )
        for i in range(values.shape[1])
    ]


@dataclass
class _Sorted:
    """The columns of a file by what they can be used for."""

    frame: pd.DataFrame
    patient: str
    columns: list[Column] = field(default_factory=list)
    identifying: list[str] = field(default_factory=list)
    unused: list[str] = field(default_factory=list)
    comments: dict[str, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    def take_numbers(self, name: str, facts: NumberFacts) -> None:
        """Propose how a column of numbers is used, or set it aside."""
        if looks_identifying(name):
            self.identifying.append(name)
        elif facts.numbering:
            self._numbering(name)
        elif facts.distinct < 2:
            self.unused.append(name)
        else:
            column, self.comments[name] = _number_column(name, facts)
            self.columns.append(column)

    def take(self, name: str) -> None:
        """Propose how a column of texts, dates or arrays is used, or set it aside."""
        series = self.frame[name]
        if (held := _array(name, series)) is not None:
            column, self.comments[name] = held
            self.columns.append(column)
            return
        if looks_identifying(name):
            self.identifying.append(name)
            return
        texts = as_text(series)
        if _names_pictures(self.frame, name, texts):
            column, self.comments[name] = _pictures(name)
            self.columns.append(column)
            return
        values, dates = texts.dropna(), _is_date(series, texts)
        if len(series) >= MANY and not dates and _tells_records_apart(values):
            self.identifying.append(name)
        elif values.nunique() < 2:
            self.unused.append(name)
        else:
            proposed, self.comments[name] = _date_column(name, series) if dates else _column(name, values)
            if proposed is None:
                self.identifying.append(name)
            else:
                self.columns.append(proposed)

    def _numbering(self, name: str) -> None:
        self.identifying.append(name)
        if not self.patient and not self.warnings:
            hint = f"if it identifies patients, set patient = {name!r}"
            self.warnings.append(f"{name} looks like a record number: {hint}")


def _named(names: list[str], known: tuple[str, ...], taken: set[str]) -> str:
    found = [n for k in known for n in names if n.lower() == k and n not in taken]
    return found[0] if found else ""


def _number_column(name: str, facts: NumberFacts) -> tuple[Column, str]:
    """A column whose fields are all numbers."""
    if set(facts.few) <= {0, 1} and facts.few:
        return Column(name, kind="flag"), "yes or no"
    return _measurement(name, facts, ())


def _measurement(name: str, facts: NumberFacts, codes: tuple[str, ...]) -> tuple[Column, str]:
    """A column of numbers, by reference values or by its own; `codes` are the fields that are not numbers."""
    known = lookup(name)
    if known is not None:
        comment = f"range and reference interval of {known.meaning} in {known.unit or 'its usual unit'}"
        column = known.column(name)
        return replace(column, missing=codes, private=("missing",)) if codes else column, comment
    if facts.few and facts.whole and not codes:
        comment = 'few whole numbers: categories? If it is a quantity: kind = "number"'
        return _category(name, as_text(pd.Series(facts.few))), comment
    private = ("range", "missing") if codes else ("range",)
    column = Column(name, range=_round_range(facts.low, facts.high), private=private, missing=codes)
    return column, "no reference values are known for this name"


def _date_column(name: str, series: pd.Series[Any]) -> tuple[Column, str]:
    frame = pd.DataFrame({name: series})
    form = guessed_date_format(frame, series, name, ())
    years = parse_dates(frame, series, name, (), form).dt.year.dropna()
    span = (float(math.floor(years.min() / 10) * 10), float(math.ceil((years.max() + 1) / 10) * 10))
    private = ("range", "date_format") if form else ("range",)
    column = Column(
        name, kind="date", coarsen="year", range=span, outside="missing", date_format=form, private=private
    )
    return column, "a date identifies people; the year is left of it"


def _column(name: str, values: pd.Series[Any]) -> tuple[Column | None, str]:
    """A column of texts, or of numbers with codes among them."""
    if set(values.str.lower().unique()) <= {*NO, *YES}:
        return Column(name, kind="flag"), "yes or no"
    numbers = pd.to_numeric(values, errors="coerce")
    if numbers.notna().mean() > 0.9:
        codes = tuple(sorted(set(values[numbers.isna()])))[:5]
        return _measurement(name, _block_facts(numbers.to_numpy(dtype=np.float64)[:, None])[0], codes)
    if values.nunique() <= MOST_CATEGORIES:
        return _category(name, values), "categories as your file spells them"
    if values.str.count(" ").mean() >= 3:
        comment = "free text, as hashed words: make sure that no names are in it"
        return Column(name, kind="text", buckets=1024, ngrams=1), comment
    return None, "many different values: it may identify people"


def _array(name: str, series: pd.Series[Any]) -> tuple[Column, str] | None:
    """A column that holds arrays: by their dimensions a series or a volume."""
    held = [v for v in series if isinstance(v, np.ndarray)]
    if not held or len(held) < len(series):
        return None
    shapes = {v.shape for v in held}
    if len({len(s) for s in shapes}) > 1 or len(held[0].shape) not in (2, 3):
        raise DataError(f"column {name}: its arrays differ in kind, or are neither series nor volumes")
    facts = _block_facts(np.concatenate([v.ravel() for v in held]).astype(np.float64)[:, None])[0]
    largest = tuple(max(s[i] for s in shapes) for i in range(len(held[0].shape)))
    drawn = _round_range(facts.low, facts.high)
    if len(largest) == 2:
        column = Column(name, kind="series", shape=largest, range=drawn, private=("range", "shape"))
        return column, 'steps and values of a step; if the order does not matter: kind = "bag"'
    return Column(name, kind="volume", shape=largest, range=drawn, private=("range",)), "depth, height, width"


def _category(name: str, values: pd.Series[Any]) -> Column:
    kinds = tuple(sorted(str(v) for v in values.unique()))
    return Column(name, kind="category", categories=kinds, private=("categories",))


def _round_range(low: float, high: float) -> tuple[float, float]:
    """Outward to one significant digit: less of the extreme records shows, and others' values fit."""
    low, high = (low, high) if low <= high else (0.0, 1.0)
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
        common, rarer = sorted(kinds, key=lambda kind: -int((texts == kind).sum()))
        return Label(column=name, classes=(common, rarer), private=("classes",))
    numbers = pd.to_numeric(texts, errors="coerce")
    if numbers.notna().all() and len(kinds) > MOST_CATEGORIES:
        finite = numbers[np.isfinite(numbers)]
        drawn = _round_range(float(finite.min()), float(finite.max()))
        return Label(column=name, kind="regression", range=drawn, private=("range",))
    if 2 < len(kinds) <= 100:
        return Label(column=name, kind="multiclass", classes=tuple(kinds), private=("classes",))
    raise DataError(
        f"column {name}: has {len(kinds)} different values; "
        "a label needs at least two, and at most 100 classes"
    )


def _is_date(series: pd.Series[Any], texts: pd.Series[Any]) -> bool:
    if pd.api.types.is_datetime64_any_dtype(series):
        return True
    written = texts.dropna()
    if not len(written) or not written.head(20).str.contains(r"\d{4}").all():
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


def _names_pictures(frame: pd.DataFrame, name: str, texts: pd.Series[Any]) -> bool:
    """Whether every field is the name of a picture file."""
    folder = origin_of(frame).path
    if name == PICTURE and folder and Path(folder).is_dir():
        return True  # a folder of pictures; those of DICOM may have no ending
    values = texts.dropna()
    return len(values) > 0 and bool(values.str.lower().str.endswith((*PICTURES, *DICOM)).all())


def _tells_records_apart(values: pd.Series[Any]) -> bool:
    """Whether short texts, not numbers, are nearly all different."""
    if not len(values) or pd.to_numeric(values, errors="coerce").notna().mean() > 0.9:
        return False
    return values.nunique() > 0.9 * len(values) and values.str.count(" ").mean() < 3

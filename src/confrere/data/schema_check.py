"""Does a file fit a study's schema? Column by column, in plain words. The answer is PRIVATE to the site."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import pandas as pd

from confrere.core.errors import DataError
from confrere.data.column_kinds import Column
from confrere.data.column_kinds.grids import numbered_columns
from confrere.data.encode.columns import derived, missing_sources
from confrere.data.encode.encoder import encode_table, translate
from confrere.data.encode.encoding_tally import EncodingTally
from confrere.data.encode.labels import encode_label
from confrere.data.encode.units import converter, likely_slip
from confrere.data.federation import Source
from confrere.data.identifiers import looks_identifying
from confrere.data.read.table_origin import counted, origin_of
from confrere.data.read.values import as_numbers
from confrere.data.reference_values import lookup
from confrere.data.schema import Schema

State = Literal["fits", "derived", "missing", "slip", "cannot", "unused"]


@dataclass(frozen=True)
class Finding:
    """What was found about one column, and what to do about it."""

    column: str
    state: State
    sentence: str

    def as_json(self) -> dict[str, str]:
        return {"column": self.column, "state": self.state, "sentence": self.sentence}


@dataclass(frozen=True)
class Report:
    """The interoperability of one file with a schema."""

    name: str
    findings: tuple[Finding, ...]
    records: int

    @property
    def usable(self) -> bool:
        """Whether the file can take part as it is."""
        return not any(f.state in ("cannot", "slip") for f in self.findings)

    def count(self, *states: State) -> int:
        return sum(f.state in states for f in self.findings)

    @property
    def summary(self) -> str:
        asked = [f for f in self.findings if f.state != "unused"]
        ready = sum(f.state in ("fits", "derived") for f in asked)
        verdict = "can take part" if self.usable else "cannot take part yet"
        return f"{self.name}: {ready} of {len(asked)} columns can be used; the file {verdict}"

    def as_json(self) -> dict[str, Any]:
        return {
            "file": self.name,
            "usable": self.usable,
            "summary": self.summary,
            "findings": [f.as_json() for f in self.findings],
        }


def check(source: Source, schema: Schema) -> Report:
    """Compare a file with a schema; only a file that cannot be read at all is an error."""
    frame = translate(source.read(schema), schema, source.rename)
    findings = [_label(frame, schema), *_patient(frame, schema)]
    findings += [_column(frame, c, schema, source) for c in schema.columns]
    known = {
        *(c.name for c in schema.columns), *(x for c in schema.columns if c.derive for x in c.derive.of),
        *(n for c in schema.columns if c.traits.branch for n in numbered_columns(frame, c.name)),
        *schema.label.all_columns, *schema.identifying, *schema.unused, schema.patient, schema.site,
    }  # fmt: skip
    for name in map(str, frame.columns):
        if name not in known:
            reason = looks_identifying(name)
            words = (
                f"{reason}; it is not used, which is right"
                if reason
                else "the schema does not know it; not used"
            )
            findings.append(Finding(name, "unused", words))
    report = Report(origin_of(frame).name, tuple(findings), len(frame))
    return report if not report.usable else _whole(report, frame, schema, source)


def _whole(report: Report, frame: pd.DataFrame, schema: Schema, source: Source) -> Report:
    """What shows only when the file is encoded as a whole, such as the same record twice."""
    try:
        encode_table(frame, schema, "", replace(source.translation(), rename={}), one_class=False)
    except DataError as error:
        return replace(report, findings=(*report.findings, Finding("(the file)", "cannot", str(error))))
    return report


def _label(frame: pd.DataFrame, schema: Schema) -> Finding:
    name = schema.label.column or ", ".join(schema.label.columns)
    try:
        tally = EncodingTally()
        encode_label(frame, schema.label, tally)
    except DataError as error:
        return Finding(name, "cannot", f"the label: {error}")
    return Finding(name, "fits", "; ".join(["the label fits", *tally.words()]))


def _patient(frame: pd.DataFrame, schema: Schema) -> list[Finding]:
    if not schema.patient:
        return []
    if schema.patient not in frame.columns:
        return [Finding(schema.patient, "cannot", "the patient column is not there")]
    ids = frame[schema.patient]
    several = int(ids.value_counts().gt(1).sum())
    words = (
        f"{counted(several, 'patient')} with several records, which stay together"
        if several
        else "one record per patient"
    )
    return [Finding(schema.patient, "fits", words)]


def _column(frame: pd.DataFrame, column: Column, schema: Schema, source: Source) -> Finding:
    name = column.name
    if name not in frame.columns and not (column.traits.branch and numbered_columns(frame, name)):
        return _absent(frame, column, schema, source)
    if column.traits.quantity:
        slip = _slip(frame, frame[name], column, source.units.get(name, ""))
        if slip:
            return Finding(name, "slip", slip)
    alone = replace(schema, columns=(column,), patient="", label=schema.label)
    try:
        known = encode_label(frame, schema.label, EncodingTally())[1]
        notes = encode_table(frame[known], alone, "", replace(source.translation(), rename={})).notes
    except DataError as error:
        if f"column {name}" not in str(error) and "label" in str(error):
            return Finding(name, "fits", "is there; its values are checked once the label fits")
        return Finding(name, "cannot", str(error))
    own = [n.removeprefix(f"{name}: ") for n in notes if n.startswith(f"{name}: ")]
    return Finding(name, "fits", "; ".join(own) or "as the schema says")


def _slip(frame: pd.DataFrame, series: pd.Series[Any], column: Column, unit: str) -> str:
    try:
        numbers = as_numbers(frame, series, column)
        if unit and unit != column.unit:
            numbers = converter(unit, column.unit, column.name)(numbers)
    except DataError:
        return ""
    slip = likely_slip(numbers, column)
    if slip is None:
        return ""
    remedy = f' If so, set units = {{ "{column.name}" = "{slip.conversion.source}" }} for this site.'
    return slip.sentence + (
        remedy if slip.conversion.source and slip.affected > 0.95 else " Correct the file."
    )


def _absent(frame: pd.DataFrame, column: Column, schema: Schema, source: Source) -> Finding:
    name = column.name
    if column.derive is not None:
        lacking = missing_sources(frame, column.derive)
        if not lacking:
            words = f"is not there, but follows from {' and '.join(column.derive.of)} ({column.derive.how})"
            try:
                values = derived(frame, column, schema, source.translation(), EncodingTally())
                low, high = column.range or (-np.inf, np.inf)
                strange = int(((values < low) | (values > high)).sum())
            except DataError as error:
                return Finding(name, "cannot", f"{words}: {error}")
            if strange and column.outside == "refuse":
                return Finding(
                    name, "cannot", f"{words}, but {strange} values are not within {low:g} … {high:g}"
                )
            return Finding(name, "derived", words)
    near = _alike(name, [str(c) for c in frame.columns], {c.name for c in schema.columns})
    hint = f'; is it {near!r}? Then set rename = {{ "{near}" = "{name}" }} for this site' if near else ""
    if column.gaps == "refuse" or schema.missing_columns == "refuse" or not column.traits.optional:
        return Finding(name, "cannot", f"is not there, and the study asks for it{hint}")
    how = "is treated as missing" if schema.missing_columns == "impute" else "is left out at all sites"
    return Finding(name, "missing", f"is not there; it {how}{hint}")


def _alike(name: str, candidates: list[str], taken: set[str]) -> str:
    free = [c for c in candidates if c not in taken]
    measured = lookup(name)
    same = [c for c in free if measured is not None and lookup(c) is measured]
    lower = {c.lower(): c for c in free}
    near = difflib.get_close_matches(name.lower(), lower, n=1, cutoff=0.75)
    return same[0] if same else lower[near[0]] if near else ""

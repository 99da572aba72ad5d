"""Encode a whole frame as tensors, by the schema alone.

No mean, no maximum and no list of categories is taken from the records, so the numbers that a record becomes
do not depend on any other record.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from confrere.core.errors import DataError
from confrere.data import digests
from confrere.data.column_kinds import AS_WRITTEN, Translation
from confrere.data.column_kinds.numbers import LIMIT, scaled
from confrere.data.encode.blocks import fill, plain
from confrere.data.encode.columns import encode_column
from confrere.data.encode.encoding_tally import EncodingTally
from confrere.data.encode.labels import encode_label, task_of
from confrere.data.read.table_origin import BadRows, counted, origin_of, some, with_bad_rows
from confrere.data.read.values import kinds_of, later_records, numbers_or_texts
from confrere.data.records import Records
from confrere.data.schema import Schema

Room = Callable[[int], NDArray[np.float32]]
"""Where the numbers of n records go: an array with n rows."""


@dataclass(frozen=True)
class Encoded:
    """Records, and in plain words what happened to them. Both are PRIVATE."""

    records: Records
    notes: tuple[str, ...]
    lacks: tuple[str, ...] = ()
    """Columns that are not there, or have no value in any record: all of them are imputed."""
    former: torch.Tensor | None = None
    """As in `SiteData`."""


def encode(
    frame: pd.DataFrame, schema: Schema, site: str = "", translation: Translation = AS_WRITTEN
) -> Records:
    """The records of a frame as the schema says; see `encode_table` for what was imputed or dropped."""
    return encode_table(frame, schema, site, translation).records


def encode_table(
    frame: pd.DataFrame,
    schema: Schema,
    site: str = "",
    translation: Translation = AS_WRITTEN,
    *,
    one_class: bool = True,
) -> Encoded:
    """Encode a whole table. `one_class = False` refuses records whose labels are all the same."""
    tally = EncodingTally()
    whole = replace(translation, guess_dates=not translation.drop)  # only a rehearsal guesses
    encoder = RowEncoder(schema, whole, tally, site)
    rows = encoder.encode(frame)
    shaped = rows.inputs.reshape(len(rows.inputs), *schema.inputs)
    later = None if rows.later is None else torch.from_numpy(rows.later)
    records = Records(
        torch.from_numpy(shaped), torch.from_numpy(rows.targets), patients_of(rows, tally), later
    )
    if not one_class and (only := only_class(records, schema)):
        raise DataError(
            f"{origin_of(frame).name}, column {schema.label.column}: every record has the label {only!r}; "
            "there is nothing to learn to tell apart. Is it the right column?"
        )
    words = tally.words(c.name for c in schema.columns)
    return Encoded(records, words, tally.lacks, encoder.earlier.former_ids())


def only_class(records: Records, schema: Schema) -> str:
    """The class of all records where there is but one."""
    if records.targets.dtype != torch.int64 or len(torch.unique(records.targets)) > 1:
        return ""
    return task_of(schema).classes[int(records.targets[0])] if len(records) else "none"


@dataclass(frozen=True)
class EncodedRows:
    """Some records of a site: a whole table, or a piece of it."""

    inputs: NDArray[np.float32]
    targets: NDArray[Any]
    patients: pd.Series[Any] | None
    later: NDArray[np.bool_] | None = None
    """Where records are split by date: which are from that day on."""


@dataclass
class RowEncoder:
    """Encodes a table, or one piece of it after another; `tally` and `earlier` go on counting."""

    schema: Schema
    translation: Translation
    tally: EncodingTally
    site: str = ""
    earlier: Earlier = field(default_factory=lambda: Earlier())
    room: Room | None = None
    """Where the numbers go; without it, into an array of their own."""

    def encode(self, frame: pd.DataFrame) -> EncodedRows:
        """With `drop`, records that do not fit the schema are left out and counted."""
        schema, tally, drop = self.schema, self.tally, self.translation.drop
        if schema.unconfirmed:
            raise DataError(
                f"schema: {some(schema.unconfirmed)} were drawn from records and are PRIVATE; "
                "look at them, correct them, and delete the line `private`"
            )
        frame = translate(frame, schema, self.translation.rename, self.site)
        for note in frame.attrs.get("notes", []):
            tally.note(note)
        if drop and not frame.index.is_unique:
            frame = frame.reset_index(drop=True)
        frame = _without_repeats(frame, schema, tally, self.earlier, drop)
        while True:
            attempt = copy.deepcopy(tally) if drop else tally
            try:
                found = self._attempt(frame, attempt)
            except BadRows as error:
                if not drop:
                    raise
                frame = frame[~frame.index.isin(error.labels)]
                tally.note("", len(error.labels), "record", f" left out, with an error; the first: {error}")
            else:
                tally.take(attempt)
                return found

    def _attempt(self, frame: pd.DataFrame, tally: EncodingTally) -> EncodedRows:
        schema = self.schema
        targets, labelled = with_bad_rows(
            frame, schema.label.column, lambda rows: encode_label(rows, schema.label, tally)
        )
        frame = frame[labelled] if not labelled.all() else frame
        cut = self.translation.cut
        dated = next((c for c in schema.columns if cut is not None and c.name == cut.column), None)
        later = None if cut is None else later_records(frame, cut, dated)
        width = sum(len(c.features) for c in schema.columns)
        inputs = self.room(len(frame)) if self.room else np.empty((len(frame), width), dtype=np.float32)
        _encode_columns(frame, schema, self.translation, tally, inputs)
        return EncodedRows(inputs, targets, frame[schema.patient] if schema.patient else None, later)


def translate(frame: pd.DataFrame, schema: Schema, rename: Mapping[str, str], site: str = "") -> pd.DataFrame:
    """The frame with the schema's column names, from a site's own translation and the schema's `also`."""
    names = {str(c): str(c).strip() for c in frame.columns}
    for old in rename:
        if old not in frame.columns:
            raise DataError(
                f"{origin_of(frame).name}: rename: there is no column {old!r}"
                + (f" at {site}" if site else "")
            )
    names.update(rename)
    present = set(names.values())
    for known, also in [(c.name, c.also) for c in schema.columns] + [
        (schema.label.column, schema.label.also)
    ]:
        found = [a for a in also if a in present]
        if known not in present and found:
            names = {old: (known if new == found[0] else new) for old, new in names.items()}
    if all(old == new for old, new in names.items()):
        return frame
    out = frame.rename(columns=names)
    twice = out.columns[out.columns.duplicated()]
    if len(twice):
        raise DataError(f"{origin_of(frame).name}: two columns would both be {twice[0]!r} after renaming")
    return out


def number_names(schema: Schema, rename: Mapping[str, str]) -> tuple[str, ...]:
    """The columns, by their names in a file, that the schema reads as numbers. All others are read as written."""
    label = schema.label
    known = {c.name for c in schema.columns if c.traits.quantity} | {label.time}
    also = {a for c in schema.columns if c.traits.quantity for a in c.also}
    for column in schema.columns:
        if column.derive and column.derive.how not in ("days", "years"):
            known |= set(column.derive.of)
    if label.above is not None or label.range is not None:
        known.add(label.column)
        also |= set(label.also)
    other = {schema.patient, schema.site, *(c.name for c in schema.columns if not c.traits.quantity)}
    known -= other
    renamed = {old for old, new in rename.items() if new in known | also}
    return tuple(sorted({*known, *also, *renamed} - {"", *other}))


class Earlier:
    """The patients and records that were seen so far, so that repeats do not depend on where a file is cut."""

    def __init__(self, streams: bool = False) -> None:
        self.streams = streams
        self._patients = self._records = np.empty(0, dtype=np.uint64)
        self.repeated = np.empty(0, dtype=np.uint64)
        """The patients that were seen more than once."""
        self.former: list[digests.Digests] = []
        """For each piece, the patients whose ids had another form before (`digests.former_ids`)."""

    def former_ids(self) -> torch.Tensor | None:
        """The patients whose ids had another form before, of all pieces."""
        found = np.concatenate(self.former) if self.former else np.empty((0, 2), dtype=np.uint64)
        return torch.from_numpy(np.unique(found, axis=0).view(np.int64)) if len(found) else None

    def patient_again(self, own: digests.Digests) -> NDArray[np.bool_]:
        """Which of these patients were seen before, in this piece or in an earlier one."""
        again = pd.Series(own).duplicated().to_numpy() | np.isin(own, self._patients)
        self._patients = np.concatenate([self._patients, own[~again]])
        self.repeated = np.union1d(self.repeated, own[again])
        return np.asarray(again)

    def record_again(self, own: digests.Digests) -> NDArray[np.bool_]:
        """The same for whole records."""
        again = pd.Series(own).duplicated().to_numpy() | np.isin(own, self._records)
        self._records = np.concatenate([self._records, own[~again]])
        return np.asarray(again)


def _named(ids: pd.Series[Any], earlier: Earlier | None = None) -> tuple[digests.Digests, NDArray[np.bool_]]:
    """The digest of each patient id, and which records have none."""
    own, texts = kinds_of(ids)
    written = ["" if text is None else text for text in texts]
    normal = [digests.normal_id(text) for text in written]
    unknown = np.array([not text for text in normal])
    if earlier is not None:
        earlier.former.append(digests.former_ids(written, normal))
    return digests.of_normal_ids(normal)[own], unknown[own]


def _texts(column: pd.Series[Any]) -> digests.Digests:
    """The digest of each field of a column that holds no numbers."""
    own, texts = kinds_of(column)
    return digests.of_texts("" if text is None else text for text in texts)[own]


def _record_digests(frame: pd.DataFrame, schema: Schema) -> digests.Digests:
    """A digest of all fields of each record; the same whether a piece holds the numbers as such or as text."""
    numeric = number_names(schema, {})
    out = np.zeros(len(frame), dtype=np.uint64)
    for name, column in _hashable(frame, schema).items():
        if name in numeric:
            numbers, texts = numbers_or_texts(column, origin_of(frame).decimal)
            own = pd.util.hash_array(numbers + 0.0)  # −0 is 0
            words = np.isnan(numbers) & (texts != None)  # noqa: E711
            own[words] = digests.of_texts(texts[words])
        else:
            own = _named(column)[0] if name == schema.patient else _texts(column)
        out = digests.mixed(out + own)
    return out


def _without_repeats(
    frame: pd.DataFrame, schema: Schema, tally: EncodingTally, earlier: Earlier, drop: bool
) -> pd.DataFrame:
    """Refuse or leave out repeats, as the schema says; which record comes first does not matter for what is left.

    Where a patient has one record only and records are left out (`drop`), all records of a patient with more are. With
    that, one record more takes away at most one other; in a stream, those of earlier pieces are left out at its end.
    """
    if not schema.patient:
        return frame
    if schema.patient not in frame.columns:
        raise DataError(f"{origin_of(frame).name}: the patient column {schema.patient!r} is not there")
    ids = frame[schema.patient]
    named, unknown = _named(ids, earlier)
    again = np.zeros(len(frame), dtype=bool)
    again[~unknown] = earlier.patient_again(named[~unknown])
    if schema.repeats == "refuse":
        if not again.any():
            return frame
        words = f"the patient {ids[again].iloc[0]} is there for the second time, "
        words += f"and the schema has one record per patient ({counted(again.sum(), 'such record')})"
        error = BadRows(frame, again, schema.patient, words)
        if not drop:
            raise error
        all_of_them = np.isin(named, earlier.repeated) & ~unknown
        after = f" of patients with more than one left out; the first: {error}"
        tally.note("", all_of_them.sum(), "record", after)
        return frame[~all_of_them]
    if not again.any() and not earlier.streams:
        return frame
    same = np.zeros(len(frame), dtype=bool)
    same[~unknown] = earlier.record_again(_record_digests(frame[~unknown], schema))
    if not same.any():
        return frame
    if schema.repeats == "drop" or drop:
        tally.note("", same.sum(), "record", " that repeat another one word for word dropped")
        return frame[~same]
    words = f"the same record of patient {ids[same].iloc[0]} for the second time "
    words += f'({counted(same.sum(), "such record")}); remove it, or set repeats = "drop" in the schema'
    raise BadRows(frame, same, schema.patient, words)


def _hashable(frame: pd.DataFrame, schema: Schema) -> pd.DataFrame:
    """The frame with arrays as their bytes, so that records can be told apart."""
    held = [c.name for c in schema.columns if c.traits.branch and c.name in frame.columns]
    return frame.assign(
        **{n: frame[n].map(lambda v: v.tobytes() if isinstance(v, np.ndarray) else v) for n in held}
    )


def patients_of(rows: EncodedRows, tally: EncodingTally) -> torch.Tensor | None:
    """Which patient each record belongs to, as a digest of the id: the same in every piece and in every export."""
    if rows.patients is None:
        return None
    named, unknown = _named(rows.patients)
    if unknown.any():
        at = torch.from_numpy(np.flatnonzero(unknown))
        inputs, targets = torch.from_numpy(rows.inputs), torch.from_numpy(rows.targets)
        named[unknown] = digests.of_rows(inputs[at], targets[at])
        tally.note("", unknown.sum(), "record", NO_ID)
    return torch.from_numpy(named.view(np.int64))


NO_ID = " without a patient id: each counts as a patient of its own, unless two are the same"


def _encode_columns(
    frame: pd.DataFrame,
    schema: Schema,
    translation: Translation,
    tally: EncodingTally,
    inputs: NDArray[np.float32],
) -> None:
    widths = [len(c.features) for c in schema.columns]
    starts = [0, *accumulate(widths)][:-1]
    bare = frame.copy(deep=False)
    bare.attrs = {}
    quick = {
        column.name: found
        for column, start in zip(schema.columns, starts, strict=True)
        if not translation.units.get(column.name) and (found := plain(bare, column, start)) is not None
    }
    fill(list(quick.values()), inputs, scaled, LIMIT)
    tally.records += len(frame)
    for column, start, width in zip(schema.columns, starts, widths, strict=True):
        done = quick.get(column.name)
        if done is None or done.strange or (done.gaps and column.gaps == "refuse"):
            read = partial(encode_column, column=column, schema=schema, translation=translation, tally=tally)
            values, gaps = with_bad_rows(frame, column.name, read)
            inputs[:, start : start + width] = values
        else:
            gaps = done.gaps
        here, imputed = column.name in frame.columns or column.traits.branch, column.traits.imputed
        tally.missing(column.name, gaps, here=here, imputed=imputed)

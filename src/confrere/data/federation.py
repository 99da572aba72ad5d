"""Load several sites' tables as one federation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pandas as pd

from confrere.core.errors import DataError, StudyError
from confrere.data.column_kinds import Translation
from confrere.data.encode.columns import missing_sources
from confrere.data.encode.encoder import Encoded, encode_table, number_names, translate
from confrere.data.encode.labels import task_of
from confrere.data.read.sources import AS_FOUND, ReadOptions, chunks, is_address, read
from confrere.data.read.streaming import encode_file, encode_stream, select_mapped, worth_while
from confrere.data.read.table_origin import NoRecords, counted, origin_of, place, some
from confrere.data.read.values import as_text
from confrere.data.records import Card, Federation, Handling, Records, SiteData
from confrere.data.schema import Schema
from confrere.data.schema_draft import UNDECIDED, draft
from confrere.data.split.date_cut import DateCut
from confrere.data.split.holdout import SPLIT, SplitRule, check_sides, split_indices


@dataclass(frozen=True)
class Source:
    """Where one site's records are, and how its file differs from the schema. It never leaves the site."""

    data: str | Path | pd.DataFrame
    reading: ReadOptions = AS_FOUND
    """How the records are written, as the site states it."""
    folder: str = ""
    rename: Mapping[str, str] = field(default_factory=dict)
    units: Mapping[str, str] = field(default_factory=dict)
    stream: bool = False
    declared: int = 0

    @property
    def images(self) -> str:
        """Where the pictures lie that the records name: the stated folder, or where the records are."""
        if self.folder or isinstance(self.data, pd.DataFrame) or is_address(self.data):
            return self.folder
        path = Path(self.data)
        return str(path if path.is_dir() else path.parent)

    def translation(self, drop: bool = False, cut: DateCut | None = None) -> Translation:
        """How the file differs from the schema; with `drop`, records that do not fit it are left out."""
        return Translation(self.rename, self.units, self.images, drop, cut=cut)

    def read(self, schema: Schema | None = None, tolerant: bool = False) -> pd.DataFrame:
        """The records; with a schema, only its number columns are read as numbers, and all others as written."""
        return read(self.data, self._options(schema, tolerant))

    def pieces(self, schema: Schema, rows: int, tolerant: bool = False) -> Iterator[pd.DataFrame]:
        """The records in pieces of `rows`."""
        if isinstance(self.data, pd.DataFrame):
            raise DataError("a table that is already in memory cannot be streamed")
        return chunks(self.data, rows, self._options(schema, tolerant))

    def _options(self, schema: Schema | None, tolerant: bool) -> ReadOptions:
        numbers = number_names(schema, self.rename) if schema else None
        return replace(self.reading, numbers=numbers, tolerant=tolerant)


@dataclass(frozen=True)
class Opening:
    """How encoded records become a federation."""

    name: str = "own data"
    seed: int = 0
    split: SplitRule = SPLIT
    one_class: bool = False
    """Whether a site may have records of one class only."""
    tolerant: bool = False
    """Leave out records that do not fit the schema; a site may have one class or no record at all."""
    card: Card | None = None
    notes: tuple[str, ...] = ()


OPENING = Opening()


def of_files(
    sources: Mapping[str, Source | str | Path | pd.DataFrame],
    schema: Schema | None = None,
    opening: Opening = OPENING,
    *,
    label: str = "",
) -> Federation:
    """A study's own files: one for each site, or one for all with the schema's site column.

    Without a schema one is drawn from all files together (`label` names what is predicted). That looks at every
    site's records at once, so it is fit for a rehearsal inside one building and for nothing else; the
    federation's notes say so.
    """
    known = {site: s if isinstance(s, Source) else Source(s) for site, s in sources.items()}
    if not known:
        raise StudyError('there are no sites: name at least one file, such as [sites.a] data = "a.csv"')
    tolerant = opening.tolerant
    opening = replace(opening, one_class=opening.one_class or tolerant)
    if schema is None:
        schema, opening = _drawn_schema(known, label), replace(opening, notes=(REHEARSAL,))
    if len(known) == 1 and schema.site:
        site, only = next(iter(known.items()))
        if not tolerant:
            return by_site(only.read(schema), schema, opening, only)
        frame = _read(site, only, schema, tolerant)
        return _assembled({site: _own(frame, site, schema)}, known, schema, opening)
    needed = schema.missing_columns == "common"
    if needed and any(s.stream for s in known.values()):
        raise StudyError(
            'missing_columns = "common" needs all files in memory; it cannot be used with stream'
        )
    frames = {site: _read(site, s, schema, tolerant) for site, s in known.items()} if needed else {}
    return _assembled(frames, known, schema, opening)


def _own(frame: pd.DataFrame, site: str, schema: Schema) -> pd.DataFrame:
    """The records of a site in its own file; those of others, or of no site, are left out and noted."""
    if schema.site not in frame.columns:
        raise DataError(f"{origin_of(frame).name}: the site column {schema.site!r} is not there")
    others = (as_text(frame[schema.site]) != site).to_numpy()
    if not others.any():
        return frame
    first = place(frame, int(np.flatnonzero(others)[0]), schema.site)
    note = f'{counted(others.sum(), "record")} left out, not of "{site}"; the first: {first}'
    own = frame[~others]
    own.attrs = {**frame.attrs, "notes": [*frame.attrs.get("notes", []), note]}
    return own


def _read(site: str, source: Source, schema: Schema, tolerant: bool = False) -> pd.DataFrame:
    try:
        return source.read(schema, tolerant)
    except NoRecords as error:
        if tolerant:
            return error.frame
        raise
    except DataError as error:
        if isinstance(source.data, pd.DataFrame) or not is_address(source.data):
            raise
        raise DataError(f"site {site}: {error}") from None  # a database's name does not tell whose it is


REHEARSAL = (
    "the schema was drawn from the records of all sites together: fit for a rehearsal in one building only; "
    "see `confrere schema draft`"
)


def _drawn_schema(sources: Mapping[str, Source], label: str) -> Schema:
    frames = [s.read().rename(columns=dict(s.rename)) for s in sources.values()]
    proposal = draft(pd.concat(frames, ignore_index=True), label=label)
    if proposal.schema.label.column == UNDECIDED:
        raise StudyError(
            "which column is to be predicted? Name it, or give a schema: `confrere schema draft`"
        )
    if len(sources) > 1 and proposal.schema.site:
        site = proposal.schema.site
        return replace(proposal.schema.confirmed(), site="", unused=(*proposal.schema.unused, site))
    return proposal.schema.confirmed()


def by_site(
    frame: pd.DataFrame, schema: Schema, opening: Opening, source: Source | None = None
) -> Federation:
    """One table whose schema names a site column, as a federation."""
    if not schema.site or schema.site not in frame.columns:
        raise DataError(f"{origin_of(frame).name}: the site column {schema.site!r} is not there")
    nowhere = frame[schema.site].isna().to_numpy()
    if nowhere.any():
        first = place(frame, int(np.flatnonzero(nowhere)[0]), schema.site)
        raise DataError(
            f"{first}: the record names no site ({counted(nowhere.sum(), 'such record')}); add it, or remove the record"
        )
    frames = {str(site): part for site, part in frame.groupby(as_text(frame[schema.site]), sort=False)}
    sources = {site: source or Source(part) for site, part in frames.items()}
    return _assembled(frames, sources, schema, opening)


def _assembled(
    frames: Mapping[str, pd.DataFrame], sources: Mapping[str, Source], schema: Schema, opening: Opening
) -> Federation:
    """Encode and split each site's records; those that are not among the `frames` are read now."""
    absent: dict[str, list[str]] = {}
    notes = opening.notes
    if schema.missing_columns == "common":
        schema, dropped, absent = common(schema, frames, sources)
        if dropped:
            notes = (*notes, f"only the columns that all sites have are used; left out: {some(dropped, 20)}")
    sites = {}
    for site, source in sources.items():
        encoded = _encoded(site, source, frames.get(site), schema, opening)
        if not len(encoded.records) and not opening.tolerant:
            raise DataError(f"site {site}: no record is left; see its label and its missing values")
        streamed = source.stream and site not in frames
        select: Callable[[Records, list[int]], Records] = select_mapped if streamed else Records.select
        indices = split_indices(encoded.records, opening.seed, opening.split, site)
        if not opening.tolerant:
            check_sides(encoded.records, indices, opening.split, site)
        train, validation, test = (select(encoded.records, p) for p in indices)
        lacks: dict[str, Handling] = dict.fromkeys(absent.get(site, ()), "left out")
        lacks.update(dict.fromkeys(encoded.lacks, "imputed"))
        sites[site] = SiteData(
            site,
            train,
            validation,
            test,
            source.declared,
            notes=encoded.notes,
            lacks=lacks,
            former=encoded.former,
        )
    return Federation(opening.name, task_of(schema), sites, schema, opening.card, notes)


def _encoded(
    site: str, source: Source, frame: pd.DataFrame | None, schema: Schema, opening: Opening
) -> Encoded:
    """The records of one site: from its table, or while its file is read where that is asked for or worth while."""
    tolerant, cut = opening.tolerant, opening.split.cut
    translation = source.translation(tolerant, cut)
    if frame is None and source.stream:
        try:
            return encode_stream(source, schema, site, drop=tolerant, cut=cut)
        except NoRecords as error:
            if not tolerant:
                raise
            return encode_table(error.frame, schema, site, translation)
    if frame is None and worth_while(source.data, source.reading.limit):
        found = encode_file(source, schema, site, one_class=opening.one_class, cut=cut)
        if found is not None:
            return found
    frame = _read(site, source, schema, tolerant) if frame is None else frame
    return encode_table(frame, schema, site, translation, one_class=opening.one_class)


def common(
    schema: Schema, frames: Mapping[str, pd.DataFrame], sources: Mapping[str, Source]
) -> tuple[Schema, list[str], dict[str, list[str]]]:
    """The schema of the columns that every site has or can derive, the others, and who lacks which."""
    absent: dict[str, list[str]] = {}
    for site, frame in frames.items():
        seen = translate(frame, schema, sources[site].rename, site)
        for column in schema.columns:
            derivable = column.derive is not None and not missing_sources(seen, column.derive)
            if column.name not in seen.columns and not derivable:
                absent.setdefault(site, []).append(column.name)
    dropped = {name for names in absent.values() for name in names}
    left = [c.name for c in schema.columns if c.name not in dropped]
    if not left:
        raise DataError("no column of the schema is at all sites; there is nothing to train on together")
    ordered = [c.name for c in schema.columns if c.name in dropped]
    return replace(schema.without(dropped), missing_columns="impute"), ordered, absent

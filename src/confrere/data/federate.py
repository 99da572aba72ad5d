"""Tables of several sites as one federation: a bundled set, or a study's own files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd

from confrere.core.errors import DataError, StudyError
from confrere.data.derive import missing_sources
from confrere.data.draft import UNDECIDED, draft
from confrere.data.encode import encode_table, translate, written_names
from confrere.data.labels import task_of
from confrere.data.origin import origin_of, some
from confrere.data.partition import FRACTIONS, Fractions, split_indices
from confrere.data.records import Card, Federation, Handling, Records, SiteData
from confrere.data.schema import Schema
from confrere.data.streaming import encode_file, encode_stream, select_mapped, worth_while
from confrere.data.tables import LIMIT, read
from confrere.data.values import as_text


@dataclass(frozen=True)
class Source:
    """Where one site's records are, and how its file differs from the schema. It never leaves the site."""

    data: str | Path | pd.DataFrame
    query: str = ""
    delimiter: str = ""
    encoding: str = ""
    decimal: str = ""
    sheet: str = ""
    folder: str = ""
    rename: Mapping[str, str] = field(default_factory=dict)
    units: Mapping[str, str] = field(default_factory=dict)
    limit: int = LIMIT
    stream: bool = False
    declared: int = 0

    @property
    def images(self) -> str:
        """Where the pictures lie that the records name: the stated folder, or where the records are."""
        if self.folder or isinstance(self.data, pd.DataFrame) or "://" in str(self.data):
            return self.folder
        path = Path(self.data)
        return str(path if path.is_dir() else path.parent)

    def read(self, schema: Schema | None = None) -> pd.DataFrame:
        """The records; codes and categories of the schema stay as they are written."""
        texts = written_names(schema, self.rename) if schema else ()
        return read(self.data, query=self.query, delimiter=self.delimiter, encoding=self.encoding,
                    decimal=self.decimal, sheet=self.sheet, limit=self.limit, texts=texts)  # fmt: skip


def of_files(
    sources: Mapping[str, Source | str | Path | pd.DataFrame],
    schema: Schema | None = None,
    *,
    name: str = "own data",
    seed: int = 0,
    split: Fractions = FRACTIONS,
    one_class: bool = False,
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
    notes: tuple[str, ...] = ()
    if schema is None:
        schema, notes = _drawn_schema(known, label), (REHEARSAL,)
    if len(known) == 1 and schema.site:
        only = next(iter(known.values()))
        return by_site(
            only.read(schema),
            schema,
            name=name,
            seed=seed,
            split=split,
            source=only,
            one_class=one_class,
            notes=notes,
        )
    streamed = {site: s for site, s in known.items() if s.stream}
    needed = schema.missing_columns == "common"
    if streamed and needed:
        raise StudyError(
            'missing_columns = "common" needs all files in memory; it cannot be used with stream'
        )
    frames = {
        site: _read(site, s, schema)
        for site, s in known.items()
        if not s.stream and (needed or not worth_while(s.data, s.limit))
    }
    return _assembled(frames, known, schema, name, seed, split, one_class, streamed=streamed, notes=notes)


def _read(site: str, source: Source, schema: Schema) -> pd.DataFrame:
    try:
        return source.read(schema)
    except DataError as error:
        if isinstance(source.data, pd.DataFrame) or "://" not in str(source.data):
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
    frame: pd.DataFrame,
    schema: Schema,
    *,
    name: str,
    seed: int,
    split: Fractions = FRACTIONS,
    card: Card | None = None,
    notes: tuple[str, ...] = (),
    source: Source | None = None,
    one_class: bool = True,
) -> Federation:
    """One table whose schema names a site column, as a federation."""
    if not schema.site or schema.site not in frame.columns:
        raise DataError(f"{origin_of(frame).name}: the site column {schema.site!r} is not there")
    nowhere = int(frame[schema.site].isna().sum())
    if nowhere:
        raise DataError(f"{origin_of(frame).name}, column {schema.site}: {nowhere} records have no site")
    frames = {str(site): part for site, part in frame.groupby(as_text(frame[schema.site]), sort=False)}
    sources = {site: source or Source(part) for site, part in frames.items()}
    return _assembled(frames, sources, schema, name, seed, split, one_class, card=card, notes=notes)


def _assembled(
    frames: Mapping[str, pd.DataFrame],
    sources: Mapping[str, Source],
    schema: Schema,
    name: str,
    seed: int,
    split: Fractions,
    one_class: bool,
    *,
    card: Card | None = None,
    notes: tuple[str, ...] = (),
    streamed: Mapping[str, Source] | None = None,
) -> Federation:
    absent: dict[str, list[str]] = {}
    if schema.missing_columns == "common":
        schema, dropped, absent = common(schema, frames, sources)
        if dropped:
            notes = (*notes, f"only the columns that all sites have are used; left out: {some(dropped, 20)}")
    sites = {}
    select: Callable[[Records, list[int]], Records]
    for site, source in sources.items():
        options: dict[str, Any] = {"rename": source.rename, "units": source.units, "folder": source.images}
        if streamed and site in streamed:
            encoded, select = encode_stream(source, schema, site, **options), select_mapped
        else:
            select = Records.select
            options["one_class"] = one_class
            encoded = (site not in frames and encode_file(source, schema, site, **options)) or encode_table(
                frames[site] if site in frames else _read(site, source, schema), schema, site, **options
            )
        if not len(encoded.records):
            raise DataError(f"site {site}: no record is left; see its label and its missing values")
        train, validation, test = (
            select(encoded.records, p) for p in split_indices(encoded.records, seed, split)
        )
        lacks: dict[str, Handling] = dict.fromkeys(absent.get(site, ()), "left out")
        lacks.update(dict.fromkeys(encoded.lacks, "imputed"))
        sites[site] = SiteData(
            site, train, validation, test, source.declared, notes=encoded.notes, lacks=lacks
        )
    return Federation(name, task_of(schema), sites, schema, card, notes)


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

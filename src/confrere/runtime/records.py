"""From whatever a study or a caller names to sites with encoded records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pandas as pd

from confrere.core.errors import StudyError
from confrere.core.registry import nearest
from confrere.core.seeds import derive
from confrere.data.arrays import of_arrays, task_of_arrays
from confrere.data.bundled import federation
from confrere.data.features import with_features
from confrere.data.federate import REHEARSAL, of_files
from confrere.data.federate import Source as Origin
from confrere.data.records import Federation, SiteData
from confrere.data.rehearse import recut
from confrere.study import SiteConfig, Study, named, schema_of

Source = SiteData | pd.DataFrame | tuple[Any, Any] | tuple[Any, Any, Any] | str | Path | Origin
"""A site's records: encoded already, a table, arrays (inputs, targets[, patients]), or a file."""


def open_sites(study: Study, sites: Mapping[str, Source] | Federation | None = None) -> Federation:
    """The federation of a study; `sites` (from Python) takes the place of what the study names."""
    if isinstance(sites, Federation):
        return sites
    fractions = (
        1 - study.data.split.validation - study.data.split.test,
        study.data.split.validation,
        study.data.split.test,
    )
    seed = derive(study.seed, "split")
    if sites is not None:
        found = _given(study, sites, seed, fractions)
    elif study.data.bundled:
        found = federation(study.data.bundled, seed=seed, split=fractions, **study.data.options)
    elif study.sites:
        found = _given(study, {n: _origin(n, e) for n, e in study.sites.items()}, seed, fractions)
    elif study.data.file:
        found = _given(study, {"all": study.data.file}, seed, fractions)
        if len(found.sites) == 1 and study.data.partition is None:
            raise StudyError(
                "data.file holds the records of one site; name the column that tells sites apart (schema.site), or cut it"
                ' for a rehearsal: data.partition = { name = "iid", sites = 4 }'
            )
    else:
        raise StudyError(
            'the study names no records: add [data] bundled = "thyroid", [data] file = "all.csv", or [sites.a] data = "a.csv"'
        )
    if study.data.partition is not None:
        if study.sites:
            raise StudyError(
                "data.partition cuts all records into sites anew, and [sites] says who has which: drop one"
            )
        how, options = named(study.data.partition, "data.partition")
        try:
            found = recut(found, how, seed=seed, split=fractions, **options)
        except TypeError as error:  # a value of another kind than the option has
            raise StudyError(f"data.partition: {error}") from None
    declared = {n: e.declared for n, e in study.sites.items() if e.declared}
    updated = {n: replace(s, declared=declared.get(n, s.declared)) for n, s in found.sites.items()}
    found = only_partners(replace(found, sites=dict(sorted(updated.items()))), study.partners)
    return with_features(found, study.data.features) if study.data.features else found


def only_partners(federation: Federation, partners: Sequence[str] | None) -> Federation:
    """The sites that learn together, where a study names them (`partners = ["a", "b"]`); all of them where it does not."""
    if partners is None:
        return federation
    known = list(federation.sites)
    for name in partners:
        if name not in known:
            raise StudyError(
                f'partners names "{name}", which is no site of this study{nearest(name, known)};'
                f" its sites: {', '.join(known)}"
            )
    left = {n: s for n, s in federation.sites.items() if n in partners}
    if len(left) < 2:
        raise StudyError(
            f"partners leaves {f'only {next(iter(left))}' if left else 'nobody'}: it names all sites that learn together,"
            " the one that asked among them; name two at least, or drop the line"
        )
    return replace(federation, sites=left)


def _origin(name: str, entry: SiteConfig) -> Origin:
    if entry.data is None:
        raise StudyError(f'sites.{name}: say where its records are, as in [sites.{name}] data = "{name}.csv"')
    known = {f.name for f in fields(Origin)} - {"declared"}
    options = {f.name: getattr(entry, f.name) for f in fields(entry) if f.name in known}
    if entry.limit_mb < 1:
        raise StudyError(
            f"sites.{name}.limit_mb is {entry.limit_mb}; the largest file that is expected, in MB"
        )
    return Origin(**options, declared=entry.declared or 0, limit=entry.limit_mb * 1024**2)


def _given(
    study: Study, sites: Mapping[str, Source], seed: int, fractions: tuple[float, float, float]
) -> Federation:
    if not isinstance(sites, Mapping):
        raise StudyError(
            f'sites are given by name, as {{"a": (inputs, targets), …}}, not as a {type(sites).__name__}'
        )
    if not sites:
        raise StudyError("a collaboration needs sites; none was given")
    for name in map(str, sites):
        if not name.strip() or len(name) > 128 or not name.isprintable():
            raise StudyError(f"a site is called {name!r}; a name has 1 to 128 characters that can be printed")
    if all(isinstance(s, SiteData) for s in sites.values()):
        ready = {str(n): replace(s, name=str(n)) for n, s in sites.items() if isinstance(s, SiteData)}
        return Federation(study.name, task_of_arrays(ready, study.data.classes), ready)
    if all(isinstance(s, tuple) for s in sites.values()):
        arrays = {str(n): s for n, s in sites.items() if isinstance(s, tuple)}
        return of_arrays(
            arrays,
            name=study.name,
            seed=seed,
            split=fractions,
            classes=study.data.classes,
            range=study.data.range,
        )
    for name, source in sites.items():
        if not isinstance(source, str | Path | pd.DataFrame | Origin):
            raise StudyError(
                f'site "{name}": its records are a {type(source).__name__}; give all sites as (inputs, targets)'
                " arrays, as DataFrames, as files, or as SiteData"
            )
    if study.data.classes:
        raise StudyError(
            "data.classes is for arrays; with tables the classes are in the schema: schema.label.classes"
        )
    if study.data.range is not None:
        raise StudyError(
            "data.range is for arrays; with tables the range is in the schema: schema.label.range"
        )
    schema = schema_of(study)
    tables = {str(n): s for n, s in sites.items() if isinstance(s, str | Path | pd.DataFrame | Origin)}
    allowed = study.data.one_class == "allow"
    return of_files(
        tables, schema, name=study.name, seed=seed, split=fractions, one_class=allowed, label=study.data.label
    )


def doubt_about(federation: Federation) -> str | None:
    """Why the inputs themselves have no guarantee: a schema that was drawn from records shapes all that leaves."""
    return "the schema was drawn from the records" if REHEARSAL in federation.notes else None

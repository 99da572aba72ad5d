"""From whatever a study or a caller names to sites with encoded records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from confrere.core.errors import DataError, StudyError
from confrere.core.seeds import derive
from confrere.data.bundled import federation
from confrere.data.federate import REHEARSAL, of_files
from confrere.data.federate import Source as Origin
from confrere.data.partition import split
from confrere.data.records import Federation, Records, SiteData, Task
from confrere.study import SiteConfig, Study, schema_of

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
    else:
        raise StudyError(
            'the study names no records: add [data] bundled = "thyroid", [data] file = "all.csv", or [sites.a] data = "a.csv"'
        )
    declared = {n: e.declared for n, e in study.sites.items() if e.declared}
    updated = {n: replace(s, declared=declared.get(n, s.declared)) for n, s in found.sites.items()}
    return replace(found, sites=dict(sorted(updated.items())))


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
        return Federation(study.name, _task_of_arrays(ready), ready)
    if all(isinstance(s, tuple) for s in sites.values()):
        cut = {str(n): _arrays(str(n), s, seed, fractions) for n, s in sites.items() if isinstance(s, tuple)}
        return Federation(study.name, _task_of_arrays(cut), cut)
    for name, source in sites.items():
        if not isinstance(source, str | Path | pd.DataFrame | Origin):
            raise StudyError(
                f'site "{name}": its records are a {type(source).__name__}; give all sites as (inputs, targets)'
                " arrays, as DataFrames, as files, or as SiteData"
            )
    schema = schema_of(study)
    tables = {str(n): s for n, s in sites.items() if isinstance(s, str | Path | pd.DataFrame | Origin)}
    allowed = study.data.one_class == "allow"
    return of_files(
        tables, schema, name=study.name, seed=seed, split=fractions, one_class=allowed, label=study.data.label
    )


def _arrays(name: str, source: tuple[Any, ...], seed: int, fractions: tuple[float, float, float]) -> SiteData:
    inputs = torch.as_tensor(np.asarray(source[0]), dtype=torch.float32)
    raw = np.asarray(source[1])
    if raw.dtype.kind in "biu":
        targets = torch.as_tensor(raw.astype(np.int64))
        if len(targets) and int(targets.min()) < 0:
            raise DataError(f'site "{name}": classes are numbered 0, 1, 2 …; there is a negative one')
    elif raw.dtype.kind == "f":
        targets = torch.as_tensor(raw.astype(np.float32))
        if not bool(targets.isfinite().all()):
            raise DataError(f'site "{name}": there are NaN or infinite targets')
    else:
        raise DataError(f'site "{name}": targets are class numbers or floating-point values, not {raw.dtype}')
    units = None
    if len(source) > 2 and source[2] is not None:
        patients = pd.Series(np.asarray(source[2]))
        if patients.isna().any():
            raise DataError(f'site "{name}": {int(patients.isna().sum())} records have no patient id')
        units = torch.as_tensor(pd.factorize(patients)[0])
    if len(inputs) == 0:
        raise DataError(f'site "{name}" has no records; leave it out or give it some')
    parts = split(Records(inputs, targets, units), derive(seed, name), fractions)
    return SiteData(name, parts.train, parts.validation, parts.test)


def _task_of_arrays(sites: Mapping[str, SiteData]) -> Task:
    first = next(iter(sites.values())).train
    shape = tuple(first.inputs.shape[1:])
    if first.targets.is_floating_point():
        many = first.targets.ndim == 2 and first.targets.shape[1] > 1
        labels = tuple(str(i) for i in range(first.targets.shape[1])) if many else ("value",)
        return Task("multilabel" if many else "regression", labels, shape)
    most = max(
        int(r.targets.max()) for s in sites.values() for r in (s.train, s.validation, s.test) if len(r)
    )
    classes = tuple(str(i) for i in range(max(2, most + 1)))
    return Task("binary" if len(classes) == 2 else "multiclass", classes, shape)


def doubt_about(federation: Federation) -> str | None:
    """Why the inputs themselves have no guarantee: a schema that was drawn from records shapes all that leaves."""
    return "the schema was drawn from the records" if REHEARSAL in federation.notes else None

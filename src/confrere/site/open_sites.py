"""Open the sites that a study or a caller names, with encoded records."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from confrere.core.errors import StudyError
from confrere.core.registry import nearest
from confrere.core.seeds import derive
from confrere.data.arrays import of_arrays, task_of_arrays
from confrere.data.bundled import federation
from confrere.data.encode.feature_cache import features_folder
from confrere.data.encode.image_features import with_features
from confrere.data.encode.public_features import open_encoder, with_encoder
from confrere.data.federation import REHEARSAL, Opening, of_files
from confrere.data.federation import Source as Origin
from confrere.data.read.sources import ReadOptions
from confrere.data.records import Federation, SiteData
from confrere.data.split.holdout import SplitRule, file_group, fingerprints, whole_file
from confrere.data.split.redistribute import recut
from confrere.report.progress import counting
from confrere.study import SiteConfig, Study, named

Source = SiteData | pd.DataFrame | tuple[Any, Any] | tuple[Any, Any, Any] | str | Path | Origin
"""A site's records: encoded already, a table, arrays (inputs, targets[, patients]), or a file."""


def open_sites(
    study: Study,
    sites: Mapping[str, Source] | Federation | None = None,
    *,
    key: bytes = b"",
    tolerant: bool = False,
    features_in: Path | None = None,
) -> Federation:
    """The federation of a study; `sites` (from Python) takes the place of what the study names.

    `key` is a node's own, for the split of its records; in a rehearsal it is derived from the seed and the site's name.
    `tolerant` is how a node opens its own file: records that do not fit the schema are left out, and it does not
    matter whether enough, or any, are left. A rehearsal refuses such a file. `features_in` is the folder that keeps the
    features of pictures; a rehearsal keeps them in the user's cache folder.
    """
    if not isinstance(study, Study):
        raise StudyError(
            f"the study is a {type(study).__name__}; read it with confrere.load(PATH), or make a confrere.Study"
        )
    if isinstance(sites, Federation):
        return _encoded(with_sizes(sites, study), study, features_in)
    split = rule_of(study, key)
    seed = derive(study.seed, "split")
    if sites is not None:
        found = _given(study, sites, seed, split)
    elif study.data.bundled:
        found = federation(study.data.bundled, seed=seed, split=split, **study.data.options)
    elif study.sites:
        origins = {n: _origin(n, e) for n, e in study.sites.items()}
        found = _given(study, origins, seed, split, tolerant)
    elif study.data.file:
        found = _given(study, {"all": study.data.file}, seed, split)
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
            found = recut(found, how, seed=seed, split=split, **options)
        except TypeError as error:  # a value of another kind than the option has
            raise StudyError(f"data.partition: {error}") from None
    costs = (whole_file(split.method),) if file_group(split.method) > 1 else ()
    found = replace(found, sites=dict(sorted(found.sites.items())), notes=(*found.notes, *costs))
    found = with_sizes(found, study)
    found = only_partners(found, study.partners)
    if study.data.features:
        return with_features(found, study.data.features)
    return _encoded(found, study, features_in)


def _encoded(federation: Federation, study: Study, features_in: Path | None) -> Federation:
    """The federation as the study's encoder turns it into features, if it has one."""
    spec = study.data.encoder
    if spec is None or federation.encoder == spec.identity:
        return federation
    if federation.encoder:
        raise StudyError("data.encoder: these records are already features of another encoder")
    encoder = open_encoder(spec, encoder_copies(study))
    with counting(f"{study.title or study.name}: features of pictures") as progress:
        return with_encoder(federation, encoder, features_in or features_folder(), progress)


def encoder_copies(study: Study) -> list[Path]:
    """The copies of the study's ONNX file, one for each site: what the site names, else in the folder of the study, else
    beside its records."""
    spec = study.data.encoder
    if spec is None or not spec.file:
        return []
    common, found = Path(spec.file), []
    for own in study.sites.values():
        on_disk = own.data is not None and "://" not in own.data
        beside = Path(own.data or "").parent / common.name if on_disk else common
        found.append(Path(own.encoder) if own.encoder else common if common.is_file() else beside)
    return list(dict.fromkeys(found or [common]))


def open_site(study: Study, name: str) -> Federation:
    """One site of a rehearsal, opened for its own node.

    Only its own file is read, unless the sites depend on each other: where one set is cut into sites, where the schema is
    drawn from all records, and where only columns that all sites have are used. Then all sites are opened, and the
    records of the others are released at once.
    """
    schema = study.parsed_schema
    if name in study.sites and schema is not None and not schema.site and schema.missing_columns != "common":
        return open_sites(replace(study, sites={name: study.sites[name]}, partners=None))
    found = open_sites(study)
    return replace(found, sites={name: found.sites[name]})


def with_sizes(federation: Federation, study: Study) -> Federation:
    """Every site with its public size: what it declares, or in a rehearsal a rounded count, times the training share."""
    stated = {n: e.declared for n, e in study.sites.items() if e.declared}
    unit = study.privacy.unit if study.privacy is not None else "record"

    def sized(name: str, site: SiteData) -> SiteData:
        own = stated.get(name, 0 if site.computed else site.declared)
        return site.declaring(own, study.data.split.train, unit)

    return replace(federation, sites={n: sized(n, s) for n, s in federation.sites.items()})


def computed_sizes(federation: Federation) -> str | None:
    """The label of a rehearsal in which sizes that a node declares were computed from records; None where none was."""
    names = [n for n, s in federation.sites.items() if s.computed]
    if not names:
        return None
    who = "every site" if len(names) == len(federation.sites) else ", ".join(names)
    return (
        f"the public size of {who} was computed from its records, which only a rehearsal may do: state it as `declared`"
        " under [sites], as a node does with `confrere enroll --declared`"
    )


def only_partners(federation: Federation, partners: Sequence[str] | None) -> Federation:
    """The sites that learn together, where a study names them (`partners = ["a", "b"]`); all of them where it does not."""
    if partners is None:
        return federation
    known = list(federation.sites)
    for name in partners:
        if name not in known:
            raise StudyError(
                f'partners names "{name}", which is not a site of this study{nearest(name, known)};'
                f" its sites: {', '.join(known)}"
            )
    left = {n: s for n, s in federation.sites.items() if n in partners}
    if len(left) < 2:
        raise StudyError(
            f"partners leaves {f'only {next(iter(left))}' if left else 'no site'}: it names all sites that learn together,"
            " the one that asked among them; name two at least, or drop the line"
        )
    return replace(federation, sites=left)


def _origin(name: str, entry: SiteConfig) -> Origin:
    if entry.data is None:
        raise StudyError(f'sites.{name}: say where its records are, as in [sites.{name}] data = "{name}.csv"')
    if entry.limit_mb < 1:
        raise StudyError(
            f"sites.{name}.limit_mb is {entry.limit_mb}; the largest file that is expected, in MB"
        )
    reading = ReadOptions(
        entry.query,
        entry.delimiter,
        entry.encoding,
        entry.decimal,
        entry.sheet,
        limit=entry.limit_mb * 1024**2,
    )
    return Origin(
        entry.data, reading, entry.folder, entry.rename, entry.units, entry.stream, entry.declared or 0
    )


def rule_of(study: Study, key: bytes = b"") -> SplitRule:
    """How a study divides the records of each site."""
    s = study.data.split
    return SplitRule((s.train, s.validation, s.test), s.method, key, s.cut)


def _given(
    study: Study, sites: Mapping[str, Source], seed: int, split: SplitRule, tolerant: bool = False
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
            split=split,
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
    schema = study.parsed_schema
    tables = {str(n): s for n, s in sites.items() if isinstance(s, str | Path | pd.DataFrame | Origin)}
    allowed = study.data.one_class == "allow"
    opening = Opening(study.name, seed, split, one_class=allowed, tolerant=tolerant)
    return of_files(tables, schema, opening, label=study.data.label)


def records_hash(site: SiteData) -> str:
    """A hash of a site's records: PRIVATE, since guesses about a record can be tested against it."""
    digest = hashlib.sha256()
    for part in (site.train, site.validation, site.test):
        digest.update(f"{len(part)}\n".encode())
        if len(part):
            digest.update(fingerprints(part, 0).tobytes())
            digest.update(b"" if part.units is None else part.units.numpy().tobytes())
    return digest.hexdigest()


def inputs_caveat(federation: Federation) -> str | None:
    """Why the inputs themselves have no guarantee: a schema that was drawn from records shapes all that leaves."""
    return "the schema was drawn from the records" if REHEARSAL in federation.notes else None

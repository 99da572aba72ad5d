"""Load studies and site configurations from TOML files. Nothing is guessed; an error names the key."""

from __future__ import annotations

import tomllib
import typing
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from confrere.core.errors import ConfrereError, Retired, StudyError
from confrere.core.registry import nearest
from confrere.core.strict_reader import build, named, read, read_toml_file
from confrere.exchange.attacks import attacks
from confrere.study.comparison_settings import FULL
from confrere.study.definition import Study
from confrere.study.settings import SiteConfig

LEDGER = "ledger.sqlite"
"""The name of a ledger's file, where site.toml states none."""


def load(path: str | Path, overrides: Iterable[str] = ()) -> Study:
    """Read a study from a TOML file; `overrides` are `a.b=value` strings, their values written as in TOML.

    >>> confrere.load(folder / "study.toml", ["rounds=5"]).rounds
    5
    """
    path = Path(path)
    table = read_toml_file(path, "a study is a TOML file, see studies/quickstart.toml")
    for override in overrides:
        _override(table, override)
    return _anchored(parse({"name": path.stem, **table}, str(path)), path.resolve().parent)


def load_site(path: Path) -> SiteConfig:
    """A site's own configuration from its TOML file; paths in it are relative to it."""
    table = read_toml_file(path, "it says where the site's records are, and its caps")
    found: SiteConfig = build(SiteConfig, table, str(path))
    if found.config is not None:
        raise StudyError(f"{path}: a site's configuration cannot name another one")
    home = path.resolve().parent
    found = replace(found, ledger=str(home / (found.ledger or Path(found.keys).parent / LEDGER)))
    if found.data is not None and "://" not in found.data:
        found = replace(found, data=str(home / found.data))
    if found.encoder:
        found = replace(found, encoder=str(home / found.encoder))
    return replace(found, folder=str(home / found.folder)) if found.folder else found


RETIRED = {"reported": "what a source reports is in repro/reported/NAME.toml"}
"""Keys of earlier versions that are ignored with a warning, each with its replacement."""


def parse(table: Mapping[str, Any], where: str = "study") -> Study:
    """A study from the tables of a TOML file."""
    for key in RETIRED.keys() & table.keys():
        warnings.warn(f"{where}: [{key}] is no longer read: {RETIRED[key]}", Retired, stacklevel=3)
    table = {key: value for key, value in table.items() if key not in RETIRED}
    try:
        return typing.cast("Study", read(Study, table))
    except ConfrereError as error:
        raise type(error)(f"{where}: {error}") from None
    except RecursionError:
        raise StudyError(f"{where}: not a study: its tables are nested too deeply") from None


def merged(study: Study, changes: Mapping[str, Any], where: str) -> Study:
    """The study with nested changes, in the form of its TOML; a table is merged, anything else replaced."""

    def join(old: Any, new: Any) -> Any:
        if (
            isinstance(old, dict)
            and isinstance(new, dict)
            and new.get("name", old.get("name")) == old.get("name")
        ):
            return {**old, **{k: join(old.get(k), v) for k, v in new.items()}}
        return new

    functions = study.models
    table = join(study.as_dict(), dict(changes))
    found = parse(table, where)
    return found if "models" in changes else replace(found, models=functions)


def scaled(study: Study, name: str) -> Study:
    """A smaller version of the study: one of its `[scales]`; «full» is the study as it is written."""
    if name == FULL:
        return study
    if name not in study.scales:
        known = [FULL, *study.scales]
        raise StudyError(
            f'study "{study.name}" has no scale "{name}"{nearest(name, known)}; known: {", ".join(known)}'
        )
    found = merged(replace(study, scales={}), study.scales[name], f"scales.{name}")
    return replace(found, scale=name)


def _override(table: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    if not equals or not key.strip():
        raise StudyError(f'--set takes a.b=value, not "{override}"')
    try:
        found = tomllib.loads(f"x = {text}")
        value: Any = found["x"] if len(found) == 1 else text
    except tomllib.TOMLDecodeError:
        value = text
    except ValueError:
        raise StudyError(f"--set {key}: a number has too many digits") from None
    *path, last = key.strip().split(".")
    here = table
    for step in path:
        inner: Any = here.get(step)
        if isinstance(inner, str) and step in (
            "strategy",
            "topology",
            "combiner",
            "compression",
            "attack",
            "partition",
        ):
            inner = {"name": inner}
        elif inner is None:
            inner = {}
        if not isinstance(inner, dict):
            raise StudyError(f'--set {override}: "{step}" is a value, not a table')
        here[step] = dict(inner)
        here = here[step]
    here[last] = value


def _anchored(study: Study, folder: Path) -> Study:
    """Relative paths in a study are relative to its file."""

    def at(path: str | None) -> str | None:
        return None if path is None else path if "://" in path else str(folder / path)

    sites = {
        n: replace(s, data=at(s.data), folder=at(s.folder or None) or "", encoder=at(s.encoder or None) or "")
        for n, s in study.sites.items()
    }
    for name, site in sites.items():
        if site.config is not None:
            beside = [f.name for f in fields(site) if getattr(site, f.name) != getattr(SiteConfig(), f.name)]
            if beside != ["config"]:
                extra = ", ".join(key for key in beside if key != "config")
                raise StudyError(
                    f"sites.{name} names a configuration of its own ({site.config}) and states {extra} beside it:"
                    " say it there, in one place"
                )
            sites[name] = load_site(folder / site.config)
    encoder = study.data.encoder
    if encoder is not None and encoder.file:
        encoder = replace(encoder, file=str(folder / encoder.file))
    data = replace(study.data, file=at(study.data.file), encoder=encoder)
    schema = at(study.schema) if isinstance(study.schema, str) else study.schema
    return replace(study, sites=sites, data=data, schema=schema)


def attacked(study: Study, name: str | None, attackers: str | None) -> Study:
    """The study with an attack as a command line says it: its name, and how many sites or which («2» or «a,b»)."""
    if name is None and attackers is None:
        return study
    if name is None and study.attack is None:
        raise StudyError(
            f"--attackers says who attacks; say how as well: --attack {'|'.join(attacks.names())}"
        )
    known, options = named(study.attack, "attack") if study.attack is not None else ("", {})
    table: dict[str, Any] = {"name": name or known, **(options if name in (None, known) else {})}
    if attackers is not None:
        some = [part.strip() for part in attackers.split(",") if part.strip()]
        table["attackers"] = int(some[0]) if len(some) == 1 and some[0].lstrip("-").isdigit() else some
    return replace(study, attack=table)

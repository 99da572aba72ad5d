"""A study: what all sites agree on, read strictly from TOML.

A wrong key is an error that names the nearest right one; a wrong value says what it must be. Nothing is
guessed. The hash of a study is part of every run and every handshake; the seed is not part of it.
"""

from __future__ import annotations

import hashlib
import json
import math
import tomllib
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import numpy as np
import tomli_w
from pydantic import ConfigDict, TypeAdapter, ValidationError, with_config
from torch import nn
from torch.nn.parameter import UninitializedParameter

from confrere.core.errors import ConfrereError, StudyError
from confrere.core.protocols import Strategy, Topology
from confrere.core.registry import nearest
from confrere.data.schema import Schema
from confrere.exchange.topology import topologies
from confrere.learning.optimisers import Optimiser, optimiser
from confrere.learning.tuning import Search
from confrere.privacy.clipping import AdaCliP, Clipping, Flat, PerLayer, Quantile
from confrere.runtime.churn import Churn
from confrere.strategies import discover, strategies

CLIPPINGS: dict[str, type] = {"flat": Flat, "per-layer": PerLayer, "adaclip": AdaCliP, "quantile": Quantile}

STRICT = ConfigDict(extra="forbid", strict=True, arbitrary_types_allowed=True)

Named = str | dict[str, Any]
"""A name, or a table with `name` and options: "proxyfl" or { name = "proxyfl", alpha = 0.3 }."""

MOST_ROUNDS = 1_000_000


NetworkSpec = Any
"""A network: a name, a table with `name` and options, or (in Python) a function that returns a module."""


@with_config(STRICT)
@dataclass(frozen=True)
class Models:
    """The networks: `private` is each site's own business, `proxy` is common to all."""

    private: NetworkSpec = "linear"
    proxy: NetworkSpec = "linear"
    sites: dict[str, dict[str, NetworkSpec]] = field(default_factory=dict)

    def check(self) -> None:
        named_here = {"models.private": self.private, "models.proxy": self.proxy}
        for site, roles in self.sites.items():
            for role, spec in roles.items():
                if role not in ("private", "proxy"):
                    raise StudyError(
                        f'models.sites.{site}: unknown role "{role}"{nearest(role, ["private", "proxy"])};'
                        " known: private, proxy"
                    )
                named_here[f"models.sites.{site}.{role}"] = spec
        for where, spec in named_here.items():
            if isinstance(spec, nn.Module):
                raise StudyError(
                    f"{where} is a module; give a function that makes one, such as lambda: {type(spec).__name__}(…),"
                    " so that every site starts from its own"
                )
            table = isinstance(spec, dict) and isinstance(spec.get("name"), str)
            if not (isinstance(spec, str) or table or callable(spec)):
                raise StudyError(
                    f'{where} is written as "mlp" or as {{ name = "mlp", … }}, not {_short(spec)}'
                )

    def of(self, site: str, role: str) -> NetworkSpec:
        """The network of a role at a site; only the private one may differ between sites."""
        own = self.sites.get(site, {})
        return own.get(role, self.proxy if role == "proxy" else self.private)


@with_config(STRICT)
@dataclass(frozen=True)
class Training:
    """Local training. `protected` overrides the optimiser for models trained under privacy.

    Where a study states neither, these are trained by gradient descent that goes as far as the noise lets it:
    see learning/pace.py.
    """

    optimiser: str = "adam"
    learning_rate: float = 0.01
    momentum: float = 0.0
    weight_decay: float = 1e-4
    batch_size: int = 64
    epochs: int = 1
    protected: dict[str, Any] = field(default_factory=dict)
    balanced: bool = False
    """Whether all classes count alike, however many records each has: see learning/balance.py."""
    tune: bool = True
    """Whether a site's own model is in the end trained anew, regularised by cross-validation."""
    tune_priors: tuple[float, ...] = Search.priors
    tune_lengths: tuple[int, ...] = Search.lengths

    def search(self) -> Search:
        return Search(self.tune_priors, self.tune_lengths)

    @property
    def states_steps(self) -> bool:
        """Whether the study says how models are to be trained."""
        plain = Training()
        keys = ("optimiser", "learning_rate", "momentum", "weight_decay", "protected")
        return any(getattr(self, k) != getattr(plain, k) for k in keys)

    def rule(self, protected: bool) -> Optimiser:
        """The optimiser that the study states."""
        options: dict[str, Any] = {
            "optimiser": self.optimiser,
            "learning_rate": self.learning_rate,
            "momentum": self.momentum,
            "weight_decay": self.weight_decay,
        }
        if protected:
            for key in self.protected:
                if key not in options:
                    raise StudyError(
                        f'unknown key "training.protected.{key}"{nearest(key, list(options))};'
                        f" known: {', '.join(options)}"
                    )
            build(Training, self.protected, "training.protected")
            options |= self.protected
        name = options.pop("optimiser")
        if name != "sgd":
            options.pop("momentum")
        return optimiser(name, **options)


@with_config(STRICT)
@dataclass(frozen=True)
class Privacy:
    """The guarantee that a study asks for; a site's own caps always win over it.

    With `epsilon` alone the noise is calibrated so that all rounds together stay below it. With
    `noise_multiplier` alone nothing stops the run, and what was spent is shown. With both, training of
    the proxy ends before the step that would overspend.
    """

    epsilon: float | None = None
    delta: float = 1e-5
    noise_multiplier: float | None = None
    clipping: Named = "flat"
    sampling: Literal["poisson", "full"] = "full"
    batch_size: int = 250
    steps: int | None = None
    unit: Literal["record", "patient"] = "record"
    accountant: Literal["pld", "rdp"] = "pld"
    when_spent: Literal["relay", "leave"] = "relay"

    def clipper(self) -> Clipping:
        name, options = named(self.clipping, "privacy.clipping")
        if name not in CLIPPINGS:
            raise StudyError(
                f'unknown clipping "{name}"{nearest(name, list(CLIPPINGS))}; known: {", ".join(CLIPPINGS)}'
            )
        return typing.cast("Clipping", build(CLIPPINGS[name], options, f'clipping "{name}"'))


@with_config(STRICT)
@dataclass(frozen=True)
class Split:
    """Which share of a site's records is held out, stratified and by patient."""

    validation: float = 0.15
    test: float = 0.25


@with_config(STRICT)
@dataclass(frozen=True)
class Data:
    """Where the records come from: a data set that comes along, one file for all sites, or `[sites]`."""

    bundled: str | None = None
    options: dict[str, Any] = field(default_factory=dict)
    file: str | None = None
    label: str = ""
    """Without a schema: the column to predict. The schema is then drawn from the records: rehearsals only."""
    classes: tuple[str, ...] = ()
    """For arrays: what the classes 0, 1, 2 … are called. Without it they are counted in the records of all sites."""
    features: str = ""
    """For pictures: "gradients" puts fixed features in their place, in which no record had a say."""
    split: Split = field(default_factory=Split)
    one_class: Literal["refuse", "allow"] = "refuse"


@with_config(STRICT)
@dataclass(frozen=True)
class Caps:
    """What a site allows at most; it always wins over the study. A simulation heeds ε and δ, a node all of it."""

    epsilon: float | None = None
    delta: float | None = None
    rounds: int | None = None
    """It takes part in so many rounds of a study."""
    bytes: int | None = None
    """So many bytes of parcels leave it in a study."""
    partners: list[str] | None = None
    """It exchanges parcels with these sites and no others."""
    hours: list[int] | None = None
    """It begins a round only between these hours of its own clock, as in [22, 6]."""


@with_config(STRICT)
@dataclass(frozen=True)
class SiteConfig:
    """What never leaves a site: where its records are, how its file differs from the schema, its own caps.

    On a node this is site.toml. A rehearsal holds it in the study, as [sites.NAME], or names the file:
    [sites.NAME] config = "NAME/site.toml". It is no part of the study's hash.
    """

    config: str | None = None
    accept_unproven_privacy: bool = True
    """Whether models without a proven guarantee may leave, where the study asks for them. This is the default of
    a rehearsal; a node's is false."""
    caps: Caps = field(default_factory=Caps)
    data: str | None = None
    query: str = ""
    delimiter: str = ""
    encoding: str = ""
    decimal: str = ""
    sheet: str = ""
    folder: str = ""
    rename: dict[str, str] = field(default_factory=dict)
    units: dict[str, str] = field(default_factory=dict)
    stream: bool = False
    limit_mb: int = 2048
    """The largest file or query result, in MB, that is read into memory; more is taken for a mistake."""
    declared: int | None = None
    keys: str = "keys"
    """Of a node: the folder of its identity, made by `confrere enroll`."""
    roster: str = "roster.toml"
    """Of a node: who takes part, signed by all."""
    home: str = "node"
    """Of a node: the folder of its journal, its store and its result."""
    ledger: str = "ledger.sqlite"
    """Of a node: what was ever spent on these records, in whatever study. Never restore it from an old copy."""
    listen: str = ""
    """Of a node: host:port to listen on, where that is not the address that peers dial."""
    metrics: int | None = None
    """Of a node: the port, on this machine only, of its metrics for Prometheus."""


@with_config(STRICT)
@dataclass(frozen=True)
class Evaluation:
    """How often models are tested, and which one a site keeps: the best on its validation records, or the last."""

    every: int = 1
    select: Literal["best", "last"] = "best"


@with_config(STRICT)
@dataclass(frozen=True)
class Study:
    """Everything that the sites of a collaboration agree on.

    >>> Study(name="first", data=Data(bundled="thyroid"), strategy="fedavg").rounds
    20
    """

    name: str = "study"
    title: str = ""
    question: str = ""
    seed: int = 0
    rounds: int = 20
    strategy: Named = "proxyfl"
    topology: Named | None = None
    models: Models = field(default_factory=Models)
    training: Training = field(default_factory=Training)
    privacy: Privacy | None = None
    data: Data = field(default_factory=Data)
    sites: dict[str, SiteConfig] = field(default_factory=dict)
    schema: dict[str, Any] | str | None = None
    churn: Churn = field(default_factory=Churn)
    evaluation: Evaluation = field(default_factory=Evaluation)
    patience: float = 60.0
    partners: list[str] | None = None
    variants: dict[str, dict[str, Any]] = field(default_factory=dict)
    """For `compare`: named changes to this study, as [variants.NAME] with the keys of a study."""

    def __post_init__(self) -> None:
        check_types(self)
        check(self)

    def with_(self, **changes: Any) -> Study:
        """The same study with some fields replaced."""
        return replace(self, **changes)

    def rule(self) -> Strategy:
        """The strategy with its options."""
        discover()
        name, options = named(self.strategy, "strategy")
        return typing.cast("Strategy", build(strategies[name], options, f'strategy "{name}"'))

    def graph(self) -> Topology:
        """The topology with its options; the strategy's own if the study names none."""
        spec = self.topology if self.topology is not None else getattr(self.rule(), "topology", "none")
        name, options = named(spec, "topology")
        return typing.cast("Topology", build(topologies[name], options, f'topology "{name}"'))

    @property
    def strategy_name(self) -> str:
        return named(self.strategy, "strategy")[0]

    def as_dict(self) -> dict[str, Any]:
        """Plain values, without what is not set; functions are named by what they build."""
        return typing.cast("dict[str, Any]", _plain(asdict(_nameable(self))))

    def hash(self) -> str:
        """Names a study in files and on screens."""
        return self.digest()[:16]

    def digest(self) -> str:
        """What sites sign and compare: long enough that nobody can write two studies with the same one."""
        own = ("seed", "title", "question", "sites", "schema")
        agreed = {k: v for k, v in self.as_dict().items() if k not in own}
        schema = schema_of(self)
        agreed |= {"members": sorted(self.sites), "columns": schema.fingerprint if schema else ""}
        return hashlib.sha256(json.dumps(agreed, sort_keys=True, default=str).encode()).hexdigest()

    def to_toml(self) -> str:
        return tomli_w.dumps(self.as_dict())


def named(spec: Named, where: str) -> tuple[str, dict[str, Any]]:
    """Name and options of `spec`."""
    if isinstance(spec, str):
        return spec, {}
    options = dict(spec)
    if not isinstance(options.get("name"), str):
        raise StudyError(
            f'{where} is written as {where} = "name" or [{where}] with name = "…": the name is missing'
        )
    return options.pop("name"), options


def build(kind: Any, options: Mapping[str, Any], what: str) -> Any:
    """A dataclass from its options in a study, checked key by key."""
    known = [f.name for f in fields(kind) if f.init]
    for key in options:
        if key not in known:
            raise StudyError(
                f'{what} has no option "{key}"{nearest(key, known)}; it has: {", ".join(known) or "none"}'
            )
    try:
        return _strict(kind, options)
    except ValidationError as error:
        raise StudyError(f"{what}: {_say(error, kind, options)}") from None


def load(path: str | Path, overrides: Iterable[str] = ()) -> Study:
    """A study from a TOML file; `overrides` are `a.b=value` strings, their values written as in TOML."""
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise StudyError(
            f"{path}: no such file; a study is a TOML file, see studies/quickstart.toml"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise StudyError(f"{path}: cannot be read: {error}") from None
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise StudyError(f"{path}: not valid TOML: {error}") from None
    except RecursionError:
        raise StudyError(f"{path}: not a study: its tables are nested without end") from None
    for override in overrides:
        _override(table, override)
    study = parse(table, str(path))
    if "name" not in table:
        study = replace(study, name=path.stem)
    return _anchored(study, path.resolve().parent)


def load_site(path: Path) -> SiteConfig:
    """A site's own configuration from its TOML file; paths in it are relative to it."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise StudyError(
            f"{path}: no such file; it says where the site's records are, and its caps"
        ) from None
    except (OSError, ValueError) as error:
        raise StudyError(f"{path}: cannot be read: {error}") from None
    found: SiteConfig = build(SiteConfig, table, str(path))
    if found.config is not None:
        raise StudyError(f"{path}: a site's configuration cannot name another one")
    home = path.resolve().parent
    if found.data is not None and "://" not in found.data:
        found = replace(found, data=str(home / found.data))
    return replace(found, folder=str(home / found.folder)) if found.folder else found


def parse(table: Mapping[str, Any], where: str = "study") -> Study:
    """A study from the tables of a TOML file."""
    try:
        return typing.cast("Study", _strict(Study, table))
    except ValidationError as error:
        raise StudyError(f"{where}: {_say(error, Study, table)}") from None
    except ConfrereError as error:
        raise type(error)(f"{where}: {error}") from None
    except RecursionError:
        raise StudyError(f"{where}: not a study: its tables are nested without end") from None


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


def check_types(value: Any, where: str = "") -> None:
    """What TOML cannot get wrong, Python can: a dictionary where `Privacy(…)` belongs, text for a number."""
    hints = typing.get_type_hints(type(value))
    for f in fields(value):
        given, key = getattr(value, f.name), f"{where}.{f.name}".lstrip(".")
        plain = given.item() if isinstance(given, np.generic) else given
        hint = hints[f.name]
        if isinstance(plain, list) and get_origin(hint) is tuple:
            plain = tuple(plain)
        try:
            _adapter(hint).validate_python(plain, strict=True)
        except ValidationError as error:
            kinds = [e.get("ctx", {}).get("class_name") for e in error.errors()]
            made = next((f"confrere.{k}(…)" for k in kinds if k), None)
            wanted = made or " or ".join(KINDS.get(e["type"], e["msg"].lower()) for e in error.errors())
            raise StudyError(f"{key} must be {wanted}, not {_short(given)}") from None
        if is_dataclass(given) and not isinstance(given, type):
            check_types(given, key)


@lru_cache
def _adapter(hint: Any) -> TypeAdapter[Any]:
    return TypeAdapter(hint)


def check(study: Study) -> None:
    """What can be said without looking at any data."""
    if not study.name.strip() or study.name.startswith(".") or {"/", "\\", "\0"} & set(study.name):
        raise StudyError(f'name is "{study.name}"; it becomes the name of a folder, so use plain words')
    if not 1 <= study.rounds <= MOST_ROUNDS:
        raise StudyError(f"rounds is {study.rounds}; a study has at least one, and at most {MOST_ROUNDS:,}")
    study.models.check()
    for name, entry in study.sites.items():
        if entry.declared is not None and entry.declared < 1:
            raise StudyError(
                f"sites.{name}.declared is {entry.declared}; a site declares at least one record"
            )
    t = study.training
    if t.batch_size < 1 or t.epochs < 1:
        raise StudyError("training.batch_size and training.epochs must be at least 1")
    if t.learning_rate <= 0:
        raise StudyError(f"training.learning_rate is {t.learning_rate}; it must be above 0")
    if not t.tune_priors or not all(0 <= p < math.inf for p in t.tune_priors):
        raise StudyError("training.tune_priors are strengths of at least 0, and at least one of them")
    if not t.tune_lengths or min(t.tune_lengths) < 1 or list(t.tune_lengths) != sorted(set(t.tune_lengths)):
        raise StudyError(
            "training.tune_lengths are whole numbers of at least 1, each larger than the one before"
        )
    if study.evaluation.every < 1:
        raise StudyError("evaluation.every must be at least 1")
    if not study.patience > 0:
        raise StudyError("patience is the number of seconds to wait for a peer; it must be above 0")
    s = study.data.split
    if not (0 <= s.validation < 1 and 0 < s.test < 1 and s.validation + s.test < 1):
        raise StudyError(
            f"data.split leaves no training records: validation {s.validation} + test {s.test} must be below 1"
        )
    if study.data.bundled and (study.data.file or study.sites):
        raise StudyError("data.bundled names a data set that comes along; drop it to use files of your own")
    p = study.privacy
    if p is not None:
        if p.epsilon is None and p.noise_multiplier is None:
            raise StudyError(
                "privacy: state epsilon (the noise is then calibrated) or noise_multiplier, or both"
            )
        if p.epsilon is not None and not 0 < p.epsilon < math.inf:
            raise StudyError(f"privacy.epsilon is {p.epsilon}; it must be a number above 0")
        if not 0 < p.delta < 1:
            raise StudyError(f"privacy.delta is {p.delta}; it must be between 0 and 1, at most 1/records")
        if p.noise_multiplier is not None and not 0 < p.noise_multiplier < 1e9:
            raise StudyError(
                f"privacy.noise_multiplier is {p.noise_multiplier}; it must be a number above 0 and below 1e9;"
                " to train without noise, leave [privacy] out altogether"
            )
        if p.batch_size < 1 or (p.steps is not None and p.steps < 1):
            raise StudyError("privacy.batch_size and privacy.steps must be at least 1")
        p.clipper()
    study.rule()
    study.graph()
    t.rule(protected=False)
    t.rule(protected=True)


def schema_of(study: Study) -> Schema | None:
    """The study's schema, inline or from the file that it names."""
    if study.schema is None:
        return None
    if isinstance(study.schema, str):
        path = Path(study.schema)
        try:
            table = tomllib.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise StudyError(f"{path}: no such file; `confrere schema draft` writes one") from None
        except (OSError, ValueError) as error:
            raise StudyError(f"{path}: cannot be read: {error}") from None
        return Schema.from_dict(table.get("schema", table), str(path))
    return Schema.from_dict(study.schema)


def _override(table: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    if not equals or not key.strip():
        raise StudyError(f'--set takes a.b=value, not "{override}"')
    try:
        found = tomllib.loads(f"x = {text}")
        value: Any = found["x"] if len(found) == 1 else text
    except tomllib.TOMLDecodeError:
        value = text
    *path, last = key.strip().split(".")
    here = table
    for step in path:
        inner: Any = here.get(step)
        if isinstance(inner, str) and step in ("strategy", "topology"):
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
        n: replace(s, data=at(s.data), folder=at(s.folder or None) or "") for n, s in study.sites.items()
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
    data = replace(study.data, file=at(study.data.file))
    schema = at(study.schema) if isinstance(study.schema, str) else study.schema
    return replace(study, sites=sites, data=data, schema=schema)


KINDS = {
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "text in quotes",
    "list_type": "a list",
    "tuple_type": "a list",
    "dict_type": "a table",
    "dataclass_type": "a table",
}
"""What a value should have been, in words, by pydantic's name for the mistake."""


def _strict(kind: Any, table: Mapping[str, Any]) -> Any:
    """A dataclass from plain values, which must have their types already: "3" is no number, nor is true."""
    try:
        text = json.dumps(dict(table))
    except (TypeError, ValueError):  # in Python, an option may be an object of its own
        return _adapter(kind).validate_python(dict(table))
    return _adapter(kind).validate_json(text, strict=True)


def _say(error: ValidationError, kind: Any, table: Mapping[str, Any]) -> str:
    """The first thing that is wrong, in words."""
    found = [(_place(e["loc"], table), e) for e in error.errors()]
    (place, given), first = found[0]
    key = ".".join(place) or "study"
    if first["type"] in ("unexpected_keyword_argument", "extra_forbidden"):
        known = _keys_at(kind, place[:-1])
        return f'unknown key "{key}"{nearest(place[-1], known)}; known here: {", ".join(known)}'
    alternatives = [e for (other, _), e in found if other == place]
    wanted = " or ".join(
        KINDS.get(e["type"]) or str(e.get("ctx", {}).get("expected", e["msg"].lower())) for e in alternatives
    )
    return f"{key} must be {wanted}, not {_short(given)}"


def _place(loc: Sequence[int | str], table: Any) -> tuple[list[str], Any]:
    """The keys that lead to a mistake, and what was given there; pydantic's own steps are left out."""
    place: list[str] = []
    for step in loc:
        inside: Any = dict(enumerate(table)) if isinstance(table, list | tuple) else table
        if not isinstance(inside, Mapping) or step not in inside:
            break
        table = inside[step]
        place.append(str(step))
    return place, table


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else text[:59] + "…"


def _keys_at(kind: Any, path: list[str]) -> list[str]:
    for step in path:
        hints = typing.get_type_hints(kind) if is_dataclass(kind) else {}
        kind = hints.get(step, kind)
        kind = next((a for a in (kind, *get_args(kind)) if is_dataclass(a)), kind)
        if get_origin(kind) is dict:
            kind = get_args(kind)[1]
    return [f.name for f in fields(kind)] if is_dataclass(kind) else []


def _nameable(study: Study) -> Study:
    """The study with functions replaced by the name of what they build."""

    def name(spec: NetworkSpec) -> NetworkSpec:
        if callable(spec):
            return _module_name(spec)
        return spec

    models = Models(
        name(study.models.private),
        name(study.models.proxy),
        {s: {r: name(spec) for r, spec in roles.items()} for s, roles in study.models.sites.items()},
    )
    return replace(study, models=models)


def _module_name(make: Callable[[], nn.Module]) -> str:
    module = make()
    if not isinstance(module, nn.Module):
        raise StudyError(f"a network is a function that returns a module; this one returned {module!r}")
    if any(isinstance(p, UninitializedParameter) for p in module.parameters()):
        raise StudyError(
            f"{type(module).__name__} has lazy layers: pass an example through it before you return it"
        )
    shapes = ",".join(f"{n}{tuple(p.shape)}" for n, p in module.named_parameters())
    return f"{type(module).__name__}[{hashlib.sha256(shapes.encode()).hexdigest()[:8]}]"


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items() if v is not None and v != {}}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return value

"""The `Study` class: everything that all sites agree on, with its hash and the checks that need no data."""

from __future__ import annotations

import hashlib
import json
import typing
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import with_config
from torch import nn
from torch.nn.parameter import UninitializedParameter

from confrere.core.errors import StudyError, warn_renamed
from confrere.core.protocols import Strategy, Topology
from confrere.core.strategy_traits import traits
from confrere.core.strict_reader import (
    STRICT,
    Named,
    build_named,
    check_numbers,
    check_types,
    named,
    read_toml_file,
)
from confrere.data.schema import Schema
from confrere.exchange.topology import topologies
from confrere.strategies import discover, strategies
from confrere.study.churn import Churn
from confrere.study.comparison_settings import FULL, ComparisonSettings
from confrere.study.data_settings import Data
from confrere.study.exchange_settings import check_exchange
from confrere.study.masked_settings import Masked, check_masked, masked_of
from confrere.study.settings import Evaluation, Models, NetworkSpec, Privacy, SiteConfig, Stop, Training


@with_config(STRICT)
@dataclass(frozen=True)
class Study:
    """Everything that the sites of a collaboration agree on.

    >>> Study(name="first", data=Data(bundled="thyroid"), strategy="fedavg").rounds
    20
    """

    name: str = "study"
    """A short name, used for folders and reports; the name of the file if left out."""
    title: str = ""
    """The heading of the report."""
    question: str = ""
    """What the study is meant to find out, in one sentence, for the report."""
    seed: int = 0
    """The seed of every random draw in a rehearsal. A node draws its noise from the operating system instead."""
    rounds: int = 20
    """The number of rounds of training and exchange."""
    strategy: Named = "proxyfl"
    """How the sites collaborate."""
    topology: Named | None = None
    """Which sites exchange with which in a round. None: the strategy's own topology."""
    combiner: Named | None = None
    """How a site combines its model with those it received. None leaves it to the strategy."""
    masked: Masked | None = None
    """With combiner = "masked-sum": how many sites may collude, and how many may be missing."""
    compression: Named | None = None
    """How models are compressed before they are sent."""
    attack: Named | None = None
    """In a rehearsal: which sites are dishonest, and how."""
    models: Models = field(default_factory=Models)
    """The networks."""
    training: Training = field(default_factory=Training)
    """How models are trained at a site."""
    privacy: Privacy | None = None
    """The differential privacy of everything that leaves a site. Without it nothing is protected: rehearsals
    only."""
    data: Data = field(default_factory=Data)
    """Where the records of a rehearsal come from, and how they are split."""
    sites: dict[str, SiteConfig] = field(default_factory=dict)
    """Each site's own configuration, as [sites.NAME]; the names are part of what the sites agree on."""
    schema: dict[str, Any] | str | None = None
    """What the columns mean: a table, or the path of a TOML file that holds it."""
    churn: Churn = field(default_factory=Churn)
    """Which sites are absent, join late or leave, in a rehearsal."""
    evaluation: Evaluation = field(default_factory=Evaluation)
    """How often models are evaluated, and which model a site keeps."""
    stop: Stop | None = None
    """When training stops before the last round."""
    patience: float = 60.0
    """How many seconds a node waits for a peer before it goes on without it."""
    partners: list[str] | None = None
    """The sites that take part, where it is not all of them; `confrere partners` writes this key."""
    variants: dict[str, dict[str, Any]] = field(default_factory=dict)
    """For `compare`: named changes to this study, as [variants.NAME] with the keys of a study."""
    comparison: ComparisonSettings = field(default_factory=ComparisonSettings)
    """What `confrere compare` runs."""
    scales: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Smaller versions for `--scale NAME`: named changes to this study, in the form of a variant."""
    scale: str = FULL
    """Which of them this is; `--scale` writes it."""

    def __post_init__(self) -> None:
        check_types(self)
        check_numbers(self)
        check(self)

    def with_(self, **changes: Any) -> Study:
        """The same study with some fields replaced."""
        return replace(self, **changes)

    def build_strategy(self) -> Strategy:
        """The strategy with its options."""
        discover()
        kind: Any = strategies[self.strategy_name]
        if hasattr(kind, "look_at") and not hasattr(kind, "check_members"):
            warn_renamed(f'strategy "{self.strategy_name}": look_at', "check_members")
            kind.check_members = kind.look_at
        found: Any = build_named(strategies, self.strategy, "strategy")
        if masked_of(self) is not None and hasattr(found, "exchange"):
            found = replace(found, exchange="gradients")
        return typing.cast("Strategy", found)

    def rule(self) -> Strategy:
        """The name of `build_strategy` before 0.2."""
        warn_renamed("study.rule", "study.build_strategy")
        return self.build_strategy()

    def graph(self) -> Topology:
        """The topology with its options; the strategy's own if the study names none."""
        spec = (
            self.topology if self.topology is not None else traits(self.build_strategy()).topology or "none"
        )
        return typing.cast("Topology", build_named(topologies, spec, "topology"))

    def threshold_of(self, site: str, prevalence: float | None) -> float | None:
        """The stated probability that counts as a warning at a site; by default `prevalence`, that of its training records."""
        own = self.sites[site].threshold if site in self.sites else None
        return next((t for t in (own, self.evaluation.threshold, prevalence) if t is not None), None)

    @property
    def strategy_name(self) -> str:
        return named(self.strategy, "strategy")[0]

    @property
    def strategy_label(self) -> str:
        """What people call the strategy, for reports; its name if it states no label."""
        return str(getattr(self.build_strategy(), "label", self.strategy_name))

    def as_dict(self) -> dict[str, Any]:
        """Plain values, without what is not set; functions are named by what they build."""
        table = typing.cast("dict[str, Any]", _plain({**self._settings(), "schema": self.schema}))
        if self.comparison.settings:  # a setting that changes nothing is one of them
            table["comparison"]["settings"] = {k: _plain(v) for k, v in self.comparison.settings.items()}
        return table

    def hash(self) -> str:
        """Names a study in files and on screens."""
        return self.digest()[:16]

    def digest(self) -> str:
        """What sites sign and compare: long enough to rule out two studies with the same one."""
        return self._digest

    @cached_property
    def _digest(self) -> str:
        own = ("seed", "title", "question", "sites", "schema", "comparison", "scales", "scale")
        agreed = {k: v for k, v in _plain(self._settings()).items() if k not in own}
        if self.data.encoder is not None:  # each site has its own copy of the file
            agreed["data"] = {**agreed["data"], "encoder": self.data.encoder.facts}
        agreed.get("masked", {}).pop("simulate", None)  # sums are equal to the bit with and without masks
        columns = self.parsed_schema.fingerprint if self.parsed_schema else ""
        agreed |= {"members": sorted(self.sites), "columns": columns}
        return hashlib.sha256(json.dumps(agreed, sort_keys=True, default=str).encode()).hexdigest()

    def to_toml(self) -> str:
        return tomli_w.dumps(self.as_dict())

    def _settings(self) -> dict[str, Any]:
        """All fields as plain values, except the schema, which may be large."""
        return asdict(_nameable(replace(self, schema=None)))

    @cached_property
    def parsed_schema(self) -> Schema | None:
        """The study's schema, inline or from the file that it names; read once."""
        if not isinstance(self.schema, str):
            return None if self.schema is None else Schema.from_dict(self.schema)
        path = Path(self.schema)
        table = read_toml_file(path, "`confrere schema draft` writes one")
        return Schema.from_dict(table.get("schema", table), str(path))


def check(study: Study) -> None:
    """Refuse what can be seen to be wrong without looking at any data; each part checks itself."""
    if not study.name.strip() or study.name.startswith(".") or {"/", "\\", "\0"} & set(study.name):
        raise StudyError(f'name is "{study.name}"; it becomes the name of a folder, so use plain words')
    if not study.patience > 0:
        raise StudyError("patience is the number of seconds to wait for a peer; it must be above 0")
    if FULL in study.scales:
        raise StudyError(f"scales.{FULL}: that is the study as it is written; give the scale another name")
    for name, site in study.sites.items():
        site.check(f"sites.{name}")
    parts = (
        study.models,
        study.training,
        study.data,
        study.privacy,
        study.masked,
        study.stop,
        study.evaluation,
        study.comparison,
    )
    for part in parts:
        if part is not None:
            part.check()
    _check_together(study)
    study.build_strategy()
    study.graph()
    check_masked(study)
    check_exchange(study)


def _check_together(study: Study) -> None:
    """Parts that are sound by themselves and do not go together."""
    stop, privacy = study.stop, study.privacy
    if stop is not None and study.churn.participation and (stop.budget or stop.change is not None):
        raise StudyError(
            "stop.budget and stop.change do not go with churn.participation: a site that is not drawn cannot say whether it"
            " has stopped; use stop.hours"
        )
    if stop is not None and stop.budget and (privacy is None or privacy.epsilon is None):
        raise StudyError("stop.budget stops when a budget is spent, and the study has none: privacy.epsilon")
    if study.data.bundled and study.sites:
        raise StudyError("data.bundled names a bundled data set; remove it to use your own files")


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

"""A study: what all sites agree on, and what can be said of it without looking at any data."""

from __future__ import annotations

import hashlib
import json
import math
import tomllib
import typing
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import with_config
from torch import nn
from torch.nn.parameter import UninitializedParameter

from confrere.core.errors import StudyError
from confrere.core.protocols import Strategy, Topology
from confrere.data.schema import Schema
from confrere.exchange.topology import topologies
from confrere.runtime.churn import Churn
from confrere.strategies import discover, strategies
from confrere.study.exchanged import check_exchange
from confrere.study.published import FULL, Comparing, Reported
from confrere.study.settings import Data, Evaluation, Models, NetworkSpec, Privacy, SiteConfig, Stop, Training
from confrere.study.strict import STRICT, Named, build, check_types, named

MOST_ROUNDS = 1_000_000


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
    combiner: Named | None = None
    """How models are combined: see study/exchanged.py. None leaves it to the strategy."""
    compression: Named | None = None
    """How models are compressed on their way."""
    attack: Named | None = None
    """In a rehearsal: which sites are dishonest, and how."""
    models: Models = field(default_factory=Models)
    training: Training = field(default_factory=Training)
    privacy: Privacy | None = None
    data: Data = field(default_factory=Data)
    sites: dict[str, SiteConfig] = field(default_factory=dict)
    schema: dict[str, Any] | str | None = None
    churn: Churn = field(default_factory=Churn)
    evaluation: Evaluation = field(default_factory=Evaluation)
    stop: Stop | None = None
    patience: float = 60.0
    partners: list[str] | None = None
    variants: dict[str, dict[str, Any]] = field(default_factory=dict)
    """For `compare`: named changes to this study, as [variants.NAME] with the keys of a study."""
    comparison: Comparing = field(default_factory=Comparing)
    scales: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Smaller versions for `--scale NAME`: named changes to this study, in the form of a variant."""
    scale: str = FULL
    """Which of them this is; `--scale` writes it."""
    reported: Reported | None = None

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
        table = typing.cast("dict[str, Any]", _plain(asdict(_nameable(self))))
        if self.comparison.settings:  # a setting that changes nothing is one of them
            table["comparison"]["settings"] = {k: _plain(v) for k, v in self.comparison.settings.items()}
        return table

    def hash(self) -> str:
        """Names a study in files and on screens."""
        return self.digest()[:16]

    def digest(self) -> str:
        """What sites sign and compare: long enough that nobody can write two studies with the same one."""
        own = ("seed", "title", "question", "sites", "schema", "comparison", "scales", "scale", "reported")
        agreed = {k: v for k, v in self.as_dict().items() if k not in own}
        schema = schema_of(self)
        agreed |= {"members": sorted(self.sites), "columns": schema.fingerprint if schema else ""}
        return hashlib.sha256(json.dumps(agreed, sort_keys=True, default=str).encode()).hexdigest()

    def to_toml(self) -> str:
        return tomli_w.dumps(self.as_dict())


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
    for name, epochs in t.site_epochs.items():
        if epochs < 1:
            raise StudyError(f"training.site_epochs.{name} is {epochs}; it must be at least 1")
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
    if study.stop is not None:
        study.stop.check()
        if study.churn.participation and (study.stop.budget or study.stop.change is not None):
            raise StudyError(
                "stop.budget and stop.change do not go with churn.participation: who is not drawn cannot say whether it"
                " has stopped; use stop.hours"
            )
        if study.stop.budget and (study.privacy is None or study.privacy.epsilon is None):
            raise StudyError(
                "stop.budget stops when a budget is spent, and the study has none: privacy.epsilon"
            )
    if study.data.range is not None and not study.data.range[0] < study.data.range[1]:
        raise StudyError("data.range is empty: the first number must be the smaller one")
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
        if not 0 <= p.selection_share < 1 or (p.selection_share and p.epsilon is None):
            raise StudyError(
                f"privacy.selection_share is {p.selection_share:g}; it is a share of privacy.epsilon, from 0 to below 1"
            )
        p.clipper()
    study.comparison.check()
    if study.reported is not None:
        study.reported.check()
    if FULL in study.scales:
        raise StudyError(f"scales.{FULL}: that is the study as it is written; give the scale another name")
    study.rule()
    study.graph()
    check_exchange(study)
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

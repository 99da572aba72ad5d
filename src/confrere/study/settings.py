"""The parts of a study, and what a site keeps to itself."""

from __future__ import annotations

import math
import typing
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from pydantic import with_config
from torch import nn

from confrere.core.errors import StudyError
from confrere.core.registry import nearest
from confrere.learning.optimisers import Optimiser, optimiser
from confrere.learning.tuning import Search
from confrere.privacy.clipping import AdaCliP, Clipping, Flat, PerLayer, Quantile
from confrere.study.strict import STRICT, Named, build, named, short

CLIPPINGS: dict[str, type] = {"flat": Flat, "per-layer": PerLayer, "adaclip": AdaCliP, "quantile": Quantile}

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
                    f'{where} is written as "mlp" or as {{ name = "mlp", … }}, not {short(spec)}'
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
    site_epochs: dict[str, int] = field(default_factory=dict)
    """Sites that train for another number of epochs in a round."""
    protected: dict[str, Any] = field(default_factory=dict)
    balanced: bool = False
    """Whether all classes count alike, however many records each has: see learning/balance.py."""
    tune: bool = True
    """Whether a site's own model is in the end trained anew, regularised by cross-validation."""
    tune_priors: tuple[float, ...] = Search.priors
    tune_lengths: tuple[int, ...] = Search.lengths

    def epochs_at(self, site: str) -> int:
        return self.site_epochs.get(site, self.epochs)

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
    selection_share: float = 0.0
    """Which part of ε and δ is for finding out whom to learn from (`confrere partners`); training has the rest."""

    def for_training(self) -> Privacy:
        """What is left once partners have been chosen. ε and δ of both parts add up to the whole."""
        return self._part(1 - self.selection_share)

    def for_selection(self, share: float = 1.0) -> Privacy:
        """What may be spent on choosing partners, or a share of that."""
        return self._part(self.selection_share * share)

    def _part(self, share: float) -> Privacy:
        if share == 1 or self.epsilon is None:
            return self
        return replace(self, epsilon=self.epsilon * share, delta=self.delta * share, selection_share=0.0)

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
    range: tuple[float, float] | None = None
    """For arrays: what a target that is a number plausibly lies in; it is scaled to −1 … 1. With tables it is in the schema."""
    partition: Named | None = None
    """For a rehearsal: cuts all records anew into sites of a chosen unlikeness; see data/rehearse.py."""
    features: str = ""
    """For pictures: "gradients" puts fixed features in their place, in which no record had a say."""
    split: Split = field(default_factory=Split)
    one_class: Literal["refuse", "allow"] = "refuse"


@with_config(STRICT)
@dataclass(frozen=True)
class Stop:
    """When training stops before the last round: whichever comes first; see runtime/stopping.py.

    Nothing here looks at a record: the clock, the budget, and how far the models that were released still move.
    """

    hours: float | None = None
    """Of wall clock since the run began; a round that has begun is finished."""
    budget: bool = False
    """When a site's privacy budget is spent. Without it, its private model goes on learning."""
    change: float | None = None
    """When the model that a site shares moves, in each of `in_a_row` rounds, by at most this part of its length."""
    in_a_row: int = 3

    @property
    def words(self) -> str:
        found = [f"after {self.hours:g} hours"] if self.hours is not None else []
        found += ["when the privacy budget is spent"] if self.budget else []
        if self.change is not None:
            found.append(
                f"when the shared model moves by at most {self.change:g} of its length {self.in_a_row} times"
            )
        return " or ".join(found)

    def check(self) -> None:
        if self.hours is None and not self.budget and self.change is None:
            raise StudyError("stop says nothing: give hours, change, or budget = true; or leave it out")
        if self.hours is not None and not 0 < self.hours < math.inf:
            raise StudyError(f"stop.hours is {self.hours}; it is a number above 0")
        if self.change is not None and not 0 <= self.change < 1:
            raise StudyError(
                f"stop.change is {self.change}; it is a part of the model's length, at least 0 and below 1, such as 0.01"
            )
        if self.in_a_row < 1:
            raise StudyError(f"stop.in_a_row is {self.in_a_row}; it is a number of rounds, at least 1")


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

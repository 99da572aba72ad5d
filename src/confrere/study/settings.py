"""The tables of a study (models, training, privacy …) and of a site's own configuration, as dataclasses."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from pydantic import with_config
from torch import nn

from confrere.core.errors import StudyError
from confrere.core.metrics import METRICS
from confrere.core.protocols import Optimiser
from confrere.core.registry import nearest
from confrere.core.strict_reader import STRICT, Named, build, named, short
from confrere.learning.fit.public_prior import PublicPrior
from confrere.learning.fit.tuning import Search
from confrere.learning.optimisers import optimiser
from confrere.privacy.charges import CEILING, check_noise
from confrere.privacy.clipping import Clipping, clippings

NetworkSpec = Any
"""A network: a name, a table with `name` and options, or (in Python) a function that returns a module."""


@with_config(STRICT)
@dataclass(frozen=True)
class Models:
    """The networks: `private` is chosen by each site, `proxy` is common to all."""

    private: NetworkSpec = "linear"
    """The network that a site keeps to itself."""
    proxy: NetworkSpec = "linear"
    """The network that sites exchange."""
    sites: dict[str, dict[str, NetworkSpec]] = field(default_factory=dict)
    """Other private networks for single sites: [models.sites.NAME] with private = "mlp"."""

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
    see learning/step_schedule.py.
    """

    optimiser: str = "adam"
    """"sgd", "adam" or "adamw"."""
    learning_rate: float = 0.01
    """The size of a step."""
    momentum: float = 0.0
    """The momentum of "sgd"; other optimisers ignore it."""
    weight_decay: float = 1e-4
    """How strongly weights are pulled towards zero."""
    batch_size: int = 64
    """Records in a batch, for models that are trained without noise."""
    epochs: int = 1
    """Passes over the training records in a round."""
    site_epochs: dict[str, int] = field(default_factory=dict)
    """Sites that train for another number of epochs in a round."""
    protected: dict[str, Any] = field(default_factory=dict)
    """Another optimiser, learning_rate, momentum or weight_decay for models that are trained under privacy."""
    balanced: bool = False
    """Whether all classes count equally, however many records each has."""
    tune: bool = True
    """Whether a site's own model is retrained at the end, regularised by cross-validation."""
    tune_priors: tuple[float, ...] | None = None
    """The strengths of regularisation that cross-validation tries, in records. Left out, a regression has those of the
    public prior below, from 0.1 to 100,000, and other networks 0.1 to 1,000. Listed strengths count equally beforehand."""
    tune_alone: tuple[float, float] = PublicPrior.alone
    """The public prior of a regression that is trained alone: the median strength, and the standard deviation of its log."""
    tune_own: tuple[float, float] = PublicPrior.own
    """The same for candidates without the proxy where others use it."""
    tune_on_proxy: tuple[float, float] = PublicPrior.on_proxy
    """The same for candidates on top of the proxy."""
    tune_trust: float = PublicPrior.trust
    """The public prior share of all candidates on top of the proxy, from 0 to below 1."""
    tune_lengths: tuple[int, ...] = Search.lengths
    """The numbers of epochs that cross-validation tries."""

    def epochs_at(self, site: str) -> int:
        return self.site_epochs.get(site, self.epochs)

    def search(self) -> Search:
        public = PublicPrior(self.tune_alone, self.tune_own, self.tune_on_proxy, self.tune_trust)
        return Search(self.tune_priors, self.tune_lengths, public=public)

    @property
    def states_steps(self) -> bool:
        """Whether the study says how models are to be trained."""
        plain = Training()
        keys = ("optimiser", "learning_rate", "momentum", "weight_decay", "protected")
        return any(getattr(self, k) != getattr(plain, k) for k in keys)

    def build_optimiser(self, protected: bool) -> Optimiser:
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

    def check(self) -> None:
        if self.learning_rate <= 0:
            raise StudyError(f"training.learning_rate is {self.learning_rate}; it must be above 0")
        listed = self.tune_priors
        if listed is not None and (not listed or not all(0 <= p < math.inf for p in listed)):
            raise StudyError("training.tune_priors are strengths of at least 0, and at least one of them")
        for key in ("tune_alone", "tune_own", "tune_on_proxy"):
            if not all(0 < value < math.inf for value in getattr(self, key)):
                raise StudyError(
                    f"training.{key} is a median strength and the standard deviation of its log, both above 0"
                )
        if not 0 <= self.tune_trust < 1:
            raise StudyError(f"training.tune_trust is a share from 0 to below 1, not {self.tune_trust}")
        if not self.tune_lengths or list(self.tune_lengths) != sorted(set(self.tune_lengths)):
            raise StudyError(
                "training.tune_lengths are whole numbers of at least 1, each larger than the one before"
            )
        self.build_optimiser(protected=False)
        self.build_optimiser(protected=True)


@with_config(STRICT)
@dataclass(frozen=True)
class Privacy:
    """The guarantee that a study asks for; a site's own caps always win over it.

    With `epsilon` alone the noise is calibrated so that all rounds together stay below it. With
    `noise_multiplier` alone nothing stops the run, and what was spent is shown. With both, training of
    the proxy ends before the step that would overspend.
    """

    epsilon: float | None = None
    """The largest ε that each site may spend; the noise is calibrated to it."""
    delta: float = 1e-5
    """The δ of the guarantee; it must be smaller than one over the number of training records."""
    noise_multiplier: float | None = None
    """The noise of a step in clipping norms, where it is not calibrated from epsilon."""
    clipping: Named = "flat"
    """How the gradient of one record is bounded."""
    sampling: Literal["poisson", "full"] = "full"
    """"full": every step uses all records. "poisson": each record takes part with the probability batch_size /
    records."""
    batch_size: int = 250
    """The expected batch under Poisson sampling."""
    steps: int | None = None
    """Private steps in a round. None: one with full batches, one pass over the records with Poisson sampling."""
    unit: Literal["record", "patient"] = "record"
    """Whether one record or one patient with all records is protected."""
    accountant: Literal["pld", "rdp"] = "pld"
    """How ε is composed: from privacy loss distributions ("pld") or Rényi divergences ("rdp")."""
    when_spent: Literal["relay", "leave"] = "relay"
    """What a site does once its budget is spent: pass on what it receives, or leave."""
    selection_share: float = 0.0
    """The share of ε and δ that `confrere partners` may spend on choosing partners; training has the rest."""

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
        found = build(clippings[name], options, f'clipping "{name}"')
        if not isinstance(found, Clipping):
            missing = [m for m in dir(Clipping) if not m.startswith("_") and not hasattr(found, m)]
            raise StudyError(
                f'clipping "{name}" does not define {", ".join(missing)}; see privacy/clipping.py'
            )
        return found

    def check(self) -> None:
        if self.epsilon is None and self.noise_multiplier is None:
            raise StudyError(
                "privacy: state epsilon (the noise is then calibrated) or noise_multiplier, or both"
            )
        if self.epsilon is not None and not 0 < self.epsilon < math.inf:
            raise StudyError(f"privacy.epsilon is {self.epsilon}; it must be a number above 0")
        if not 0 < self.delta < 1:
            raise StudyError(f"privacy.delta is {self.delta}; it must be between 0 and 1, at most 1/records")
        if self.noise_multiplier is not None:
            check_noise(self.noise_multiplier, "privacy.noise_multiplier")
        if not 0 <= self.selection_share < 1 or (self.selection_share and self.epsilon is None):
            raise StudyError(
                f"privacy.selection_share is {self.selection_share:g}; it is a share of privacy.epsilon, from 0 to below 1"
            )
        self.clipper()


@with_config(STRICT)
@dataclass(frozen=True)
class Stop:
    """When training stops before the last round: whichever comes first; see site/stopping.py.

    Nothing here looks at a record: the clock, the budget, and how far the models that were released still move.
    """

    hours: float | None = None
    """The hours of wall-clock time after which training stops; a round that has begun is finished."""
    budget: bool = False
    """Stop once a site's privacy budget is spent. Otherwise its private model continues to learn."""
    change: float | None = None
    """Stop once the shared model moves by at most this share of its length in each of `in_a_row` rounds."""
    in_a_row: int = 3
    """The number of consecutive rounds that `change` looks at."""

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
            raise StudyError("[stop] is empty: give hours, change, or budget = true; or leave it out")
        if self.hours is not None and not 0 < self.hours < math.inf:
            raise StudyError(f"stop.hours is {self.hours}; it must be above 0")
        if self.change is not None and not 0 <= self.change < 1:
            raise StudyError(
                f"stop.change is {self.change}; it is a part of the model's length, at least 0 and below 1, such as 0.01"
            )
        if self.in_a_row < 1:
            raise StudyError(f"stop.in_a_row is {self.in_a_row}; it is a number of rounds, at least 1")


@with_config(STRICT)
@dataclass(frozen=True)
class Caps:
    """What a site allows at most; it always wins over the study. A simulation applies only ε and δ; a node applies all."""

    epsilon: float | None = None
    """The largest ε that the site spends on its records, over all studies."""
    delta: float | None = None
    """The largest δ that the site accepts."""
    ceiling: float = CEILING
    """The ε, of all that was ever spent on the site's records, above which a model is labelled «above the ceiling» and
    leaves only with `accept_unproven_privacy`; at most 10."""
    rounds: int | None = None
    """The largest number of rounds that it takes part in, per study."""
    bytes: int | None = None
    """The largest number of bytes of parcels that it sends, per study."""
    partners: list[str] | None = None
    """The only sites that it exchanges parcels with."""
    hours: list[int] | None = None
    """The hours of its own clock between which it begins a round, such as [22, 6]."""
    peer_bytes: int = 256 * 2**20
    """Bytes of the parcels of one peer that wait to be used; four parcels are kept in any case."""


@with_config(STRICT)
@dataclass(frozen=True)
class SiteConfig:
    """What never leaves a site: where its records are, how its file differs from the schema, its own caps.

    On a node this is site.toml. A rehearsal holds it in the study, as [sites.NAME], or names the file:
    [sites.NAME] config = "NAME/site.toml". It is not part of the study's hash.
    """

    config: str | None = None
    """In a study: the path of the site.toml that holds the other keys."""
    accept_unproven_privacy: bool = True
    """Whether models without a proven guarantee may leave, where the study asks for them. This is the default of
    a rehearsal; a node's is false."""
    caps: Caps = field(default_factory=Caps)
    """What the site allows at most."""
    data: str | None = None
    """The records: a CSV, Parquet, Excel, NumPy or image folder path, or a database URL."""
    query: str = ""
    """For a database: the SELECT statement that yields the records."""
    delimiter: str = ""
    """The delimiter of a CSV file. A rehearsal detects it if it is left out."""
    encoding: str = ""
    """The encoding of a text file. If left out, a rehearsal detects it and a node reads UTF-8."""
    decimal: str = ""
    """The decimal sign of a text file. If left out, a rehearsal detects it and a node reads a point."""
    sheet: str = ""
    """The sheet of an Excel file; the first one if left out."""
    folder: str = ""
    """The folder of images or arrays that a table names; the folder of the table if left out."""
    encoder: str = ""
    """This site's copy of the ONNX file whose checksum the study states as `data.encoder.sha256`. If left out, it is
    looked for in the folder of the study and beside the records."""
    rename: dict[str, str] = field(default_factory=dict)
    """This site's column names, each with the name in the schema."""
    units: dict[str, str] = field(default_factory=dict)
    """The unit in which this site's file gives a column, where it differs from the schema."""
    stream: bool = False
    """Whether the file is read in pieces, with the encoded records kept on disk."""
    limit_mb: int = 2048
    """The largest file or query result, in MB, that is read into memory; more is taken for a mistake."""
    declared: int | None = None
    """The privacy units (records or patients) of the whole file, as the owner states them; public. A rehearsal computes
    what is not stated; a node reads it from the signed roster (`confrere enroll --declared`)."""
    keys: str = "keys"
    """Of a node: the folder of its identity, made by `confrere enroll`."""
    roster: str = "roster.toml"
    """Of a node: who takes part, signed by all."""
    home: str = "node"
    """Of a node: the folder of its journal, its store and its result."""
    ledger: str = ""
    """Of a node: everything spent on the institution's patients, in all studies. It lies beside the folder of its
    keys, unless this names another file; all nodes of an institution share one. Never restore it from an old copy."""
    population: str = ""
    """Of a node: a name for patients who are in no other data set of the institution, and so have a ledger of their own.
    Where they are in another one after all, what is spent on them is charged to both."""
    listen: str = ""
    """Of a node: host:port to listen on, where that is not the address that peers dial."""
    metrics: int | None = None
    """Of a node: the port, on this machine only, of its metrics for Prometheus."""
    threshold: float | None = None
    """With two classes, the stated probability that counts as a warning at this site. Where it is left out, it is the
    study's `evaluation.threshold`, or else the share of class 1 among the site's training records."""

    def check(self, where: str) -> None:
        check_threshold(self.threshold, f"{where}.threshold")
        if self.declared is not None and self.declared < 1:
            raise StudyError(f"{where}.declared is {self.declared}; a site declares at least one record")


@with_config(STRICT)
@dataclass(frozen=True)
class Evaluation:
    """How often models are tested, and which one a site keeps: the best on its validation records, or the last."""

    every: int = 1
    """Evaluate after every n-th round."""
    select: Literal["best", "last"] = "best"
    """Which model a site keeps: the best one on its validation records, or the last one."""
    primary: str | None = None
    """The metric by which comparisons are judged, such as "auc"; by default log loss, or RMSE where a number is predicted."""
    threshold: float | None = None
    """With two classes, the stated probability that counts as a warning; by default the share of class 1 among a site's
    training records. A site may choose its own, as `threshold` in site.toml or [sites.NAME]."""

    def due(self, number: int, rounds: int) -> bool:
        """Whether models are tested after round `number`, counted from 0; always after the last one."""
        return (number + 1) % self.every == 0 or number + 1 == rounds

    def check(self) -> None:
        check_threshold(self.threshold, "evaluation.threshold")
        if self.primary is not None and self.primary not in METRICS:
            raise StudyError(
                f'evaluation.primary is "{self.primary}"{nearest(self.primary, list(METRICS))}; known: {", ".join(METRICS)}'
            )


def check_threshold(threshold: float | None, where: str) -> None:
    if threshold is not None and not 0 < threshold < 1:
        raise StudyError(f"{where} is {threshold:g}; it is a probability between 0 and 1")

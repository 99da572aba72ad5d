"""The result of one run, by site."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Generic, Self

from confrere.core.events import Json
from confrere.core.results.document import Document, Figure, Metrics, finite
from confrere.core.results.privacy import PrivacyMeaning, PrivacySpent


@dataclass(frozen=True)
class Measured(Document):
    """A figure with its spread. `values` has one entry per seed; None where it could not be measured."""

    OPTIONAL = ("interval", "word")

    mean: float
    std: float | None = None
    values: tuple[float | None, ...] = ()
    interval: tuple[float, float] | None = None
    """Of a gain, paired by patient and seed. 95 %; beside a word, at the level at which the word was judged."""
    word: str | None = None
    """Of a gain by the study's primary metric: the verdict (`statistics.verdict`)."""

    @classmethod
    def from_json(cls, document: Json, figure: object = None, **given: object) -> Self | None:
        """From a document or a bare number; None where nothing was measured."""
        if isinstance(document, Mapping):
            return super().from_json(document, figure, **given)
        number = finite(document)
        return None if number is None else cls(number, None, (number,))


@dataclass(frozen=True)
class Tested(Document):
    """How many distinct test patients the figures of a site rest on; in a comparison, over all seeds."""

    OPTIONAL = ("rarer_class", "positive", "positive_class", "single")

    patients: int
    rarer: int
    """Those outside the most frequent class; for a number, or for several labels, all of them."""
    rarer_class: str | None = None
    """The name of the rarer class, where there are two."""
    positive: int | None = None
    """Those of class 1 (the ill), where there are two classes."""
    positive_class: str | None = None
    single: bool | None = None
    """True where some seed tests one patient only, so that a mean over sites that includes this one cannot be judged."""


@dataclass(frozen=True)
class InPatients(Document):
    """What a model of two classes means for the patients of a site; all shares are of its test patients."""

    OPTIONAL = ("missed_change", "false_alarms_change")

    threshold: float
    """The model warns where the stated probability of class 1 reaches it."""
    ill: float
    """The share of class 1."""
    missed: float
    false_alarms: float
    calibration: tuple[tuple[float, float], ...]
    """Stated probability and observed share, in groups of equal size."""
    net_benefit: tuple[tuple[float, float], ...]
    """Threshold and net benefit."""
    slope: float | None = None
    """Of the calibration; 1 is perfect. None where it has no value."""
    intercept: float | None = None
    missed_change: tuple[float, float] | None = None
    """95 % interval of `missed` less that of training alone, paired by patient and seed; None where there are too few."""
    false_alarms_change: tuple[float, float] | None = None


@dataclass(frozen=True)
class AtThreshold(Document):
    """The errors of two models of two classes at one threshold, as shares of a site's test records: (alone, together)."""

    OPTIONAL = ("missed_change", "false_alarms_change")

    threshold: float
    missed: tuple[float, float]
    false_alarms: tuple[float, float]
    missed_change: tuple[float, float] | None = None
    """95 % interval of together less alone, paired by patient; None where there are too few."""
    false_alarms_change: tuple[float, float] | None = None


@dataclass(frozen=True)
class ModelVerdict(Document):
    """The collaborative model of one run against one trained alone, on the same test patients: «for this model».

    Nothing is claimed about another run of the study; a comparison over seeds does that.
    """

    OPTIONAL = ("interval", "at_threshold")

    metric: str
    """The study's primary measure."""
    gain: float
    """Positive is better, whatever the metric."""
    word: str
    """The verdict (`statistics.verdict`)."""
    tested: Tested
    interval: tuple[float, float] | None = None
    """95 %, over patients; None where there are too few."""
    at_threshold: AtThreshold | None = None
    """Where there are two classes."""


@dataclass(frozen=True)
class SiteResult(Document, Generic[Figure]):
    """One site: what its models reach on its test records, what it spent and what it sent."""

    UNSTATED = ("name",)
    OPTIONAL = (
        "proxy_metrics", "common_metrics", "common_proxy_metrics", "gains", "round", "attacker", "missing_columns",
        "tested", "prevalence", "in_patients",
    )  # fmt: skip
    KEYS: ClassVar[Mapping[str, str]] = {"gains": "gain"}

    name: str
    records: int | None = None
    """Its training records, as declared."""
    metrics: Metrics[Figure] = field(default_factory=Metrics)
    """Of the model that the site would use."""
    proxy_metrics: Metrics[Figure] | None = None
    common_metrics: Metrics[Figure] | None = None
    """On the test records that all sites share, where there are any."""
    common_proxy_metrics: Metrics[Figure] | None = None
    gains: Metrics[Figure] = field(default_factory=Metrics)
    """In a comparison: over alone, paired by seed; positive is better."""
    privacy: PrivacySpent | None = None
    bytes_sent: int | None = None
    round: int | None = None
    """The round whose model counts."""
    attacker: bool = False
    missing_columns: Mapping[str, str] = field(default_factory=dict)
    """Columns of the schema that the site lacks: imputed there, or left out everywhere."""
    tested: Tested | None = None
    """The patients that its figures rest on."""
    prevalence: float | None = None
    """Of a single run: the share of class 1 among its training records, where there are two classes."""
    in_patients: InPatients | None = None
    """In a comparison, where there are two classes."""


@dataclass(frozen=True)
class Group(Document, Generic[Figure]):
    """Some of the sites: those that have all columns, those that lack some, or those with common test records."""

    OPTIONAL = ("gains",)
    KEYS: ClassVar[Mapping[str, str]] = {"gains": "gain_over_alone"}

    sites: tuple[str, ...]
    mean: Metrics[Figure]
    gains: Metrics[Figure] = field(default_factory=Metrics)


@dataclass(frozen=True)
class Attacked(Document):
    """Which sites were dishonest in a rehearsal, and how."""

    name: str
    attackers: tuple[str, ...]
    honest: tuple[str, ...]


@dataclass(frozen=True)
class Stopped(Document):
    """After how many rounds a study stopped before its last one, and why."""

    rounds: int
    why: str


@dataclass(frozen=True)
class RunResult(Document):
    """The result of one run, as `confrere simulate --json` prints it."""

    OPTIONAL = ("attack", "stopped", "privacy", "common_mean", "by_columns")

    run: str | None = None
    """Its folder, if it has one."""
    study: str = ""
    """The hash of the study."""
    scale: str = "full"
    seed: int | None = None
    strategy: str = ""
    split: Mapping[str, str | int] = field(default_factory=dict)
    """How records were held out: method, group and words."""
    sites: Mapping[str, SiteResult[float]] = field(default_factory=dict)
    mean: Metrics[float] = field(default_factory=Metrics)
    """The plain mean over sites, without attackers."""
    attack: Attacked | None = None
    stopped: Stopped | None = None
    privacy: PrivacyMeaning | None = None
    """What ε means at the site that spent most."""
    common_mean: Metrics[float] | None = None
    by_columns: Mapping[str, Group[float]] = field(default_factory=dict)
    """«complete» and «lacking», where there are sites of both kinds."""

    def as_json(self) -> dict[str, Json]:
        document = super().as_json()
        if any(site.missing_columns for site in self.sites.values()):
            for name, site in self.sites.items():
                document["sites"][name]["missing_columns"] = dict(site.missing_columns)
        return document

    @classmethod
    def from_json(cls, document: Json, figure: object = None, **given: object) -> Self:
        return super().from_json(document, figure, **given) or cls()

"""The result of a comparison: several strategies over the same seeds, compared with training alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Self

from confrere.core.events import Json
from confrere.core.metrics import in_order, proper
from confrere.core.results.document import Document, Metrics
from confrere.core.results.privacy import PrivacySpent
from confrere.core.results.run import Group, InPatients, Measured, SiteResult

ALONE = "local"
"""Training alone, without noise: what every comparison is measured against."""
POOLED = "pooled"
"""One model of all records, without noise: how much there is to gain by learning together."""

FACTS = ("study", "scale", "split", "versions", "hardware", "command")


@dataclass(frozen=True)
class MeanGain(Measured):
    """A gain over alone on the mean over sites, and the site that gains least."""

    worst_site: float | None = None
    worst_site_name: str | None = None


@dataclass(frozen=True)
class CommonResult(Group[Measured]):
    """A strategy on the test records that all sites share."""

    UNSTATED = ("sites",)
    KEYS: ClassVar[Mapping[str, str]] = {"gains": "gain_over_alone", "by_site": "sites"}

    gains: Metrics[MeanGain] = field(default_factory=Metrics)
    by_site: Mapping[str, SiteResult[Measured]] = field(default_factory=dict)

    def as_json(self) -> dict[str, Json]:
        names = list(self.mean)
        return {
            "mean": super().as_json()["mean"],
            "gain_over_alone": _complete(self.gains, names, MeanGain),
            "sites": {n: _site(s, names, ("tested",)) for n, s in self.by_site.items()},
        }

    @classmethod
    def from_json(cls, document: Json, figure: object = None, **given: object) -> Self | None:
        return super().from_json(document, Measured, sites=tuple(document.get("sites") or ()))


@dataclass(frozen=True)
class StrategyResult(Document):
    """One way to learn, over all seeds of a comparison."""

    UNSTATED = ("name",)
    OPTIONAL = ("by_columns", "common", "in_patients")
    KEYS: ClassVar[Mapping[str, str]] = {"gains": "gain_over_alone"}

    name: str
    sites: Mapping[str, SiteResult[Measured]] = field(default_factory=dict)
    mean: Metrics[Measured] = field(default_factory=Metrics)
    privacy: PrivacySpent | None = None
    """Of the site and seed that spent most."""
    seconds: float | None = None
    gains: Metrics[MeanGain] = field(default_factory=Metrics)
    by_columns: Mapping[str, Group[Measured]] = field(default_factory=dict)
    """«complete» and «lacking», where there are sites of both kinds."""
    common: CommonResult | None = None
    """On the common test records, where the study has them."""
    label: str = ""
    """Its name in tables and reports: «ProxyFL, with noise»."""
    in_patients: InPatients | None = None
    """Over all sites, each weighted by its test patients, where there are two classes."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "label", self.label or self.name)

    @property
    def bytes_sent(self) -> int | None:
        """Of all sites together in one run; None if it was not recorded."""
        sent = [s.bytes_sent for s in self.sites.values() if s.bytes_sent is not None]
        return sum(sent) if sent else None

    def as_json(self) -> dict[str, Json]:
        names = list(self.mean)
        document = super().as_json()
        document["gain_over_alone"] = _complete(self.gains, names, MeanGain)
        kept = ["records", "privacy", "bytes_sent", "tested", "in_patients"]
        if any(site.missing_columns for site in self.sites.values()):
            kept.append("missing_columns")
        document["sites"] = {n: _site(s, names, kept) for n, s in self.sites.items()}
        for kind, group in self.by_columns.items():
            document["by_columns"][kind] |= {
                "mean": _complete(group.mean, names),
                "gain_over_alone": _complete(group.gains, names),
            }
        return document


@dataclass(frozen=True)
class Gap(Document):
    """How far alone is from pooled by one metric, and how much of that way each strategy makes."""

    alone: float | None
    pooled: float | None
    gap: Measured | None
    closed: Mapping[str, float | None]
    """By strategy; None where pooling gains nothing that is clear, and where the share is too uncertain to state."""
    intervals: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """By strategy, the 95 % interval of the share."""

    def as_json(self) -> dict[str, Json]:
        gap = self.gap.as_json() if self.gap else {"mean": None, "std": None}
        return {
            "alone": self.alone,
            "pooled": self.pooled,
            "gap": {k: gap[k] for k in ("mean", "std", "interval", "word") if k in gap},
            "closed": dict(self.closed),
            "intervals": {name: list(ends) for name, ends in self.intervals.items()},
        }


@dataclass(frozen=True)
class SiteRecords(Document):
    """What the records of a site look like, in a rehearsal that holds the records of all sites. Private to the site."""

    OPTIONAL = ("shares",)

    records: int
    labels: Mapping[str, float] = field(default_factory=dict)
    """The share of each class, or what else the kind of task sums up."""
    missing: Mapping[str, float] = field(default_factory=dict)
    """The share of missing values, by column."""
    apart: Mapping[str, float] = field(default_factory=dict)
    """The columns in which sites differ most: how far the site's mean lies from that of all records, in standard deviations."""
    columns: int = 0
    """How many columns these were picked from."""
    shares: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """Of these columns, those with two values: the share of this site's records, and of the other sites' records."""


@dataclass(frozen=True)
class ComparisonResult(Document):
    """Several ways to learn over the same seeds, compared with training alone."""

    OPTIONAL = ("attack", "records", "public", "trials")
    UNSTATED = ("featured", "metric", "facts", "judged")

    strategies: Mapping[str, StrategyResult]
    seeds: tuple[int, ...] = ()
    title: str = ""
    question: str = ""
    reference: str = ALONE
    notes: tuple[str, ...] = ()
    featured: str | None = None
    """The strategy that the answer is about."""
    metric: str | None = None
    """The study's primary metric: the one that carries words."""
    facts: Mapping[str, Json] = field(default_factory=dict)
    """Study, scale, split, command, versions and hardware, as far as they were written down."""
    gap: Mapping[str, Gap] = field(default_factory=dict)
    """By metric, where pooling was run too."""
    attack: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By strategy, the sites that were dishonest in it."""
    records: Mapping[str, SiteRecords] = field(default_factory=dict)
    """By site: sizes, labels, missing values, and how far the site lies from the others."""
    public: bool = False
    """Whether these are the records of a public data set, so that the page of one site may show what others have."""
    trials: Mapping[str, Mapping[str, Measured]] = field(default_factory=dict)
    """By site and peer: how much better the model that the peer trained alone predicts the site's test patients than the
    site's own does, by the primary metric, judged by the one rule and corrected for the number of pairs. PRIVATE to both."""
    judged: bool = True
    """Whether its intervals and words follow the one rule; False for a file of an earlier version, which has no `primary`."""

    @property
    def alone(self) -> StrategyResult | None:
        return self.strategies.get(self.reference)

    @property
    def pooled(self) -> StrategyResult | None:
        return self.strategies.get(POOLED)

    @property
    def together(self) -> StrategyResult | None:
        """The collaboration that the report is about: the named one, else ProxyFL, else the first."""
        name = featured(self.strategies, self.featured)
        return self.strategies[name] if name else None

    @property
    def sites(self) -> tuple[str, ...]:
        """Largest first, as alone sees them; a pooled «site» of all records is none."""
        known = self.alone or self.together
        sites = list(known.sites.values()) if known else []
        return tuple(s.name for s in sorted(sites, key=lambda s: (-(s.records or 0), s.name)))

    @property
    def metrics(self) -> tuple[str, ...]:
        return in_order(m for s in self.strategies.values() for r in s.sites.values() for m in r.metrics)

    @property
    def headline(self) -> str | None:
        """The metric that decides: the stated one, else the proper scoring rule, else the first that was measured."""
        wanted = (self.metric, proper(self.metrics), *self.metrics)
        return next((m for m in wanted if m in self.metrics), None)

    def as_json(self) -> dict[str, Json]:
        facts = {name: self.facts.get(name) for name in FACTS} | {"command": self.facts.get("command", "")}
        return super().as_json() | facts | {"primary": self.headline}

    @classmethod
    def from_json(cls, document: Json, figure: object = None, **given: object) -> Self:
        found = super().from_json(
            document,
            figure,
            featured=document.get("featured"),
            metric=document.get("primary") or document.get("metric"),
            facts={name: document[name] for name in FACTS if document.get(name)},
            judged="primary" in document,
        )
        if found is None:
            raise KeyError("strategies")
        return found


def featured(names: Iterable[str], stated: str | None = None) -> str | None:
    """The collaboration that a comparison is about: the stated one, else ProxyFL, else the first."""
    known = list(names)
    together = [n for n in known if is_collaboration(n)]
    return next((n for n in (stated or "", "proxyfl", *together) if n in known), None)


def is_collaboration(name: str) -> bool:
    """Whether sites learn together under this name; alone and pooled are what it is measured against."""
    return name.split("@")[0].split("-")[0] not in (ALONE, POOLED)


def _site(site: SiteResult[Measured], names: Sequence[str], kept: Sequence[str]) -> dict[str, Json]:
    """A site in the document of a comparison."""
    document = site.as_json() | {"missing_columns": dict(site.missing_columns)}
    figures = {"metrics": _complete(site.metrics, names), "gain": _complete(site.gains, names)}
    return {key: document[key] for key in kept if key in document} | figures


def _complete(
    metrics: Mapping[str, Measured], names: Sequence[str], kind: type[Measured] = Measured
) -> dict[str, Json]:
    """All of these metrics; one that was not measured has no mean and no values."""
    nothing = {**kind(0.0).as_json(), "mean": None}
    return {name: metrics[name].as_json() if name in metrics else nothing for name in names}

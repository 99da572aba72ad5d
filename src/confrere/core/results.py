"""Result types of runs and comparisons, with their JSON form.

`as_json` is the document that `--json` prints and a run folder keeps; `from_json` reads it back, and leaves out what an
earlier version did not write. These documents are written and read nowhere else.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from typing import ClassVar, Generic, TypeVar

from confrere.core.events import Json
from confrere.core.metrics import in_order, proper

Figure = TypeVar("Figure", covariant=True)
Plain = TypeVar("Plain")

ALONE = "local"
"""Training alone, without noise: what every comparison is measured against."""
POOLED = "pooled"
"""One model of all records, without noise: how much there is to gain by learning together."""


class Document:
    """A result with the JSON document that states it: its fields, without `UNSTATED` and without empty `OPTIONAL` ones.

    It was a dictionary before: `result["key"]` works for one more version, with a warning.
    """

    OPTIONAL: ClassVar[tuple[str, ...]] = ()
    UNSTATED: ClassVar[tuple[str, ...]] = ()
    KEYS: ClassVar[Mapping[str, str]] = {}
    """Keys that differ from the name of their field."""

    def as_json(self) -> dict[str, Json]:
        document = {}
        for f in fields(self):  # type: ignore[arg-type]  # every subclass is a dataclass
            value = getattr(self, f.name)
            empty = f.default_factory() if f.default_factory is not MISSING else f.default
            if f.name not in self.UNSTATED and not (f.name in self.OPTIONAL and value == empty):
                document[self.KEYS.get(f.name, f.name)] = _plain(value)
        return document

    def __getitem__(self, key: str) -> Json:
        return self._retired()[key]

    def __contains__(self, key: object) -> bool:
        return key in self._retired()

    def get(self, key: str, default: Json = None) -> Json:
        return self._retired().get(key, default)

    def keys(self) -> Iterable[str]:
        return self._retired().keys()

    def _retired(self) -> dict[str, Json]:
        name = type(self).__name__
        text = f"{name} is no dictionary any more: read its attributes, or its as_json(); [] goes in the next version"
        warnings.warn(text, DeprecationWarning, stacklevel=3)
        return self.as_json()


class Metrics(Mapping[str, Figure]):
    """Figures by the name of their metric; `metrics.auc` is short for `metrics["auc"]`.

    >>> Metrics({"auc": 0.81}).auc
    0.81
    """

    __slots__ = ("_figures",)

    def __init__(self, figures: Mapping[str, Figure] | None = None) -> None:
        self._figures = dict(figures or {})

    def __getitem__(self, name: str) -> Figure:
        return self._figures[name]

    def __getattr__(self, name: str) -> Figure:
        if name.startswith("_") or name not in self._figures:
            raise AttributeError(
                f'"{name}" was not measured; there are: {", ".join(self._figures) or "none"}'
            )
        return self._figures[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._figures)

    def __len__(self) -> int:
        return len(self._figures)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._figures]

    def __repr__(self) -> str:
        return f"Metrics({self._figures!r})"


@dataclass(frozen=True)
class PrivacySpent(Document):
    """An ε with everything that gives it meaning."""

    OPTIONAL = ("units", "ceiling", "above_ceiling")

    epsilon: float
    delta: float
    unit: str
    proven: bool
    accountant: str | None = None
    budget: float | None = None
    units: Mapping[str, float | None] | None = None
    """ε for every unit that was ever drawn from these records; None where there is no bound."""
    ceiling: float | None = None
    """The site's ceiling on ε."""
    above_ceiling: bool | None = None

    @property
    def others(self) -> tuple[tuple[str, float | None], ...]:
        """ε for the units beside the one that ε is stated for."""
        return tuple((unit, value) for unit, value in (self.units or {}).items() if unit != self.unit)

    @property
    def exceeded_ceiling(self) -> float | None:
        """The ceiling, if ε is above it."""
        return self.ceiling if self.above_ceiling else None

    @classmethod
    def from_json(cls, document: Mapping[str, Json] | None) -> PrivacySpent | None:
        if not document or document.get("epsilon") is None:
            return None
        units = document.get("units")
        return cls(
            float(document["epsilon"]),
            float(document["delta"]),
            str(document.get("unit") or "record"),
            bool(document.get("proven", False)),
            document.get("accountant"),
            finite(document.get("budget")),
            None if units is None else {str(u): None if e is None else float(e) for u, e in units.items()},
            finite(document.get("ceiling")),
            document.get("above_ceiling"),
        )


@dataclass(frozen=True)
class TradeOffCurve(Document):
    """For shares of false positives, the least share of false negatives that any test has."""

    points: tuple[tuple[float, float], ...]
    mu: float | None = None
    """The one number that describes the curve, where it is that of two Gaussians."""


@dataclass(frozen=True)
class PrivacyMeaning(Document):
    """For whom an ε holds, and what a test could learn about them."""

    OPTIONAL = ("site",)

    unit: str
    readings: Mapping[str, float | None]
    """ε per record, per patient, and per unit of the whole file; None where there is no bound."""
    file_group: int
    """How many units of the training part one unit of the whole file moves."""
    sentence: str
    trade_off: TradeOffCurve | None = None
    site: str | None = None

    @classmethod
    def from_json(cls, document: Mapping[str, Json] | None) -> PrivacyMeaning | None:
        if not document:
            return None
        curve = document.get("trade_off")
        return cls(
            str(document["unit"]),
            dict(document["readings"]),
            int(document["file_group"]),
            str(document["sentence"]),
            TradeOffCurve(tuple((float(a), float(b)) for a, b in curve["points"]), curve["mu"])
            if curve
            else None,
            document.get("site"),
        )


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
    """Of a gain by the study's primary measure: the verdict (`statistics.verdict`)."""

    @classmethod
    def from_json(cls, document: Json) -> Measured | None:
        """From a document or a bare number; None where nothing was measured."""
        if not isinstance(document, Mapping):
            number = finite(document)
            return None if number is None else cls(number, None, (number,))
        mean, values = finite(document.get("mean")), tuple(finite(v) for v in document.get("values") or ())
        ends = tuple(e for v in document.get("interval") or () if (e := finite(v)) is not None)
        if mean is None:
            return None
        word = document.get("word")
        interval = (ends[0], ends[1]) if len(ends) == 2 else None
        return cls(mean, finite(document.get("std")), values, interval, None if word is None else str(word))


@dataclass(frozen=True)
class Tested(Document):
    """How many distinct test patients the figures of a site rest on; in a comparison, over all seeds."""

    OPTIONAL = ("rarer_class",)

    patients: int
    rarer: int
    """Those outside the most frequent class; for a number, or for several labels, all of them."""
    rarer_class: str | None = None
    """The name of the rarer class, where there are two."""

    @classmethod
    def from_json(cls, document: Mapping[str, Json] | None) -> Tested | None:
        if not document:
            return None
        return cls(int(document["patients"]), int(document["rarer"]), document.get("rarer_class"))


@dataclass(frozen=True)
class SiteResult(Document, Generic[Figure]):
    """One site: what its models reach on its test records, what it spent and what it sent."""

    UNSTATED = ("name",)
    OPTIONAL = (
        "proxy_metrics", "common_metrics", "common_proxy_metrics", "gains", "round", "attacker", "missing_columns",
        "tested",
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


def run_site(name: str, document: Mapping[str, Json]) -> SiteResult[float]:
    """A site in the document of a run."""

    def part(key: str) -> Metrics[float] | None:
        return _metrics(document[key], finite) if key in document else None

    return SiteResult(
        name,
        document.get("records"),
        part("metrics") or Metrics(),
        part("proxy_metrics"),
        part("common_metrics"),
        part("common_proxy_metrics"),
        privacy=PrivacySpent.from_json(document.get("privacy")),
        bytes_sent=document.get("bytes_sent"),
        round=document.get("round"),
        attacker=bool(document.get("attacker")),
        missing_columns=_missing_columns(document),
        tested=Tested.from_json(document.get("tested")),
    )


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
    """What one run came to."""

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
    def from_json(cls, document: Mapping[str, Json]) -> RunResult:
        attack, stopped = document.get("attack"), document.get("stopped")
        common = document.get("common_mean")
        return cls(
            document.get("run"),
            str(document.get("study") or ""),
            str(document.get("scale") or "full"),
            document.get("seed"),
            str(document.get("strategy") or ""),
            document.get("split") or {},
            {name: run_site(name, row) for name, row in (document.get("sites") or {}).items()},
            _metrics(document.get("mean"), finite),
            Attacked(attack["name"], tuple(attack["attackers"]), tuple(attack["honest"])) if attack else None,
            Stopped(stopped["rounds"], stopped["why"]) if stopped else None,
            PrivacyMeaning.from_json(document.get("privacy")),
            None if common is None else _metrics(common, finite),
            _groups(document, finite),
        )


@dataclass(frozen=True)
class MeanGain(Measured):
    """A gain over alone on the mean over sites, and the site that gains least."""

    worst_site: float | None = None
    worst_site_name: str | None = None


@dataclass(frozen=True)
class CommonResult(Group[Measured]):
    """A strategy on the test records that all sites share."""

    by_site: Mapping[str, SiteResult[Measured]] = field(default_factory=dict)

    def as_json(self) -> dict[str, Json]:
        names = list(self.mean)
        return {
            "mean": _plain(self.mean),
            "gain_over_alone": _complete(self.gains, names, MeanGain),
            "sites": {
                n: {
                    "metrics": _complete(s.metrics, names),
                    "gain": _complete(s.gains, names),
                    **({"tested": s.tested.as_json()} if s.tested else {}),
                }
                for n, s in self.by_site.items()
            },
        }


@dataclass(frozen=True)
class StrategyResult(Document):
    """One way to learn, over all seeds of a comparison."""

    name: str
    sites: Mapping[str, SiteResult[Measured]]
    mean: Metrics[Measured]
    privacy: PrivacySpent | None = None
    """Of the site and seed that spent most."""
    seconds: float | None = None
    gains: Metrics[Measured] = field(default_factory=Metrics)
    by_columns: Mapping[str, Group[Measured]] = field(default_factory=dict)
    """«complete» and «lacking», where there are sites of both kinds."""
    common: CommonResult | None = None
    """On the common test records, where the study has them."""
    label: str = ""
    """What people call it: «ProxyFL, with noise»; its name where no label was written down."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "label", self.label or self.name)

    @property
    def bytes_sent(self) -> int | None:
        """Of all sites together, in one run; None where it was not recorded."""
        sent = [s.bytes_sent for s in self.sites.values() if s.bytes_sent is not None]
        return sum(sent) if sent else None

    def as_json(self) -> dict[str, Json]:
        names = list(self.mean)
        some_lack = any(site.missing_columns for site in self.sites.values())
        groups = {
            kind: {
                "sites": list(group.sites),
                "mean": _complete(group.mean, names),
                "gain_over_alone": _complete(group.gains, names),
            }
            for kind, group in self.by_columns.items()
        }
        return {
            "label": self.label,
            "mean": _plain(self.mean),
            "gain_over_alone": _complete(self.gains, names, MeanGain),
            "sites": {
                n: {
                    "records": s.records,
                    "metrics": _complete(s.metrics, names),
                    "gain": _complete(s.gains, names),
                    "privacy": _plain(s.privacy),
                    "bytes_sent": s.bytes_sent,
                    **({"missing_columns": dict(s.missing_columns)} if some_lack else {}),
                    **({"tested": s.tested.as_json()} if s.tested else {}),
                }
                for n, s in self.sites.items()
            },
            "privacy": _plain(self.privacy),
            "seconds": self.seconds,
            **({"by_columns": groups} if groups else {}),
            **({"common": self.common.as_json()} if self.common is not None else {}),
        }

    @classmethod
    def from_json(cls, name: str, document: Mapping[str, Json]) -> StrategyResult:
        common = document.get("common")
        return cls(
            name,
            _compared_sites(document),
            _metrics(document.get("mean"), Measured.from_json),
            PrivacySpent.from_json(document.get("privacy")),
            document.get("seconds"),
            _metrics(document.get("gain_over_alone"), _mean_gain),
            _groups(document, Measured.from_json),
            CommonResult(
                tuple(common.get("sites") or ()),
                _metrics(common.get("mean"), Measured.from_json),
                _metrics(common.get("gain_over_alone"), _mean_gain),
                _compared_sites(common),
            )
            if common
            else None,
            str(document.get("label") or ""),
        )


@dataclass(frozen=True)
class Gap(Document):
    """How far alone is from pooled by one metric, and how much of that way each strategy makes."""

    alone: float | None
    pooled: float | None
    gap: Measured | None
    closed: Mapping[str, float | None]
    """By strategy; None where pooling gains nothing that is clear."""

    def as_json(self) -> dict[str, Json]:
        gap = self.gap.as_json() if self.gap else {"mean": None, "std": None}
        return {
            "alone": self.alone,
            "pooled": self.pooled,
            "gap": {k: gap[k] for k in ("mean", "std", "interval", "word") if k in gap},
            "closed": dict(self.closed),
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Json]) -> Gap:
        gap = Measured.from_json(document.get("gap"))
        return cls(document.get("alone"), document.get("pooled"), gap, document.get("closed") or {})


@dataclass(frozen=True)
class ComparisonResult(Document):
    """Several ways to learn, each over the same seeds, beside training alone."""

    strategies: Mapping[str, StrategyResult]
    seeds: tuple[int, ...]
    title: str = ""
    question: str = ""
    reference: str = ALONE
    notes: tuple[str, ...] = ()
    featured: str | None = None
    """The strategy that the answer is about."""
    metric: str | None = None
    """The study's primary measure: the one that carries words."""
    facts: Mapping[str, Json] = field(default_factory=dict)
    """Study, scale, command, versions and hardware, as far as they were written down."""
    gap: Mapping[str, Gap] = field(default_factory=dict)
    """By metric, where pooling was run too."""
    attack: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By strategy, the sites that were dishonest in it."""

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
        facts = dict(self.facts)
        return {
            "title": self.title,
            "question": self.question,
            "study": facts.get("study"),
            "scale": facts.get("scale"),
            "reference": self.reference,
            "primary": self.headline,
            "seeds": list(self.seeds),
            "strategies": {name: s.as_json() for name, s in self.strategies.items()},
            "gap": {metric: gap.as_json() for metric, gap in self.gap.items()},
            "notes": list(self.notes),
            "versions": facts.get("versions"),
            "hardware": facts.get("hardware"),
            "command": facts.get("command", ""),
            **({"attack": {n: list(sites) for n, sites in self.attack.items()}} if self.attack else {}),
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Json]) -> ComparisonResult:
        return cls(
            {name: StrategyResult.from_json(name, row) for name, row in document["strategies"].items()},
            tuple(document.get("seeds") or ()),
            str(document.get("title") or ""),
            str(document.get("question") or ""),
            str(document.get("reference") or ALONE),
            tuple(str(n) for n in document.get("notes") or ()),
            document.get("featured"),
            document.get("primary") or document.get("metric"),
            {
                k: document[k]
                for k in ("study", "scale", "command", "versions", "hardware")
                if document.get(k)
            },
            {metric: Gap.from_json(gap) for metric, gap in (document.get("gap") or {}).items()},
            {name: tuple(sites) for name, sites in (document.get("attack") or {}).items()},
        )


def featured(names: Iterable[str], stated: str | None = None) -> str | None:
    """The collaboration that a comparison is about: the stated one, else ProxyFL, else the first."""
    known = list(names)
    together = [n for n in known if is_collaboration(n)]
    return next((n for n in (stated or "", "proxyfl", *together) if n in known), None)


def is_collaboration(name: str) -> bool:
    """Whether sites learn together under this name; alone and pooled are what it is measured against."""
    return name.split("@")[0].split("-")[0] not in (ALONE, POOLED)


def finite(value: Json) -> float | None:
    """A number, or None for anything else: NaN, infinity, text."""
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _plain(value: Json) -> Json:
    if isinstance(value, Document):
        return value.as_json()
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, tuple | list) else value


def _complete(
    metrics: Metrics[Measured], names: Sequence[str], kind: type[Measured] = Measured
) -> dict[str, Json]:
    """All of these metrics; one that was not measured has no mean and no values."""
    nothing = {**kind(math.nan).as_json(), "mean": None}
    return {name: metrics[name].as_json() if name in metrics else nothing for name in names}


def _metrics(document: Mapping[str, Json] | None, read: Callable[[Json], Plain | None]) -> Metrics[Plain]:
    figures = {name: read(value) for name, value in (document or {}).items()}
    return Metrics({name: figure for name, figure in figures.items() if figure is not None})


def _mean_gain(document: Json) -> Measured | None:
    gain = Measured.from_json(document)
    if gain is None or not isinstance(document, Mapping):
        return gain
    worst = finite(document.get("worst_site")), document.get("worst_site_name")
    return MeanGain(gain.mean, gain.std, gain.values, gain.interval, gain.word, *worst)


def _groups(document: Mapping[str, Json], read: Callable[[Json], Plain | None]) -> dict[str, Group[Plain]]:
    return {
        kind: Group(
            tuple(row.get("sites") or ()),
            _metrics(row.get("mean"), read),
            _metrics(row.get("gain_over_alone"), read),
        )
        for kind, row in (document.get("by_columns") or {}).items()
        if kind in ("complete", "lacking")
    }


def _compared_sites(document: Mapping[str, Json]) -> dict[str, SiteResult[Measured]]:
    """The sites in the document of a comparison."""
    return {
        name: SiteResult(
            name,
            row.get("records"),
            _metrics(row.get("metrics"), Measured.from_json),
            gains=_metrics(row.get("gain"), Measured.from_json),
            privacy=PrivacySpent.from_json(row.get("privacy")),
            bytes_sent=row.get("bytes_sent"),
            missing_columns=_missing_columns(row),
            tested=Tested.from_json(row.get("tested")),
        )
        for name, row in (document.get("sites") or {}).items()
    }


def _missing_columns(document: Mapping[str, Json]) -> dict[str, str]:
    return {str(column): str(how) for column, how in (document.get("missing_columns") or {}).items()}

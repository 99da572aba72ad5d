"""How much each test patient contributes to a figure, and the paired effects that follow.

The contribution of a patient is the derivative of the metric with respect to the patient's weight (the infinitesimal
jackknife; Efron 1982). For a mean over patients it is (value − mean)/N; for the AUC it is the placement value of DeLong et
al. (1988). Every metric of `core.metrics` takes weights, so none needs a formula of its own. The records of a patient
share one weight.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from confrere.core.metrics import METRICS, Predictions
from confrere.core.metrics import draws as weighted
from confrere.statistics.intervals import ratio_interval
from confrere.statistics.verdict import LEAST_RARER, LEAST_SEEDS_OF_SHARE, LEVEL, WIDEST_SHARE, Effect

Floats = NDArray[np.float64]

BLOCKS = 400
"""Above this number, patients are weighted in random blocks: the same blocks in every seed."""
ROOM = 20_000_000
"""Most weights at once: a common test set of 10,000 records with ten classes gets fewer blocks."""
STEP = 1e-3
"""The step of the derivative, in weights of one patient."""


class Judged(Protocol):
    """What a model predicted for test records, and the patient of each of them."""

    @property
    def predictions(self) -> Predictions: ...

    @property
    def marks(self) -> NDArray[np.str_]:
        """The patient of each record; the same name in every seed's test set."""


@dataclass(frozen=True)
class PatientCounts:
    """How many distinct patients a site's figures rest on, over all seeds."""

    patients: int
    rarer: int
    """Those outside the most frequent class; for a number, or for several labels, all of them."""
    rarer_class: int | None = None
    """Which class the rarer one is, where there are two."""
    positive: int | None = None
    """Those of class 1, where there are two."""
    single: bool = False
    """Whether the test set of some seed holds one patient only; the variance over patients is then unknown."""


@dataclass(frozen=True)
class Effects:
    """What a strategy gains over alone by every metric: at each site, and on the mean over groups of sites."""

    sites: Mapping[str, Mapping[str, Effect]]
    groups: Mapping[str, Mapping[str, Effect]]
    shares: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """By metric, the interval of its gain as a share of what `whole` gains, on the mean over all sites, where known well."""


Way = Sequence[Mapping[str, Judged]]
"""What a way of learning predicted: for each seed, {site: predictions}."""


def patients_of(alone: Way) -> dict[str, PatientCounts]:
    """The distinct test patients of each site."""
    sites = sorted({site for run in alone for site in run})
    return {site: _counted([run[site] for run in alone if site in run]) for site in sites}


def effects(
    ways: Mapping[str, Way],
    reference: str,
    groups: Mapping[str, Sequence[str]] | None = None,
    whole: str | None = None,
    only: str | None = None,
) -> dict[str, Effects]:
    """For each way of learning its gains over `reference`, by all metrics or only one; «all» is the mean over all sites.

    A site without test records in some seeds has no difference there, and a mean is over the sites that have one. A way
    whose test records are not those of the reference is left out: there are no pairs.
    """
    alone = ways[reference]
    sites = sorted({site for run in alone for site in run})
    paired = {n: runs for n, runs in ways.items() if n != reference and _same(runs, alone, sites)}
    if not sites or not paired:
        return {}
    found: dict[str, dict[str, _Site]] = {name: {} for name in paired}
    for site in sites:
        seeds = [seed for seed, run in enumerate(alone) if site in run]
        base = [alone[seed][site] for seed in seeds]
        places = _Blocks.of(base)
        before = [places.contributions(number, judged, only) for number, judged in enumerate(base)]
        counted = _counted(base)
        for name, runs in paired.items():
            after = [
                places.contributions(number, runs[seed][site], only) for number, seed in enumerate(seeds)
            ]
            rows = _Site.paired(before, after, places.names, counted)
            found[name][site] = rows.among(seeds, len(alone))
    wanted = {"all": sites} | {k: [s for s in names if s in sites] for k, names in (groups or {}).items()}
    means = {name: _mean(list(by_site.values())) for name, by_site in found.items()}
    return {
        name: Effects(
            {site: rows.effects() for site, rows in by_site.items()},
            {k: _mean([by_site[s] for s in names]).effects() for k, names in wanted.items() if names},
            _shares(means[name], means[whole]) if whole in means and whole != name else {},
        )
        for name, by_site in found.items()
    }


def _shares(part: _Site, whole: _Site) -> dict[str, tuple[float, float]]:
    """By metric, the interval of the gain of `part` as a share of that of `whole`, where that is known well enough."""
    found = {}
    for metric in part.differences.keys() & whole.differences.keys():
        both = np.array([part.differences[metric], whole.differences[metric]])
        here = ~np.isnan(both).any(axis=0)
        degrees = part.degrees[metric]
        if part.patients.rarer < LEAST_RARER or not degrees:
            continue
        if here.sum() < LEAST_SEEDS_OF_SHARE or not both[1][here].mean():
            continue
        own, other = (np.nan_to_num(site.contributions[metric][here]) for site in (part, whole))
        interval = ratio_interval((both[0][here], both[1][here]), (own, other), degrees, LEVEL, WIDEST_SHARE)
        if interval is not None:
            found[metric] = interval
    return found


def _same(runs: Way, alone: Way, sites: Sequence[str]) -> bool:
    return len(runs) == len(alone) and all(
        (s in run) == (s in base) and (s not in base or np.array_equal(run[s].marks, base[s].marks))
        for run, base in zip(runs, alone, strict=True)
        for s in sites
    )


def _counted(runs: Iterable[Judged]) -> PatientCounts:
    names, outside, classes = list[NDArray[np.str_]](), list[NDArray[np.str_]](), 0
    ill = list[NDArray[np.str_]]()
    judged = list(runs)
    truth = np.concatenate([r.predictions.targets for r in judged]) if judged else np.zeros(0)
    binary = False
    common = 0
    if judged and judged[0].predictions.form == "classes" and len(truth):
        classes = max(r.predictions.logs.shape[1] for r in judged)
        common = int(np.bincount(truth.astype(int).reshape(-1), minlength=classes).argmax())
        binary = classes == 2
    for run in judged:
        names.append(run.marks)
        targets = run.predictions.targets
        outside.append(run.marks[targets.reshape(-1) != common] if classes else run.marks)
        if binary:
            ill.append(run.marks[targets.reshape(-1) == 1])
    patients = len(np.unique(np.concatenate(names))) if names else 0
    single = any(len(np.unique(marks)) < 2 for marks in names)
    rarer = len(np.unique(np.concatenate(outside))) if outside else 0
    if not binary:
        return PatientCounts(patients, rarer, single=single)
    return PatientCounts(patients, rarer, 1 - common, len(np.unique(np.concatenate(ill))), single)


@dataclass(frozen=True)
class _Blocks:
    """The patients of a site's test sets, in blocks that are the same in every seed."""

    names: NDArray[np.str_]
    count: int
    rows: tuple[NDArray[np.int64], ...]
    """For each seed, the block of each record."""
    patients: tuple[int, ...]

    @classmethod
    def of(cls, runs: Sequence[Judged]) -> _Blocks:
        names = np.unique(np.concatenate([run.marks for run in runs]))
        size = max(run.predictions.outputs.size for run in runs)
        count = min(len(names), max(100, min(BLOCKS, ROOM // max(1, size))))
        shuffled = np.random.default_rng(0).permutation(len(names)) % count
        rows = tuple(shuffled[np.searchsorted(names, run.marks)] for run in runs)
        return cls(names, count, rows, tuple(len(np.unique(run.marks)) for run in runs))

    def contributions(
        self, seed: int, judged: Judged, only: str | None = None
    ) -> dict[str, tuple[float, Floats]]:
        """By metric, its value and what each block contributes to it."""
        rows, patients = self.rows[seed], self.patients[seed]
        weights = np.ones((self.count + 1, len(rows)))
        weights[1 + rows, np.arange(len(rows))] += STEP
        scale = np.sqrt(patients / max(1, patients - 1)) / STEP
        return {
            metric: (float(values[0]), scale * (values[1:] - values[0]))
            for metric, values in weighted(judged.predictions, weights, only).items()
        }


@dataclass(frozen=True)
class _Site:
    """Paired differences by metric: seeds, and seeds × blocks; NaN where a seed does not define the metric."""

    names: NDArray[np.str_]
    patients: PatientCounts
    differences: Mapping[str, Floats]
    contributions: Mapping[str, Floats] = field(repr=False)
    degrees: Mapping[str, float]
    """Of the variance from patients; zero where it cannot be estimated, because a seed tests a single patient."""

    @classmethod
    def paired(
        cls,
        before: Sequence[Mapping[str, tuple[float, Floats]]],
        after: Sequence[Mapping[str, tuple[float, Floats]]],
        names: NDArray[np.str_],
        patients: PatientCounts,
    ) -> _Site:
        differences, contributions = dict[str, Floats](), dict[str, Floats]()
        for metric in before[0].keys() & after[0].keys():
            pairs = [(b[metric], a[metric]) for b, a in zip(before, after, strict=True)]
            sign = METRICS[metric].sign
            differences[metric] = sign * np.array([a[0] - b[0] for b, a in pairs])
            contributions[metric] = sign * np.array([a[1] - b[1] for b, a in pairs])
        degrees = float(max(patients.rarer - 1, 1)) if not patients.single else 0.0
        return cls(names, patients, differences, contributions, dict.fromkeys(differences, degrees))

    def among(self, seeds: Sequence[int], count: int) -> _Site:
        """The same among `count` seeds, of which only `seeds` have test records here."""
        if len(seeds) == count:
            return self

        def spread(values: Floats) -> Floats:
            every = np.full((count, *values.shape[1:]), np.nan)
            every[list(seeds)] = values
            return every

        differences = {m: spread(v) for m, v in self.differences.items()}
        contributions = {m: spread(v) for m, v in self.contributions.items()}
        return _Site(self.names, self.patients, differences, contributions, self.degrees)

    def effects(self) -> dict[str, Effect]:
        found = {}
        for metric, every in self.differences.items():
            here = ~np.isnan(every)
            values = every[here]
            if len(values):
                own = np.nan_to_num(self.contributions[metric][here])
                found[metric] = Effect.of(values, own, self.patients.rarer, self.degrees[metric])
        return found


def _mean(sites: Sequence[_Site]) -> _Site:
    """The mean over sites; patients that several sites are tested on (a common test set) count once."""
    metrics = set.intersection(*(set(s.differences) for s in sites))
    differences, contributions, degrees = dict[str, Floats](), dict[str, Floats](), dict[str, float]()
    shared: dict[bytes, list[_Site]] = {}
    for site in sites:
        shared.setdefault(site.names.tobytes(), []).append(site)
    for metric in metrics:
        table = np.array([s.differences[metric] for s in sites])
        here = (~np.isnan(table)).sum(axis=0)
        with np.errstate(invalid="ignore"):
            differences[metric] = np.where(here > 0, np.nansum(table, axis=0) / here, np.nan)
        sums = [
            np.sum([np.nan_to_num(s.contributions[metric]) for s in same], axis=0) for same in shared.values()
        ]
        contributions[metric] = np.concatenate(sums, axis=1) / np.maximum(here, 1)[:, None]
        degrees[metric] = _degrees(metric, shared.values())
    counts = [same[0].patients for same in shared.values()]
    patients = PatientCounts(sum(c.patients for c in counts), sum(c.rarer for c in counts))
    names = np.concatenate([same[0].names for same in shared.values()])
    return _Site(names, patients, differences, contributions, degrees)


def _degrees(metric: str, shared: Iterable[Sequence[_Site]]) -> float:
    """The degrees of freedom of a mean over sites: Satterthwaite's (1946), as if all patients varied alike.

    The variance of a site with few patients is the largest and the least known, so that site decides. Estimated variances
    as weights would miss it where its patients happen to agree.
    """
    variances, degrees = list[float](), list[float]()
    for same in shared:
        measured = [s for s in same if not np.isnan(s.differences[metric]).all()]
        if measured:
            variances.append(len(measured) ** 2 / measured[0].patients.patients)
            degrees.append(measured[0].degrees[metric])
    if not degrees or min(degrees) == 0:
        return 0.0
    parts = np.array(variances)
    return float(parts.sum() ** 2 / (parts**2 / np.array(degrees)).sum())

"""What a model means in patients, for a task with two classes: missed, false alarms, calibration and net benefit.

Shares are means over the test records of a seed, averaged over the seeds; calibration is that of the test records of all
seeds. The threshold of a seed is stated, or follows from its training records: test records choose nothing.

Net benefit is that of decision curve analysis (Vickers and Elkin 2006): true positives less false positives weighted by the
odds of the threshold, per patient. The calibration slope and intercept are those of a logistic regression of the outcome on
the model's log-odds (Cox 1958): 1 and 0 are perfect.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from confrere.core.metrics import Predictions
from confrere.core.results import InPatients
from confrere.statistics.contributions import Judged
from confrere.statistics.verdict import Effect

Floats = NDArray[np.float64]

THRESHOLDS = tuple(round(0.05 * n, 2) for n in range(1, 20))
GROUPS = 5
"""Groups of equal size in a calibration curve."""


def in_patients(runs: Sequence[Predictions], thresholds: Sequence[float]) -> InPatients | None:
    """None unless there are two classes and patients of both. Each seed has its threshold; their mean is reported."""
    if not runs or any(r.form != "classes" or r.logs.shape[1] != 2 or not len(r) for r in runs):
        return None
    odds = np.concatenate([r.logs[:, 1] - r.logs[:, 0] for r in runs])
    ill = np.concatenate([r.targets.reshape(-1) == 1 for r in runs])
    if ill.all() or not ill.any():
        return None
    probability = 1 / (1 + np.exp(-odds))
    slope, intercept = _recalibrated(odds, ill)
    both = [_errors(run, threshold) for run, threshold in zip(runs, thresholds, strict=True)]
    missed, alarms = (float(np.mean([found[kind].mean() for found in both])) for kind in (0, 1))
    return InPatients(
        threshold=float(np.mean(thresholds)),
        ill=float(np.mean([(run.targets.reshape(-1) == 1).mean() for run in runs])),
        missed=missed,
        false_alarms=alarms,
        slope=slope,
        intercept=intercept,
        calibration=_curve(probability, ill),
        net_benefit=tuple((t, net_benefit(probability, ill, t)) for t in THRESHOLDS),
    )


@dataclass(frozen=True)
class PairedErrors:
    """The errors of a site's models less those of training alone: by seed, and what each patient contributes."""

    missed: tuple[Floats, Floats]
    false_alarms: tuple[Floats, Floats]
    rarer: int

    @classmethod
    def of(
        cls, before: Sequence[Judged], after: Sequence[Judged], thresholds: Sequence[float], rarer: int
    ) -> PairedErrors:
        """The same test records in the same seeds, alone and together; each seed has its threshold."""
        names = np.unique(np.concatenate([run.marks for run in before]))
        found = [
            (errors(b, cut), errors(a, cut)) for b, a, cut in zip(before, after, thresholds, strict=True)
        ]
        places = [np.searchsorted(names, run.marks) for run in before]
        missed, alarms = (
            _paired([a[kind] - b[kind] for b, a in found], places, len(names)) for kind in (0, 1)
        )
        return cls(missed, alarms, rarer)


def with_changes(found: InPatients, sites: Sequence[PairedErrors], weights: Sequence[float]) -> InPatients:
    """With the intervals of what changed over training alone, on the weighted mean of these sites.

    They end where all the ill, or all the others, would be affected.
    """
    share = np.asarray(weights) / np.sum(weights)
    rarer = sum(site.rarer for site in sites)

    def interval(parts: Sequence[tuple[Floats, Floats]], most: float) -> tuple[float, float] | None:
        by_seed = np.sum([w * d for w, (d, _) in zip(share, parts, strict=True)], axis=0)
        every = np.concatenate([w * c for w, (_, c) in zip(share, parts, strict=True)], axis=1)
        if len(by_seed) < 2:
            return None
        found = Effect.of(by_seed, every, rarer).interval()
        return found and (max(found[0], -most), min(found[1], most))

    return replace(
        found,
        missed_change=interval([s.missed for s in sites], found.ill),
        false_alarms_change=interval([s.false_alarms for s in sites], 1 - found.ill),
    )


def over_sites(found: Mapping[str, InPatients], weights: Mapping[str, float]) -> InPatients:
    """The weighted mean of the sites' errors; thresholds and curves differ between sites and are left out."""
    total = sum(weights.values())

    def mean(field: str) -> float:
        return sum(weights[s] * float(getattr(found[s], field)) for s in weights) / total

    return InPatients(mean("threshold"), mean("ill"), mean("missed"), mean("false_alarms"), (), ())


def errors(run: Judged, threshold: float) -> tuple[Floats, Floats]:
    """For each record 1 where it is missed, and 1 where it is a false alarm."""
    return _errors(run.predictions, threshold)


def _errors(predictions: Predictions, threshold: float) -> tuple[Floats, Floats]:
    logs, ill = predictions.logs, predictions.targets.reshape(-1) == 1
    called = 1 / (1 + np.exp(logs[:, 0] - logs[:, 1])) >= threshold
    return (ill & ~called).astype(float), (~ill & called).astype(float)


def _paired(
    differences: Sequence[Floats], places: Sequence[NDArray[np.int64]], patients: int
) -> tuple[Floats, Floats]:
    means = np.array([d.mean() for d in differences])
    counts = [len(np.unique(place)) for place in places]
    contributions = [
        np.bincount(place, d - mean, minlength=patients) / len(d) * np.sqrt(n / max(1, n - 1))
        for d, place, mean, n in zip(differences, places, means, counts, strict=True)
    ]
    return means, np.array(contributions)


def net_benefit(probability: Floats, ill: NDArray[np.bool_], threshold: float) -> float:
    """Of treating those whose stated probability reaches the threshold."""
    called = probability >= threshold
    weight = threshold / (1 - threshold)
    return float((called & ill).mean() - weight * (called & ~ill).mean())


def _curve(probability: Floats, ill: NDArray[np.bool_]) -> tuple[tuple[float, float], ...]:
    """Stated probability and observed share, in groups of equal size."""
    order = np.array_split(np.argsort(probability, kind="stable"), GROUPS)
    return tuple((float(probability[g].mean()), float(ill[g].mean())) for g in order if len(g))


def _recalibrated(odds: Floats, ill: NDArray[np.bool_], steps: int = 50) -> tuple[float | None, float | None]:
    """Slope and intercept by Newton's method; None where classes are separated and there is no best slope."""
    rows = np.column_stack([odds, np.ones_like(odds)])
    weights = np.array([1.0, 0.0])
    for _ in range(steps):
        stated = 1 / (1 + np.exp(-np.clip(rows @ weights, -30, 30)))
        curvature = (rows * (stated * (1 - stated))[:, None]).T @ rows + 1e-9 * np.eye(2)
        step = np.linalg.solve(curvature, rows.T @ (ill - stated))
        weights = weights + np.clip(step, -2, 2)
        if np.abs(step).max() < 1e-8:
            return float(weights[0]), float(weights[1])
    return None, None

"""What a model means in patients, for a task with two classes: missed, false alarms, calibration and net benefit.

All figures are means over the test records of all seeds. Net benefit is that of decision curve analysis (Vickers and Elkin
2006): true positives less false positives weighted by the odds of the threshold, per patient. The calibration slope and
intercept are those of a logistic regression of the outcome on the model's log-odds (Cox 1958): 1 and 0 are perfect.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from confrere.core.metrics import Predictions
from confrere.core.results import InPatients

Floats = NDArray[np.float64]

THRESHOLDS = tuple(round(0.05 * n, 2) for n in range(1, 20))
GROUPS = 5
"""Groups of equal size in a calibration curve."""


def in_patients(runs: Sequence[Predictions], threshold: float | None = None) -> InPatients | None:
    """None unless there are two classes and patients of both; the threshold is by default the share of class 1."""
    runs = [r for r in runs if r.form == "classes" and r.logs.shape[1] == 2 and len(r)]
    if not runs:
        return None
    odds = np.concatenate([r.logs[:, 1] - r.logs[:, 0] for r in runs])
    ill = np.concatenate([r.targets.reshape(-1) == 1 for r in runs])
    if ill.all() or not ill.any():
        return None
    probability = 1 / (1 + np.exp(-odds))
    cut = float(ill.mean()) if threshold is None else threshold
    slope, intercept = _recalibrated(odds, ill)
    called = probability >= cut
    return InPatients(
        threshold=cut,
        ill=float(ill.mean()),
        missed=float((ill & ~called).mean()),
        false_alarms=float((~ill & called).mean()),
        slope=slope,
        intercept=intercept,
        calibration=_curve(probability, ill),
        net_benefit=tuple((t, net_benefit(probability, ill, t)) for t in THRESHOLDS),
    )


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

"""Metrics: how good predictions are, with the name, formula, order and wording of each in one table.

A metric is a function of predictions and record weights. `weights` has one row per draw of a bootstrap and one column
per record; a single row of ones gives the plain figure, so the reported value and its interval cannot disagree. Add a
metric with the decorator, in this file or in your own module:

    @metric("my_brier", label="Brier score", meaning="…", higher_is_better=False, forms=("classes",))
    def my_brier(predictions, weights):
        return weighted_mean(((np.exp(predictions.logs) - predictions.truth) ** 2).sum(axis=1), weights)

Installed packages use the entry-point group `confrere.metrics`, which names the decorated function. The order of
registration is the order in every table. The first metric that the records define is the headline.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from confrere.core.registry import Registry

Form = Literal["classes", "labels", "number"]
"""One of several classes per record; several yes/no labels per record; a number per record."""
Floats = NDArray[np.float64]
Weights = NDArray[np.float32] | Floats
Compute = Callable[["Predictions", Weights], Floats]

FLOOR = math.log(1e-7)
"""Log-probabilities are cut off here, so that one absurd prediction does not decide a mean."""


class Predictions:
    """The outputs of a model and the truth, for the same records.

    A single output for classes is the logit of class 1. `spread` converts the error of a number back to the unit of its
    column.
    """

    def __init__(self, outputs: NDArray[Any], targets: NDArray[Any], spread: float = 1.0) -> None:
        self.outputs, self.targets, self.spread = outputs.astype(np.float64), targets, spread
        self.form: Form = "classes"
        if targets.dtype.kind == "f":
            self.form = "labels" if targets.ndim == 2 and targets.shape[1] > 1 else "number"

    def __len__(self) -> int:
        return len(self.targets)

    @cached_property
    def logs(self) -> Floats:
        """Log-probabilities, records × classes."""
        return log_probabilities(self.outputs)

    @cached_property
    def truth(self) -> NDArray[np.bool_]:
        """What is true, records × classes or records × labels."""
        if self.form == "labels":
            return np.asarray(self.targets > 0.5)
        return np.asarray(self.targets[:, None] == np.arange(self.logs.shape[1]))

    @cached_property
    def predicted(self) -> NDArray[np.bool_]:
        """What the model answers, records × classes or records × labels."""
        if self.form == "labels":
            return np.asarray(self.outputs > 0)
        return np.asarray(self.logs.argmax(axis=1)[:, None] == np.arange(self.logs.shape[1]))

    @cached_property
    def errors(self) -> Floats:
        """Prediction minus truth of each record, for a number."""
        return np.asarray(self.outputs.reshape(-1) - self.targets.reshape(-1))


def log_probabilities(logits: Floats) -> Floats:
    """Log-probabilities of all classes, records × classes; a single output is the logit of class 1."""
    if logits.shape[1] == 1:
        logits = np.concatenate([np.zeros_like(logits), logits], axis=1)
    shifted = logits - logits.max(axis=1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True)))


@dataclass(frozen=True)
class Metric:
    """A metric with everything that is needed to compute, order and word it."""

    name: str
    compute: Compute
    label: str
    meaning: str
    """What it says, in plain words."""
    forms: tuple[Form, ...]
    higher_is_better: bool = True
    percent: bool = False
    short: str = ""
    """A shorter label, for narrow columns."""
    detail: bool = False
    """Shown only where there is room."""
    proper: bool = False
    """A proper scoring rule: models are chosen by it, and comparisons are judged by it unless the study says otherwise."""
    bounds: tuple[float, float] = (-math.inf, math.inf)
    """No value lies outside these; what is drawn is cut off there."""

    def within(self, value: float) -> float:
        """The value, or the bound that it passes."""
        return min(max(value, self.bounds[0]), self.bounds[1])

    @property
    def sign(self) -> float:
        """+1 where more is better, −1 where less is."""
        return 1.0 if self.higher_is_better else -1.0


METRICS: Registry[Metric] = Registry("metric", "confrere.metrics", holds=Metric)
"""All metrics; iterating gives their names in the order in which they are shown."""


def metric(
    name: str, *, label: str, meaning: str, forms: tuple[Form, ...], **traits: Any
) -> Callable[[Compute], Compute]:
    """Add a metric to the table; a name that another metric has is refused."""

    def add(compute: Compute) -> Compute:
        METRICS.register(name, source=compute)(Metric(name, compute, label, meaning, forms, **traits))
        return compute

    return add


def named(name: str) -> Metric:
    """A metric by its name; one that is not in the table (from a file of another version) is shown as it is called."""
    if name in METRICS:
        return METRICS[name]
    return Metric(name, lambda *_: np.full(1, np.nan), name.replace("_", " "), "", ())


def in_order(names: Iterable[str]) -> tuple[str, ...]:
    """Metrics in the order of the table, each once; unknown ones come last."""
    found = list(dict.fromkeys(names))
    return tuple([m for m in METRICS if m in found] + [m for m in found if m not in METRICS])


def proper(names: Iterable[str]) -> str | None:
    """The proper scoring rule among these: what models are chosen by."""
    return next((m for m in in_order(names) if named(m).proper), None)


def metrics_of(form: Form) -> list[Metric]:
    """The metrics of a form of targets, in the order of the table."""
    return [m for m in map(METRICS.__getitem__, METRICS) if form in m.forms]


def measure(predictions: Predictions) -> dict[str, float]:
    """Every metric that these records define."""
    if len(predictions) == 0:
        return {}
    found = draws(predictions, np.ones((1, len(predictions))))
    return {name: float(value[0]) for name, value in found.items() if not math.isnan(value[0])}


def draws(predictions: Predictions, weights: Weights, only: str | None = None) -> dict[str, Floats]:
    """Every metric, or only one, in every draw; NaN where a draw does not define it."""
    wanted = [m for m in metrics_of(predictions.form) if only in (None, m.name)]
    with np.errstate(invalid="ignore", divide="ignore"):
        return {m.name: m.compute(predictions, weights) for m in wanted}


@metric(
    "auc",
    label="AUC",
    meaning="how often the model ranks a record with the condition above one without it (1 is perfect, 0.5 is a coin toss)",
    forms=("classes", "labels"),
    bounds=(0.0, 1.0),
)
def auc(p: Predictions, weights: Weights) -> Floats:
    """For several classes or labels the mean of one against the rest."""
    if p.form == "classes" and p.logs.shape[1] == 2:
        return area(p.logs[:, 1] - p.logs[:, 0], p.truth[:, 1], weights)
    scores = p.logs if p.form == "classes" else p.outputs
    columns = np.flatnonzero(p.truth.any(axis=0))
    return mean_of_defined([area(scores[:, c], p.truth[:, c], weights) for c in columns], weights)


@metric(
    "accuracy",
    label="accuracy",
    meaning="the share of a site's test records that the model gets right",
    forms=("classes", "labels"),
    percent=True,
    bounds=(0.0, 1.0),
)
def accuracy(p: Predictions, weights: Weights) -> Floats:
    right = (
        (p.predicted & p.truth).any(axis=1) if p.form == "classes" else (p.predicted == p.truth).mean(axis=1)
    )
    return weighted_mean(right.astype(float), weights)


@metric(
    "macro_accuracy",
    label="balanced accuracy",
    short="balanced acc.",
    meaning="the share that it gets right in each class, averaged over the classes",
    forms=("classes", "labels"),
    percent=True,
    detail=True,
    bounds=(0.0, 1.0),
)
def macro_accuracy(p: Predictions, weights: Weights) -> Floats:
    hits = (weights @ (p.predicted & p.truth)) / (weights @ p.truth)
    if p.form == "classes":
        return mean_of_defined(hits.T, weights)
    rejections = (weights @ (~p.predicted & ~p.truth)) / (weights @ ~p.truth)
    return mean_of_defined(
        [mean_of_defined(pair, weights) for pair in zip(hits.T, rejections.T, strict=True)], weights
    )


@metric(
    "f1",
    label="F1",
    meaning="of what the model names and what is there, how much is both; the mean over the labels (1 is perfect)",
    forms=("labels",),
    bounds=(0.0, 1.0),
)
def f1(p: Predictions, weights: Weights) -> Floats:
    there = weights @ p.truth
    scores = 2 * (weights @ (p.predicted & p.truth)) / (weights @ p.predicted + there)
    return mean_of_defined(np.where(there > 0, scores, np.nan).T, weights)


@metric(
    "log_loss",
    label="log loss",
    meaning="how far the predicted probabilities are from what happened; lower is better",
    forms=("classes", "labels"),
    higher_is_better=False,
    proper=True,
    bounds=(0.0, math.inf),
)
def log_loss(p: Predictions, weights: Weights) -> Floats:
    if p.form == "classes":
        return weighted_mean(-np.maximum(np.where(p.truth, p.logs, 0).sum(axis=1), FLOOR), weights)
    losses = np.minimum(np.logaddexp(0, np.where(p.truth, -p.outputs, p.outputs)), -FLOOR)
    return weighted_mean(losses.mean(axis=1), weights)


@metric(
    "rmse",
    label="RMSE",
    meaning="the typical size of an error, in units of the target; lower is better",
    forms=("number",),
    higher_is_better=False,
    proper=True,
    bounds=(0.0, math.inf),
)
def rmse(p: Predictions, weights: Weights) -> Floats:
    return np.sqrt(weighted_mean(np.square(p.errors), weights)) * p.spread


@metric(
    "r2",
    label="R²",
    meaning="the share of the target's variation that the model explains (1 is perfect)",
    forms=("number",),
    detail=True,
    bounds=(-math.inf, 1.0),
)
def r2(p: Predictions, weights: Weights) -> Floats:
    values = p.targets.reshape(-1).astype(float)
    apart = weighted_mean(np.square(values), weights) - np.square(weighted_mean(values, weights))
    if np.ptp(values) == 0:
        return np.full(len(weights), np.nan)
    return np.where(apart > 0, 1 - weighted_mean(np.square(p.errors), weights) / apart, np.nan)


def area(scores: Floats, positive: NDArray[np.bool_], weights: Weights) -> Floats:
    """The area under the ROC curve in every draw; ties count half."""
    order = np.argsort(scores, kind="stable")
    starts = np.flatnonzero(np.r_[True, np.diff(scores[order]) > 0])
    ill = np.add.reduceat(weights[:, order] * positive[order], starts, axis=1)
    well = np.add.reduceat(weights[:, order] * ~positive[order], starts, axis=1)
    below = np.cumsum(well, axis=1) - well / 2
    return np.asarray((ill * below).sum(axis=1) / (ill.sum(axis=1) * well.sum(axis=1)), dtype=float)


def weighted_mean(values: Floats, weights: Weights) -> Floats:
    """The mean over records in every draw."""
    return np.asarray(weights @ values / weights.sum(axis=1), dtype=float)


def mean_of_defined(rows: Iterable[Floats], weights: Weights) -> Floats:
    """The mean over classes or labels in every draw, of those that the draw defines."""
    table = np.array(list(rows)).reshape(-1, len(weights))
    here = ~np.isnan(table)
    return np.asarray(np.where(here, table, 0).sum(axis=0) / here.sum(axis=0), dtype=float)

"""Labels, tasks and their kinds: everything that differs between predicting a class, a number or several labels.

A task kind is a class with the methods below, registered under the name that a schema uses as `label.kind`. A file in
this folder is found without being listed anywhere; installed packages use the entry-point group
`confrere.task_kinds`, which names an instance.

    @task_kind("screening")
    class Screening(Binary):
        def loss(self, outputs, targets):  # only where the loss of the form will not do
            missed = binary_cross_entropy_with_logits(outputs[:, 0], targets.float(), reduction="none")
            return missed * (1 + 4 * targets)
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic.dataclasses import dataclass

from confrere.core.metrics import Form
from confrere.core.registry import Registry
from confrere.core.strict_reader import STRICT
from confrere.data.column_kinds import Interval
from confrere.data.encode.encoding_tally import EncodingTally

if TYPE_CHECKING:
    import pandas as pd
    from torch import Tensor

Chart = Literal["mean and spread", "rate", "shares"]
"""How the labels of a site are drawn: a mean with its spread, the rate of one class, or the share of each class."""
RecordLoss = Callable[["Tensor", "Tensor"], "Tensor"]
Targets = tuple[NDArray[Any], NDArray[np.bool_]]
"""The targets of the records that have one, and which records those are."""


class TaskKind(ABC):
    """What a kind of task asks of a label, a model and a report. It has no state."""

    form: ClassVar[Form]
    """The form of the targets, which decides the metrics, and the loss unless the kind has its own.

    classes: int64 [n], cross-entropy. labels: float32 zeros and ones [n, labels], the sum of the cross-entropies.
    number: float32 [n], squared error.
    """
    loss: RecordLoss | None = None
    """The kind's own loss, a method: (outputs [n, outputs], targets [n, …]) → one loss per record [n].

    Models are trained with it, at one site or at many stacked. Held-out models are compared by the loss of the form.
    """
    chart: ClassVar[Chart] = "shares"
    outputs_hint: ClassVar[str] = ""
    """Added to the error message about a network with the wrong number of outputs."""

    def problems(self, label: Label) -> list[str]:
        """What is wrong with a schema's label of this kind."""
        return [] if label.column else ["a label needs its `column`"]

    @abstractmethod
    def task(self, label: Label, **shape: Any) -> Task:
        """The task of a label; pass `shape` (inputs, features, branches) on to `Task`."""

    @abstractmethod
    def encode(self, frame: pd.DataFrame, label: Label, tally: EncodingTally) -> Targets:
        """The targets in a table."""

    @abstractmethod
    def outputs(self, task: Task) -> int:
        """How many numbers a model gives for one record."""

    @abstractmethod
    def unlearnable(self, task: Task, targets: Tensor) -> str | None:
        """Why there is nothing to learn from these targets; None if there is."""

    @abstractmethod
    def flipped(self, task: Task, targets: Tensor) -> Tensor:
        """The targets of an attacker that trains on reversed labels."""

    @abstractmethod
    def predictions(self, task: Task, outputs: Tensor) -> Mapping[str, Sequence[Any] | NDArray[Any]]:
        """The columns of a table of predictions, one row per record."""

    @abstractmethod
    def summary(self, task: Task, targets: Tensor) -> dict[str, float]:
        """The labels of a site in a few numbers, as `chart` draws them."""

    def summary_text(self, task: Task, summary: Mapping[str, float]) -> str:
        """The summary in one line."""
        top = sorted(summary.items(), key=lambda x: -x[1])[:3]
        return ", ".join(f"{k} {v:.0%}" for k, v in top) + " …"


task_kinds: Registry[TaskKind] = Registry("task kind", "confrere.task_kinds", package="confrere.data.tasks")

K = TypeVar("K", bound=type[TaskKind])


def task_kind(name: str) -> Callable[[K], K]:
    """Class decorator: register a task kind under the name that a schema uses."""
    return task_kinds.register_instance(name)


@dataclass(frozen=True, config=STRICT)
class Label:
    """What is predicted.

    binary, multiclass: `classes` in order; `groups` puts several values into one class ("*" takes the rest);
    `above` makes a number binary: above it is the second class. regression: `range` is scaled to −1 … 1.
    survival: `column` says whether the event happened (`groups` how that is written), `time` when; the event
    within `horizon` is the second class, and who was lost before the horizon is left out.
    multilabel: `columns`, each yes or no for itself.
    """

    column: str = ""
    """The column to predict."""
    kind: str = "binary"
    """The kind of task, such as "binary", "multiclass", "regression", "survival" or "multilabel"."""
    meaning: str = ""
    """What the label means, for people."""
    unit: str = ""
    """The unit of a label that is a number."""
    classes: tuple[str, ...] = ()
    """The classes, in order; for a binary label the second one is the positive class."""
    groups: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """The values of the column that belong to each class; "*" stands for all others."""
    above: float | None = None
    """Makes a number binary: above this value is the second class."""
    range: Interval | None = None
    """For regression: the plausible range of the label, scaled to −1 … 1."""
    time: str = ""
    """For survival: the column with the time of the event or of the last follow-up."""
    horizon: float | None = None
    """For survival: the time within which the event counts."""
    columns: tuple[str, ...] = ()
    """For several labels: the columns, each yes or no."""
    missing: tuple[str, ...] = ()
    """Values that mean «not known»."""
    unlabelled: Literal["refuse", "drop"] = "refuse"
    """What happens to a record without a label."""
    also: tuple[str, ...] = ()
    """Other names that files have for the column."""
    private: tuple[str, ...] = ()
    """Fields that were drawn from records and that no person has confirmed yet."""

    def __post_init__(self) -> None:
        for problem in _label_problems(self):
            raise ValueError(problem)

    @property
    def all_columns(self) -> tuple[str, ...]:
        """Every column of the file that the label reads: none of them may be a feature."""
        return tuple(c for c in (self.column, self.time, *self.columns) if c)


def _label_problems(label: Label) -> list[str]:
    if label.kind not in task_kinds:
        return [task_kinds.unknown(label.kind)]
    out = task_kinds[label.kind].problems(label)
    for name, _ in label.groups:
        if name not in label.classes:
            out.append(f"groups: {name!r} is not one of the classes")
    return out


BranchKind = Literal["table", "image", "series", "bag", "volume"]


@dataclasses.dataclass(frozen=True)
class Branch:
    """A part of a record that belongs together: where it lies in the record's numbers, and its shape."""

    name: str
    start: int
    shape: tuple[int, ...]
    kind: BranchKind = "table"
    mask: bool = False
    """Whether the last channel says which steps (or members of a bag) are there: 1, or 0 for padding."""


@dataclasses.dataclass(frozen=True)
class Task:
    """What is asked: PUBLIC, the same at every site.

    `inputs` is the shape of one record. A regression target is stored as (value − centre) / spread with
    the schema's numbers: `centre`, `spread` and `unit` bring an error back into the unit of the column.
    `branches` says what lies where in a record of several parts (an image with a history), which is then one row of
    numbers; of a record that is one sequence or bag, it says whether there is a mask.
    """

    kind: str
    """A name of the table of task kinds; see `task_kinds`."""
    classes: tuple[str, ...]
    inputs: tuple[int, ...]
    features: tuple[str, ...] = ()
    centre: float = 0.0
    spread: float = 1.0
    unit: str = ""
    branches: tuple[Branch, ...] = ()

    def __post_init__(self) -> None:
        _ = self.traits  # an unknown kind is refused here

    @property
    def traits(self) -> TaskKind:
        """Everything that depends on the kind of task."""
        return task_kinds[self.kind]

    @property
    def form(self) -> Form:
        """The form of the targets, which decides the loss and the metrics."""
        return self.traits.form

    @property
    def outputs(self) -> int:
        """How many numbers a model gives for one record."""
        return self.traits.outputs(self)

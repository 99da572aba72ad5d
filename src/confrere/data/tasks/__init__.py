"""Task kinds: everything that differs between predicting a class, a number or several labels.

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

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from confrere.core.metrics import Form
from confrere.core.registry import Registry

if TYPE_CHECKING:
    import pandas as pd
    from torch import Tensor

    from confrere.data.encode.encoding_tally import EncodingTally
    from confrere.data.records import Task
    from confrere.data.schema import Label

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

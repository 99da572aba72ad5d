"""A number per record, within a range that the schema states."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from torch import Tensor

from confrere.data.encode.encoding_tally import EncodingTally
from confrere.data.encode.labels import label_column, refuse_gaps
from confrere.data.read.table_origin import BadRows, counted
from confrere.data.read.values import as_numbers
from confrere.data.tasks import Label, Targets, Task, TaskKind, task_kind


@task_kind("regression")
class Regression(TaskKind):
    """The range is scaled to −1 … 1; the task's centre and spread bring a value back into its unit."""

    form = "number"
    chart = "mean and spread"

    def problems(self, label: Label) -> list[str]:
        out = super().problems(label)
        if label.range is None:
            out.append("a regression label needs a plausible range: it may not come from the records")
        return out

    def task(self, label: Label, **shape: Any) -> Task:
        low, high = label.range or (-1.0, 1.0)
        return Task(
            "regression", (), centre=(low + high) / 2, spread=(high - low) / 2, unit=label.unit, **shape
        )

    def encode(self, frame: pd.DataFrame, label: Label, tally: EncodingTally) -> Targets:
        numbers = as_numbers(frame, frame[label.column], label_column(label))
        low, high = label.range or (-1.0, 1.0)
        outside = (numbers < low) | (numbers > high)
        if outside.any():
            words = f"{numbers[outside][0]:g} is not within {low:g} … {high:g} ({counted(outside.sum(), 'such value')})"
            raise BadRows(frame, outside, label.column, f"{words}; correct it, or widen the label's range")
        values = (numbers - (low + high) / 2) / ((high - low) / 2)
        known = ~np.isnan(values)
        refuse_gaps(frame, label, known, tally)
        return values[known].astype(np.float32), known

    def outputs(self, task: Task) -> int:
        return 1

    def unlearnable(self, task: Task, targets: Tensor) -> str | None:
        if float(targets.std(unbiased=False)) > 0:
            return None
        only = float(targets[0]) * task.spread + task.centre
        return (
            f"the target is {only:g} in all records; there is nothing to learn."
            ' Is it the right column? (Or set data.one_class = "allow")'
        )

    def flipped(self, task: Task, targets: Tensor) -> Tensor:
        return -targets  # they are measured from the middle of the range

    def predictions(self, task: Task, outputs: Tensor) -> Mapping[str, Sequence[Any] | NDArray[Any]]:
        return {"prediction": (outputs[:, 0].double() * task.spread + task.centre).numpy()}

    def summary(self, task: Task, targets: Tensor) -> dict[str, float]:
        values = targets.double() * task.spread + task.centre
        return {"mean": float(values.mean()), "spread": float(values.std())}

    def summary_text(self, task: Task, summary: Mapping[str, float]) -> str:
        return f"{summary['mean']:.3g} ± {summary['spread']:.2g} {task.unit}"

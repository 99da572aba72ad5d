"""Several labels per record, each yes or no by itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from confrere.data.column_kinds import Column
from confrere.data.encode.encoding_tally import EncodingTally
from confrere.data.encode.labels import refuse_gaps
from confrere.data.read.values import as_flags
from confrere.data.tasks import Label, Targets, Task, TaskKind, task_kind


@task_kind("multilabel")
class Multilabel(TaskKind):
    """One output, one column of zeros and ones per label."""

    form = "labels"

    def problems(self, label: Label) -> list[str]:
        if len(label.columns) < 2:
            return ['a multilabel label needs at least two `columns`; for one of them, kind = "binary"']
        return []

    def task(self, label: Label, **shape: Any) -> Task:
        return Task("multilabel", label.columns, **shape)

    def encode(self, frame: pd.DataFrame, label: Label, tally: EncodingTally) -> Targets:
        columns = []
        for name in label.columns:
            column = Column(name, kind="flag", missing=label.missing, identifying=False)
            values, gaps = as_flags(frame, frame[name], column)
            columns.append(np.where(gaps, np.nan, values))
        values = np.stack(columns, axis=1)
        known: NDArray[np.bool_] = np.asarray(~np.isnan(values).any(axis=1))
        refuse_gaps(frame, Label(column=label.columns[0], unlabelled=label.unlabelled), known, tally)
        return values[known].astype(np.float32), known

    def outputs(self, task: Task) -> int:
        return len(task.classes)

    def unlearnable(self, task: Task, targets: Tensor) -> str | None:
        for label, share in zip(task.classes, targets.mean(0).tolist(), strict=True):
            if share in (0.0, 1.0):
                return (
                    f"the label {label} is {'yes' if share else 'no'} in all records;"
                    ' leave it out, or set data.one_class = "allow"'
                )
        return None

    def flipped(self, task: Task, targets: Tensor) -> Tensor:
        return 1 - targets

    def predictions(self, task: Task, outputs: Tensor) -> Mapping[str, Sequence[Any] | NDArray[Any]]:
        shares = torch.sigmoid(outputs.double()).numpy()
        return {f"probability of {name}": shares[:, n] for n, name in enumerate(task.classes)}

    def summary(self, task: Task, targets: Tensor) -> dict[str, float]:
        return dict(zip(task.classes, targets.double().mean(dim=0).tolist(), strict=True))

"""Inputs and targets that are already numbers, by site: NumPy arrays or tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch

from confrere.core.errors import DataError, StudyError
from confrere.core.seeds import derive
from confrere.data.partition import FRACTIONS, Fractions, split
from confrere.data.records import Federation, Records, SiteData, Task

Arrays = tuple[Any, Any] | tuple[Any, Any, Any]
"""Inputs, targets, and (where patients have several records) whose record each is."""


def of_arrays(
    arrays: Mapping[str, Arrays],
    *,
    name: str = "own arrays",
    seed: int = 0,
    split: Fractions = FRACTIONS,
    classes: Sequence[str] = (),
) -> Federation:
    """A federation of arrays. Without `classes`, how many there are is read off the records of all sites."""
    sites = {str(n): _site(str(n), s, seed, split) for n, s in arrays.items()}
    return Federation(name, task_of_arrays(sites, classes), sites)


def _site(name: str, source: Sequence[Any], seed: int, fractions: Fractions) -> SiteData:
    inputs = torch.as_tensor(np.asarray(source[0]), dtype=torch.float32)
    raw = np.asarray(source[1])
    if raw.dtype.kind in "biu":
        targets = torch.as_tensor(raw.astype(np.int64))
        if len(targets) and int(targets.min()) < 0:
            raise DataError(f'site "{name}": classes are numbered 0, 1, 2 …; there is a negative one')
    elif raw.dtype.kind == "f":
        targets = torch.as_tensor(raw.astype(np.float32))
        if not bool(targets.isfinite().all()):
            raise DataError(f'site "{name}": there are NaN or infinite targets')
    else:
        raise DataError(f'site "{name}": targets are class numbers or floating-point values, not {raw.dtype}')
    units = None
    if len(source) > 2 and source[2] is not None:
        patients = pd.Series(np.asarray(source[2]))
        if patients.isna().any():
            raise DataError(f'site "{name}": {int(patients.isna().sum())} records have no patient id')
        units = torch.as_tensor(pd.factorize(patients)[0])
    if len(inputs) == 0:
        raise DataError(f'site "{name}" has no records; leave it out or give it some')
    if not bool(inputs.isfinite().all()):
        raise DataError(f'site "{name}": the inputs hold NaN or infinite values; encode missing values first')
    parts = split(Records(inputs, targets, units), derive(seed, name), fractions)
    return SiteData(name, parts.train, parts.validation, parts.test)


def task_of_arrays(sites: Mapping[str, SiteData], classes: Sequence[str] = ()) -> Task:
    """What is asked of a model, from the shapes and types of encoded records; `classes` are stated, or counted."""
    if not sites:
        raise StudyError("there are no sites")
    first = next(iter(sites.values())).train
    shape = tuple(first.inputs.shape[1:])
    if first.targets.is_floating_point():
        if first.targets.ndim < 2 or first.targets.shape[1] == 1:
            if classes:
                raise StudyError(
                    "data.classes are stated, but the targets are floating-point values, not classes"
                )
            return Task("regression", ("value",), shape)
        names = tuple(classes) or tuple(str(i) for i in range(first.targets.shape[1]))
        if len(names) != first.targets.shape[1]:
            raise StudyError(
                f"data.classes names {len(names)} labels; the targets have {first.targets.shape[1]}"
            )
        return Task("multilabel", names, shape)
    highest = {
        n: max(int(r.targets.max()) for r in (s.train, s.validation, s.test) if len(r))
        for n, s in sites.items()
    }
    for site, most in highest.items():
        if classes and most >= len(classes):
            raise DataError(
                f'site "{site}": there is a class {most}, and data.classes names {len(classes)} (numbered from 0)'
            )
    names = tuple(classes) or tuple(str(i) for i in range(max(2, max(highest.values()) + 1)))
    return Task("binary" if len(names) == 2 else "multiclass", names, shape)

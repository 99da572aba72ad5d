"""Inputs and targets that are already numbers, by site: NumPy arrays or tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from confrere.core.errors import DataError, StudyError
from confrere.core.seeds import derive
from confrere.data import digests
from confrere.data.read.values import kinds_of
from confrere.data.records import Federation, Records, SiteData
from confrere.data.split.holdout import SPLIT, SplitRule, split
from confrere.data.tasks import Branch, BranchKind, Task

Arrays = tuple[Any, Any] | tuple[Any, Any, Any]
"""Inputs (one array, or several by name), targets, and (where patients have several records) whose record each is."""


def of_arrays(
    arrays: Mapping[str, Arrays],
    *,
    name: str = "own arrays",
    seed: int = 0,
    split: SplitRule = SPLIT,
    classes: Sequence[str] = (),
    range: tuple[float, float] | None = None,
) -> Federation:
    """A federation of arrays. Without `classes`, how many there are is read off the records of all sites.

    Inputs may be several arrays by name, {"image": …, "history": …}: the branches of a record. `range` is what a target
    that is a number lies in; it is scaled to −1 … 1.
    """
    layouts = {str(n): _laid_out(str(n), s[0]) for n, s in arrays.items()}
    layout = next(iter(layouts.values()), ())
    for site, own in layouts.items():
        if own != layout:
            first = next(iter(layouts))
            raise DataError(
                f'site "{site}": its records have {_words(own)}, those of "{first}" {_words(layout)};'
                " all sites have the same branches, of the same shapes"
            )
    sites = {str(n): _site(str(n), s, seed, split, range) for n, s in arrays.items()}
    task = task_of_arrays(sites, classes)
    if range is not None:
        if task.form != "number":
            raise StudyError(f"data.range is for a target that is a number; this task is {task.kind}")
        task = replace(task, centre=(range[0] + range[1]) / 2, spread=(range[1] - range[0]) / 2)
    return Federation(name, replace(task, branches=layout), sites)


KINDS: Mapping[int, BranchKind] = {1: "table", 2: "series", 3: "image", 4: "volume"}
"""What an array is taken for, by the dimensions of a record."""


def padded(sequences: Sequence[Any], steps: int = 0) -> NDArray[np.float32]:
    """Sequences (or bags) of unequal length as one array: padded at the end, with a last channel that marks what is there.

    Give networks for them `mask = true`. `steps` is the length of the longest that may come; without it, of the longest here.

    >>> padded([[[5.0]], [[6.0], [7.0]]])[..., 1].tolist()
    [[1.0, 0.0], [1.0, 1.0]]
    """
    rows = [np.asarray(s, dtype=np.float32) for s in sequences]
    rows = [r[:, None] if r.ndim == 1 else r for r in rows]
    widths = {r.shape[1:] for r in rows}
    if len(widths) != 1 or len(next(iter(widths))) != 1:
        raise DataError(f"the steps of these sequences differ in their values: {sorted(map(str, widths))}")
    longest = max(len(r) for r in rows)
    if steps and longest > steps:
        raise DataError(f"a sequence has {longest} steps, and there is room for {steps}")
    out = np.zeros((len(rows), steps or longest, rows[0].shape[1] + 1), dtype=np.float32)
    for row, values in zip(out, rows, strict=True):
        row[: len(values), :-1] = values
        row[: len(values), -1] = 1.0
    return out


def _laid_out(site: str, inputs: Any) -> tuple[Branch, ...]:
    """The branches of inputs that are given as several arrays by name."""
    if not isinstance(inputs, Mapping):
        return ()
    if not inputs:
        raise DataError(f'site "{site}": its inputs are given by name, but there is none')
    found, at = [], 0
    for name, array in inputs.items():
        shape = _numbers(site, array, f" of {name}").shape[1:] or (1,)
        if len(shape) not in KINDS:
            raise DataError(
                f'site "{site}": a record of {name} has {len(shape)} dimensions; it can have 1 to 4'
            )
        found.append(Branch(str(name), at, tuple(map(int, shape)), KINDS[len(shape)]))
        at += int(np.prod(shape))
    return tuple(found)


def _words(layout: Sequence[Branch]) -> str:
    return ", ".join(f"{b.name} ({'×'.join(map(str, b.shape))})" for b in layout) or "one array"


def _numbers(site: str, given: Any, what: str = "") -> NDArray[np.float32]:
    try:
        found = np.asarray(given)
        if found.dtype == object:
            raise ValueError
        return found.astype(np.float32)
    except (TypeError, ValueError):
        raise DataError(
            f'site "{site}": the inputs{what} are not one array of numbers; if sequences differ in length, use'
            " confrere.padded(sequences), and mask = true in their network; volumes must have one size"
        ) from None


def _inputs(site: str, given: Any) -> torch.Tensor:
    if not isinstance(given, Mapping):
        return torch.from_numpy(_numbers(site, given))
    parts = {n: _numbers(site, a, f" of {n}") for n, a in given.items()}
    counts = {n: len(p) for n, p in parts.items()}
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"{n} {c}" for n, c in counts.items())
        raise DataError(f'site "{site}": each record needs all branches; there are {listed}')
    return torch.from_numpy(np.concatenate([p.reshape(len(p), -1) for p in parts.values()], axis=1))


def _targets(site: str, given: Any, range: tuple[float, float] | None) -> torch.Tensor:
    raw = np.asarray(given)
    several = raw.ndim == 2 and raw.shape[1] > 1
    if raw.dtype.kind not in "biuf":
        raise DataError(
            f'site "{site}": targets are class numbers or floating-point values, not {_named(raw)}'
        )
    if raw.dtype.kind == "f" and not np.isfinite(raw).all():
        raise DataError(f'site "{site}": there are NaN or infinite targets')
    if several:
        if not np.isin(raw, (0, 1)).all():
            raise DataError(
                f'site "{site}": targets of several columns are labels, each 0 or 1; there is {raw[~np.isin(raw, (0, 1))][0]:g}'
            )
        return torch.as_tensor(raw.astype(np.float32))
    if raw.dtype.kind == "f":
        values = raw.astype(np.float64).reshape(-1)
        if range is not None:
            low, high = range
            if (outside := (values < low) | (values > high)).any():
                raise DataError(
                    f'site "{site}": the target {values[outside][0]:g} is not within data.range = [{low:g}, {high:g}]'
                )
            values = (values - (low + high) / 2) / ((high - low) / 2)
        return torch.as_tensor(values.astype(np.float32))
    targets = torch.as_tensor(raw.astype(np.int64).reshape(-1))
    if len(targets) and int(targets.min()) < 0:
        raise DataError(f'site "{site}": classes are numbered 0, 1, 2 …; there is a negative one')
    return targets


def _named(raw: NDArray[Any]) -> str:
    return "text" if raw.dtype.kind in "USO" else str(raw.dtype)


def _site(
    name: str, source: Sequence[Any], seed: int, rule: SplitRule, range: tuple[float, float] | None
) -> SiteData:
    inputs, targets = _inputs(name, source[0]), _targets(name, source[1], range)
    units = None
    if len(source) > 2 and source[2] is not None:
        patients = pd.Series(np.asarray(source[2]))
        if patients.isna().any():
            raise DataError(f'site "{name}": {int(patients.isna().sum())} records have no patient id')
        own, ids = kinds_of(patients)
        units = torch.from_numpy(digests.of_ids(str(i) for i in ids)[own].view(np.int64))
    if len(inputs) == 0:
        raise DataError(f'site "{name}" has no records; leave it out or give it some')
    if not bool(inputs.isfinite().all()):
        raise DataError(f'site "{name}": the inputs hold NaN or infinite values; encode missing values first')
    return split(Records(inputs, targets, units), derive(seed, name), rule, name)


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

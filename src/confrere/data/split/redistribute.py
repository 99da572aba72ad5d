"""Redistribute all records of a study over new simulated sites.

The records are those of a bundled set, of a study's own file, or arrays. The ways are those of `partitions`, and two that
need to know the columns: `column` makes a site of each category of a column (or of each interval of a number, between
`edges`), and `missing` takes values away, at each site of other columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from confrere.core.errors import DataError, StudyError
from confrere.core.registry import nearest
from confrere.core.seeds import derive
from confrere.data.column_kinds import MISSING
from confrere.data.column_kinds.numbers import scaled
from confrere.data.records import Federation, Records, concatenate
from confrere.data.split import holdout
from confrere.data.split.holdout import SPLIT, SplitRule
from confrere.data.split.partitions import blank, by_column, partition

NOT_KNOWN = "not known"


def recut(
    federation: Federation,
    how: str,
    *,
    seed: int,
    split: SplitRule = SPLIT,
    sites: int = 3,
    records: int = 0,
    **options: Any,
) -> Federation:
    """The same records at other sites. `records` makes all sites equally large; `options` are those of the way `how`."""
    columns, share = options.pop("columns", ()), options.pop("share", 0.5)
    everything = concatenate([s.all for s in federation.sites.values()])
    names = federation.task.features
    if how == "column":
        parts = _by_values(federation, everything, **options)
    else:
        cut = partition(everything, how, sites, seed, records_per_site=records, names=names, **options)
        parts = {f"site{k + 1}": part for k, part in enumerate(cut)}
    unequal = how == "inequality" and options.get("of") == "missing"
    if how == "missing" or unequal:
        degree = float(options.get("degree", 0.5)) if unequal else share
        parts = _lacking(parts, names, columns, degree, seed)
    elif columns or share != 0.5:
        raise StudyError(f'partition {how!r} takes no values away: columns and share are for "missing"')
    common = next(iter(federation.sites.values())).common_test
    out = {name: holdout.split(part, seed, split, name, common) for name, part in parts.items()}
    words = f"{len(out)} sites were cut from the records of the study ({how}, seed {seed}): a rehearsal"
    return replace(federation, sites=out, notes=(*federation.notes, words))


def _by_values(federation: Federation, everything: Records, **options: Any) -> dict[str, Records]:
    """A site for each value of a column; patients stay together, where their first record puts them."""
    unknown = set(options) - {"column", "edges"}
    if unknown or not options.get("column"):
        problem = f"has no option {sorted(unknown)[0]!r}" if unknown else "needs its column"
        raise StudyError(
            f"partition 'column' {problem}; it has column (a name) and edges (a list, for numbers)"
        )
    values = np.array(_values(federation, everything, str(options["column"]), list(options.get("edges", []))))
    if everything.units is not None:
        _, first, own = np.unique(everything.units.numpy(), return_index=True, return_inverse=True)
        values = values[first[own]]
    found = {
        name: everything.select(rows.tolist()) for name, rows in sorted(by_column(values.tolist()).items())
    }
    if len(found) < 2:
        raise DataError(
            f"partition 'column': all records have the same value of {options['column']}: that is one site"
        )
    return found


def _values(federation: Federation, records: Records, column: str, edges: list[float]) -> list[str]:
    """What each record has in a column, read back from its numbers."""
    names, flat = list(federation.task.features), records.inputs.reshape(len(records), -1).numpy()
    known = sorted({n.split("=")[0].removesuffix(MISSING) for n in names})
    if column not in known:
        raise StudyError(f"partition 'column': there is no column {column!r}{nearest(column, known)}")
    gone = (
        flat[:, names.index(column + MISSING)] == 1
        if column + MISSING in names
        else np.zeros(len(flat), bool)
    )
    kinds = [(i, n) for i, n in enumerate(names) if n.startswith(f"{column}=")]
    if kinds:
        groups = np.array([n for _, n in kinds])[flat[:, [i for i, _ in kinds]].argmax(1)]
    else:
        numbers = flat[:, names.index(column)]
        described = federation.schema.column(column) if federation.schema is not None else None
        words = () if described is None else described.traits.no_and_yes(described)
        if words:
            groups = np.array([f"{column}={w}" for w in words])[(numbers > 0.5).astype(int)]
        else:
            groups = _intervals(column, numbers, edges, described)
    return [f"{column} {NOT_KNOWN}" if lost else str(value) for lost, value in zip(gone, groups, strict=True)]


def _intervals(column: str, numbers: NDArray[np.float32], edges: list[float], described: Any) -> NDArray[Any]:
    if not edges or sorted(edges) != edges:
        raise StudyError(
            f"partition 'column': {column} is a number; give edges in order, such as edges = [18, 65]"
        )
    at = np.array(edges, dtype=np.float64)
    if described is not None:
        at = scaled(at, described)
    words = [f"{column} below {edges[0]:g}"]
    words += [f"{column} {a:g} to {b:g}" for a, b in pairwise(edges)]
    words.append(f"{column} {edges[-1]:g} and above")
    # encoded numbers are single precision: an edge belongs to the upper interval all the same
    return np.array(words)[np.searchsorted(at - 1e-6, numbers, side="right")]


def _lacking(
    parts: dict[str, Records], names: Sequence[str], columns: Sequence[str], share: float, seed: int
) -> dict[str, Records]:
    """Each site without a share of the values of its own columns: these are dealt out one by one."""
    offered = list(columns) or [n.removesuffix(MISSING) for n in names if n.endswith(MISSING)]
    if not offered:
        raise StudyError(
            "no column has a missing-value indicator, so nothing can be taken away; give the study a schema"
        )
    out = {}
    for k, (name, part) in enumerate(parts.items()):
        own = offered[k :: len(parts)] or [offered[k % len(offered)]]
        out[name] = blank(part, names, own, share, derive(seed, "missing", name))
    return out

"""Read a pandas table from a pickle safely: nothing named in the file is imported or called.

Some packages hold their tables as pickles, and loading a pickle runs whatever it asks for. Here every global
that a pickle names becomes an inert `PickledObject` that only remembers its arguments; a name that no table needs is
refused. The frame is then rebuilt from the remembered parts. `convert` does it once, in a separate process.
"""

from __future__ import annotations

import csv
import io
import lzma
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from confrere.core.errors import DataError

KNOWN = frozenset(
    {
        "builtins.slice",
        "numpy.dtype",
        "numpy.ndarray",
        "numpy.core.multiarray._reconstruct",
        "numpy.core.multiarray.scalar",
        "numpy.core.numeric._frombuffer",
        "numpy._core.multiarray._reconstruct",
        "numpy._core.numeric._frombuffer",
        "pandas._libs.arrays.__pyx_unpickle_NDArrayBacked",
        "pandas._libs.internals._unpickle_block",
        "pandas.core.arrays.categorical.Categorical",
        "pandas.core.arrays.integer.Int32Dtype",
        "pandas.core.arrays.integer.Int64Dtype",
        "pandas.core.arrays.integer.IntegerArray",
        "pandas.core.dtypes.dtypes.CategoricalDtype",
        "pandas.core.frame.DataFrame",
        "pandas.core.indexes.base.Index",
        "pandas.core.indexes.base._new_Index",
        "pandas.core.indexes.range.RangeIndex",
        "pandas.core.internals.managers.BlockManager",
    }
)
MEMORY = 4 * 1024**3
SECONDS = 120


class PickledObject:
    """What a pickle asked for: a name, arguments and a state. It does nothing."""

    name = ""

    args: tuple[Any, ...]
    state: Any

    def __new__(cls, *args: Any) -> PickledObject:
        made = super().__new__(cls)
        made.args, made.state = args, None
        return made

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _Inert(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> type[PickledObject]:
        full = f"{module}.{name}"
        if full not in KNOWN:
            raise DataError(f"the pickle asks for {full}, which no table needs; it was not loaded")
        return type("PickledObject", (PickledObject,), {"name": full})


Table = tuple[list[str], list[list[Any]]]


def table(raw: bytes) -> Table:
    """The column names and the columns of a pickled DataFrame."""
    try:
        root = _Inert(io.BytesIO(raw)).load()
        return _frame(root)
    except DataError:
        raise
    except Exception as error:  # whatever a broken or hostile pickle does to the reader, it is one message
        raise DataError(
            f"the pickle is not a table that can be read: {type(error).__name__}: {error}"
        ) from None


def convert(source: Path, target: Path) -> None:
    """Write the table of a pickle (plain or xz) as CSV, in a process with little memory and time."""
    done = subprocess.run(
        [sys.executable, "-I", "-m", "confrere.data.bundled.unpickle", str(source), str(target)],
        capture_output=True,
        text=True,
        timeout=SECONDS * 2,
        check=False,
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise DataError(f"{source.name}: could not be converted: {last}")


def _frame(root: Any) -> Table:
    manager = root.state["_mgr"] if isinstance(root.state, dict) else None
    if root.name != "pandas.core.frame.DataFrame" or manager is None:
        raise DataError("the pickle does not hold a table")
    blocks, axes = manager.args[:2] if manager.args else manager.state
    names = [str(x) for x in _values(axes[0])]
    columns: list[list[Any]] = [[] for _ in names]
    for block in blocks:
        values, placement = block.args[0], block.args[1]
        sliced = placement.name == "builtins.slice"
        at = range(len(names))[slice(*placement.args)] if sliced else _array(placement).tolist()
        rows = _values(values)
        if isinstance(rows, np.ndarray) and rows.ndim == 2:
            for i, position in enumerate(at):
                columns[position] = rows[i].tolist()
        else:
            columns[next(iter(at))] = list(rows)
    if len({len(c) for c in columns}) != 1:
        raise DataError("the columns of the pickled table differ in length")
    return names, columns


def _values(node: Any) -> Any:
    """The elements of an array, an index, a categorical or a column of whole numbers with gaps."""
    name = getattr(node, "name", "")
    if name.endswith("_new_Index"):
        data = node.args[1]
        if "data" in data:
            return _values(data["data"])
        return list(range(data["start"], data["stop"], data["step"]))
    if name.endswith("NDArrayBacked"):
        state = node.state
        parts = state if isinstance(state, tuple) else (state,)
        dtype = next(p for p in parts if getattr(p, "name", "").endswith("CategoricalDtype"))
        codes = next(p for p in parts if _is_array(p))
        kinds = list(_values(_categories(dtype)))
        return [None if c < 0 else kinds[c] for c in _array(codes).tolist()]
    if name.endswith("IntegerArray"):
        state = node.state if isinstance(node.state, dict) else {}
        data = state.get("_data", node.args[0] if node.args else None)
        mask = state.get("_mask", node.args[1] if len(node.args) > 1 else None)
        gaps = _array(mask).ravel().tolist()
        return [None if m else v for v, m in zip(_array(data).ravel().tolist(), gaps, strict=True)]
    return _array(node)


def _categories(dtype: Any) -> Any:
    state = dtype.state if isinstance(dtype.state, dict) else {}
    return state["categories"] if "categories" in state else dtype.args[0]


def _is_array(x: Any) -> bool:
    return getattr(x, "name", "").endswith(("_reconstruct", "_frombuffer"))


def _array(node: Any) -> Any:
    """A NumPy array of numbers, or of the texts and numbers that an object array listed."""
    if node.name.endswith("_frombuffer"):
        buffer, dtype, shape, order = node.args[:4]
        return np.frombuffer(bytes(buffer), dtype=_dtype(dtype)).reshape(shape, order=order)
    if node.name.endswith("_reconstruct"):
        _, shape, dtype, fortran, data = node.state
        kind = _dtype(dtype)
        if kind == np.dtype(object):
            out = np.empty(len(data), dtype=object)
            out[:] = [None if isinstance(x, PickledObject) else x for x in data]
            return out.reshape(shape, order="F" if fortran else "C")
        return np.frombuffer(data, dtype=kind).reshape(shape, order="F" if fortran else "C")
    raise DataError(f"{node.name} is not an array")


def _dtype(node: Any) -> np.dtype[Any]:
    code = str(node.args[0])
    if code not in ("O8", "O", "b1") and code[:1] not in "iuf":
        raise DataError(f"arrays of kind {code!r} are not read")
    kind = np.dtype(object) if code.startswith("O") else np.dtype(code)
    order = node.state[1] if isinstance(node.state, tuple) else "|"
    return kind.newbyteorder(">") if order == ">" else kind


def _main(source: Path, target: Path) -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    raw = source.read_bytes()
    names, columns = table(lzma.decompress(raw) if raw.startswith(b"\xfd7zXZ") else raw)
    with target.open("w", encoding="utf-8", newline="") as out:
        writer = csv.writer(out)
        writer.writerow(names)
        writer.writerows(["" if _gap(x) else x for x in row] for row in zip(*columns, strict=True))


def _gap(x: Any) -> bool:
    return x is None or (isinstance(x, float) and np.isnan(x))


if __name__ == "__main__":
    try:
        _main(Path(sys.argv[1]), Path(sys.argv[2]))
    except DataError as failure:
        sys.exit(str(failure))

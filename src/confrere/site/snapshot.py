"""The content of a checkpoint: strategy states, optimiser state and parcels in transit, written atomically to one file.

Tensors go into a safetensors file, everything else into its metadata as JSON. Nothing is pickled: reading a
checkpoint can build dataclasses that the program knows, and nothing else.
"""

from __future__ import annotations

import importlib
import json
import math
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from safetensors.torch import save_file
from torch import Tensor

from confrere.core.custody import Custody, HeldNumber
from confrere.core.errors import CheckpointError, ConfrereError
from confrere.core.owner_only import private_draft
from confrere.core.params import Params

FORMAT = "confrere-checkpoint-2"

DAMAGE = (
    OSError, SafetensorError, ConfrereError,
    ValueError, LookupError, TypeError, AttributeError, ImportError, RecursionError, ArithmeticError,
)  # fmt: skip
"""The errors of reading a file that is not a checkpoint, or that was altered."""


@dataclass(frozen=True)
class Packed:
    """A part of a checkpoint that was packed somewhere else: its JSON form and its tensors."""

    form: Any
    tensors: Mapping[str, Tensor]


def pack(value: Any, tensors: dict[str, Tensor], path: str = "") -> Any:
    """A JSON form of `value`; its tensors are put aside into `tensors` under their path."""
    if value is None or isinstance(value, bool | str) or type(value) in (int, float):
        return value
    if isinstance(value, HeldNumber):
        return {"held": float(value), "custody": value.custody.name}
    if isinstance(value, Packed):
        tensors.update(value.tensors)
        return value.form
    if isinstance(value, Tensor):
        tensors[path] = value.detach().cpu().contiguous().clone()
        return {"tensor": path}
    if isinstance(value, Params):
        if len({kind for _, _, kind in value.shapes}) == 1:  # one tensor instead of many
            tensors[path] = value.flatten().detach().cpu().contiguous().clone()
            return {"flat": path, "shapes": value.shapes}
        return {"params": {n: pack(t, tensors, f"{path}/{n}") for n, t in value.items()}}
    if isinstance(value, Enum):
        return {"enum": _address(type(value)), "name": value.name}
    if is_dataclass(value) and not isinstance(value, type):
        content = {f.name: pack(getattr(value, f.name), tensors, f"{path}/{f.name}") for f in fields(value)}
        return {"class": _address(type(value)), "fields": content}
    if isinstance(value, Mapping):
        if not all(isinstance(k, str) for k in value):
            raise CheckpointError(f"{path}: a state may use only text as keys of a table")
        return {"map": {k: pack(v, tensors, f"{path}/{k}") for k, v in value.items()}}
    if isinstance(value, bytes):
        tensors[path] = (
            torch.frombuffer(bytearray(value), dtype=torch.uint8)
            if value
            else torch.zeros(0, dtype=torch.uint8)
        )
        return {"bytes": path}
    if isinstance(value, list | tuple):
        kind = "list" if isinstance(value, list) else "tuple"
        return {kind: [pack(v, tensors, f"{path}/{n}") for n, v in enumerate(value)]}
    raise CheckpointError(
        f"{path}: a {type(value).__name__} cannot be kept in a checkpoint; a strategy's state is made of models,"
        " tensors, numbers, text, lists, tables and dataclasses of these"
    )


def unpack(form: Any, tensors: Mapping[str, Tensor]) -> Any:
    """The inverse of `pack`."""
    if not isinstance(form, dict):
        return form
    if "tensor" in form:
        return tensors[form["tensor"]]
    if "held" in form:
        return HeldNumber(form["held"], Custody[form["custody"]])
    if "bytes" in form:
        return bytes(tensors[form["bytes"]].tolist())
    if "flat" in form:
        shapes = tuple((name, tuple(shape), kind) for name, shape, kind in form["shapes"])
        flat = tensors[form["flat"]]
        sizes = [size for _, shape, _ in shapes for size in shape]
        alike = {kind for *_, kind in shapes} == {str(flat.dtype).removeprefix("torch.")}
        fits = flat.dim() == 1 and flat.numel() == sum(math.prod(shape) for _, shape, _ in shapes)
        if not (alike and fits and all(isinstance(size, int) and size >= 0 for size in sizes)):
            raise CheckpointError("a model of the checkpoint does not have the size that it states")
        return Params.of_flat(flat, shapes)
    if "params" in form:
        return Params({n: unpack(t, tensors) for n, t in form["params"].items()})
    if "enum" in form:
        return _find(form["enum"], Enum)[form["name"]]
    if "class" in form:
        kind: Any = _find(form["class"], object)
        if not is_dataclass(kind):
            raise CheckpointError(f"{form['class']} is not a dataclass; the checkpoint is damaged")
        return kind(**{n: unpack(v, tensors) for n, v in form["fields"].items()})  # type: ignore[operator]
    if "map" in form:
        return {k: unpack(v, tensors) for k, v in form["map"].items()}
    if "list" in form:
        return [unpack(v, tensors) for v in form["list"]]
    if "tuple" in form:
        return tuple(unpack(v, tensors) for v in form["tuple"])
    raise CheckpointError("the checkpoint holds something that this version does not know")


def save(path: Path, content: Mapping[str, Any]) -> None:
    """Write a checkpoint so that after a crash either the old or the new one is there, never half of one."""
    tensors, meta = _packed(content)
    temporary = path.with_name(path.name + ".part")
    try:
        private_draft(path)
        save_file(tensors, temporary, meta)
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except (OSError, SafetensorError) as error:
        temporary.unlink(missing_ok=True)
        raise CheckpointError(
            f"{path}: the checkpoint could not be written ({error}); the last one is kept"
        ) from None


def dumps(content: Mapping[str, Any]) -> bytes:
    """A checkpoint as bytes, for a database."""
    return bytes(save_tensors(*_packed(content)))


def loads(data: bytes, where: str = "checkpoint") -> dict[str, Any]:
    """The inverse of `dumps`."""
    with _translating_errors(where):
        # in memory of their own: sums over tensors that lie across cache lines can differ in the last bit
        tensors = {name: tensor.clone() for name, tensor in load_tensors(data).items()}
        return _content(_form(data, where), tensors, where)


def load(path: Path) -> dict[str, Any]:
    """The content of a checkpoint."""
    with _translating_errors(str(path)), safe_open(path, framework="pt") as file:
        form = _checked_form(file.metadata() or {}, str(path))
        return _content(form, {name: file.get_tensor(name) for name in file.keys()}, str(path))  # noqa: SIM118


def joined(parts: Iterable[bytes]) -> dict[str, Packed]:
    """The dumps of several workers as one table; entries under the same key are merged."""
    forms: dict[str, dict[str, Any]] = {}
    tensors: dict[str, Tensor] = {}
    for data in parts:
        tensors.update(load_tensors(data))
        for key, form in _form(data)["map"].items():
            forms.setdefault(key, {}).update(form["map"])
    return {key: Packed({"map": form}, tensors) for key, form in forms.items()}


def _form(data: bytes, where: str = "checkpoint") -> Any:
    length = int.from_bytes(data[:8], "little")
    return _checked_form(json.loads(data[8 : 8 + length])["__metadata__"], where)


def _checked_form(meta: Mapping[str, str], where: str) -> Any:
    if meta.get("format") != FORMAT:
        raise CheckpointError(f"{where}: not a checkpoint of this version")
    return json.loads(meta["content"])


def _packed(content: Mapping[str, Any]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors and the metadata of a file."""
    tensors: dict[str, Tensor] = {}
    form = pack(dict(content), tensors)
    return tensors or {"": torch.zeros(0)}, {"format": FORMAT, "content": json.dumps(form)}


def _content(form: Any, tensors: Mapping[str, Tensor], where: str) -> dict[str, Any]:
    found = unpack(form, tensors)
    if not isinstance(found, dict):
        raise CheckpointError(f"{where}: damaged")
    return found


@contextmanager
def _translating_errors(where: str) -> Iterator[None]:
    """Whatever is wrong with a file is a CheckpointError that names it."""
    try:
        yield
    except CheckpointError:
        raise
    except FileNotFoundError:
        raise CheckpointError(f"{where}: no such checkpoint") from None
    except DAMAGE as error:
        raise CheckpointError(f"{where}: damaged ({type(error).__name__})") from None


def _address(kind: type) -> str:
    return f"{kind.__module__}:{kind.__qualname__}"


def _find(address: str, wanted: type) -> Any:
    """A class by its address. Only classes that are loaded already: a checkpoint cannot import code."""
    module, _, name = address.partition(":")

    found: Any = sys.modules.get(module)
    if found is None and module.startswith("confrere."):
        found = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    if not (isinstance(found, type) and issubclass(found, wanted)):
        raise CheckpointError(f"the checkpoint needs {address}, which this program does not know")
    return found

"""Inspect a loss: the custody of what it holds, its options as text, and any hidden state."""

from __future__ import annotations

from collections.abc import (
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    MutableMapping,
    MutableSequence,
    MutableSet,
    Sequence,
)
from dataclasses import dataclass, fields, is_dataclass
from dis import get_instructions
from enum import Enum
from functools import cached_property, lru_cache
from numbers import Number
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    ModuleType,
)
from typing import Any

from numpy import ndarray
from torch import Tensor

from confrere.core.custody import Custody, HeldNumber, Tagged, strictest
from confrere.core.errors import StudyError
from confrere.core.model import Model
from confrere.core.params import digest_of
from confrere.core.protocols import Loss


def described(loss: Loss) -> str:
    """The options of a loss as text: the same for two losses that compute the same, in every process."""
    return contents_of(loss).text


def contents_of(loss: Loss) -> LossContents:
    """Inspect a loss, and refuse one in which something could be hidden.

    What is found holds until the loss next runs on records: a loss could write what it sees into its class or module.
    """
    return LossContents(loss, tuple(_parts(loss, type(loss).__name__)))


@dataclass(frozen=True)
class LossContents:
    """What one inspection found in a loss."""

    loss: Loss
    parts: tuple[Any, ...]
    """Its plain values, tensors and tags, in a fixed order."""

    def custody(self, models: Mapping[str, Model]) -> Custody:
        """How closely a model must be held that is trained with the loss."""
        tags = [part.custody for part in self.parts if isinstance(part, _Tag)]
        return strictest([*tags, *(models[role].custody for role in read_by(self.loss))])

    @cached_property
    def text(self) -> str:
        """The options of the loss; equal for two losses that compute the same."""
        return repr([digest_of(part) if isinstance(part, Tensor) else part for part in self.parts])


def read_by(loss: Loss) -> frozenset[str]:
    """Every model that shapes what is trained with this loss: its `reads`, and what its weights are pulled to."""
    anchor = getattr(loss, "anchor", None)  # a Proximal has one
    return loss.reads if anchor is None else loss.reads | {anchor}


@dataclass(frozen=True)
class _Tag:
    """The custody of what follows it."""

    custody: Custody


def _parts(value: Any, where: str, tagged: bool = False) -> Iterator[Any]:
    """The plain values and the tags of a loss, in a fixed order, however deep: class weights come as a tuple.

    Only types whose contents are known are accepted: in any other object a value that depends on records could hide.
    """
    kind: type = type(value)
    read = _reader(kind)
    if read is not None:
        yield from read(value, where, tagged)
    elif tagged and isinstance(value, Tensor):
        yield value
    else:
        raise StudyError(
            f"{where}: a loss holds numbers, text, enums, tagged values, models, dataclasses and collections of these,"
            f" not {type(value).__name__}; put what depends on records into Tagged(value, custody)"
        )


Reader = Callable[[Any, str, bool], Iterable[Any]]
"""Reads the parts of a value of a known type: the value, where it is, and whether a tag stands before it."""


def _of_held_number(value: HeldNumber, where: str, tagged: bool) -> Iterable[Any]:
    """Read out of a metric: as if its Scalar stood here."""
    return (_Tag(value.custody), float(value))


def _of_plain(value: Any, where: str, tagged: bool) -> Iterable[Any]:
    return (value,)


def _of_tagged(value: Tagged[Any], where: str, tagged: bool) -> Iterable[Any]:
    return (_Tag(value.custody), *_parts(value.value, where, tagged=True))


def _of_model(value: Model, where: str, tagged: bool) -> Iterable[Any]:
    return (_Tag(value.custody), value.architecture, *value.params.values())


def _of_sequence(value: Sequence[Any], where: str, tagged: bool) -> Iterator[Any]:
    yield f"{type(value).__name__} of {len(value)}"
    for part in value:
        yield from _parts(part, where, tagged)


def _of_set(value: Collection[Any], where: str, tagged: bool) -> Iterator[Any]:
    yield f"set of {len(value)}"
    for parts in sorted((list(_parts(part, where, tagged)) for part in value), key=repr):
        yield from parts


def _of_mapping(value: Mapping[Any, Any], where: str, tagged: bool) -> Iterator[Any]:
    yield f"mapping of {len(value)}"
    for pair in value.items():
        yield from _parts(pair, where, tagged)


def _of_dataclass(value: Any, where: str, tagged: bool) -> Iterator[Any]:
    """A loss, or a loss within a loss."""
    known = fields(value)
    _check_nothing_hidden(value, {f.name for f in known}, where)
    yield f"{type(value).__module__}.{type(value).__qualname__}"
    for f in known:
        yield from _parts(getattr(value, f.name), f"{where}.{f.name}", tagged)


READERS: tuple[tuple[tuple[type, ...], Reader], ...] = (
    ((HeldNumber,), _of_held_number),
    ((type(None), str, bytes, Enum, Number), _of_plain),
    ((Tagged,), _of_tagged),
    ((Model,), _of_model),
    ((list, tuple), _of_sequence),
    ((set, frozenset), _of_set),
    ((Mapping,), _of_mapping),
)
"""The types that a loss may hold, the first that fits first; any other must be a dataclass."""


@lru_cache(maxsize=256)
def _reader(kind: type) -> Reader | None:
    """How values of a type are read; None if a loss may not hold them."""
    found = next((reader for kinds, reader in READERS if issubclass(kind, kinds)), None)
    return _of_dataclass if found is None and is_dataclass(kind) else found


def _check_nothing_hidden(value: Any, known: set[str], where: str) -> None:
    """Refuse a dataclass that keeps something outside of its `known` fields, where no custody would be found."""
    kind = type(value)
    if not kind.__dataclass_params__.frozen:
        raise StudyError(
            f"{where}: a loss is a frozen dataclass; write @dataclass(frozen=True) above {kind.__name__}"
        )
    hidden = set(getattr(value, "__dict__", ()))
    for part in kind.__mro__[:-1]:
        slots = part.__dict__.get("__slots__", ())
        hidden |= {slots} if isinstance(slots, str) else set(slots)
        for name in part.__dict__.keys() - _MADE - known:
            if (not name.startswith("__") or name in _CALLED) and not _is_plain(part.__dict__[name]):
                hidden.add(name)
    if hidden := hidden - known - {"__dict__", "__weakref__", "_abc_impl"}:
        raise StudyError(
            f"{where}: {kind.__name__}.{min(hidden)} holds something that is not a field, so its custody is not known; keep"
            " in fields what a loss needs, and what depends on records as Tagged(value, custody)"
        )


_CALLED = ("__call__", "__getattr__", "__getattribute__")
"""Special methods that run when a loss is computed; the others are made by `dataclass`, or run before that."""

_MADE = frozenset(vars(dataclass(frozen=True)(type("_Empty", (), {})))) - set(_CALLED)
"""What `dataclass` gives to every class: most of its attributes, none of which runs when a loss is computed."""

_PLAIN = (
    str, bytes, Enum, Number, type, ModuleType, MemberDescriptorType, GetSetDescriptorType, BuiltinFunctionType, type(None)
)  # fmt: skip


def _is_plain(held: Any) -> bool:
    """Whether an attribute of a class brings no value into a loss: neither by itself, nor by a default or a closure."""
    if isinstance(held, property):
        return all(map(_is_plain, filter(None, (held.fget, held.fset, held.fdel))))
    if isinstance(held, classmethod | staticmethod):
        return _is_plain(held.__func__)
    if isinstance(held, FunctionType):
        if any(map(_may_hold_records, map(held.__globals__.get, _globals_read(held.__code__)))):
            return False
        if not (held.__defaults__ or held.__kwdefaults__ or held.__closure__):
            return True
        values = [*(held.__defaults__ or ()), *(held.__kwdefaults__ or {}).values()]
        closed_over = [cell.cell_contents for cell in held.__closure__ or ()]
        return all(map(_is_plain, [*values, *closed_over])) and not any(
            isinstance(v, Number) for v in closed_over
        )
    if isinstance(held, tuple | frozenset):
        return all(map(_is_plain, held))
    return isinstance(held, _PLAIN)


@lru_cache(maxsize=1024)
def _globals_read(code: CodeType) -> frozenset[str]:
    """The global variables that a function reads, and the functions defined in it."""
    read = {i.argval for i in get_instructions(code) if i.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    return frozenset(read).union(*(_globals_read(c) for c in code.co_consts if isinstance(c, CodeType)))


def _may_hold_records(held: Any) -> bool:
    """Whether a global variable may carry values from one loss, or one step, to another."""
    if type(held) in (FunctionType, BuiltinFunctionType, ModuleType, type, type(None)):  # nearly all of them
        return False
    return isinstance(held, Tensor | Model | Tagged | MutableMapping | MutableSequence | MutableSet | ndarray)

"""Inspect the source of a custom strategy: lines that may loosen custody, and the number names it may send.

Custody travels with `Scalar` and `Model`, and what is read out of a private `Scalar` keeps it. Python cannot follow a
number through `float`, NumPy or a tensor, nor a write by way of `.data`. A strategy that does this is not refused: it may
have a reason. The findings are shown by `confrere check` and at the start of every run, for a person to read.

| what is found | why |
|---|---|
| `public(…)` or `Scalar(…, PROTECTED)` of `.value`, `.item()`, `float(…)` | the number may have been read from records |
| `Model(…, Custody.PROTECTED)`, `replace(…, custody=…)` | custody is stated, not derived |
| `.data`, `.numpy()`, `copy_` and other writes in place | weights would change and keep their custody |
| `global` and an attribute of a class that is set in a method | a loss could read there what records shaped |

The name of a number is sent as text. `numbers_named_in` lists the names that a custom strategy writes out, and the gate lets no
other name through: one made up during a run could carry a value.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator
from functools import lru_cache
from types import CodeType, FunctionType
from typing import Any

LOOSE = ("PUBLIC", "PROTECTED")
CLAIMS = ("public", "Scalar", "Tagged", "Model", "replace")


def strategy_findings(strategy: type) -> list[str]:
    """Sentences about a custom strategy; none for one of this package, which tests look through."""
    return [] if strategy.__module__.partition(".")[0] == "confrere" else findings_in(strategy)


@lru_cache(maxsize=256)
def numbers_named_in(strategy: type) -> frozenset[str] | None:
    """The texts that are written out in a custom strategy and its file; None for one of this package: any name.

    A strategy whose numbers are named in another file lists the names in a class attribute, or writes them out.
    """
    if strategy.__module__.partition(".")[0] == "confrere":
        return None
    found, seen = set[str](), set[int]()
    for kind in strategy.__mro__[:-1]:
        module = sys.modules.get(kind.__module__)
        for held in (kind, *(vars(module).values() if module is not None else ())):
            if getattr(held, "__module__", None) == kind.__module__ or isinstance(held, str):
                found.update(_texts(held, seen))
    return frozenset(found)


def _texts(held: Any, seen: set[int]) -> Iterator[str]:
    """The texts in a value, in the code of a function and in what it closes over, and in the body of a class."""
    if isinstance(held, str):
        yield held
        return
    if id(held) in seen:
        return
    seen.add(id(held))
    parts: list[Any] = []
    if isinstance(held, FunctionType):
        parts = [held.__code__, *(cell.cell_contents for cell in held.__closure__ or ())]
        parts = [part for part in parts if isinstance(part, FunctionType | CodeType)]
    elif isinstance(held, CodeType):
        parts = list(held.co_consts)
    elif isinstance(held, type):
        parts = list(vars(held).values())
    elif isinstance(held, tuple | frozenset):
        parts = list(held)
    elif isinstance(held, staticmethod | classmethod):
        parts = [held.__func__]
    for part in parts:
        yield from _texts(part, seen)


PACKAGE_NAMES = re.compile(
    "(sum of )?(weight|mass|rate|since|version|line|loss|share|threshold|noise|passes|last|calm|halted|size|rest)"
    "|in [0-9] [0-9]{1,2}"
)
"""The names of numbers that functions of this package send on behalf of a strategy."""


def is_written_out(name: str, names: frozenset[str]) -> bool:
    """Whether the name of a number is one of the package's or of those that a strategy writes out."""
    return name.removeprefix("sum of ") in names or PACKAGE_NAMES.fullmatch(name) is not None


def findings_in(strategy: type) -> list[str]:
    """Sentences about lines of a strategy, and of the functions and classes of its file that it uses."""
    try:
        file = ast.parse("".join(inspect.getsourcelines(inspect.getmodule(strategy) or strategy)[0]))
        lines, start = inspect.getsourcelines(strategy)
        own = ast.increment_lineno(ast.parse(textwrap.dedent("".join(lines))), start - 1)
    except (OSError, TypeError, SyntaxError):
        return []
    parts = {
        n.name: n for n in file.body if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    }
    found: set[tuple[int, str]] = set()
    used, open_ones = set[str](), [own.body[0]]
    while open_ones:
        for node in ast.walk(open_ones.pop()):
            found.update((node.lineno, text) for text in _findings(node))  # type: ignore[attr-defined]
            if (name := _name(node)) in parts and name not in used:
                used.add(name)
                open_ones.append(parts[name])
    return [f"{strategy.__module__}, line {line}: {text}" for line, text in sorted(found)]


def _findings(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Call):
        name = _name(node.func)
        if name in CLAIMS:
            yield from _claims(name, node)
        elif name.endswith("_") and not name.startswith("_") and isinstance(node.func, ast.Attribute):
            yield f"{name} writes in place; the weights of a model do not change, make a new one"
        elif name == "numpy":
            yield "numpy() shares the weights of a model; copy them before you write to them"
    elif isinstance(node, ast.Global):
        yield f"global {', '.join(node.names)}: a loss could read there what records shaped, and no custody would follow"
    elif isinstance(node, ast.Assign | ast.AugAssign) and any(map(_of_a_class, _targets(node))):
        yield "an attribute of a class is set: a loss could read there what records shaped, and no custody would follow"
    elif (
        isinstance(node, ast.Attribute) and node.attr == "data" and isinstance(node.ctx, ast.Load | ast.Store)
    ):
        yield ".data reaches the weights of a model past the check for changes"


def _targets(node: ast.Assign | ast.AugAssign) -> list[ast.expr]:
    return node.targets if isinstance(node, ast.Assign) else [node.target]


def _of_a_class(target: ast.expr) -> bool:
    """Whether an attribute of a name with a capital letter is set: by convention a class."""
    return (
        isinstance(target, ast.Attribute)
        and isinstance(target.value, ast.Name)
        and target.value.id[:1].isupper()
    )


def _claims(name: str, call: ast.Call) -> Iterator[str]:
    stated = [*call.args[1:], *(k.value for k in call.keywords if k.arg == "custody")]
    loose = name == "public" or any(_name(part) in LOOSE for value in stated for part in ast.walk(value))
    given = [*call.args, *(k.value for k in call.keywords)]
    inner = [part for value in given for part in ast.walk(value)]
    read = any(isinstance(p, ast.Attribute) and p.attr == "value" for p in inner)
    calls = [p for p in inner if isinstance(p, ast.Call)]
    read |= any(_name(c.func) in ("item", "tolist") for c in calls)
    # public(float(done)) is the usual way to send yes or no
    read |= any(_name(c.func) in ("float", "int") and _computed(a) for c in calls for a in c.args)
    if name in ("public", "Scalar", "Tagged") and loose and read:
        yield f"{name} is given a number that was read out; if records shaped it, it may not be public"
    elif name in ("Model", "replace") and loose:
        yield "custody is stated by hand; derive it with mix, held or strictest"


def _computed(node: ast.AST) -> bool:
    return any(isinstance(part, ast.Call | ast.Subscript) for part in ast.walk(node))


def _name(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""

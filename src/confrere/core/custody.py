"""Custody: who may see a value. It travels with the value and never falls by mixing."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Generic, TypeVar

from confrere.core.quick import quick

T_co = TypeVar("T_co", covariant=True)


class Custody(IntEnum):
    """How closely a value is held; the larger, the closer.

    PUBLIC     independent of any record: the study, declared sizes, fresh weights
    PROTECTED  a differentially private function of the records, its cost in the ledger
    UNPROVEN   shaped by records without a proven guarantee; the study asked for that
               («as published», or no privacy at all) and each site must consent
    PRIVATE    may not leave the site, whatever a study says
    """

    PUBLIC = 0
    PROTECTED = 1
    UNPROVEN = 2
    PRIVATE = 3

    __hash__ = int.__hash__  # an Enum would look up its name for it


def strictest(custodies: Iterable[Custody]) -> Custody:
    """The custody of whatever is made from values of these custodies."""
    return max(custodies, default=Custody.PUBLIC)


@quick
@dataclass(frozen=True, slots=True)
class Tagged(Generic[T_co]):
    """A value with its custody. `value` may be read inside the building."""

    value: T_co
    custody: Custody


@quick
@dataclass(frozen=True, slots=True)
class Scalar(Tagged[float]):
    """A number with custody. Arithmetic keeps the strictest custody, so a number that was
    computed from records stays PRIVATE however it is dressed up.

    >>> (public(3.0) * Scalar(0.5, Custody.PRIVATE)).custody
    <Custody.PRIVATE: 3>
    """

    def __post_init__(self) -> None:
        object.__setattr__(self, "value", float(self.value))

    def _with(self, other: Scalar | float, value: float) -> Scalar:
        return Scalar(value, strictest([self.custody, _custody(other)]))

    def __add__(self, other: Scalar | float) -> Scalar:
        return self._with(other, self.value + _number(other))

    def __sub__(self, other: Scalar | float) -> Scalar:
        return self._with(other, self.value - _number(other))

    def __mul__(self, other: Scalar | float) -> Scalar:
        return self._with(other, self.value * _number(other))

    def __truediv__(self, other: Scalar | float) -> Scalar:
        return self._with(other, self.value / _number(other))

    def __rsub__(self, other: float) -> Scalar:
        return self._with(other, other - self.value)

    def __rtruediv__(self, other: float) -> Scalar:
        return self._with(other, other / self.value)

    __radd__ = __add__
    __rmul__ = __mul__


def _number(x: Scalar | float) -> float:
    return x.value if isinstance(x, Scalar) else float(x)


def _custody(x: Scalar | float) -> Custody:
    return x.custody if isinstance(x, Scalar) else Custody.PUBLIC


def public(value: float) -> Scalar:
    """A number that does not depend on any record."""
    return Scalar(value, Custody.PUBLIC)


def private(value: float) -> Scalar:
    """A number computed from records."""
    return Scalar(value, Custody.PRIVATE)

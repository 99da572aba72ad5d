"""Custody: who may see a value. It travels with the value and never falls by mixing."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from numbers import Real
from typing import ClassVar, Generic, TypeVar

from confrere.core.errors import CustodyError

T_co = TypeVar("T_co", covariant=True)


class Custody(IntEnum):
    """How closely a value is held; the larger, the closer.

    PUBLIC     independent of any record: the study, declared sizes, fresh weights
    PROTECTED  a differentially private function of the records, its cost in the ledger
    UNPROVEN   shaped by records without a proven guarantee, or with one above the site's ceiling on ε
               («as published», or no privacy at all) and each site must consent
    PRIVATE    may not leave the site, whatever a study says
    """

    PUBLIC = 0
    PROTECTED = 1
    UNPROVEN = 2
    PRIVATE = 3


def strictest(custodies: Iterable[Custody]) -> Custody:
    """The custody of whatever is made from values of these custodies."""
    return max(custodies, default=Custody.PUBLIC)


PUBLIC, PROTECTED, UNPROVEN = Custody.PUBLIC, Custody.PROTECTED, Custody.UNPROVEN


def may_leave(custody: Custody, *, consent: bool = False) -> bool:
    """Whether a value of this custody may leave its site; `consent` is the site's own to UNPROVEN.

    An allow-list by identity: PRIVATE, a bare number and any level added later are refused. Every check in
    the package that separates what may leave from what may not calls this function.
    """
    return custody is PUBLIC or custody is PROTECTED or (consent and custody is UNPROVEN)


def require_may_leave(custodies: Iterable[Custody]) -> None:
    """Raise a CustodyError unless all of these may leave a site that consents to UNPROVEN.

    For the encoders of parcels: they do not know the site's consent, which the gate has checked.
    """
    for custody in custodies:
        if not may_leave(custody, consent=True):
            level = custody.name.lower() if isinstance(custody, Custody) else repr(custody)
            raise CustodyError(f"a model or number of custody {level} may not leave the site")


@dataclass(frozen=True, slots=True)
class Tagged(Generic[T_co]):
    """A value with its custody. `value` may be read inside the building."""

    value: T_co
    custody: Custody


@dataclass(frozen=True, slots=True)
class Scalar(Tagged[float]):
    """A number with custody. Arithmetic keeps the strictest custody.

    So a number that was computed from records stays PRIVATE.

    >>> (public(3.0) * Scalar(0.5, Custody.PRIVATE)).custody
    <Custody.PRIVATE: 3>
    """

    __array_ufunc__: ClassVar[None] = None
    """NumPy leaves arithmetic to this class, instead of combining each number of an array."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "value", float(self.value))

    def _with(self, other: Scalar | float, value: float) -> Scalar:
        held = self.custody
        if isinstance(other, Scalar) and other.custody > held:
            held = other.custody
        return Scalar(value, held)

    def __neg__(self) -> Scalar:
        return Scalar(-self.value, self.custody)

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


def _number(x: object) -> float:
    if isinstance(x, Scalar):
        return x.value
    if not isinstance(
        x, Real
    ):  # a tensor: what shaped it is not known, and it would take on the custody of the other
        raise CustodyError(
            f"a number with custody cannot be combined with a {type(x).__name__}, which has none; write"
            " private(float(…)) if records shaped it, public(float(…)) if none did"
        )
    return float(x)


def public(value: float) -> Scalar:
    """A number that does not depend on any record; it may leave the site.

    >>> confrere.public(0.5).custody.name
    'PUBLIC'
    """
    return Scalar(value, Custody.PUBLIC)


ZERO = public(0.0)


def private(value: float) -> Scalar:
    """A number computed from records; it may not leave the site.

    >>> (confrere.public(0.5) * confrere.private(0.8)).custody.name
    'PRIVATE'
    """
    return Scalar(value, Custody.PRIVATE)


def total(numbers: Iterable[Scalar]) -> Scalar:
    """The sum, with the strictest custody of all summands."""
    numbers = list(numbers)
    return Scalar(sum(n.value for n in numbers), strictest(n.custody for n in numbers))

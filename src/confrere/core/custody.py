"""Custody: who may see a value, and the tagged numbers that carry it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import IntEnum
from numbers import Real
from typing import Any, ClassVar, Generic, NoReturn, TypeVar

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


class Share:
    """A value that is private only in the sum with the shares of other sites: by itself it has too little noise.

    `opens_as` is the custody that the sum has as far as this share is concerned. A share is not a model: it cannot be sent,
    mixed, trained on, copied or written to a file. The gate gives out what it holds for one purpose only, to be masked
    (`Gate.admit_share`). Whatever asks for its custody finds PRIVATE.

    >>> Share(object(), Custody.PROTECTED)
    Share(opens_as=PROTECTED)
    """

    __slots__ = ("_held", "opens_as")
    custody: ClassVar[Custody] = Custody.PRIVATE

    def __init__(self, held: object, opens_as: Custody) -> None:
        require_may_leave([opens_as])
        self._held, self.opens_as = held, opens_as

    def __repr__(self) -> str:
        return f"Share(opens_as={self.opens_as.name})"

    def __reduce__(self) -> NoReturn:
        raise CustodyError(
            "a share of a masked sum can be neither copied nor written: it is private by itself"
        )

    def __copy__(self) -> NoReturn:
        self.__reduce__()

    def __deepcopy__(self, memo: object) -> NoReturn:
        self.__reduce__()


class HeldNumber(float):
    """A number that was read out of a `Scalar` which may not leave its site: arithmetic with it keeps the custody.

    It is a float in every other respect. `public`, the fields of a loss and the factors of weights refuse it or take on
    its custody. What turns it into a plain number (`float`, `math`, NumPy, a tensor) loses the custody.

    >>> type(private(0.5).value * 2).__name__, private(0.5).value == 0.5
    ('HeldNumber', True)
    """

    __slots__ = ("custody",)
    custody: Custody

    def __new__(cls, value: float, custody: Custody) -> HeldNumber:
        found = super().__new__(cls, value)
        found.custody = custody
        return found

    def __reduce__(self) -> tuple[type[HeldNumber], tuple[float, Custody]]:
        return HeldNumber, (float(self), self.custody)

    def __neg__(self) -> HeldNumber:
        return HeldNumber(-float(self), self.custody)

    def __abs__(self) -> HeldNumber:
        return HeldNumber(abs(float(self)), self.custody)


def _keeping(name: str) -> Callable[..., Any]:
    """An operation of floats whose result keeps the custody."""
    plain = getattr(float, name)

    def operation(self: HeldNumber, *others: Any) -> Any:
        found = plain(self, *others)
        if not isinstance(found, float):  # NotImplemented: a tensor, or a Scalar, computes by itself
            return found
        return HeldNumber(found, strictest([self.custody, *(custody_of(other) for other in others)]))

    operation.__name__ = name
    return operation


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow"):
    for _side in ("", "r"):
        setattr(HeldNumber, f"__{_side}{_name}__", _keeping(f"__{_side}{_name}__"))
for _name in ("round", "pos"):
    setattr(HeldNumber, f"__{_name}__", _keeping(f"__{_name}__"))


def custody_of(value: object) -> Custody:
    """The custody of a number that has one; a plain number is taken for public."""
    return value.custody if isinstance(value, HeldNumber | Tagged | Share) else Custody.PUBLIC


@dataclass(frozen=True, slots=True)
class Tagged(Generic[T_co]):
    """A value with its custody. `value` may be read inside the building."""

    value: T_co
    custody: Custody

    def __post_init__(self) -> None:
        require_no_looser(self.value, self.custody)


def require_no_looser(value: object, custody: Custody) -> None:
    """Refuse to give a number a looser custody than it was read with."""
    if isinstance(value, HeldNumber) and value.custody > custody:
        raise CustodyError(
            f"a number that was read from a {value.custody.name.lower()} one may not become {custody.name.lower()};"
            " hand on the Scalar itself, which keeps its custody"
        )


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
        released = may_leave(self.custody)
        if released and type(self.value) is float:  # as most are
            return
        require_no_looser(self.value, self.custody)
        value = float(self.value)
        object.__setattr__(self, "value", value if released else HeldNumber(value, self.custody))

    def _with(self, other: Scalar | float, value: float) -> Scalar:
        held = self.custody
        if isinstance(other, Scalar | HeldNumber) and other.custody > held:
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

"""Charges: what a mechanism did, in exact words and whole numbers. ε is derived from them, never stored."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from decimal import ROUND_CEILING, Decimal
from fractions import Fraction
from functools import lru_cache
from typing import Any, Literal, cast

from confrere.core.errors import PrivacyError

Accountant = Literal["pld", "rdp"]
Unit = Literal["record", "patient"]


@dataclass(frozen=True)
class Charge:
    """So many runs of one mechanism event.

    `event` is canonical JSON with exact decimals and fractions, so that equal events have equal text and
    their counts can be added as integers:

    >>> gaussian(1.4, Fraction(1, 74), 30).event
    '{"kind":"gaussian","noise_multiplier":"1.4","sample_rate":"1/74"}'
    """

    event: str
    count: int

    def __post_init__(self) -> None:
        if isinstance(self.count, bool) or not isinstance(self.count, int) or self.count < 0:
            raise PrivacyError(f"a charge counts whole steps, not {self.count!r}")
        _check_canonical(self.event)

    def __mul__(self, times: int) -> Charge:
        return replace(self, count=self.count * times)

    @property
    def unit(self) -> Unit:
        """Whom this event protects: one record, or one patient with all of its records."""
        return cast("Unit", _labels(self.event)[0])

    @property
    def proven(self) -> bool:
        """Whether the stated cost is a theorem for this release, or only what a paper claims."""
        return _labels(self.event)[1]


@dataclass(frozen=True)
class Guarantee:
    """An (ε, δ) with everything that is needed to read it."""

    epsilon: float
    delta: float
    unit: Unit = "record"
    accountant: Accountant = "pld"
    proven: bool = True

    def __str__(self) -> str:
        claim = "" if self.proven else ", as published, not proven"
        return (
            f"ε = {rounded_up(self.epsilon)} (δ = {self.delta:g}, per {self.unit}, "
            f"{self.accountant.upper()}{claim})"
        )


Spent = Guarantee


def rounded_up(epsilon: float, digits: int = 3) -> str:
    """ε to three digits, never shown smaller than it is.

    >>> rounded_up(2.1588), rounded_up(0.00123456)
    ('2.16', '0.00124')
    """
    if not math.isfinite(epsilon) or epsilon <= 0:
        return "∞" if epsilon > 0 else "0"
    places = max(digits - 1 - math.floor(math.log10(epsilon)), 0)
    text = Decimal(repr(epsilon)).quantize(Decimal(1).scaleb(-places), ROUND_CEILING)
    return f"{text:f}".rstrip("0").rstrip(".") if places else f"{text:f}"


@lru_cache(maxsize=1024)
def gaussian(
    noise_multiplier: float,
    sample_rate: Fraction | float = 1,
    count: int = 1,
    *,
    group: int = 1,
    unit: Unit = "record",
    proven: bool = True,
) -> Charge:
    """The charge of a Gaussian mechanism on a Poisson sample; `sample_rate` 1 is the full batch.

    `group` > 1 states the cost for `group` records at once that are sampled independently, exactly
    (mixture of Gaussians, Ganesh 2024), for data whose patients have at most that many records.
    """
    if not (math.isfinite(noise_multiplier) and noise_multiplier >= 0):
        raise PrivacyError(f"the noise multiplier must be a number of at least 0, not {noise_multiplier}")
    rate = exact_rate(sample_rate)
    fields = {"kind": "gaussian", "noise_multiplier": repr(float(noise_multiplier)), "sample_rate": str(rate)}
    if group != 1:
        fields["group"] = str(group)
    return Charge(_canonical(_labelled(fields, unit, proven)), count)


def laplace(scale: float, count: int = 1, *, unit: Unit = "record", proven: bool = True) -> Charge:
    """The charge of Laplace noise of this scale, in multiples of the sensitivity (ε = 1/scale)."""
    if not (math.isfinite(scale) and scale > 0):
        raise PrivacyError(f"the scale of Laplace noise must be positive, not {scale}")
    return Charge(
        _canonical(_labelled({"kind": "laplace", "scale": repr(float(scale))}, unit, proven)), count
    )


def exact_rate(rate: Fraction | float) -> Fraction:
    """A sampling rate as the exact fraction that was meant: 1/74 rather than the nearest double."""
    if not 0 < rate <= 1:
        raise PrivacyError(f"a sampling rate lies above 0 and is at most 1, not {rate}")
    if isinstance(rate, float):
        steps = round(1 / rate)
        return Fraction(1, steps) if 1 / steps == rate else Fraction(repr(rate))
    return Fraction(rate)


@dataclass(frozen=True)
class Event:
    """A mechanism event as the accountants need it: numbers instead of text."""

    kind: str
    noise: float
    rate: float
    group: int


@lru_cache(maxsize=4096)
def read_event(event: str) -> Event:
    """The numbers of an event; an unknown or broken one raises."""
    fields = _parsed(event)
    try:
        if fields["kind"] == "gaussian":
            noise, rate = float(fields["noise_multiplier"]), Fraction(fields["sample_rate"])
            return Event("gaussian", noise, float(rate), int(fields.get("group", "1")))
        if fields["kind"] == "laplace":
            return Event("laplace", float(fields["scale"]), 1.0, 1)
    except (KeyError, ValueError, ZeroDivisionError) as error:
        raise PrivacyError(f"the mechanism event {event} cannot be read: {error}") from None
    raise PrivacyError(f"no accountant knows mechanism events of the kind {fields['kind']!r}")


def _parsed(event: str) -> dict[str, str]:
    try:
        fields: Any = json.loads(event)
    except ValueError:
        fields = None
    if not isinstance(fields, dict) or not all(isinstance(v, str) for v in fields.values()):
        raise PrivacyError(f"{event!r} is not a mechanism event")
    return fields


@lru_cache(maxsize=4096)
def _check_canonical(event: str) -> None:
    if _canonical(_parsed(event)) != event:
        raise PrivacyError(f"the mechanism event {event!r} is not in canonical form")


@lru_cache(maxsize=4096)
def _labels(event: str) -> tuple[str, bool]:
    """Whom an event protects, and whether its cost is proven."""
    fields = _parsed(event)
    return fields.get("unit", "record"), fields.get("claim") is None


def _canonical(fields: dict[str, str]) -> str:
    return json.dumps(fields, sort_keys=True, separators=(",", ":"))


@lru_cache(maxsize=4096)
def unlabelled(event: str) -> str:
    """The event without what is said about it: labels do not change its cost."""
    return _canonical({k: v for k, v in _parsed(event).items() if k not in ("unit", "claim")})


def _labelled(fields: dict[str, str], unit: Unit, proven: bool) -> dict[str, str]:
    if unit not in ("record", "patient"):
        raise PrivacyError(f"the unit of privacy is «record» or «patient», not {unit!r}")
    labels = {} if unit == "record" else {"unit": unit}
    return {**fields, **labels, **({} if proven else {"claim": "published"})}

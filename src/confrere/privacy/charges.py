"""Charges: mechanism events with exact parameters and whole counts. ε is derived from them, never stored."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from decimal import ROUND_CEILING, Decimal
from fractions import Fraction
from functools import lru_cache
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from confrere.core.errors import PrivacyError, StudyError
from confrere.core.sum_terms import LEAST_STEPS, SumTerms, collusion_condition

Accountant = Literal["pld", "rdp"]
Unit = Literal["record", "patient"]
UNITS: tuple[Unit, ...] = ("record", "patient")
Line = NDArray[np.float64]
Events = tuple[tuple[str, int], ...]
"""Mechanism events, each in its canonical text and with its count: what the accountants take."""

LEAST_NOISE, MOST_NOISE = 1e-3, 1e6
"""What a study or a command may ask for."""

CEILING = 10.0
"""A site's ceiling on ε where it states none: above it noise no longer counts as protection."""


@dataclass(frozen=True)
class Charge:
    """A number of runs of one mechanism event.

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

    @property
    def condition(self) -> str:
        """What the cost assumes of the other sites, in words; empty for noise that a site adds for itself alone."""
        return _condition(self.event)

    def per(self, unit: Unit, most_records: int | None = None) -> Charge | None:
        """The same steps as they concern one record, or one patient with all of its records; None without a bound.

        The cost of a group of patients is not read per record: the event does not say what was drawn.

        A step that draws and clips patients keeps to twice the clipping norm when one of a patient's records is removed:
        the rest of its records may then add the opposite. A step that draws records costs a patient as much as a
        group of all its records, for which there must be a public bound that is enforced.

        >>> gaussian(1.4, unit="patient").per("record").event
        '{"kind":"gaussian","noise_multiplier":"1.4","replaced":"yes","sample_rate":"1"}'
        >>> gaussian(1.4).per("patient") is None
        True
        """
        event = _per(self.event, unit, most_records)
        return None if event is None else Charge(event, self.count)

    def grouped(self, size: int) -> Charge | None:
        """The cost for a group of `size` units that are drawn independently; None without a bound."""
        event = _grouped(self.event, size)
        return None if event is None else Charge(event, self.count)


@dataclass(frozen=True)
class Guarantee:
    """An (ε, δ) with everything that is needed to read it. An infinite ε is none: there is no bound."""

    epsilon: float
    delta: float
    unit: Unit = "record"
    accountant: Accountant = "pld"
    proven: bool = True
    ceiling: float | None = None
    """The ε above which a site no longer counts it as protection; None where there is none."""
    condition: str = ""
    """What the guarantee assumes of the other sites, in words; empty where it assumes nothing."""

    @property
    def above_ceiling(self) -> bool:
        return self.ceiling is not None and self.epsilon > self.ceiling

    def __str__(self) -> str:
        claim = "" if self.proven else ", as published, not proven"
        if self.ceiling is not None and self.above_ceiling:
            claim += f", above the ceiling of {self.ceiling:g}"
        if self.condition:
            claim += f", {self.condition}"
        return (
            f"ε = {rounded_up(self.epsilon)} (δ = {self.delta:g}, per {self.unit}, "
            f"{self.accountant.upper()}{claim})"
        )


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
    return Charge(canonical(_labelled(fields, unit, proven)), count)


@lru_cache(maxsize=1024)
def masked(
    terms: SumTerms, count: int = 1, *, unit: Unit = "record", proven: bool = True, weight: float = 1.0
) -> Charge:
    """The charge of one share of a masked sum over full batches.

    The event has the noise of the opened sum and its grid in multiples of what one unit adds at most: of the clipping norm
    times the `weight` of the share.

    >>> masked(SumTerms(8, 2, 2, noise_std=1.5, clip=1.0, size=1000)).condition
    'if at most 2 of the other 7 sites pool what they see or depart from the protocol'
    """
    if not 0 < weight <= 1:
        raise PrivacyError(f"the weight of a share lies above 0 and is at most 1, not {weight}")
    noise, grid = terms.noise_std / (weight * terms.clip), terms.grid / (weight * terms.clip)
    fields = {"kind": "masked", "noise_multiplier": repr(noise), "grid": repr(grid)}
    fields |= {"parameters": str(terms.size), "members": str(terms.members)}
    fields |= {"colluding": str(terms.colluding), "dropouts": str(terms.dropouts)}
    if terms.vectors != 1:
        fields["vectors"] = str(terms.vectors)
    return Charge(canonical(_labelled(fields, unit, proven)), count)


def conditions(charges: Iterable[Charge]) -> str:
    """What the cost of these charges assumes of the other sites, in words; empty where it assumes nothing."""
    return ", and ".join(dict.fromkeys(charge.condition for charge in charges if charge.condition))


def check_noise(value: float, name: str) -> None:
    """Refuse noise that no study can mean. Ledgers may hold less, or more."""
    if not value > 0:
        raise StudyError(
            f"{name} must be above 0, not {value:g}: no noise, no privacy. To train without noise, leave [privacy] out"
        )
    if not LEAST_NOISE <= value <= MOST_NOISE:
        raise StudyError(
            f"{name} must lie between {LEAST_NOISE:g} and {MOST_NOISE:g}, not {value:g}; usual values lie between 0.5 and 100"
        )


def on_one_sample(*noise_multipliers: float) -> float:
    """The noise multiplier of several Gaussian releases from one sample, which are one release: 1/√(Σ 1/z²).

    A record that is drawn is drawn for all of them, so they are not several runs of a sampled mechanism.

    >>> on_one_sample(2.0, 2.0, 2.0, 2.0)
    1.0
    """
    if min(noise_multipliers) <= 0:
        return 0.0
    return 1 / math.hypot(*(1 / z for z in noise_multipliers))


def laplace(scale: float, count: int = 1, *, unit: Unit = "record", proven: bool = True) -> Charge:
    """The charge of Laplace noise of this scale, in multiples of the sensitivity (ε = 1/scale)."""
    if not (math.isfinite(scale) and scale > 0):
        raise PrivacyError(f"the scale of Laplace noise must be positive, not {scale}")
    return Charge(canonical(_labelled({"kind": "laplace", "scale": repr(float(scale))}, unit, proven)), count)


def exact_rate(rate: Fraction | float) -> Fraction:
    """A sampling rate as the exact fraction that was meant: 1/74 rather than the nearest double."""
    if not 0 < rate <= 1:
        raise PrivacyError(f"a sampling rate lies above 0 and is at most 1, not {rate}")
    if isinstance(rate, float):
        steps = round(1 / rate)
        return Fraction(1, steps) if 1 / steps == rate else Fraction(repr(rate))
    return Fraction(rate)


@dataclass(frozen=True)
class MechanismEvent:
    """A mechanism event as the accountants need it: numbers instead of text.

    Its worst case lies on a line, in multiples of what one unit adds at most: what is released with a unit's data, and
    without them.
    """

    kind: str
    noise: float
    rate: float
    group: int = 1
    replaced: bool = False
    """Whether a unit is in the sample in either case, and only what it adds differs: by twice as much at most."""

    @property
    def sensitivity(self) -> float:
        """How far the two cases are apart at most."""
        return 2.0 if self.replaced else float(self.group)

    def with_it(self) -> tuple[Line, Line]:
        """Where Gaussians lie, and how likely each is: with what is to be protected."""
        most = 1 if self.replaced else self.group
        chances = [math.comb(most, k) * self.rate**k * (1 - self.rate) ** (most - k) for k in range(most + 1)]
        return np.arange(most + 1, dtype=np.float64), np.array(chances)

    def without_it(self) -> tuple[Line, Line]:
        """The same without it; replaced, it adds the opposite."""
        if self.replaced:
            return np.array([-1.0, 0.0]), np.array([self.rate, 1 - self.rate])
        return np.zeros(1), np.ones(1)


@lru_cache(maxsize=4096)
def read_event(event: str) -> MechanismEvent:
    """The numbers of an event; an unknown or broken one raises."""
    fields = parsed(event)
    kind = fields.get("kind", "")
    if kind not in FIELDS:
        raise PrivacyError(f"no accountant knows mechanism events of the kind {kind!r}")
    try:
        _check_fields(fields, *FIELDS[kind])
        if kind == "laplace":
            return MechanismEvent("laplace", _number(fields, "scale", above=True), 1.0)
        if kind == "masked":
            return MechanismEvent("masked", _masked_noise(fields), 1.0)
        noise, rate = _number(fields, "noise_multiplier"), Fraction(fields["sample_rate"])
        if not 0 < rate <= 1:
            raise ValueError(f"sample_rate = {rate}")
        group = int(fields.get("group", "1"))
        if "group" in fields and (group < 2 or str(group) != fields["group"]):
            raise ValueError(f"group = {fields['group']}")
        return MechanismEvent("gaussian", noise, float(rate), group, "replaced" in fields)
    except (KeyError, ValueError, ZeroDivisionError, OverflowError) as error:
        raise PrivacyError(f"the mechanism event {event} cannot be read: {error}") from None


FIELDS = {
    "gaussian": ({"kind", "noise_multiplier", "sample_rate"}, {"group", "replaced", "unit", "claim"}),
    "laplace": ({"kind", "scale"}, {"unit", "claim"}),
    "masked": (
        {"kind", "noise_multiplier", "grid", "parameters", "members", "colluding", "dropouts"},
        {"vectors", "group", "replaced", "unit", "claim"},
    ),
}
"""The fields that each kind of event has, and those that it may have."""

FIXED = {"replaced": "yes", "unit": "patient", "claim": "published"}
"""Fields with a single value; what they say is otherwise said by their absence."""


def _check_fields(fields: dict[str, str], needed: set[str], possible: set[str]) -> None:
    if not needed <= set(fields) <= needed | possible or {"group", "replaced"} <= set(fields):
        raise ValueError(f"it has the fields {', '.join(sorted(fields))}")
    for name, value in FIXED.items():
        if fields.get(name, value) != value:
            raise ValueError(f"{name} = {fields[name]}")


def _masked_noise(fields: dict[str, str]) -> float:
    """The noise multiplier z of a Gaussian with the same zero-concentrated privacy, ρ = 1/(2z²).

    Kairouz, Liu, Steinke (2021), theorem 1: ρ = ½(Δ/σ + τ√P)². Δ includes what rounding to the grid adds, and τ bounds how
    far a sum of discrete Gaussians is from a discrete Gaussian.
    """
    noise, grid = _number(fields, "noise_multiplier"), _number(fields, "grid", above=True)
    parameters, members, vectors = (_count(fields, name) for name in ("parameters", "members", "vectors"))
    colluding, dropouts = _count(fields, "colluding"), _count(fields, "dropouts", least=0)
    if (honest := members - colluding - dropouts) < 2:
        raise ValueError(f"{honest} honest sites share the noise")
    if noise == 0:
        return 0.0
    share = noise / math.sqrt(honest) / grid
    if share < LEAST_STEPS:
        raise ValueError(f"each share has noise of {share:.3g} grid steps")
    apart = 2.0 if "replaced" in fields else float(fields.get("group", "1"))
    dimension = math.sqrt(parameters)
    moved = apart * math.sqrt(vectors) + grid * dimension
    tau = 10 * math.fsum(math.exp(-2 * math.pi**2 * share**2 * k / (k + 1)) for k in range(1, members))
    return 1 / (moved / noise + tau * dimension)


def _count(fields: dict[str, str], name: str, *, least: int = 1) -> int:
    value = int(fields.get(name, "1"))
    if value < least or (name in fields and str(value) != fields[name]):
        raise ValueError(f"{name} = {fields[name]}")
    return value


def _number(fields: dict[str, str], name: str, *, above: bool = False) -> float:
    value = float(fields[name])
    if not math.isfinite(value) or value < 0 or (above and value == 0):
        raise ValueError(f"{name} = {fields[name]}")
    return value


def parsed(event: str) -> dict[str, str]:
    """The fields of an event."""
    try:
        fields: Any = json.loads(event)
    except ValueError:
        fields = None
    if not isinstance(fields, dict) or not all(isinstance(v, str) for v in fields.values()):
        raise PrivacyError(f"{event!r} is not a mechanism event")
    return fields


@lru_cache(maxsize=4096)
def _check_canonical(event: str) -> None:
    if canonical(parsed(event)) != event:
        raise PrivacyError(f"the mechanism event {event!r} is not in canonical form")
    read_event(event)


@lru_cache(maxsize=4096)
def _per(event: str, unit: Unit, most_records: int | None) -> str | None:
    fields = parsed(event)
    if fields.get("unit", "record") == unit:
        return event
    if unit == "patient":
        found = None if most_records is None else _grouped(event, most_records)
        return None if found is None else canonical({**parsed(found), "unit": "patient"})
    del fields["unit"]
    if fields["kind"] == "laplace":
        return canonical({**fields, "scale": repr(float(fields["scale"]) / 2)})
    if "group" in fields:  # of records that were drawn, or of patients: the event does not say which
        return None
    return canonical({**fields, "replaced": "yes"})


@lru_cache(maxsize=4096)
def _grouped(event: str, size: int) -> str | None:
    fields = parsed(event)
    if size == 1:
        return event
    if fields["kind"] == "laplace":
        return canonical({**fields, "scale": repr(float(fields["scale"]) / size)})
    if "replaced" in fields:
        return None
    return canonical({**fields, "group": str(size * int(fields.get("group", "1")))})


@lru_cache(maxsize=4096)
def _condition(event: str) -> str:
    fields = parsed(event)
    if fields["kind"] != "masked":
        return ""
    return collusion_condition(int(fields["members"]), int(fields["colluding"]))


@lru_cache(maxsize=4096)
def _labels(event: str) -> tuple[str, bool]:
    """Whom an event protects, and whether its cost is proven."""
    fields = parsed(event)
    return fields.get("unit", "record"), fields.get("claim") is None


def canonical(fields: dict[str, str]) -> str:
    """An event in the one way in which it is written."""
    return json.dumps(fields, sort_keys=True, separators=(",", ":"))


@lru_cache(maxsize=4096)
def unlabelled(event: str) -> str:
    """The event without its labels, which do not change its cost."""
    return canonical({k: v for k, v in parsed(event).items() if k not in ("unit", "claim")})


def _labelled(fields: dict[str, str], unit: Unit, proven: bool) -> dict[str, str]:
    if unit not in ("record", "patient"):
        raise PrivacyError(f"the unit of privacy is «record» or «patient», not {unit!r}")
    labels = {} if unit == "record" else {"unit": unit}
    return {**fields, **labels, **({} if proven else {"claim": "published"})}

"""The ε of a training plan and the noise for an ε, with what they mean in words."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from numbers import Integral
from typing import Any, cast

from confrere.core.errors import StudyError
from confrere.core.results import Document, PrivacyMeaning, TradeOffCurve
from confrere.privacy import accounting
from confrere.privacy.charges import CEILING, Accountant, Charge, Unit, check_noise, gaussian, rounded_up
from confrere.privacy.interpretation import meaning, readings, trade_off
from confrere.privacy.sampling import epoch
from confrere.study import Split


@dataclass(frozen=True)
class TrainingPlan:
    """How often records are drawn: everything but the noise that the cost of private training depends on.

    `records` is the declared number of records (of patients, with unit "patient"), `batch` the expected batch size.
    `records_per_patient` is the most records of a patient, where that is public and enforced.
    """

    records: int
    batch: int
    epochs: int
    delta: float
    accountant: Accountant = "pld"
    unit: Unit = "record"
    records_per_patient: int | None = None

    def __post_init__(self) -> None:
        for name in ("records", "batch", "epochs"):
            value = getattr(self, name)
            if not isinstance(value, Integral):
                raise StudyError(f"--{name} must be a whole number, not {value!r}")
        epoch(self.records, self.batch)
        if self.epochs < 1:
            raise StudyError(f"--epochs must be at least 1, not {self.epochs}")
        if self.steps > accounting.MOST_STEPS:
            raise StudyError(
                f"a plan has at most {accounting.MOST_STEPS:,} steps, not {self.steps:,}; lower --epochs or raise --batch"
            )
        if self.unit not in ("record", "patient"):
            raise StudyError(f"--unit is record or patient, not {self.unit}")
        if self.accountant not in ("pld", "rdp"):
            raise StudyError(f"--accountant is pld or rdp, not {self.accountant}")
        accounting.check_delta(self.delta, self.records)

    @property
    def rate(self) -> Fraction:
        return epoch(self.records, self.batch)[1]

    @property
    def steps(self) -> int:
        return self.epochs * epoch(self.records, self.batch)[0]


@dataclass(frozen=True)
class PrivacyCost(Document):
    """What a training plan costs with a certain noise; `as_json` is what `confrere epsilon --json` prints."""

    UNSTATED = ("plan", "meaning")
    OPTIONAL = ("target_epsilon",)

    epsilon: float
    delta: float
    accountant: str
    steps: int
    sample_rate: float
    noise_multiplier: float
    unit: str
    meaning: PrivacyMeaning
    above_ceiling: bool
    """Whether ε is above the ceiling that a site has unless it states another."""
    plan: TrainingPlan
    target_epsilon: float | None = None
    """The ε that the noise was found for."""

    def as_json(self) -> dict[str, Any]:
        return {**super().as_json(), **self.meaning.as_json()}

    @property
    def words(self) -> str:
        """The cost in sentences."""
        above = f", above the usual ceiling of {CEILING:g}" if self.above_ceiling else ""
        return (
            f"Privacy cost: ε = {rounded_up(self.epsilon, 4)} (δ = {self.delta:g}, per {self.unit}, "
            f"{self.accountant.upper()}{above}).\n"
            f"{in_words(self.meaning)}\n"
            f"Each of {self.plan.records:,} {self.unit}s is drawn with probability {self.plan.rate} in each of "
            f"{self.steps:,} steps ({self.plan.epochs} epochs); noise multiplier {self.noise_multiplier:g}."
        )


def epsilon(
    *,
    records: int,
    batch: int,
    epochs: int,
    noise_multiplier: float,
    delta: float,
    accountant: str = "pld",
    unit: str = "record",
    records_per_patient: int | None = None,
) -> PrivacyCost:
    """Compute the ε of a training plan, for whom it holds, and what it means.

    `noise_multiplier` is the noise in multiples of the clipping norm; the other arguments are those of `TrainingPlan`.

    >>> cost = confrere.epsilon(records=2338, batch=32, epochs=30, noise_multiplier=1.4, delta=1e-5)
    >>> round(cost.epsilon, 2)
    2.16
    >>> cost.meaning.readings["patient"] is None  # no bound: a patient may have any number of records
    True
    """
    check_noise(noise_multiplier, "--noise-multiplier")
    plan = TrainingPlan(
        records, batch, epochs, delta, cast("Accountant", accountant), cast("Unit", unit), records_per_patient
    )
    return _cost(plan, noise_multiplier)


def calibrate(
    epsilon: float,
    *,
    records: int,
    batch: int,
    epochs: int,
    delta: float,
    accountant: str = "pld",
    unit: str = "record",
) -> PrivacyCost:
    """Find the least noise that keeps a training plan within ε.

    The arguments after ε are those of `TrainingPlan`.

    >>> found = confrere.calibrate(3.0, records=2338, batch=32, epochs=30, delta=1e-5)
    >>> found.noise_multiplier < 1.2 and found.epsilon <= 3.0
    True
    """
    plan = TrainingPlan(records, batch, epochs, delta, cast("Accountant", accountant), cast("Unit", unit))
    noise = accounting.calibrate(
        epsilon, delta, sample_rate=plan.rate, steps=plan.steps, accountant=plan.accountant
    )
    return replace(_cost(plan, noise), target_epsilon=epsilon)


def _cost(plan: TrainingPlan, noise: float) -> PrivacyCost:
    charges: list[Charge] = [gaussian(noise, plan.rate, plan.steps, unit=plan.unit)]
    spent = accounting.epsilon(charges, plan.delta, plan.accountant)
    curve, group = trade_off(charges, plan.accountant), Split().file_group
    held = readings(
        charges,
        plan.delta,
        plan.unit,
        plan.accountant,
        file_group=group,
        most_records=plan.records_per_patient,
    )
    return PrivacyCost(
        spent,
        plan.delta,
        plan.accountant,
        plan.steps,
        float(plan.rate),
        noise,
        plan.unit,
        PrivacyMeaning(
            plan.unit, held, group, meaning(curve, plan.unit), TradeOffCurve(curve.points, curve.mu)
        ),
        spent > CEILING,
        plan,
    )


def in_words(found: PrivacyMeaning) -> str:
    """What ε means, for whom it holds, and what a test could learn."""
    lines = [found.sentence, side_by_side(found)]
    if found.trade_off is not None:
        curve = dict(found.trade_off.points)
        missed = [f"{100 * curve[at]:.3g} % at {100 * at:g} %" for at in (0.01, 0.1)]
        mu = found.trade_off.mu
        shape = f" (two Gaussians, μ = {mu:.3g})" if mu is not None else ""
        lines.append(f"Trade-off: any test misses at least {missed[0]} false positives, {missed[1]}{shape}.")
    return "\n".join(lines)


def side_by_side(found: PrivacyMeaning) -> str:
    """«ε per record 3, per patient no bound, for the whole file 14.3 (…)»."""
    shown = {k: "no bound" if v is None else rounded_up(v, 4) for k, v in found.readings.items()}
    group, unit = found.file_group, found.unit
    why = f" (its split lets one {unit} move {group - 1} others)" if group > 1 else ""
    return (
        f"ε per record: {shown['record']}; per patient: {shown['patient']}; per {unit} of the whole file, held-out parts"
        f" included: {shown['file']}{why}."
    )

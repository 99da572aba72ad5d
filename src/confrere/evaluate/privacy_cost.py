"""The ε of a training plan and the noise for an ε, with what they mean in words."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from numbers import Integral
from typing import Any, ClassVar, cast

from confrere.core.errors import StudyError
from confrere.core.results import Document, PrivacyMeaning, TradeOffCurve
from confrere.core.sum_terms import SumTerms
from confrere.privacy import accounting
from confrere.privacy.budget import Budget
from confrere.privacy.charges import (
    CEILING,
    Accountant,
    Charge,
    Unit,
    check_noise,
    gaussian,
    masked,
    rounded_up,
)
from confrere.privacy.interpretation import meaning, readings, trade_off
from confrere.privacy.masked_mechanism import calibrate_masked
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

    def charges(self, noise: float) -> list[Charge]:
        return [gaussian(noise, self.rate, self.steps, unit=self.unit)]

    def least_noise(self, target: float) -> float:
        return accounting.calibrate(
            target, self.delta, sample_rate=self.rate, steps=self.steps, accountant=self.accountant
        )

    def words(self, noise: float) -> str:
        return (
            f"Each of {self.records:,} {self.unit}s is drawn with probability {self.rate} in each of "
            f"{self.steps:,} steps ({self.epochs} epochs); noise multiplier {noise:g}."
        )

    def as_json(self, noise: float) -> dict[str, Any]:
        return {}


@dataclass(frozen=True)
class MaskedPlan:
    """Rounds with one masked sum each: everything but the noise that their cost depends on (docs/masked-sums.md).

    `noise_multiplier` is then the noise of the opened sum, in multiples of the `clipping` norm; each site adds its part of it.
    The number of `parameters` matters little: the grid is the finer the more there are.
    """

    sites: int
    delta: float
    colluding: int = 1
    dropouts: int = 0
    rounds: int = 1
    clipping: float = 1.0
    parameters: int = 1000
    unit: Unit = "record"
    accountant: ClassVar[Accountant] = "rdp"
    records_per_patient: ClassVar[None] = None
    rate: ClassVar[Fraction] = Fraction(1)

    def __post_init__(self) -> None:
        if not 1 <= self.rounds <= accounting.MOST_STEPS:
            raise StudyError(f"--rounds must be from 1 to {accounting.MOST_STEPS:,}, not {self.rounds}")
        if not 0 < self.clipping < math.inf:
            raise StudyError(f"--clipping must be a number above 0, not {self.clipping:g}")
        if self.unit not in ("record", "patient"):
            raise StudyError(f"--unit is record or patient, not {self.unit}")
        accounting.check_delta(self.delta)
        self.terms(1.0)

    @property
    def steps(self) -> int:
        return self.rounds

    def terms(self, noise: float) -> SumTerms:
        return SumTerms(
            self.sites, self.colluding, self.dropouts,
            noise_std=noise * self.clipping, clip=self.clipping, size=self.parameters,
        )  # fmt: skip

    def charges(self, noise: float) -> list[Charge]:
        return [masked(self.terms(noise), self.rounds, unit=self.unit)]

    def least_noise(self, target: float) -> float:
        budget = Budget(target, self.delta, self.unit)
        return calibrate_masked(budget, self.rounds, self.terms(1.0)).noise_std / self.clipping

    def words(self, noise: float) -> str:
        terms = self.terms(noise)
        times = "once" if self.rounds == 1 else f"in each of {self.rounds:,} rounds"
        return (
            f"It holds {terms.condition}.\n"
            f"{self.sites} sites add up {times}, each over all of its records; at least {terms.honest} honest ones share the"
            f" noise of the sum, {noise:g} times the clipping norm: each adds a variance of"
            f" {terms.noise_std**2 / terms.honest:.4g} ({terms.noise_std:.4g}²/{terms.honest})."
        )

    def as_json(self, noise: float) -> dict[str, Any]:
        terms = self.terms(noise)
        about = {
            "sites": self.sites, "colluding": self.colluding, "dropouts": self.dropouts, "honest": terms.honest,
            "threshold": terms.threshold, "clipping": self.clipping, "parameters": self.parameters,
            "noise_std": terms.noise_std, "site_variance": terms.noise_std**2 / terms.honest, "grid": terms.grid,
        }  # fmt: skip
        return {"condition": terms.condition, "masked": about}


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
    plan: TrainingPlan | MaskedPlan
    target_epsilon: float | None = None
    """The ε that the noise was found for."""

    def as_json(self) -> dict[str, Any]:
        more = self.plan.as_json(self.noise_multiplier)
        return {**super().as_json(), **self.meaning.as_json(), **more}

    @property
    def words(self) -> str:
        """The cost in sentences."""
        above = f", above the usual ceiling of {CEILING:g}" if self.above_ceiling else ""
        return (
            f"Privacy cost: ε = {rounded_up(self.epsilon, 4)} (δ = {self.delta:g}, per {self.unit}, "
            f"{self.accountant.upper()}{above}).\n"
            f"{in_words(self.meaning)}\n"
            f"{self.plan.words(self.noise_multiplier)}"
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
    return _least(plan, epsilon)


def masked_epsilon(plan: MaskedPlan, noise_multiplier: float) -> PrivacyCost:
    """Compute the ε of rounds of masked sums, what it assumes of the other sites, and what it means.

    >>> plan = confrere.MaskedPlan(sites=8, colluding=1, dropouts=0, rounds=100, delta=1e-5)
    >>> cost = confrere.masked_epsilon(plan, noise_multiplier=15.0)
    >>> round(cost.epsilon, 2), cost.accountant
    (2.99, 'rdp')
    """
    check_noise(noise_multiplier, "--noise-multiplier")
    return _cost(plan, noise_multiplier)


def masked_calibrate(plan: MaskedPlan, epsilon: float) -> PrivacyCost:
    """Find the least noise of the opened sum that keeps rounds of masked sums within ε.

    >>> plan = confrere.MaskedPlan(sites=8, delta=1e-5)
    >>> round(confrere.masked_calibrate(plan, 3.0).noise_multiplier, 2)
    1.49
    """
    return _least(plan, epsilon)


def _least(plan: TrainingPlan | MaskedPlan, epsilon: float) -> PrivacyCost:
    return replace(_cost(plan, plan.least_noise(epsilon)), target_epsilon=epsilon)


def _cost(plan: TrainingPlan | MaskedPlan, noise: float) -> PrivacyCost:
    charges = plan.charges(noise)
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

"""`confrere epsilon`: what a plan of private training costs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, Any, cast

import typer

from confrere.cli.output import console, print_json
from confrere.core.errors import PrivacyError, StudyError
from confrere.privacy import accounting
from confrere.privacy.charges import Accountant, Unit, gaussian, rounded_up
from confrere.privacy.sampling import epoch


@dataclass(frozen=True)
class Plan:
    """How often whom is drawn: everything about a training that its cost depends on, but the noise."""

    records: int
    batch: int
    epochs: int
    delta: float
    unit: Unit
    accountant: Accountant

    def __post_init__(self) -> None:
        epoch(self.records, self.batch)
        if self.epochs < 1:
            raise StudyError(f"--epochs must be at least 1, not {self.epochs}")
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

    def epsilon(self, noise_multiplier: float) -> float:
        return accounting.epsilon(
            [gaussian(noise_multiplier, self.rate, self.steps)], self.delta, self.accountant
        )

    def document(self, noise_multiplier: float) -> dict[str, Any]:
        """What machines read."""
        return {
            "epsilon": self.epsilon(noise_multiplier),
            "delta": self.delta,
            "accountant": self.accountant,
            "steps": self.steps,
            "sample_rate": float(self.rate),
            "noise_multiplier": noise_multiplier,
            "unit": self.unit,
        }

    def sentences(self, noise_multiplier: float) -> str:
        """What people read."""
        value = self.epsilon(noise_multiplier)
        sure = min(math.ceil(1000 / (1 + math.exp(-value))) / 10, 99.99)
        return (
            f"Privacy cost: ε = {rounded_up(value, 4)} (δ = {self.delta:g}, per {self.unit}, "
            f"{self.accountant.upper()}).\n"
            f"Whoever thought it as likely as not that a {self.unit} is in the data, and sees all that is "
            f"released, can become {sure:g} % sure at most (δ aside).\n"
            f"Each of {self.records:,} {self.unit}s is drawn with probability {self.rate} in each of "
            f"{self.steps:,} steps ({self.epochs} epochs); noise multiplier {noise_multiplier:g}."
        )


Records = Annotated[
    int, typer.Option(help="The declared number of records (of patients, with --unit patient).")
]
Batch = Annotated[int, typer.Option(help="The expected batch size.")]
Epochs = Annotated[int, typer.Option(help="How often the data are gone through in all.")]
Delta = Annotated[float, typer.Option(help="δ, at most 1/records.")]
AccountantName = Annotated[str, typer.Option(help="pld (tight) or rdp (as in most papers).")]
UnitName = Annotated[str, typer.Option(help="Who is drawn and protected: record or patient.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


def plan(records: int, batch: int, epochs: int, delta: float, unit: str, accountant: str) -> Plan:
    return Plan(records, batch, epochs, delta, cast("Unit", unit), cast("Accountant", accountant))


def epsilon(
    records: Records,
    batch: Batch,
    epochs: Epochs,
    noise_multiplier: Annotated[float, typer.Option(help="Noise, in multiples of the clipping norm.")],
    delta: Delta,
    accountant: AccountantName = "pld",
    unit: UnitName = "record",
    as_json: AsJson = False,
) -> None:
    """Say what a plan of private training costs: its ε.

    Example: `confrere epsilon --records 2338 --batch 32 --epochs 30 --noise-multiplier 1.4 --delta 1e-5`
    """
    training = plan(records, batch, epochs, delta, unit, accountant)
    if not (math.isfinite(noise_multiplier) and noise_multiplier > 0):
        raise PrivacyError(
            f"--noise-multiplier must be above 0, not {noise_multiplier:g}: no noise, no privacy"
        )
    if as_json:
        print_json(training.document(noise_multiplier))
    else:
        console.print(training.sentences(noise_multiplier), soft_wrap=True)

"""Suggest study settings that a privacy budget can support, as TOML; computed from public numbers only."""

from __future__ import annotations

import math
from dataclasses import dataclass

from confrere.learning.step_schedule import paced, time_for
from confrere.privacy.charges import Accountant
from confrere.privacy.forecast import Forecast, least_noise

CENTRED, LINEAR = "centred-linear", "linear"

FEW = 16
"""Up to this number of sites the graph is complete: one exchange gives the exact mean."""

TABLE_ROUNDS, PICTURE_ROUNDS = 20, 100
"""With full batches the number of steps hardly changes the signal-to-noise; proxies for pictures need more of them."""

PICTURES = {"learning_rate": 4.0, "momentum": 0.9, "norm": 0.5}
"""For records that are centred and scaled to length 1 (as in studies/together-beats-alone-fashion.toml)."""


@dataclass(frozen=True)
class PlannedBudget:
    """The privacy that each site may spend, as a study states it."""

    epsilon: float
    delta: float
    unit: str = "record"
    accountant: Accountant = "pld"

    @property
    def noise(self) -> float:
        """The noise multiplier of a single release that spends the whole budget."""
        return least_noise(self.epsilon, self.delta, self.accountant)


@dataclass(frozen=True)
class StudySettings:
    """What a study already states about its records and its training."""

    pictures: bool = False
    states_training: bool = False
    """The study states how it trains."""
    proxy: object = None
    encoded: bool = False
    """A public encoder has replaced the pictures by features."""


@dataclass(frozen=True)
class Suggestion:
    """What to write into a study."""

    budget: PlannedBudget
    study: StudySettings
    rounds: int
    topology: str
    noise_multiplier: float
    """The result of the calibration; not a key of the study."""
    learning_rates: tuple[float, float]
    """Of the smallest and the largest site, if the study leaves the rate to them."""

    @property
    def keeps_training(self) -> bool:
        """Whether the study already has this proxy and states how to train it, which is left unchanged."""
        return self.study.states_training and self.study.proxy == self.proxy

    @property
    def proxy(self) -> str:
        return CENTRED if self.study.pictures else LINEAR

    @property
    def norm(self) -> float:
        return PICTURES["norm"] if self.study.pictures else 1.0

    @property
    def toml(self) -> str:
        """The settings as TOML; its tables replace those of the study."""
        lines = [f"rounds = {self.rounds}", f'topology = "{self.topology}"', ""]
        if self.study.pictures and not self.study.encoded:
            lines += ["[data]", 'features = "gradients"  # in addition to its other keys', ""]
        lines += ["[models]", f'proxy = "{self.proxy}"', ""]
        if self.study.pictures and not self.keeps_training:
            lines += [
                "[training.protected]",
                'optimiser = "sgd"',
                f"learning_rate = {PICTURES['learning_rate']}",
                f"momentum = {PICTURES['momentum']}",
                "weight_decay = 0.0",
                "",
            ]
        lines += [
            "[privacy]",
            f"epsilon = {self.budget.epsilon!r}",
            f"delta = {self.budget.delta!r}",
            *([f'unit = "{self.budget.unit}"'] if self.budget.unit != "record" else []),
            *([f'accountant = "{self.budget.accountant}"'] if self.budget.accountant != "pld" else []),
            'sampling = "full"',
            "steps = 1",
            f'clipping = {{ name = "flat", norm = {self.norm!r} }}',
        ]
        return "\n".join(lines) + "\n"

    @property
    def remarks(self) -> list[str]:
        """What follows from the settings, and what was left out of them."""
        found = [
            f"The noise multiplier is then {self.noise_multiplier:.3g} in each of {self.rounds} steps; it is"
            " calibrated and need not be stated."
        ]
        if self.keeps_training:
            found.append("The study states how it trains; that is left unchanged.")
        elif not self.study.pictures:
            low, high = (f"{rate:.2g}" for rate in self.learning_rates)
            rates = low if low == high else f"{low} to {high}"
            without = "Leave [training] out" if self.study.states_training else "No learning rate is stated"
            found.append(f"{without}: each site then uses the rate that its noise allows ({rates}).")
        return found


def suggest(
    forecast: Forecast,
    budget: PlannedBudget,
    study: StudySettings = StudySettings(),
    rounds: int | None = None,
) -> Suggestion:
    """Suggest full batches, one step per round, and a graph that averages well."""
    many = len(forecast.sites) > FEW
    usual = PICTURE_ROUNDS if study.pictures else TABLE_ROUNDS
    rounds = rounds or usual * (math.ceil(math.log2(len(forecast.sites))) if many else 1)
    multiplier = budget.noise * math.sqrt(rounds)
    sizes = [s.records for s in forecast.sites]
    parameters = min(forecast.parameters, max(1, forecast.largest_proxy))

    def rate(records: int) -> float:
        time = time_for(
            noise_multiplier=multiplier, steps=rounds, batch=records, clip=1.0, parameters=parameters,
            sites=len(sizes),
        )  # fmt: skip
        return paced(time, rounds).learning_rate

    topology = "exponential" if many else "complete"
    return Suggestion(budget, study, rounds, topology, multiplier, (rate(min(sizes)), rate(max(sizes))))

"""Settings that a budget can carry, as TOML for a study; all of them follow from public numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass

from confrere.learning.step_schedule import paced, time_for
from confrere.privacy.planning import Forecast

CENTRED, LINEAR = "centred-linear", "linear"

FEW = 16
"""Up to so many sites everybody hears everybody: one exchange makes the exact mean."""

TABLE_ROUNDS, PICTURE_ROUNDS = 20, 100
"""Full-batch steps cost noise, not signal, so their number matters little; a proxy of pictures has a longer way to go."""

PICTURES = {"learning_rate": 4.0, "momentum": 0.9, "norm": 0.5}
"""Records that are moved to a common centre and scaled to length 1 (as in studies/together-beats-alone-fashion.toml)."""


@dataclass(frozen=True)
class Suggestion:
    """What to write into a study."""

    epsilon: float
    delta: float
    unit: str
    accountant: str
    rounds: int
    topology: str
    pictures: bool
    states_training: bool
    """The study says already how it trains."""
    keeps_proxy: bool
    """The study has this proxy already, so how it trains it is left as it is."""
    noise_multiplier: float
    """What the calibration will come to; no part of the study."""
    learning_rates: tuple[float, float]
    """What the smallest and the largest site will train with, where the study leaves that to them."""

    @property
    def proxy(self) -> str:
        return CENTRED if self.pictures else LINEAR

    @property
    def norm(self) -> float:
        return PICTURES["norm"] if self.pictures else 1.0

    @property
    def toml(self) -> str:
        """The settings as a study has them; the tables take the place of those that it has."""
        lines = [f"rounds = {self.rounds}", f'topology = "{self.topology}"', ""]
        if self.pictures:
            lines += ["[data]", 'features = "gradients"  # beside the keys that it has', ""]
        lines += ["[models]", f'proxy = "{self.proxy}"', ""]
        if self.pictures and not (self.states_training and self.keeps_proxy):
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
            f"epsilon = {self.epsilon!r}",
            f"delta = {self.delta!r}",
            *([f'unit = "{self.unit}"'] if self.unit != "record" else []),
            *([f'accountant = "{self.accountant}"'] if self.accountant != "pld" else []),
            'sampling = "full"',
            "steps = 1",
            f'clipping = {{ name = "flat", norm = {self.norm!r} }}',
        ]
        return "\n".join(lines) + "\n"

    @property
    def remarks(self) -> list[str]:
        """What the settings come to, and what was left out of them."""
        low, high = (f"{rate:.2g}" for rate in self.learning_rates)
        found = [
            f"The noise multiplier is then {self.noise_multiplier:.3g} in each of {self.rounds} steps; it is"
            " calibrated and need not be stated."
        ]
        if self.states_training and self.keeps_proxy:
            found.append("The study states how it trains; that is left as it is.")
        elif not self.pictures:
            rates = low if low == high else f"{low} to {high}"
            without = "Leave [training] out" if self.states_training else "No learning rate is stated"
            found.append(f"{without}: each site then goes as far as its noise lets it ({rates}).")
        return found


def suggest(
    forecast: Forecast,
    *,
    epsilon: float,
    delta: float,
    noise: float,
    unit: str = "record",
    accountant: str = "pld",
    pictures: bool = False,
    states_training: bool = False,
    proxy: object = None,
    rounds: int | None = None,
) -> Suggestion:
    """Full batches, one step to a round, and a graph that averages well. `noise` is that of a single release; `proxy` the
    one that the study has."""
    many = len(forecast.sites) > FEW
    usual = PICTURE_ROUNDS if pictures else TABLE_ROUNDS
    wanted = rounds or usual * (math.ceil(math.log2(len(forecast.sites))) if many else 1)
    multiplier = noise * math.sqrt(wanted)
    sizes = [s.records for s in forecast.sites]
    parameters = min(forecast.parameters, max(1, forecast.largest_proxy))

    def rate(records: int) -> float:
        time = time_for(
            noise_multiplier=multiplier, steps=wanted, batch=records, clip=1.0, parameters=parameters,
            sites=len(sizes),
        )  # fmt: skip
        return paced(time, wanted).learning_rate

    return Suggestion(
        epsilon=epsilon, delta=delta, unit=unit, accountant=accountant, rounds=wanted,
        topology="exponential" if many else "complete", pictures=pictures, states_training=states_training,
        keeps_proxy=proxy == (CENTRED if pictures else LINEAR),
        noise_multiplier=multiplier, learning_rates=(rate(min(sizes)), rate(max(sizes))),
    )  # fmt: skip

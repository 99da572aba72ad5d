"""Estimate a proxy's signal-to-noise ratio from public numbers, before training.

Let K sites hold n_k records, N in all, and clip each record's gradient to the norm C. A proxy has P parameters.

*Noise.* A full-batch step adds noise with the deviation z_k·C to each parameter of a site's sum. T steps within (ε, δ)
take z_k = σ_k·√T, where σ_k is the noise of a single release: Gaussian noise composes so exactly. Over all steps and
sites the noise in the sum of gradients has the length √(P·Σ z_k²·T)·C = T·C·√(P·Σ σ_k²). With Poisson sampling at the rate q
a step's sum is that of q·n_k records, so that σ_k = z_k/(q·√T), with the z_k that the accountant asks for.

*Signal.* Let the mean of the clipped gradients have the length g·C. Over T steps the sums add up to T·N·C·g, so

    signal-to-noise = N·g / √(P·Σ σ_k²)        (N·g / (σ·√(K·P)) where all sites have the same noise),

whatever T and C are. g = 0.2 is an assumption: about what it is while there is something to learn; it falls to 0 at the end.

*Worth.* A sum of N clipped gradients strays from its expectation by the variance N·v·C² for the choice of records
alone, and by P·Σ σ_k²·C² for the noise, averaged over the steps. As many records without noise as stray as much, relative
to their number:

    worth = N / (1 + P·Σ σ_k² / (N·v)).

v = 0.5 is an assumption too (it is at most 1). To a site only that part is new which comes from the others: the same
with their records in place of N. Two independent findings that are worth n and m records are worth n + m together at
best: where what is new is worth a site's own number of records, its error can fall by 1 − 1/√2 = 29 %; where it is worth
a quarter of that, by 11 %, which a test of some hundred records does not show.

*Limits.* They follow from this, and are compared with measured gains by `benchmarks/utility.py`: chosen on one half of the
bundled federations and judged on the other (docs/records/utility.md, «Forecasts and outcomes»). On the first half no limit
made a gain likely, so the planner does not promise one. It states that a proxy carries a signal, and that it cannot know
whether a site gains from it, because sites may differ. Only a declared mix of classes says that a site lacks what others
have; then a gain is called likely.

The estimate is too low where inputs are correlated, because P counts parameters and only directions in which records vary
matter. It is too high where sites differ, and on a sparse graph with few rounds, where proxies mix badly. A site that has
few records of some classes knows less than its number of records suggests (`balanced_worth`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from confrere.core.errors import StudyError
from confrere.privacy.accounting import calibrate
from confrere.privacy.charges import Accountant

MEAN_GRADIENT = 0.2
"""g: the length of the mean clipped gradient, as a share of the clipping norm."""

GRADIENT_VARIANCE = 0.5
"""v: how far single clipped gradients stray from their mean, squared, as a share of the clipping norm squared."""

DROWNED, CLEAR = 1.0, 2.0
"""Below the first ratio an update is more noise than signal; from the second on it points where the records do."""

NEGLIGIBLE, USEFUL = 0.25, 1.0
"""What is new to a site is worth this share of its own records: below the first it can hardly help; from the second on it
can lower the error visibly."""

ENOUGH = 10
"""Records per parameter that make a proxy reliable: the customary ten events per variable (Peduzzi et al. 1996).

The calibration half of the federations allows 8 to 20."""

Prediction = Literal["signal", "unclear", "noise"]
Outlook = Literal["gain likely", "cannot know: sites may differ", "unclear", "expect little"]
CANNOT_KNOW: Outlook = "cannot know: sites may differ"


@dataclass(frozen=True)
class Contributor:
    """A site as the planner knows it: its declared records, and the noise that it adds."""

    name: str
    records: int
    noise: float
    """σ: the noise in the sum of its records' gradients, averaged over all steps, in multiples of the clipping norm."""


@dataclass(frozen=True)
class Forecast:
    """What a proxy with this number of parameters is expected to learn from these sites, at their noise."""

    parameters: int
    sites: tuple[Contributor, ...]

    def __post_init__(self) -> None:
        if self.parameters < 1:
            raise StudyError(f"a proxy has at least one parameter, not {self.parameters}")
        if not self.sites or any(s.records < 1 or not 0 < s.noise < math.inf for s in self.sites):
            raise StudyError("a forecast needs sites, each with at least one record and with noise")

    @property
    def records(self) -> int:
        return sum(s.records for s in self.sites)

    @property
    def noise(self) -> float:
        """The noise of all sites together, in multiples of the clipping norm, for each parameter."""
        return math.sqrt(math.fsum(s.noise**2 for s in self.sites))

    @property
    def signal_to_noise(self) -> float:
        return self.records * MEAN_GRADIENT / (self.noise * math.sqrt(self.parameters))

    @property
    def worth(self) -> float:
        """How many records without noise would teach the proxy as much."""
        return self._worth(self.records)

    def worth_beside(self, site: Contributor) -> float:
        """The same for what the proxy holds beside a site's own records: those of the others, with the noise of all."""
        return self._worth(self.records - site.records)

    def _worth(self, records: int) -> float:
        loud = self.parameters * self.noise**2 / GRADIENT_VARIANCE
        return records**2 / (records + loud)

    @property
    def largest_proxy(self) -> int:
        """The most parameters with which there is still a clear signal; 0 if no proxy is small enough."""
        return math.floor((self.records * MEAN_GRADIENT / (CLEAR * self.noise)) ** 2)

    def outlook(self, site: Contributor, own: float | None = None) -> Outlook:
        """What a site may expect of the proxy; `own` is what its records are worth, if a mix of classes was declared."""
        has, gets = site.records if own is None else own, self.worth_beside(site)
        if self.signal_to_noise < DROWNED or gets < NEGLIGIBLE * has:
            return "expect little"
        # even a rough proxy informs about classes that a site hardly has, but not about those that it knows
        declared = own is not None and not math.isclose(own, site.records)
        fine = declared or self.worth >= ENOUGH * self.parameters
        if self.signal_to_noise < CLEAR or not fine or gets < USEFUL * has:
            return "unclear"
        return "gain likely" if declared else CANNOT_KNOW

    def judged(self, own: Mapping[str, float] | None = None) -> Prediction:
        """A signal is one that at least half of the sites could use, if they are alike; noise is noise for all."""
        if self.signal_to_noise < DROWNED:
            return "noise"
        outlooks = [self.outlook(s, (own or {}).get(s.name)) for s in self.sites]
        usable = [o for o in outlooks if o in ("gain likely", CANNOT_KNOW)]
        return "signal" if 2 * len(usable) >= len(self.sites) else "unclear"

    def with_noise(self, noise: Sequence[float]) -> Forecast:
        """The same sites with other noise."""
        changed = zip(self.sites, noise, strict=True)
        return Forecast(self.parameters, tuple(Contributor(s.name, s.records, n) for s, n in changed))


def least_noise(epsilon: float, delta: float, accountant: Accountant = "pld") -> float:
    """σ of full-batch training within (ε, δ), however many steps it has.

    >>> least_noise(3.0, 1e-5)
    1.3906
    """
    return calibrate(epsilon, delta, sample_rate=1, steps=1, accountant=accountant)


def noise_over_steps(noise_multiplier: float, sample_rate: float, steps: int) -> float:
    """σ of a training that draws each record with this rate in each of its steps.

    >>> noise_over_steps(13.906, 1.0, 100)
    1.3906
    """
    return noise_multiplier / (sample_rate * math.sqrt(steps))


def balanced_worth(records: float, classes: int, largest_share: float) -> float:
    """How many evenly mixed records a site's own are worth, where one class holds a large share of them.

    Where all classes count alike, each class's error counts with 1/classes², over its number of records; the
    smaller classes are taken to have equally many.

    >>> round(balanced_worth(1000, 10, 0.8)), round(balanced_worth(1000, 10, 0.1))
    (246, 1000)
    """
    others = (1 - largest_share) / (classes - 1)
    return records * classes**2 / (1 / largest_share + (classes - 1) / others)


def warnings(
    forecast: Forecast, budget: str, own: Mapping[str, float] | None = None, uneven: bool = False
) -> list[str]:
    """Warnings to read before spending privacy on this study; empty where there are none.

    `budget` is how the privacy is written: «ε = 3, δ = 1e-5». Where classes are `uneven` and it is not declared how much,
    what sites know themselves cannot be judged, and there is no warning about it.
    """
    ratio, fits = forecast.signal_to_noise, forecast.largest_proxy
    sizes = _sizes(forecast)
    if ratio < CLEAR:
        what = "would be noise" if ratio < DROWNED else "would be about as much noise as signal"
        way_out = (
            f"a proxy of at most {fits:,} parameters keeps a signal"
            if fits
            else "no proxy is small enough for these records: raise ε, or find more of them"
        )
        return [
            f"this proxy has {forecast.parameters:,} parameters: at {budget} with {sizes} per site its updates"
            f" {what} (signal-to-noise about {ratio:.2g}, estimated); {way_out}"
        ]
    little = all(forecast.outlook(s, (own or {}).get(s.name)) == "expect little" for s in forecast.sites)
    if little and not uneven:
        return [
            f"at {budget} the proxy knows about as much as {forecast.worth:,.0f} records would teach it without noise"
            f" (estimated), and sites have {sizes} of their own: expect little, unless their classes are mixed unevenly"
        ]
    return []


def _sizes(forecast: Forecast) -> str:
    """«1,000 records», «42 to 3,300 records»."""
    sizes = [s.records for s in forecast.sites]
    low, high = min(sizes), max(sizes)
    return f"{low:,} record{'' if high == 1 else 's'}" if low == high else f"{low:,} to {high:,} records"

"""Forecast whether a study's proxy will be useful at its budget, and suggest settings."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from confrere.core.errors import StudyError
from confrere.core.sum_terms import SumTerms
from confrere.data.records import Federation
from confrere.evaluate.suggested_settings import PlannedBudget, StudySettings, Suggestion, suggest
from confrere.exchange.topology import exchanges
from confrere.privacy.accounting import check_delta, check_epsilon
from confrere.privacy.budget import Budget
from confrere.privacy.charges import rounded_up
from confrere.privacy.forecast import (
    GRADIENT_VARIANCE,
    MEAN_GRADIENT,
    Contributor,
    Forecast,
    balanced_worth,
    least_noise,
    noise_over_steps,
    warnings,
)
from confrere.privacy.masked_mechanism import calibrate_masked
from confrere.simulation.simulation import Simulation
from confrere.site.open_sites import Source, open_sites
from confrere.site.participant import Participant
from confrere.study import Study
from confrere.study.masked_settings import masked_of


@dataclass(frozen=True)
class Plan:
    """A forecast of what a proxy would learn at a budget, and suggested settings."""

    forecast: Forecast
    suggestion: Suggestion
    budget: str
    """In words: «ε = 3 (δ = 1e-05, per record, PLD)»."""
    guarantees: dict[str, str]
    own: dict[str, float]
    """By site, the number of class-balanced records that its own records are worth."""
    full_batch: Forecast
    masked: Forecast | None = None
    """The same with masked sums, where the study has none and has enough sites for them."""
    uneven: bool = False
    """The study balances classes, and no share of the largest class was declared."""

    @property
    def prediction(self) -> str:
        """What the proxy would carry: "signal", "noise", or "unclear"."""
        return self.forecast.judged(self.own)

    @property
    def warnings(self) -> list[str]:
        return warnings(self.forecast, self.budget, self.own, self.uneven)

    def as_json(self) -> dict[str, Any]:
        """What `confrere plan --json` prints."""
        forecast, suggestion = self.forecast, self.suggestion
        return {
            "estimate": True,
            "prediction": self.prediction,
            "signal_to_noise": forecast.signal_to_noise,
            "worth": forecast.worth,
            "records": forecast.records,
            "parameters": forecast.parameters,
            "largest_proxy": forecast.largest_proxy,
            "guarantee": self.budget,
            "sites": {
                s.name: {
                    "records": s.records,
                    "own_worth": self.own[s.name],
                    "new_worth": forecast.worth_beside(s),
                    "noise": s.noise,
                    "guarantee": self.guarantees.get(s.name, self.budget),
                    "outlook": forecast.outlook(s, self.own[s.name]),
                }
                for s in forecast.sites
            },
            "full_batch": {
                "signal_to_noise": self.full_batch.signal_to_noise,
                "worth": self.full_batch.worth,
            },
            "masked": None
            if self.masked is None
            else {
                "signal_to_noise": self.masked.signal_to_noise,
                "worth": self.masked.worth,
            },
            "assumptions": {"mean_gradient": MEAN_GRADIENT, "gradient_variance": GRADIENT_VARIANCE},
            "warnings": self.warnings,
            "suggestion": {
                "rounds": suggestion.rounds,
                "topology": suggestion.topology,
                "proxy": suggestion.proxy,
                "most_parameters": forecast.largest_proxy,
                "noise_multiplier": suggestion.noise_multiplier,
                "clipping_norm": suggestion.norm,
                "learning_rates": list(suggestion.learning_rates),
                "toml": suggestion.toml,
                "remarks": suggestion.remarks,
            },
        }


def plan_for_sizes(
    records: Sequence[int],
    parameters: int,
    epsilon: float,
    delta: float = 1e-5,
    *,
    rounds: int | None = None,
    classes: int | None = None,
    largest_class: float | None = None,
) -> Plan:
    """Estimate, from public numbers alone, whether a proxy carries a signal at a budget, and suggest settings.

    `records` are those of each site, `parameters` those of the proxy, ε and δ what each site may spend, per record.
    `largest_class` is the share of a site's records that its largest class of `classes` holds, where that is declared.

    >>> plan = confrere.plan_for_sizes([1000] * 8, parameters=8450, epsilon=3.0)
    >>> plan.prediction, plan.suggestion.rounds
    ('unclear', 20)
    """
    if isinstance(records, int) or not records:
        raise StudyError("give the number of records of each site, as [1000, 800]")
    if rounds is not None and rounds < 1:
        raise StudyError(f"--rounds is {rounds}; at least one round is needed")
    check_epsilon(epsilon)
    check_delta(delta, max(records))
    budget = PlannedBudget(epsilon, delta)
    noise = budget.noise
    sites = tuple(Contributor(f"site {i + 1}", n, noise) for i, n in enumerate(records))
    forecast = Forecast(parameters, sites)
    words = f"ε = {rounded_up(epsilon)} (δ = {delta:g}, per record, PLD)"
    own = _own(forecast, classes, largest_class)
    masked = with_masks(forecast, [epsilon] * len(sites), delta)
    return Plan(forecast, suggest(forecast, budget, rounds=rounds), words, {}, own, forecast, masked)


def plan(
    study: Study,
    sites: Mapping[str, Source] | Federation | None = None,
    *,
    rounds: int | None = None,
    largest_class: float | None = None,
) -> Plan:
    """Estimate whether a study's proxy carries a signal at its budget, and suggest settings; nothing is trained.

    `sites` are your own records, as in `simulate`; `rounds` are those to suggest; `largest_class` is the share of a
    site's records that its largest class holds, where that is declared.

    >>> plan = confrere.plan(study, sites)
    >>> plan.forecast.signal_to_noise > 0
    True
    """
    if study.privacy is None:
        raise StudyError(
            f'study "{study.name}" has no [privacy]: without noise there is nothing to plan; add [privacy]'
            " epsilon = 3.0"
        )
    simulation = Simulation(study, open_sites(study, sites))
    simulation.prepare()
    forecast = forecast_of(simulation)
    if forecast is None:
        raise StudyError(
            f'nothing would be sent: strategy "{study.strategy_name}" shares nothing, or no budget lasts for one step'
        )
    guarantees = {n: str(g) for n, site in simulation.sites.items() if (g := site.planned()) is not None}
    spent = {n: g.epsilon for n, site in simulation.sites.items() if (g := site.planned()) is not None}
    delta, accountant, task = study.privacy.delta, study.privacy.accountant, simulation.federation.task
    epsilon = study.privacy.epsilon or max(spent.values())
    full_batch = forecast.with_noise([least_noise(spent[s.name], delta, accountant) for s in forecast.sites])
    suggestion = suggest(
        forecast,
        PlannedBudget(epsilon, delta, study.privacy.unit, accountant),
        StudySettings(
            bool(study.data.features) or study.data.encoder is not None or len(task.inputs) > 1,
            study.training.states_steps,
            study.models.proxy,
            study.data.encoder is not None,
        ),
        rounds,
    )
    own = _own(forecast, max(2, len(task.classes)), largest_class)
    uneven = study.training.balanced and largest_class is None
    masked = None
    if masked_of(study) is None:
        masked = with_masks(forecast, [spent[s.name] for s in forecast.sites], delta)
    return Plan(forecast, suggestion, _common(guarantees), guarantees, own, full_batch, masked, uneven)


def with_masks(forecast: Forecast, spent: Sequence[float], delta: float) -> Forecast | None:
    """The forecast with masked sums at the least ε of all sites, with one colluding site and none that is missing.

    None with fewer than three sites: then masks hide nothing.
    """
    count = len(forecast.sites)
    if count < 3:
        return None
    terms = SumTerms(count, 1, 0, noise_std=1.0, clip=1.0, size=forecast.parameters)
    noise = calibrate_masked(Budget(min(spent), delta), 1, terms).noise_std
    return forecast.with_noise([noise / math.sqrt(terms.honest)] * count)


def _common(guarantees: dict[str, str]) -> str:
    """The guarantee of all sites, or that they differ."""
    different = list(dict.fromkeys(guarantees.values()))
    return different[0] if len(different) == 1 else f"{different[0]} and, by their own caps, others"


def _own(forecast: Forecast, classes: int | None, largest_class: float | None) -> dict[str, float]:
    if largest_class is None:
        return {s.name: float(s.records) for s in forecast.sites}
    if classes is None or classes < 2:
        raise StudyError("--largest-class needs --classes, at least 2")
    if not 1 / classes <= largest_class < 1:
        raise StudyError(
            f"--largest-class is {largest_class:g}; of {classes} classes the largest holds at least"
            f" {1 / classes:.2g} and less than 1"
        )
    return {s.name: balanced_worth(s.records, classes, largest_class) for s in forecast.sites}


def forecast_of(simulation: Simulation) -> Forecast | None:
    """The forecast of a prepared study; None if nothing is sent, or if it is sent without noise.

    The noise is that of the mechanisms, within each site's own caps. Steps that a site's budget does not cover are not
    counted, nor is a site whose budget covers none.
    """
    sites = list(simulation.sites.values())
    if simulation.pools or not exchanges(simulation.study.graph()):
        return None
    if any(site.mechanism is None for site in sites):
        return None
    found = tuple(c for site in sites if (c := _contributor(site)) is not None)
    role = getattr(simulation.strategy, "architecture", "proxy")
    return Forecast(trained_parameters(sites[0], role), found) if found else None


def trained_parameters(site: Participant, role: str = "proxy") -> int:
    """The number of trained weights of the model that is sent: those that get noise."""
    network = site.network(role, site.architecture(role).name)
    return int(network.flat.numel())


def _contributor(site: Participant) -> Contributor | None:
    mechanism, privacy = site.mechanism, site.study.privacy
    assert mechanism is not None
    assert privacy is not None
    steps, left = site.steps * site.study.rounds, site.rounds_left()
    if privacy.noise_multiplier is not None and left is not None:  # else the noise was made to last
        steps = min(steps, site.steps * left)
    if steps < 1:
        return None
    noise = noise_over_steps(mechanism.own_noise, float(mechanism.sampling.rate), steps)
    return Contributor(site.name, site.size, noise)

"""A plan: what a study, or bare numbers, may expect of a proxy, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from confrere.core.errors import StudyError
from confrere.data.records import Federation
from confrere.privacy.accounting import check_delta, check_epsilon
from confrere.privacy.charges import rounded_up
from confrere.privacy.planning import (
    GRADIENT_VARIANCE,
    MEAN_GRADIENT,
    Contributor,
    Forecast,
    balanced_worth,
    least_noise,
    warnings,
)
from confrere.runtime.forecast import forecast_of
from confrere.runtime.records import open_sites
from confrere.runtime.simulate import Simulation
from confrere.runtime.suggestion import Suggestion, suggest
from confrere.study import Study


@dataclass(frozen=True)
class Plan:
    """A forecast with the budget that it was made for."""

    forecast: Forecast
    suggestion: Suggestion
    budget: str
    """As people read it: «ε = 3 (δ = 1e-05, per record, PLD)»."""
    guarantees: dict[str, str]
    own: dict[str, float]
    """How many evenly mixed records each site's own are worth."""
    full_batch: Forecast
    uneven: bool = False
    """The study has its sites' classes count alike, and nobody declared how unevenly they are mixed."""

    @property
    def warnings(self) -> list[str]:
        return warnings(self.forecast, self.budget, self.own, self.uneven)


def plan_of_numbers(
    sizes: list[int], parameters: int, epsilon: float, delta: float,
    rounds: int | None = None, classes: int | None = None, largest_class: float | None = None,
) -> Plan:  # fmt: skip
    """For sites of these sizes, with full batches; a guarantee per record."""
    check_epsilon(epsilon)
    check_delta(delta, max(sizes))
    sigma = least_noise(epsilon, delta)
    forecast = Forecast(
        parameters, tuple(Contributor(f"site {i + 1}", n, sigma) for i, n in enumerate(sizes))
    )
    budget = f"ε = {rounded_up(epsilon)} (δ = {delta:g}, per record, PLD)"
    suggestion = suggest(forecast, epsilon=epsilon, delta=delta, noise=sigma, rounds=rounds)
    own = _own(forecast, classes, largest_class)
    return Plan(forecast, suggestion, budget, {}, own, forecast)


def plan_of_study(
    study: Study,
    rounds: int | None = None,
    largest_class: float | None = None,
    federation: Federation | None = None,
) -> Plan:
    """For a study with its own records (or those given), proxy, noise and caps; nothing is trained."""
    if study.privacy is None:
        raise StudyError(
            f'study "{study.name}" has no [privacy]: without noise there is nothing to plan; add [privacy]'
            " epsilon = 3.0"
        )
    simulation = Simulation(study, open_sites(study, federation))
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
        forecast, epsilon=epsilon, delta=delta, noise=least_noise(epsilon, delta, accountant), unit=study.privacy.unit,
        accountant=accountant,
        pictures=bool(study.data.features) or len(task.inputs) > 1,
        states_training=study.training.states_steps, proxy=study.models.proxy, rounds=rounds,
    )  # fmt: skip
    own = _own(forecast, max(2, len(task.classes)), largest_class)
    uneven = study.training.balanced and largest_class is None
    return Plan(forecast, suggestion, _common(guarantees), guarantees, own, full_batch, uneven)


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


def document(plan: Plan) -> dict[str, Any]:
    """What machines read."""
    forecast, suggestion = plan.forecast, plan.suggestion
    return {
        "estimate": True,
        "prediction": forecast.judged(plan.own),
        "signal_to_noise": forecast.signal_to_noise,
        "worth": forecast.worth,
        "records": forecast.records,
        "parameters": forecast.parameters,
        "largest_proxy": forecast.largest_proxy,
        "guarantee": plan.budget,
        "sites": {
            s.name: {
                "records": s.records,
                "own_worth": plan.own[s.name],
                "new_worth": forecast.worth_beside(s),
                "noise": s.noise,
                "guarantee": plan.guarantees.get(s.name, plan.budget),
                "outlook": forecast.outlook(s, plan.own[s.name]),
            }
            for s in forecast.sites
        },
        "full_batch": {
            "signal_to_noise": plan.full_batch.signal_to_noise,
            "worth": plan.full_batch.worth,
        },
        "assumptions": {"mean_gradient": MEAN_GRADIENT, "gradient_variance": GRADIENT_VARIANCE},
        "warnings": plan.warnings,
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

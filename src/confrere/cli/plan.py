"""`confrere plan`: whether a proxy is worth its noise, before any privacy is spent."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from confrere.cli.options import AsJson, Changes, Delta
from confrere.cli.output import console, print_json
from confrere.core.errors import StudyError

if TYPE_CHECKING:
    from confrere.evaluate.plan import Plan

MOST_SITES = 100_000

BLIND = (
    "Estimated from public numbers alone. The planner does not know how alike the sites are: on eleven federations it could"
    " not tell from these numbers which sites gain. Rehearse with «confrere compare» to find out. It does not know their"
    " mix of classes: a site with few records of some classes may gain where it expects little (declare it with"
    " --largest-class). And it is pessimistic where inputs are correlated: it counts parameters, and only directions in which"
    " records vary matter."
)


def plan(
    study: Annotated[
        Path | None, typer.Argument(metavar="[STUDY.toml]", help="The study to plan for; or give numbers.")
    ] = None,
    records: Annotated[
        str | None, typer.Option(metavar="N[,N…]", help="Records of each site: 1000, or 150,130.")
    ] = None,
    sites: Annotated[str | None, typer.Option(metavar="N", help="How many sites.")] = None,
    parameters: Annotated[str | None, typer.Option(metavar="N", help="Parameters of the proxy.")] = None,
    epsilon: Annotated[float | None, typer.Option(help="The ε that each site may spend.")] = None,
    delta: Delta = 1e-5,
    rounds: Annotated[str | None, typer.Option(metavar="N", help="Rounds to suggest.")] = None,
    classes: Annotated[
        str | None, typer.Option(metavar="N", help="Number of classes; taken from the study if there is one.")
    ] = None,
    largest_class: Annotated[
        float | None,
        typer.Option(help="Share of a site's records that its largest class holds, if declared."),
    ] = None,
    change: Changes = None,
    as_json: AsJson = False,
) -> None:
    """Estimate whether a proxy of this size carries a signal at this budget, and suggest settings.

    Example: `confrere plan --records 1000 --sites 8 --parameters 8450 --epsilon 3`
    """
    from confrere.evaluate.plan import plan as plan_study
    from confrere.evaluate.plan import plan_for_sizes
    from confrere.study import load

    wanted = _whole("rounds", rounds)
    if study is not None:
        _refuse(records=records, sites=sites, parameters=parameters, epsilon=epsilon, classes=classes)
        found = plan_study(load(study, change or []), rounds=wanted, largest_class=largest_class)
    else:
        if records is None or parameters is None or epsilon is None:
            given = {"records": records, "parameters": parameters, "epsilon": epsilon}
            missing = next(name for name, value in given.items() if value is None)
            raise StudyError(
                f"--{missing} is missing: give a study, or --records, --parameters and --epsilon"
            )
        if change:
            raise StudyError("--set changes a study, and none was given")
        found = plan_for_sizes(
            _sizes(records, _whole("sites", sites)), _whole("parameters", parameters) or 0, epsilon, delta,
            rounds=wanted, classes=_whole("classes", classes), largest_class=largest_class,
        )  # fmt: skip
    print_json(found.as_json()) if as_json else _show(found)


def _refuse(**numbers: object) -> None:
    """A study brings its own numbers."""
    for name, value in numbers.items():
        if value is not None and name == "classes":
            raise StudyError("--classes and a study: the study knows its classes")
        if value is not None:
            raise StudyError(
                f"--{name} and a study: give one or the other (change a study with --set a.b=value)"
            )


def _whole(name: str, text: str | None) -> int | None:
    """A whole number of at least 1, as a person writes it."""
    from confrere.study import MOST_ROUNDS

    if text is None:
        return None
    most = {"sites": MOST_SITES, "rounds": MOST_ROUNDS}.get(name, 10**12)
    if not text.strip().isdecimal() or not 1 <= int(text) <= most:
        raise StudyError(f"--{name} is a whole number from 1 to {most:,}, not {text}")
    return int(text)


def _sizes(text: str, sites: int | None) -> list[int]:
    sizes = [n for part in text.split(",") if (n := _whole("records", part)) is not None]
    if len(sizes) == 1:
        sizes *= sites or 1
    if sites is not None and sites != len(sizes):
        raise StudyError(f"--records names {len(sizes)} sites, and --sites says {sites}")
    if len(sizes) < 2:
        raise StudyError("a collaboration takes at least two sites: add --sites, or write --records 150,130")
    return sizes


def _verdict(plan: Plan) -> str:
    from confrere.privacy.forecast import CANNOT_KNOW

    forecast, own = plan.forecast, plan.own
    if plan.prediction == "noise":
        return "would learn little but noise"
    if all(forecast.outlook(s, own[s.name]) == "expect little" for s in forecast.sites):
        return "would carry a signal, but hardly one that adds to what the sites know themselves"
    if plan.prediction == "signal":
        likely = any(forecast.outlook(s, own[s.name]) == "gain likely" for s in forecast.sites)
        rest = "a gain is likely" if likely else f"whether they gain the planner {CANNOT_KNOW}"
        return f"carries a signal that most sites could use; {rest}"
    return "may help some sites or none: it is unclear"


def _print(text: str) -> None:
    console.print(text, soft_wrap=True)


def _show(plan: Plan) -> None:
    forecast = plan.forecast
    _print(f"At {plan.budget} a proxy of {forecast.parameters:,} parameters {_verdict(plan)}.")
    _print(
        f"It would know about as much as {forecast.worth:,.0f} records would teach it without noise, of"
        f" {forecast.records:,} that all sites have. Its updates are {forecast.signal_to_noise:.2g} times as long as their"
        " noise (1 is drowned, 2 is clear)."
    )
    for text in plan.warnings:
        _print(f"Warning: {text}.")
    console.print(_table(plan))
    if plan.full_batch.signal_to_noise > 1.05 * forecast.signal_to_noise:
        _print(
            "With full batches in place of samples, at the same cost, the signal-to-noise would be"
            f" {plan.full_batch.signal_to_noise:.2g}."
        )
    if plan.masked is not None and plan.masked.signal_to_noise > 1.05 * forecast.signal_to_noise:
        _print(
            'With masked sums (combiner = "masked-sum", one step a round), where the sites share the noise of one release, the'
            f" signal-to-noise would be {plan.masked.signal_to_noise:.2g}, if at most one of the other sites pools what it"
            " sees or departs from the protocol."
        )
    elif plan.masked is not None:
        _print(
            f"Masked sums would not pay here: the signal-to-noise would be {plan.masked.signal_to_noise:.2g}, and is"
            f" {forecast.signal_to_noise:.2g} without them."
        )
    fits = forecast.largest_proxy
    _print(
        f"The largest proxy that keeps a signal here has {fits:,} parameters."
        if fits
        else "No proxy is small enough to keep a signal here."
    )
    _print(BLIND)
    _print("\nSuggested settings, to replace those of the study:\n")
    _print(plan.suggestion.toml)
    for text in plan.suggestion.remarks:
        _print(text)
    if not plan.guarantees:
        _print(
            'For pictures: proxy = "centred-linear" under [models], and features = "gradients" under [data].'
        )


def _table(plan: Plan) -> Table:
    """A line for each site; sites that are alike share one."""
    alike: dict[tuple[Any, ...], list[str]] = {}
    for s in plan.forecast.sites:
        own = plan.own[s.name]
        new = round(plan.forecast.worth_beside(s))
        key = (s.records, round(own), new, round(s.noise, 4), plan.forecast.outlook(s, own))
        alike.setdefault(key, []).append(s.name)
    uneven = any(not math.isclose(plan.own[s.name], s.records) for s in plan.forecast.sites)
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("site")
    for column in ("records", *(["evenly mixed"] if uneven else []), "new to it, worth", "noise (σ)"):
        table.add_column(column, justify="right")
    table.add_column("what it may expect")
    for (size, own, new, noise, outlook), names in alike.items():
        who = ", ".join(names) if len(names) <= 3 else f"{len(names)} sites, each"
        table.add_row(
            who, f"{size:,}", *([f"{own:,}"] if uneven else []), f"{new:,}", f"{noise:.3g}", outlook
        )
    return table

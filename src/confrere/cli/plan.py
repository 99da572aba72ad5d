"""`confrere plan`: whether a proxy is worth its noise, before any privacy is spent."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from confrere.cli.output import console, print_json
from confrere.core.errors import StudyError
from confrere.runtime.plan import Plan, document, plan_of_numbers, plan_of_study
from confrere.study import MOST_ROUNDS, load

MOST_SITES = 100_000

BLIND = (
    "Estimated from public numbers alone. The planner does not know how alike the sites are. It does not know their mix"
    " of classes: a site with few records of some classes may gain where it expects little (declare it with"
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
    delta: Annotated[float, typer.Option(help="δ, at most 1/records.")] = 1e-5,
    rounds: Annotated[str | None, typer.Option(metavar="N", help="Rounds to suggest.")] = None,
    classes: Annotated[
        str | None, typer.Option(metavar="N", help="How many classes; a study knows it.")
    ] = None,
    largest_class: Annotated[
        float | None,
        typer.Option(help="Share of a site's records that its largest class holds, if declared."),
    ] = None,
    change: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="a.b=value", help="Change a key of the study; may be repeated."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Estimate whether a proxy of this size carries a signal at this budget, and suggest settings that do.

    Example: `confrere plan --records 1000 --sites 8 --parameters 8450 --epsilon 3`
    """
    if study is not None:
        numbers = {"records": records, "sites": sites, "parameters": parameters, "epsilon": epsilon}
        for name, value in numbers.items():
            if value is not None:
                raise StudyError(
                    f"--{name} and a study: give one or the other (change a study with --set a.b=value)"
                )
        if classes is not None:
            raise StudyError("--classes and a study: the study knows its classes")
        found = plan_of_study(load(study, change or []), _whole("rounds", rounds), largest_class)
    else:
        for name, value in (("records", records), ("parameters", parameters), ("epsilon", epsilon)):
            if value is None:
                raise StudyError(
                    f"--{name} is missing: give a study, or --records, --parameters and --epsilon"
                )
        if change:
            raise StudyError("--set changes a study, and none was given")
        assert records is not None
        assert epsilon is not None
        found = plan_of_numbers(
            _sizes(records, _whole("sites", sites)), _whole("parameters", parameters) or 0, epsilon, delta,
            _whole("rounds", rounds), _whole("classes", classes), largest_class,
        )  # fmt: skip
    if as_json:
        print_json(document(found))
    else:
        _show(found)


def _whole(name: str, text: str | None) -> int | None:
    """A whole number of at least 1, as a person writes it."""
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
    forecast, own = plan.forecast, plan.own
    if forecast.judged(own) == "noise":
        return "would learn little but noise"
    if all(forecast.outlook(s, own[s.name]) == "expect little" for s in forecast.sites):
        return "would carry a signal, but hardly one that adds to what the sites know themselves"
    if forecast.judged(own) == "signal":
        return "carries a signal that most sites can use"
    return "may help some sites or none: it is unclear"


def _say(text: str) -> None:
    console.print(text, soft_wrap=True, markup=False)


def _show(plan: Plan) -> None:
    forecast = plan.forecast
    _say(f"At {plan.budget} a proxy of {forecast.parameters:,} parameters {_verdict(plan)}.")
    _say(
        f"It would know about as much as {forecast.worth:,.0f} records would teach it without noise, of"
        f" {forecast.records:,} that all sites have. Its updates are {forecast.signal_to_noise:.2g} times as long as their"
        " noise (1 is drowned, 2 is clear)."
    )
    for text in plan.warnings:
        _say(f"Warning: {text}.")
    console.print(_table(plan))
    if plan.full_batch.signal_to_noise > 1.05 * forecast.signal_to_noise:
        _say(
            "With full batches in place of samples, at the same cost, the signal-to-noise would be"
            f" {plan.full_batch.signal_to_noise:.2g}."
        )
    fits = forecast.largest_proxy
    _say(
        f"The largest proxy that keeps a signal here has {fits:,} parameters."
        if fits
        else "No proxy is small enough to keep a signal here."
    )
    _say(BLIND)
    _say("\nSuggested, for the top of the study, in place of what it says there:\n")
    _say(plan.suggestion.toml)
    for text in plan.suggestion.remarks:
        _say(text)
    if not plan.guarantees:
        _say(
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
        who = (
            names[0]
            if len(names) == 1
            else f"{len(names)} sites, each"
            if len(names) > 3
            else ", ".join(names)
        )
        table.add_row(
            who, f"{size:,}", *([f"{own:,}"] if uneven else []), f"{new:,}", f"{noise:.3g}", outlook
        )
    return table

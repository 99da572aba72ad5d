"""`confrere check`: what a study would do, before it does it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from confrere.cli.output import console, print_json
from confrere.core.errors import PrivacyError
from confrere.node.roster import Roster, load_roster
from confrere.privacy.book import charges_in
from confrere.privacy.charges import rounded_up
from confrere.privacy.ledger import Ledger
from confrere.privacy.planning import warnings as hardly_worth_it
from confrere.runtime.assemble import unprotected_patients
from confrere.runtime.compare import variant
from confrere.runtime.forecast import forecast_of
from confrere.runtime.participant import Participant
from confrere.runtime.records import open_sites
from confrere.runtime.simulate import Simulation
from confrere.study import Study, load


def check(
    study: Annotated[Path, typer.Argument(metavar="STUDY.toml", help="The study to look at.")],
    change: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="a.b=value", help="Change a key of the study; may be repeated."),
    ] = None,
    roster: Annotated[
        Path | None,
        typer.Option(
            metavar="ROSTER.toml", help="Who takes part.", show_default="roster.toml beside the study"
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Read a study and its records, and say what each site would do; nothing is trained or written.

    Example: `confrere check studies/quickstart.toml`
    """
    found = load(study, change or [])
    facts = look(found)
    members = roster or study.parent / "roster.toml"
    if roster is not None or members.exists():
        facts["warnings"] += unreachable(found, load_roster(members))
    if as_json:
        print_json(facts)
        return
    table = Table(title=facts["title"], title_justify="left", box=None, padding=(0, 2, 0, 0))
    for column in ("site", "records", "private model", "proxy", "noise", "steps", "ε in the end"):
        table.add_column(column, justify="right" if column in ("records", "noise", "steps") else "left")
    for name, site in facts["sites"].items():
        table.add_row(
            name, f"{site['records']:,}", f"{site['private']} ({site['private_parameters']:,})",
            f"{site['proxy']} ({site['proxy_parameters']:,})",
            f"{site['noise_multiplier']:.2f}" if site["noise_multiplier"] else "none",
            f"{site['steps']:,}" if site["steps"] else "–", site["guarantee"] or "no guarantee",
        )  # fmt: skip
    console.print(table)
    console.print(facts["sentence"])
    for text in facts["warnings"]:
        console.print(f"Note: {text}")


def look(study: Study) -> dict[str, Any]:
    """What can be said about a study without running it."""
    for name in study.variants:
        variant(study, name)
    simulation = Simulation(study, open_sites(study))
    simulation.prepare()
    sites: dict[str, Any] = {}
    warnings = [*simulation.federation.notes, *simulation.remarks]
    for name, site in simulation.sites.items():
        planned = site.planned()
        sites[name] = {
            "records": site.size,
            "private": study_name(site.study.models.of(name, "private")),
            "private_parameters": site.build("private").params.count,
            "proxy": study_name(site.study.models.proxy),
            "proxy_parameters": site.build("proxy").params.count,
            "noise_multiplier": site.mechanism.noise_multiplier if site.mechanism else None,
            "steps": site.steps * study.rounds if site.mechanism else None,
            "guarantee": str(planned) if planned else None,
        }
    for data in simulation.federation.sites.values():
        warning = unprotected_patients(study, data)
        if warning:
            warnings.append(warning)
    if study.stop is not None:
        warnings.append(f"training stops before the last round {study.stop.words}, whichever comes first")
    warnings += [text for site in simulation.sites.values() if (text := spent_before(site))]
    unproven = next(iter(simulation.sites.values())).unproven
    if unproven:
        warnings.append(f"what leaves a site has no proven guarantee: {unproven}")
    forecast = forecast_of(simulation)
    if forecast is not None:
        budget = next((s["guarantee"] for s in sites.values() if s["guarantee"]), "this budget")
        found = hardly_worth_it(forecast, budget, uneven=study.training.balanced)
        warnings += [f"{text} (see `confrere plan`)" for text in found]
    return {
        "title": study.title or study.name,
        "study": study.hash(),
        "strategy": study.strategy_name,
        "rounds": study.rounds,
        "sites": sites,
        "warnings": warnings,
        "sentence": f"{len(sites)} sites, {study.rounds} rounds of {study.strategy_name} over a"
        f" {type(study.graph()).__name__.lower()} graph; a round waits at most {study.patience:g} s for"
        f" a peer. The study is in order (hash {study.hash()}).",
    }


def spent_before(site: Participant) -> str:
    """What a node of this site could no longer do, by the ledger that stands beside its site.toml; "" if nothing."""
    own = site.study.sites.get(site.name)
    path = Path(own.ledger) if own is not None else Path()
    if site.mechanism is None or site.budget is None or not path.is_absolute():
        return ""
    ledger = Ledger(dataset=site.name, accountant=site.ledger.accountant)
    try:
        before = charges_in(path, but=site.run) if path.is_file() else ()
    except (PrivacyError, OSError) as error:
        return f'what site "{site.name}" has spent before is not known: {error}'
    if before:
        ledger.spend(before, key="before", budget=None)
    step, rounds = site.mechanism.charge(1), site.study.rounds
    left = ledger.remaining(site.budget, step) // max(1, site.steps * site.releases)
    if left >= rounds:
        return ""
    return (
        f'the ledger of "{site.name}" ({path}) has spent ε = {rounded_up(ledger.epsilon(site.budget.delta))} of'
        f" {site.budget.epsilon:g} already: as a node it would train its proxy in {left} of {rounds} rounds"
    )


def unreachable(study: Study, roster: Roster) -> list[str]:
    """Pairs of sites that would exchange parcels and cannot connect, since both can only dial out."""
    graph, members = study.graph(), sorted(roster.members)
    edges = {
        frozenset((sender, receiver))
        for number in range(min(study.rounds, 2 * len(members)))
        for sender in members
        for receiver in graph.column(number, members, sender)
    }
    return [
        f'"{one}" and "{other}" are both behind firewalls (they can only dial out): they need a relay, which comes'
        " later. Give one of them an address that the other can dial"
        for one, other in roster.unreachable()
        if frozenset((one, other)) in edges
    ]


def study_name(spec: Any) -> str:
    return (
        spec
        if isinstance(spec, str)
        else str(spec.get("name", spec))
        if isinstance(spec, dict)
        else "own module"
    )

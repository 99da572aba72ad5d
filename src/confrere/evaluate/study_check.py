"""Check a study before it runs: what each site would do; nothing is trained or written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from confrere.core.errors import PrivacyError
from confrere.core.results import Document, PrivacyMeaning
from confrere.evaluate.compare import variant
from confrere.evaluate.plan import forecast_of
from confrere.node.roster import Roster
from confrere.privacy.charges import rounded_up
from confrere.privacy.forecast import warnings as hardly_worth_it
from confrere.privacy.ledger import Ledger
from confrere.privacy.ledger_storage import charges_in
from confrere.report import words
from confrere.simulation.simulation import Simulation
from confrere.site.assemble import unprotected_patients
from confrere.site.open_sites import Source, computed_sizes, open_sites
from confrere.site.participant import Participant
from confrere.study import NetworkSpec, Study
from confrere.study.masked_settings import sum_sentence


@dataclass(frozen=True)
class SiteCheck(Document):
    """What one site would do."""

    records: int
    private: str
    """The network of its own model."""
    private_parameters: int
    proxy: str
    proxy_parameters: int
    noise_multiplier: float | None
    steps: int | None
    """Private steps in all rounds."""
    guarantee: str | None
    """What all rounds would cost, in words; None without noise, or where no round fits the budget."""
    rounds_left: int | None
    """Rounds that its budget lasts for; None without a budget."""
    ceiling: float
    above_ceiling: bool


@dataclass(frozen=True)
class StudyCheck(Document):
    """What `confrere check` found; `as_json` is what it prints with --json."""

    title: str
    study: str
    strategy: str
    rounds: int
    sites: Mapping[str, SiteCheck]
    privacy: PrivacyMeaning | None
    """What ε would mean at the site where the plan costs most; None without noise."""
    split: Mapping[str, str | int]
    warnings: tuple[str, ...]
    sentence: str


def check(
    study: Study, sites: Mapping[str, Source] | None = None, *, roster: Roster | None = None
) -> StudyCheck:
    """Check a study: what each site would do; nothing is trained or written.

    `sites` are your own records, as in `simulate`. With a `roster`, pairs of sites that could not connect are named.

    >>> found = confrere.check(study, sites)
    >>> found.sites["site0"].proxy, found.sites["site0"].guarantee
    ('linear', 'ε = 8 (δ = 0.0001, per record, PLD)')
    """
    for name in study.variants:
        variant(study, name)
    simulation = Simulation(study, open_sites(study, sites))
    simulation.prepare()
    spent_before = [text for site in simulation.sites.values() if (text := load_ledger(site))]
    found = {name: _site(site) for name, site in simulation.sites.items()}
    unreachable_pairs = unreachable(study, roster) if roster is not None else []
    return StudyCheck(
        study.title or study.name,
        study.hash(),
        study.strategy_name,
        study.rounds,
        found,
        _most_expensive(simulation.sites.values()),
        study.data.split.facts,
        (*_warnings(simulation, found, spent_before), *unreachable_pairs),
        _sentence(study, found),
    )


def _site(site: Participant) -> SiteCheck:
    left = site.rounds_left()
    planned = site.planned() if left != 0 else None
    return SiteCheck(
        site.size,
        _network_name(site.study.models.of(site.name, "private")),
        site.build("private").params.count,
        _network_name(site.study.models.proxy),
        site.build("proxy").params.count,
        site.mechanism.noise_multiplier if site.mechanism else None,
        site.steps * site.study.rounds if site.mechanism else None,
        str(planned) if planned else None,
        left,
        site.ceiling,
        planned is not None and planned.above_ceiling,
    )


def _sentence(study: Study, sites: Mapping[str, SiteCheck]) -> str:
    unable = sum(site.rounds_left == 0 for site in sites.values())
    verdict = (
        f"At {unable} of them the budget does not last for a single round (hash {study.hash()})."
        if unable
        else f"The study is in order (hash {study.hash()})."
    )
    return (
        f"{len(sites)} sites, {study.rounds} rounds of {study.strategy_name} over a"
        f" {type(study.graph()).__name__.lower()} graph; a round waits at most {study.patience:g} s for"
        f" a peer. {verdict}"
    )


def _warnings(simulation: Simulation, sites: Mapping[str, SiteCheck], spent_before: list[str]) -> list[str]:
    study, federation = simulation.study, simulation.federation
    found = [*federation.notes, *simulation.remarks]
    if (sums := sum_sentence(study, len(sites))) is not None:
        found.append(sums)
    if study.privacy is not None and study.sites and (label := computed_sizes(federation)):
        found.append(label)
    found += [text for data in federation.sites.values() if (text := unprotected_patients(study, data))]
    if study.stop is not None:
        found.append(f"training stops before the last round {study.stop.words}, whichever comes first")
    found += spent_before
    unproven = next(iter(simulation.sites.values())).unproven
    if unproven:
        found.append(f"what leaves a site has no proven guarantee: {unproven}")
    found += without_a_round(simulation.sites.values())
    found += above_ceilings({name: site.ceiling for name, site in sites.items() if site.above_ceiling})
    forecast = forecast_of(simulation)
    if forecast is not None:
        budget = next((site.guarantee for site in sites.values() if site.guarantee), "this budget")
        doubts = hardly_worth_it(forecast, budget, uneven=study.training.balanced)
        found += [f"{text} (see `confrere plan`)" for text in doubts]
    return found


def _most_expensive(sites: Iterable[Participant]) -> PrivacyMeaning | None:
    """What the plan means at the site where it costs most; None without noise."""
    able = [site for site in sites if site.rounds_left() != 0]
    planned = {site.name: (g.epsilon, site) for site in able if (g := site.planned()) is not None}
    if not planned:
        return None
    name = max(planned, key=lambda n: planned[n][0])
    site = planned[name][1]
    plan = site.plan()
    if site.budget is not None and site.mechanism is not None:  # nothing is spent beyond it
        fits = site.ledger.remaining(site.budget, site.mechanism.charge(1))
        plan = [site.mechanism.charge(min(fits, charge.count)) for charge in plan]
    before = max(site.ledger.before(site.run), key=site.epsilon)
    return PrivacyMeaning.from_json({"site": name, **site.meaning([*before, *plan])})


def without_a_round(sites: Iterable[Participant]) -> list[str]:
    """That the budget of these sites does not pay for one round, so that they would train no proxy at all."""
    found = []
    for site in sites:
        charge = site.round_charge()
        if charge is not None and site.budget is not None and site.rounds_left() == 0:
            found.append(
                f'the budget of "{site.name}" ({site.budget}) does not last for a single round: one round alone costs ε ='
                f" {rounded_up(site.epsilon([charge]))}. Add noise, make fewer steps, or raise the budget"
            )
    return found


def above_ceilings(ceilings: Mapping[str, float]) -> list[str]:
    """That these sites would let out models with more ε than they take for protection."""
    if not ceilings:
        return []
    by_ceiling: dict[float, list[str]] = {}
    for name, ceiling in ceilings.items():
        by_ceiling.setdefault(ceiling, []).append(name)
    return [
        f"{words.listing(names, 4)}: ε would end above the ceiling of {ceiling:g}: what leaves then is labelled «above the"
        " ceiling» and UNPROVEN, and a node takes no part unless its site.toml has accept_unproven_privacy = true. Add"
        " noise, or make fewer steps"
        for ceiling, names in sorted(by_ceiling.items())
    ]


def load_ledger(site: Participant) -> str:
    """Add the charges in the ledger that a site.toml names, and return what a node could no longer do; "" if nothing."""
    own = site.study.sites.get(site.name)
    if site.mechanism is None or own is None or not Path(own.ledger).is_absolute():
        return ""
    path = Path(own.ledger)
    try:
        before = charges_in(path, but=site.run, population=own.population) if path.is_file() else []
    except (PrivacyError, OSError) as error:
        return f'what site "{site.name}" has spent before is not known: {error}'
    for number, charges in enumerate(charges for charges in before if charges):
        if number:
            more = Ledger(dataset=site.name, accountant=site.ledger.accountant)
            site.ledger.also = (*site.ledger.also, more)
        (site.ledger.also[-1] if number else site.ledger).spend(charges, key="before", budget=None)
    left, rounds = site.rounds_left(), site.study.rounds
    if site.budget is None or left is None or left >= rounds:
        return ""
    spent = rounded_up(site.ledger.epsilon(site.budget.delta, site.budget.unit))
    return (
        f'the ledger of "{site.name}" ({path}) has spent ε = {spent} of'
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


def _network_name(spec: NetworkSpec) -> str:
    if isinstance(spec, dict):
        return str(spec.get("name", spec))
    return spec if isinstance(spec, str) else "own module"

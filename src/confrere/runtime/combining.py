"""Whether a robust combiner can keep its promise here, and what a site's office needs to know of the study's exchange."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from confrere.core.errors import StudyError
from confrere.core.params import Params
from confrere.core.protocols import Topology
from confrere.exchange.packing import Packing
from confrere.exchange.robust import Bound
from confrere.exchange.topology import Complete, Star, heard
from confrere.runtime.participant import Participant
from confrere.study import Study
from confrere.study.exchanged import combiner_of, combines, compression_of


def check_combiner(
    study: Study, members: Sequence[str], round: int = 0, attackers: Sequence[str] = ()
) -> None:
    """Refuse a combiner that could not bear the attackers that it is to bear, among these members in this round."""
    rule = combiner_of(study)
    gossips = combines(study) == "by gossip"
    bound: Bound | None = getattr(rule, "gossip_bound" if gossips else "bound", None)
    if bound is None:
        return
    graph = study.graph()
    count = len(members) if gossips else models_combined(graph, round, members)
    most, asked = bound.most(count), bound.attackers
    attacking = len(set(attackers) & set(members))
    where = f"of {len(members)} sites on the {type(graph).__name__.lower()} graph, {count} models are combined at a time"
    bears = f"among these {bound.rule} bears {most} at most" if most >= 0 else f"too few for {bound.rule}"
    needs = f"it needs {bound.needs - bound.each * asked} models and {bound.each} more for each attacker"
    if most < asked:
        raise StudyError(
            f"{bound.rule} cannot bear {asked} attackers here: {where}, and {bears} ({needs}, one's own included)"
        )
    chooses = "attackers" in (study.combiner if isinstance(study.combiner, dict) else {}) or asked > 0
    if attacking > (asked if chooses else most):
        raise StudyError(
            f"{attacking} sites attack, and {bound.rule} is to bear {asked if chooses else most}: {where}, and {bears};"
            + (f" say combiner.attackers = {attacking}" if attacking <= most else " let fewer attack")
        )


def check_combiners(
    study: Study, there: Sequence[tuple[int, Sequence[str]]], attackers: Sequence[str] = ()
) -> None:
    """The same for every round with other members; a rule that then keeps one's own model needs enough of them only once."""
    keeps = getattr(combiner_of(study), "too_few", "refuse") == "keep"
    for round, members in [max(there, key=lambda found: len(found[1]))] if keeps and there else there:
        check_combiner(study, members, round, attackers)


def models_combined(graph: Topology, round: int, members: Sequence[str]) -> int:
    """How many models, one's own included, are combined at the place where they are fewest."""
    if isinstance(graph, Complete | Star):
        return len(members)
    found = heard(graph, round, members)
    return 1 + min((len(found.get(m, ())) for m in members), default=0)


def exchange_rules(study: Study, site: Participant) -> dict[str, Any]:
    """How a site's office combines and packs, as the study says."""

    def start(architecture: str) -> Params | None:
        for role in ("proxy", "private", *site.further):
            if site.architecture(role).name == architecture:
                return site.build(role).params
        return None

    return {"combiner": combiner_of(study), "packing": Packing(compression_of(study), start)}

"""Limits on what is exchanged: the attackers that a combiner tolerates, and the largest numbers of an honest parcel."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from confrere.core.errors import StudyError
from confrere.core.params import Params
from confrere.core.protocols import Topology
from confrere.core.seeds import derive
from confrere.core.strategy_traits import traits
from confrere.exchange.gossip import STRONGEST
from confrere.exchange.packing import Packing
from confrere.exchange.robust import Bound
from confrere.exchange.screening import LARGEST, Bounds
from confrere.exchange.sums import SUM
from confrere.exchange.topology import senders_by_receiver
from confrere.privacy.mechanism import Mechanism
from confrere.site.masked_sums import MaskedSums
from confrere.site.participant import Participant
from confrere.study import Study
from confrere.study.exchange_settings import combiner_of, combines, compression_of
from confrere.study.masked_settings import masked_of

UNCLIPPED = 100.0
"""The largest coordinate of a gradient that is not clipped: inputs lie about within ±1."""
ROUNDING = 1e-9
"""Sums of honest numbers may exceed their exact bound by this share."""
MARGIN = 10.0
"""How much wider the bounds are than what they are derived from: they stop absurd numbers only."""


def check_combiner(
    study: Study, members: Sequence[str], round: int = 0, attackers: Sequence[str] = ()
) -> None:
    """Refuse a combiner that cannot tolerate the stated number of attackers among these members in this round."""
    combiner = combiner_of(study)
    gossips = combines(study) == "by gossip"
    bound: Bound | None = getattr(combiner, "gossip_bound" if gossips else "bound", None)
    if bound is None:
        return
    graph = study.graph()
    count = len(members) if gossips else models_combined(graph, round, members)
    most, asked = bound.most(count), bound.attackers
    attacking = len(set(attackers) & set(members))
    where = f"of {len(members)} sites on the {type(graph).__name__.lower()} graph, {count} models are combined at a time"
    limit = (
        f"among these {bound.combiner} tolerates {most} at most"
        if most >= 0
        else f"too few for {bound.combiner}"
    )
    needs = f"it needs {bound.needs - bound.each * asked} models and {bound.each} more for each attacker"
    if most < asked:
        raise StudyError(
            f"{bound.combiner} cannot tolerate {asked} attackers here: {where}, and {limit} ({needs}, including the site's own)"
        )
    chooses = "attackers" in (study.combiner if isinstance(study.combiner, dict) else {}) or asked > 0
    if attacking > (asked if chooses else most):
        raise StudyError(
            f"{attacking} sites attack, and {bound.combiner} must tolerate {asked if chooses else most}: {where}, and {limit};"
            + (f" set combiner.attackers = {attacking}" if attacking <= most else " let fewer attack")
        )


def check_combiners(
    study: Study, there: Sequence[tuple[int, Sequence[str]]], attackers: Sequence[str] = ()
) -> None:
    """The same for every round with other members; with `too_few = "keep"` only for the round with the most members."""
    keeps = getattr(combiner_of(study), "too_few", "refuse") == "keep"
    for round, members in [max(there, key=lambda found: len(found[1]))] if keeps and there else there:
        check_combiner(study, members, round, attackers)


def models_combined(graph: Topology, round: int, members: Sequence[str]) -> int:
    """The smallest number of models, including its own, that a site combines."""
    if graph.centre(round, members) is not None:  # which combines the models of all
        return len(members)
    found = senders_by_receiver(graph, round, members)
    return 1 + min((len(found.get(m, ())) for m in members), default=0)


def exchange_options(study: Study, site: Participant) -> dict[str, Any]:
    """The fields of `SitePeers` that follow from the study: combiner, packing and bounds."""

    def start(architecture: str) -> Params | None:
        for role in ("proxy", "private", *site.extra_networks):
            if site.architecture(role).name == architecture:
                return site.build(role).params
        return None

    return {
        "combiner": combiner_of(study),
        "packing": Packing(compression_of(study), start),
        "bounds": bounds_of(study, site),
        "masks": masks_of(study, site),
    }


def masks_of(study: Study, site: Participant) -> MaskedSums | None:
    """How the sites of a simulation add up behind masks; None if the study has no masked sums. A node has its own."""
    settings = masked_of(study)
    if settings is None:
        return None
    return MaskedSums(site.sizes, derive(study.seed, "masks", site.run), plain=settings.simulate == "sums")


def bounds_of(study: Study, site: Participant, sizes: Mapping[str, int] | None = None) -> Bounds:
    """The largest weight, and with the members' public training `sizes` the largest mass, that an honest site can send.

    A weight is at most where it started, and then as far as all steps of all rounds can take it: their lengths (where the
    study does not state them, `step_schedule` has a limit) times the largest gradient. An update is scaled up by at most
    `STRONGEST` where a site holds little mass. Mass is conserved: no site can hold more than all members started with.
    """
    models = [site.build(role) for role in ("private", "proxy", *site.extra_networks)]
    first = max(model.params.largest() for model in models)
    largest = max([site.size, *(sizes or {}).values()])
    gradient = UNCLIPPED if site.mechanism is None else _noisy(site.mechanism)
    weight = MARGIN * STRONGEST * (max(1.0, first) + _path(study, site, largest) * gradient)
    strategy = study.build_strategy()
    stated = traits(strategy)
    if stated.gradient_sums:
        weight += MARGIN * STRONGEST * _summed(site, gradient, sizes)
    numbers: dict[str, tuple[float, float]] = {
        "since": (-1.0, float(study.rounds)),
        **stated.ranges,
    }
    rates: dict[str, tuple[str, float]] = {}
    if stated.gradient_sums:
        fastest = site.fastest_rate() * (1 + ROUNDING)
        rates = {"rate": ("weight", fastest), f"{SUM}rate": (f"{SUM}weight", fastest)}
        if sizes is not None:
            few, all_of_them = min(sizes.values()), sum(sizes.values())
            numbers[f"{SUM}weight"] = (few * (1 - ROUNDING), all_of_them * (1 + ROUNDING))
    if sizes is None:
        return Bounds(weight, numbers=numbers, per_unit=rates)
    equal = getattr(strategy, "mass", "size") == "equal"
    mass = float(len(sizes) if equal else sum(sizes.values())) * (1 + ROUNDING)
    return Bounds(weight, mass, numbers, rates)


def _path(study: Study, site: Participant, largest: int) -> float:
    """What the lengths of all steps add up to at most, at the largest of the sites."""
    optimiser, training = site.build_optimiser(site.mechanism is not None), study.training
    if site.mechanism is not None and not training.states_steps:
        return site.longest_time()
    batch = training.batch_size if study.privacy is None else study.privacy.batch_size
    steps = math.ceil(largest / max(1, batch)) * training.epochs
    if study.privacy is not None and study.privacy.steps:
        steps = study.privacy.steps
    length = optimiser.long_run_rate
    if length is None:  # the moments of Adam never make a step longer than this
        length = 10 * optimiser.learning_rate
    return float(length * steps * study.rounds)


def _summed(site: Participant, gradient: float, sizes: Mapping[str, int] | None) -> float:
    """The largest coordinate of all members' gradients added up, and of an optimiser's moments of their mean."""
    if sizes is None:
        return LARGEST
    lasting = 1 / (1 - getattr(site.build_optimiser(site.mechanism is not None), "momentum", 0.0))
    return max(sum(sizes.values()) * gradient, lasting * gradient, gradient**2)


def _noisy(mechanism: Mechanism) -> float:
    """The largest coordinate of a clipped and noised gradient: a batch of twice the expected size, and 8 deviations."""
    return mechanism.clipping.bound * (2 + 8 * mechanism.noise_multiplier / mechanism.expected_batch)

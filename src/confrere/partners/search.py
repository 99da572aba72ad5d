"""Whom should a site learn from? Every method asked, with how sure it is, and what the choice would bring."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from confrere.core.errors import DataError, StudyError
from confrere.core.registry import nearest
from confrere.core.seeds import derive
from confrere.data.records import Federation, Records
from confrere.data.split.holdout import file_group, whole_file
from confrere.learning.evaluation import knowing_nothing, measure
from confrere.learning.networks.network import Network
from confrere.partners.budget import Selection
from confrere.partners.clusters import Clusters, cluster, cluster_ranking
from confrere.partners.gradient_similarity import Course, course, similarity_ranking
from confrere.partners.histograms import histogram_rankings
from confrere.partners.influence import CrossFitted, cross_fit, influence_rankings, running_ranking
from confrere.partners.interpolation import (
    Way,
    alone,
    fine_tuned,
    interpolated_data,
    interpolated_models,
    together,
)
from confrere.partners.learner import Learner, losses_of, mean_and_error
from confrere.partners.peer_releases import histograms, models, own_records, profiles
from confrere.partners.profiles import profile_ranking
from confrere.partners.ranking import METHODS, By, Ranking
from confrere.partners.transfer import transfer_ranking
from confrere.study import Study

FEW = 20
"""With fewer records of its own, a site can hardly judge others."""


@dataclass(frozen=True)
class Worth:
    """What a way of learning brings the user, on test records that no choice has looked at."""

    name: str
    metrics: Mapping[str, float]
    gain: float
    """How much less the loss is than alone."""
    error: float
    note: str
    simulation_only: bool = True

    def as_json(self) -> dict[str, Any]:
        return {
            "metrics": dict(self.metrics), "loss_less_than_alone": self.gain, "standard_error": self.error,
            "note": self.note, "simulation_only": self.simulation_only,
        }  # fmt: skip


@dataclass(frozen=True)
class Found:
    """All that was found out for one site."""

    study: Study
    site: str
    by: By
    rankings: tuple[Ranking, ...]
    chosen: tuple[str, ...]
    reason: str
    """Why these, or why none, in a sentence."""
    worth: tuple[Worth, ...]
    privacy: Mapping[str, Any] | None
    notes: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        return {
            "study": self.study.hash(),
            "seed": self.study.seed,
            "site": self.site,
            "by": self.by,
            "methods": {r.method: r.as_json() for r in self.rankings},
            "chosen": list(self.chosen),
            "partners": [self.site, *self.chosen] if self.chosen else None,
            "reason": self.reason,
            "test": {w.name: w.as_json() for w in self.worth},
            "privacy": self.privacy,
            "notes": list(self.notes),
        }


def find_partners(
    study: Study,
    federation: Federation,
    site: str,
    *,
    by: By = "influence",
    top: int | None = None,
    z: float = 1.0,
    groups: int = 2,
    listener: Callable[[str], None] = lambda text: None,
) -> Found:
    """Rank all other sites as partners of `site` by every method, and choose by one of them.

    A peer is chosen where its worth exceeds `z` standard errors; with `top`, the best `top` are, whatever they are
    worth. `listener` receives a line about each step.
    """
    names = sorted(federation.sites)
    check(names, site, by, top, z, groups)
    selection = Selection(study, federation, site)
    evidence = _gathered(selection, groups, listener)
    listener("Their models on the records of the user")
    rankings = _rankings(evidence, selection, z)
    if top is not None:
        rankings = tuple(r.top(top) for r in rankings)
    chosen, reason = choose(rankings, by, site, z, top)
    listener("What the choice would bring")
    test, beside = federation.sites[site].test, evidence.clusters.beside(site)
    seed = derive(study.seed, "partners", site)
    ways = worth_of(evidence.learner, evidence.own, test, evidence.peers, chosen, beside, seed)
    notes = _notes(study, evidence.course.hidden, names, by, rankings)
    return Found(study, site, by, rankings, chosen, reason, ways, _spent(selection), notes)


@dataclass(frozen=True)
class Evidence:
    """What the methods look at: the records of all sites, and what came of asking the peers."""

    learner: Learner
    own: Records
    peers: Mapping[str, Records]
    course: Course
    clusters: Clusters
    fitted: CrossFitted


def _gathered(selection: Selection, groups: int, listener: Callable[[str], None]) -> Evidence:
    study, site, federation = selection.study, selection.user, selection.federation
    peers = {n: own_records(s) for n, s in sorted(federation.sites.items())}
    own = peers.pop(site)
    if len(own) < FEW:
        raise DataError(
            f'site "{site}" has {len(own)} records besides its test records; at least {FEW} are needed to judge'
            " possible partners"
        )
    learner = learner_of(study, selection)
    listener(f"Gradients of {len(peers)} peers, over {study.rounds} rounds")
    ran = course(selection)
    listener("Their records, one by one and all but one")
    fitted = cross_fit(learner, own, peers, derive(study.seed, "partners", site))
    listener(f"{groups} groups of like sites")
    return Evidence(learner, own, peers, ran, cluster(learner, {site: own, **peers}, site, groups), fitted)


def _rankings(found: Evidence, selection: Selection, z: float) -> tuple[Ranking, ...]:
    """All peers by every method."""
    site, released, ran = selection.user, selection.released, found.course
    theirs, home = models(selection, found.learner)
    on_user = {n: found.learner.losses(p, found.own) for n, p in theirs.items()}
    blind = knowing_nothing(found.own.targets, found.own.targets)
    mine, others = profiles(selection)
    bins, of_others = histograms(selection)
    features, seed = selection.federation.task.features, derive(selection.study.seed, "partners", site)
    return (
        *influence_rankings(found.fitted, site, z=z),
        running_ranking(ran.slopes, site, z=z, released=released),
        similarity_ranking(ran.weights, ran.distances, ran.falls, site, z=z, released=released),
        transfer_ranking(on_user, home, blind, site, z=z, released=released),
        cluster_ranking(found.learner, found.clusters, {site: found.own, **found.peers}, site, z=z),
        profile_ranking(mine, others, site, z=z, released=released),
        *histogram_rankings(bins, of_others, site, features, seed, z=z, released=released),
    )


def check(names: Sequence[str], site: str, by: str, top: int | None, z: float, groups: int) -> None:
    """What cannot be asked."""
    if site not in names:
        raise StudyError(
            f'"{site}" is no site of this study{nearest(site, list(names))}; its sites: {", ".join(names)}'
        )
    if len(names) < 2:
        raise StudyError(f'"{site}" is the only site of this study: it has no possible partner')
    if by not in METHODS:
        raise StudyError(
            f'there is no method "{by}"{nearest(by, list(METHODS))}; there are {", ".join(METHODS)}'
        )
    if top is not None and not 1 <= top < len(names):
        raise StudyError(f"--top is {top}; {site} has {len(names) - 1} possible partners")
    if not 0 <= z < 100:
        raise StudyError(f"--z is {z:g}; it is a number of standard errors, such as 1 or 2")
    if groups < 1:
        raise StudyError(f"--groups is {groups}; there is at least one")


def choose(
    rankings: Sequence[Ranking], by: By, site: str, z: float, top: int | None = None
) -> tuple[tuple[str, ...], str]:
    """Who is chosen by a method, best first, and why.

    By influence: each peer that clearly helps when it is added, or is clearly missed when it is left out, and clearly harms by
    neither. Partners that can stand in for one another are not missed, so leaving one out is not enough.
    """
    known = {r.method: r for r in rankings}
    if by != "influence":
        ranking = known[by]
        chosen = tuple(ranking.chosen)
        if top is not None:
            return chosen, f"The first {top} by {ranking.title.lower()}, whatever they are worth."
        if chosen:
            return chosen, f"Chosen by {ranking.title.lower()}: {ranking.measures}."
        return (
            (),
            f"No partner is chosen by {ranking.title.lower()}: {ranking.standings[0].sentence}",
        )
    added = {s.peer: s for s in known["add-one-in"].standings}
    left = {s.peer: s for s in known["leave-one-out"].standings}
    order = [s.peer for s in known["add-one-in"].standings]
    if top is not None:
        return tuple(order[:top]), f"The first {top} by influence, whatever they are worth."
    harms = [
        p for p in order if min(added[p].value + z * added[p].error, left[p].value + z * left[p].error) < 0
    ]
    chosen = tuple(p for p in order if (added[p].chosen or left[p].chosen) and p not in harms)
    if chosen:
        return chosen, (
            f"Chosen by influence: predictions for held-out patients of {site} get better with them, by more than"
            f" {z:g} standard error{'s' if z != 1 else ''}."
        )
    best = known["add-one-in"].standings[0]
    return (), (
        f"No partner is worth learning from: even the best, {best.peer}, changes the held-out loss of {site} by only"
        f" {best.value:+.4f} ± {best.error:.4f}. Train alone, or ask again with more records."
    )


def learner_of(study: Study, selection: Selection) -> Learner:
    """The study's proxy, as all sites would start it."""
    site = selection.sites(0.0 if not selection.released else 1.0, {"name": "local"}).sites[selection.user]
    start = site.build("proxy")
    network = Network(site.architecture("proxy"))
    return Learner(network, start.params, seed=derive(study.seed, "partners"))


def worth_of(
    learner: Learner,
    own: Records,
    test: Records,
    peers: Mapping[str, Records],
    chosen: Sequence[str],
    like: Sequence[str],
    seed: int,
) -> tuple[Worth, ...]:
    """Accuracy and loss of every way of learning on the user's own test records, beside alone."""
    if not len(test):
        return ()
    everybody = list(peers.values())
    ways: list[Way] = [alone(learner, own, seed)]
    if chosen:
        ways.append(together(learner, own, [peers[p] for p in chosen], seed, "with the chosen partners"))
    ways.append(together(learner, own, everybody, seed, "with everybody"))
    ways.append(together(learner, own, [peers[p] for p in like], seed, "with its group"))
    ways.append(fine_tuned(learner, own, everybody, seed))
    ways.append(interpolated_models(learner, own, everybody, seed))
    ways.append(interpolated_data(learner, own, everybody, seed))
    said = {w.name: w.says(test) for w in ways}
    reference: NDArray[np.float64] = losses_of(said[ways[0].name], test)
    out = []
    for way in ways:
        gain, error = mean_and_error(reference - losses_of(said[way.name], test))
        out.append(
            Worth(way.name, measure(said[way.name], test.targets), gain, error, way.note, way is not ways[0])
        )
    return tuple(out)


def _spent(selection: Selection) -> dict[str, Any] | None:
    """What the selection cost, the dearest site first."""
    if selection.privacy is None:
        return None
    whole = selection.privacy.for_selection()
    return {
        "share": selection.privacy.selection_share,
        "epsilon": whole.epsilon,
        "delta": whole.delta,
        "unit": whole.unit,
        "accountant": whole.accountant,
        "spent": {n: g.epsilon for n, g in sorted(selection.guarantees().items())},
        "proven": all(g.proven for g in selection.guarantees().values()),
        "above_ceiling": any(g.above_ceiling for g in selection.guarantees().values()),
    }


def _notes(
    study: Study, hidden: Sequence[int], names: Sequence[str], by: By, rankings: Sequence[Ranking]
) -> tuple[str, ...]:
    notes = [whole_file(study.data.split.method)] if file_group(study.data.split.method) > 1 else []
    if study.privacy is None or study.privacy.selection_share == 0:
        notes.append(
            "Nothing here was protected: all of it is for rehearsals (simulation only). With privacy.selection_share"
            " in the study, peers send models and gradients with noise, and that share of ε pays for it."
        )
    elif by not in (field := [r.method for r in rankings if not r.simulation_only]):
        notes.append(
            f"The choice is by {by}, which is simulation only. In the field it would be by one of: {', '.join(field)}."
        )
    if hidden:
        notes.append(
            f"In {len(hidden)} of {study.rounds} rounds noise hid the user's own gradient: similarity says little."
        )
    if len(names) - 1 < 3:
        notes.append(
            f"With {len(names) - 1} possible partner{'s' if len(names) > 2 else ''}, a real Weight Erosion refuses to"
            " run (k_min = 3)."
        )
    return tuple(notes)

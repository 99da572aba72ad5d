"""Whom should a site learn from? Rank its peers by every method, choose some, and measure what the choice brings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from confrere.core.errors import DataError, StudyError
from confrere.core.registry import nearest
from confrere.core.results import Document
from confrere.core.seeds import derive
from confrere.data.records import Federation
from confrere.data.split.holdout import file_group, whole_file
from confrere.learning.evaluation import knowing_nothing
from confrere.learning.networks.network import Network
from confrere.partners import METHODS, Method
from confrere.partners.approaches import ApproachResult, PartnerRecords, compare_approaches
from confrere.partners.budget import Selection
from confrere.partners.clusters import Clusters, cluster, cluster_ranking
from confrere.partners.gradient_similarity import GradientHistory, gradient_history, similarity_ranking
from confrere.partners.histograms import histogram_rankings
from confrere.partners.influence import CrossFitted, cross_fit, influence_rankings, running_ranking
from confrere.partners.learner import Learner
from confrere.partners.peer_releases import histograms, models, own_records, profiles
from confrere.partners.profiles import profile_ranking
from confrere.partners.ranking import Criteria, Ranking
from confrere.partners.transfer import transfer_ranking
from confrere.site.open_sites import Source, open_sites
from confrere.study import Study

FEW = 20
"""A site with fewer records cannot judge possible partners."""


@dataclass(frozen=True)
class SelectionCost(Document):
    """The privacy that choosing partners cost."""

    share: float
    """The share of the study's budget that was set aside for it."""
    epsilon: float
    delta: float
    unit: str
    accountant: str
    spent: Mapping[str, float]
    """ε by site."""
    proven: bool
    above_ceiling: bool


@dataclass(frozen=True)
class PartnerSearch:
    """The possible partners of one site, ranked by every method, and the choice."""

    study: Study
    site: str
    by: Method
    rankings: tuple[Ranking, ...]
    chosen: tuple[str, ...]
    reason: str
    """Why these were chosen, or why none, in a sentence."""
    approaches: tuple[ApproachResult, ...]
    """What each way of learning would bring the site, on its test records."""
    privacy: SelectionCost | None
    """None if peers added no noise."""
    notes: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """What `confrere partners --json` prints."""
        return {
            "study": self.study.hash(),
            "seed": self.study.seed,
            "site": self.site,
            "by": self.by,
            "methods": {r.method: r.as_json() for r in self.rankings},
            "chosen": list(self.chosen),
            "partners": [self.site, *self.chosen] if self.chosen else None,
            "reason": self.reason,
            "test": {w.name: w.as_json() for w in self.approaches},
            "privacy": self.privacy.as_json() if self.privacy else None,
            "notes": list(self.notes),
        }


@dataclass(frozen=True)
class SelectionRule:
    """How partners are chosen from the rankings."""

    by: Method = "influence"
    top: int | None = None
    z: float = 1.0

    def __post_init__(self) -> None:
        if self.by not in METHODS:
            raise StudyError(f'--by "{self.by}"{nearest(self.by, METHODS)}: there are {", ".join(METHODS)}')
        if not 0 <= self.z < 100:
            raise StudyError(f"--z is {self.z:g}; it is a number of standard errors, such as 1 or 2")


def find_partners(
    study: Study,
    site: str,
    sites: Mapping[str, Source] | Federation | None = None,
    *,
    by: str = "influence",
    top: int | None = None,
    z: float = 1.0,
    groups: int = 2,
    listener: Callable[[str], None] = lambda text: None,
) -> PartnerSearch:
    """Rank the other sites as partners of `site` by every method, and choose by one of them.

    `sites` are your own records, as in `simulate`. A peer is chosen if its value exceeds `z` standard errors; with `top`,
    the first `top` peers are chosen. `groups` is the number of clusters; `listener` receives a line about each step.

    >>> found = confrere.find_partners(study, "site0", sites)
    >>> found.site, set(found.chosen) <= {"site1", "site2"}
    ('site0', True)
    """
    rule = SelectionRule(by, top, z)  # type: ignore[arg-type]  # checked there
    study = study.with_(partners=None)
    federation = open_sites(study, sites)
    _check(sorted(federation.sites), site, top, groups)
    selection = Selection(study, federation, site)
    evidence = _gather(selection, groups, listener)
    listener("Their models on the records of the user")
    rankings = _rankings(evidence, selection, z)
    if top is not None:
        rankings = tuple(r.top(top) for r in rankings)
    chosen, reason = choose(rankings, rule, site)
    listener("What the choice would bring")
    approaches = compare_approaches(
        evidence.learner, evidence.records, chosen, evidence.clusters.others_in_cluster(site),
        derive(study.seed, "partners", site),
    )  # fmt: skip
    notes = _notes(selection, evidence.gradients.hidden, rule.by, rankings)
    return PartnerSearch(study, site, rule.by, rankings, chosen, reason, approaches, _cost(selection), notes)


def _check(names: Sequence[str], site: str, top: int | None, groups: int) -> None:
    """Refuse a question that these sites cannot answer."""
    if site not in names:
        raise StudyError(
            f'"{site}" is not a site of this study{nearest(site, list(names))}; its sites: {", ".join(names)}'
        )
    if len(names) < 2:
        raise StudyError(f'"{site}" is the only site of this study: it has no possible partner')
    if top is not None and not 1 <= top < len(names):
        raise StudyError(f"--top is {top}; {site} has {len(names) - 1} possible partners")
    if groups < 1:
        raise StudyError(f"--groups is {groups}; it must be at least 1")


@dataclass(frozen=True)
class Evidence:
    """What the methods work on: the records of all sites, the gradients of the peers, and models of the records."""

    learner: Learner
    records: PartnerRecords
    gradients: GradientHistory
    clusters: Clusters
    fitted: CrossFitted


def _gather(selection: Selection, groups: int, listener: Callable[[str], None]) -> Evidence:
    study, site, federation = selection.study, selection.user, selection.federation
    peers = {n: own_records(s) for n, s in sorted(federation.sites.items())}
    own = peers.pop(site)
    if len(own) < FEW:
        raise DataError(
            f'site "{site}" has {len(own)} records besides its test records; at least {FEW} are needed to judge'
            " possible partners"
        )
    learner = _learner(selection)
    listener(f"Gradients of {len(peers)} peers, over {study.rounds} rounds")
    gradients = gradient_history(selection)
    listener("Their records, one peer at a time and all but one")
    fitted = cross_fit(learner, own, peers, derive(study.seed, "partners", site))
    listener(f"{groups} groups of similar sites")
    clusters = cluster(learner, {site: own, **peers}, site, groups)
    records = PartnerRecords(own, federation.sites[site].test, peers)
    return Evidence(learner, records, gradients, clusters, fitted)


def _learner(selection: Selection) -> Learner:
    """The study's proxy with its initial weights."""
    share = 1.0 if selection.released else 0.0
    site = selection.prepare(share, {"name": "local"}).sites[selection.user]
    network = Network(site.architecture("proxy"))
    return Learner(network, site.build("proxy").params, seed=derive(selection.study.seed, "partners"))


def _rankings(found: Evidence, selection: Selection, z: float) -> tuple[Ranking, ...]:
    """All peers by every method."""
    criteria, records = Criteria(selection.user, z, selection.released), found.records
    peer_models, home = models(selection, found.learner)
    on_user = {n: found.learner.losses(p, records.own) for n, p in peer_models.items()}
    frequencies = knowing_nothing(records.own.targets, records.own.targets)
    columns, seed = (
        selection.federation.task.features,
        derive(selection.study.seed, "partners", selection.user),
    )
    gains = {n: peer.gains for n, peer in found.gradients.peers.items() if peer.weights}
    return (
        *influence_rankings(found.fitted, criteria),
        running_ranking(gains, criteria),
        similarity_ranking(found.gradients.peers, criteria),
        transfer_ranking(on_user, home, frequencies, criteria),
        cluster_ranking(
            found.learner, found.clusters, {criteria.user: records.own, **records.peers}, criteria
        ),
        profile_ranking(*profiles(selection), criteria),
        *histogram_rankings(*histograms(selection), columns, seed, criteria),
    )


def choose(rankings: Sequence[Ranking], rule: SelectionRule, site: str) -> tuple[tuple[str, ...], str]:
    """The chosen peers, best first, and the reason."""
    known = {r.method: r for r in rankings}
    if rule.by == "influence":
        return _choose_by_influence(known["add-one-in"], known["leave-one-out"], rule, site)
    ranking = known[rule.by]
    title, chosen = ranking.title.lower(), tuple(ranking.chosen)
    if rule.top is not None:
        return chosen, f"The first {rule.top} by {title}, whatever their value."
    if chosen:
        return chosen, f"Chosen by {title}: {ranking.measures}."
    best = ranking.scores[0].sentence if ranking.scores else "nothing was measured."
    return (), f"No partner is chosen by {title}: {best}"


def _choose_by_influence(
    added: Ranking, left_out: Ranking, rule: SelectionRule, site: str
) -> tuple[tuple[str, ...], str]:
    """Choose each peer that clearly helps when added, or clearly harms when left out, and does no clear harm in either way.

    Leaving one out is not enough: partners that can replace one another are not missed.
    """
    order = [s.peer for s in added.scores]
    if rule.top is not None:
        return tuple(order[: rule.top]), f"The first {rule.top} by influence, whatever their value."
    harms = {s.peer for r in (added, left_out) for s in r.scores if s.value + rule.z * s.error < 0}
    helps = {*added.chosen, *left_out.chosen}
    chosen = tuple(p for p in order if p in helps and p not in harms)
    if chosen:
        return chosen, (
            f"Chosen by influence: predictions for held-out patients of {site} get better with them, by more than"
            f" {rule.z:g} standard error{'s' if rule.z != 1 else ''}."
        )
    best = added.scores[0]
    return (), (
        f"No partner is worth learning from: even the best, {best.peer}, changes the held-out loss of {site} by only"
        f" {best.value:+.4f} ± {best.error:.4f}. Train alone, or ask again with more records."
    )


def _cost(selection: Selection) -> SelectionCost | None:
    if selection.privacy is None:
        return None
    whole, spent = selection.privacy.for_selection(), selection.guarantees()
    assert whole.epsilon is not None  # a share is one of ε
    return SelectionCost(
        selection.privacy.selection_share,
        whole.epsilon,
        whole.delta,
        whole.unit,
        whole.accountant,
        {n: g.epsilon for n, g in sorted(spent.items())},
        all(g.proven for g in spent.values()),
        any(g.above_ceiling for g in spent.values()),
    )


def _notes(
    selection: Selection, hidden: Sequence[int], by: Method, rankings: Sequence[Ranking]
) -> tuple[str, ...]:
    study, peers = selection.study, len(selection.peers)
    notes = [whole_file(study.data.split.method)] if file_group(study.data.split.method) > 1 else []
    in_the_field = [r.method for r in rankings if not r.simulation_only]
    if not selection.released:
        notes.append(
            "Nothing here was protected: the result is for rehearsals (simulation only). With privacy.selection_share"
            " in the study, peers send models and gradients with noise, and that share of ε pays for it."
        )
    elif by not in in_the_field:
        notes.append(
            f"The choice is by {by}, which is simulation only. In the field, choose by one of:"
            f" {', '.join(in_the_field)}."
        )
    if hidden:
        notes.append(
            f"In {len(hidden)} of {study.rounds} rounds noise hid the user's own gradient: similarity says little."
        )
    if peers < 3:
        notes.append(
            f"With {peers} possible partner{'s' if peers > 1 else ''}, a real Weight Erosion refuses to run (k_min = 3)."
        )
    return tuple(notes)

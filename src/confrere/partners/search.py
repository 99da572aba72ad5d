"""Search for partners: rank a site's peers by every method, choose some, and measure what the choice gains."""

from __future__ import annotations

import warnings
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
from confrere.partners import Method
from confrere.partners.approaches import ApproachResult, ChoiceOutcome, PartnerRecords, compare_approaches
from confrere.partners.choice import Choice, SelectionRule, choose
from confrere.partners.clusters import Clusters, cluster, cluster_ranking
from confrere.partners.gradient_similarity import GradientHistory, gradient_history, similarity_ranking
from confrere.partners.histograms import histogram_rankings
from confrere.partners.influence import CrossFitted, cross_fit, influence_rankings, running_ranking
from confrere.partners.learner import Learner
from confrere.partners.peer_releases import histograms, models, profiles
from confrere.partners.profiles import profile_ranking
from confrere.partners.ranking import Criteria, Finding, Ranking
from confrere.partners.recommendation import recommendation
from confrere.partners.selection_budget import Selection
from confrere.partners.transfer import transfer_ranking
from confrere.site.open_sites import Source, open_sites
from confrere.study import Study
from confrere.study.masked_settings import masked_of

RETIRED = "z is retired and has no effect: a peer is chosen where an interval says that it helps"
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
    choice: Choice
    outcome: ChoiceOutcome
    """What each way of learning would bring the site, on its test records."""
    privacy: SelectionCost | None
    """None if peers added no noise."""
    notes: tuple[str, ...]

    @property
    def chosen(self) -> tuple[str, ...]:
        return self.choice.chosen

    @property
    def reason(self) -> str:
        """Why these were chosen, or why none, in a sentence."""
        return self.choice.reason

    @property
    def approaches(self) -> tuple[ApproachResult, ...]:
        return self.outcome.approaches

    @property
    def answer(self) -> str:
        """Whom to learn from, and what that brings on how many patients, in one sentence."""
        return recommendation(self.site, self.chosen, self.outcome)

    @property
    def matrix(self) -> dict[str, dict[Method, Finding]]:
        """What each method finds about each peer: chosen peers first, then by name."""
        findings = {r.method: r.findings for r in self.rankings}
        peers = sorted({p for found in findings.values() for p in found} - set(self.chosen))
        return {p: {m: f.get(p, "noise") for m, f in findings.items()} for p in (*self.chosen, *peers)}

    def as_json(self) -> dict[str, Any]:
        """What `confrere partners --json` prints."""
        outcome = self.outcome
        return {
            "study": self.study.hash(),
            "seed": self.study.seed,
            "site": self.site,
            "by": self.by,
            "answer": self.answer,
            "matrix": self.matrix,
            "methods": {r.method: r.as_json() for r in self.rankings},
            "chosen": list(self.chosen),
            "partners": [self.site, *self.chosen] if self.chosen else None,
            "reason": self.reason,
            "refused": list(self.choice.refused),
            "unconfirmed": list(self.choice.unconfirmed),
            "primary": outcome.metric,
            "tested": outcome.tested.as_json() if outcome.tested else None,
            "test": {w.name: w.as_json() for w in self.approaches},
            "gain_over_all_sites": outcome.over_all_sites.as_json() if outcome.over_all_sites else None,
            "privacy": self.privacy.as_json() if self.privacy else None,
            "notes": list(self.notes),
        }


def find_partners(
    study: Study,
    site: str,
    sites: Mapping[str, Source] | Federation | None = None,
    *,
    by: str = "influence",
    top: int | None = None,
    z: float | None = None,
    groups: int = 2,
    listener: Callable[[str], None] = lambda text: None,
) -> PartnerSearch:
    """Rank the other sites as partners of `site` by every method, and choose by one of them.

    `sites` are your own records, as in `simulate`. A peer is chosen if the interval of its value says that it helps, and
    no trial finds it harmful (`partners.choice`); with `top`, the first `top` peers are chosen. `groups` is the number of
    clusters; `listener` receives a line about each step. `z` is retired and has no effect.

    >>> found = confrere.find_partners(study, "site0", sites)
    >>> found.site, set(found.chosen) <= {"site1", "site2"}
    ('site0', True)
    """
    if z is not None:
        warnings.warn(RETIRED, DeprecationWarning, stacklevel=2)
    rule = SelectionRule(by, top)  # type: ignore[arg-type]  # checked there
    study = study.with_(partners=None)
    federation = open_sites(study, sites)
    _check(sorted(federation.sites), site, top, groups)
    selection = Selection(study, federation, site)
    evidence = _gather(selection, groups, listener)
    listener("Their models on the records of the user")
    rankings = _rankings(evidence, selection)
    if top is not None:
        rankings = tuple(r.top(top) for r in rankings)
    choice = choose(rankings, rule, site, evidence.fitted.patients.count)
    listener("What the choice would bring")
    outcome = compare_approaches(
        evidence.learner, evidence.records, choice.chosen, evidence.clusters.others_in_cluster(site),
        primary=study.evaluation.primary, seed=derive(study.seed, "partners", site),
    )  # fmt: skip
    notes = _notes(selection, evidence.gradients.hidden, rule.by, rankings)
    return PartnerSearch(study, site, rule.by, rankings, choice, outcome, _cost(selection), notes)


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
    peers = {n: s.without_test for n, s in sorted(federation.sites.items())}
    own = peers.pop(site)
    if len(own) < FEW:
        raise DataError(
            f'site "{site}" has {len(own)} records besides its test records; at least {FEW} are needed to judge'
            " possible partners"
        )
    learner = learner_for(selection)
    listener(f"Gradients of {len(peers)} peers, over {study.rounds} rounds")
    gradients = gradient_history(selection)
    listener("Their records, one peer at a time and all but one")
    fitted = cross_fit(learner, own, peers, derive(study.seed, "partners", site))
    listener(f"{groups} groups of similar sites")
    clusters = cluster(learner, {site: own, **peers}, site, groups)
    records = PartnerRecords(own, federation.sites[site].test, peers, federation.task)
    return Evidence(learner, records, gradients, clusters, fitted)


def learner_for(selection: Selection) -> Learner:
    """The study's proxy with its initial weights."""
    share = 1.0 if selection.released else 0.0
    site = selection.prepare(share, {"name": "local"}).sites[selection.user]
    network = Network(site.architecture("proxy"))
    return Learner(network, site.build("proxy").params, seed=derive(selection.study.seed, "partners"))


def _rankings(found: Evidence, selection: Selection) -> tuple[Ranking, ...]:
    """All peers by every method."""
    criteria, records = Criteria(selection.user, selection.released), found.records
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
        transfer_ranking(on_user, home, frequencies, found.fitted.patients, criteria),
        running_ranking(gains, found.gradients.patients, criteria),
        similarity_ranking(found.gradients.peers, criteria),
        cluster_ranking(
            found.learner, found.clusters, {criteria.user: records.own, **records.peers}, criteria
        ),
        profile_ranking(*profiles(selection), criteria),
        *histogram_rankings(*histograms(selection), columns, seed, criteria),
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
    if masked_of(study) is not None:
        notes.append(
            "The study has masked sums, where no site receives the model of a single peer: in the field, a choice by received"
            " models, listening weights and a trial of peers are not available. The ranking here is of a rehearsal."
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

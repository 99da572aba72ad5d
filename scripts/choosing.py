"""Measure choosing partners and adapting a common model by the criteria of scripts/criteria.

Every site is the user once, in five settings: unchanged; with one peer unavailable; with one peer's labels flipped; with noise on
what peers send (a share of ε); and with the user's own labels flipped. A choice is worth the AUC of a model of the user's and the
chosen partners' records, on the user's test records.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import torch

from confrere.core.seeds import derive, generator
from confrere.data.records import Federation, Records
from confrere.learning.evaluation import knowing_nothing, measure
from confrere.partners.approaches import (
    Approach,
    alone,
    fine_tuned,
    interpolated_data,
    interpolated_models,
    together,
)
from confrere.partners.choice import SelectionRule
from confrere.partners.choice import choose as chosen_by
from confrere.partners.clusters import cluster, cluster_ranking
from confrere.partners.gradient_similarity import gradient_history, similarity_ranking
from confrere.partners.histograms import histogram_rankings
from confrere.partners.influence import cross_fit, influence_rankings, running_ranking
from confrere.partners.learner import Learner, patients_in
from confrere.partners.peer_releases import histograms, models, profiles
from confrere.partners.profiles import profile_ranking
from confrere.partners.ranking import Criteria, Ranking
from confrere.partners.search import learner_for
from confrere.partners.selection_budget import Selection
from confrere.partners.transfer import transfer_ranking
from confrere.site.attackers import flipped
from confrere.site.open_sites import open_sites
from confrere.study import Privacy, Study

PRIVACY = Privacy(epsilon=3.0, delta=1e-4, selection_share=0.3)
ASKED = {"running", "similarity", "transfer", "profiles", "jensen-shannon", "renyi"}
"""The methods that are possible on nodes, with noise."""
ORDER = (
    "influence",
    "leave-one-out",
    "add-one-in",
    "running",
    "similarity",
    "transfer",
    "clusters",
    "profiles",
    "jensen-shannon",
    "renyi",
)
ADAPTED = ("with all sites", "with its group", "fine-tuned", "models interpolated", "records interpolated")
HEAD = (
    "| choosing or adapting | user focus: AUC over alone, mean of sites / worst site |"
    " resilience: change of AUC if one of three peers cannot be asked | incentives: chosen rarer with flipped labels;"
    " adapted: change of AUC by flipping one's own | feedback: flipped peer told from an honest one |"
    " privacy: change of AUC if the choice is made under ε = 0.9 | Byzantine: change of AUC with one flipped peer of three |"
    " complexity: KB a peer sends, CPU ms |"
)
T = TypeVar("T")


def timed(run: Callable[[], T]) -> tuple[T, float]:
    started = time.process_time()
    return run(), time.process_time() - started


def ask(study: Study, federation: Federation, site: str) -> tuple[list[tuple[Ranking, float]], list[str]]:
    """All rankings of a site's possible partners with their CPU seconds, and the other sites of its group.

    If the study protects what peers send, only the rankings that are then possible.
    """
    selection = Selection(study, federation, site)
    learner, seed = learner_for(selection), derive(study.seed, "partners", site)
    criteria = Criteria(site, selection.released)
    records = {n: d.without_test for n, d in federation.sites.items()}
    own = records.pop(site)
    out: list[tuple[Ranking, float]] = []

    def note(found: tuple[Sequence[Ranking], float]) -> None:
        out.extend((r, found[1]) for r in found[0])

    history, spent = timed(lambda: gradient_history(selection))
    gains = {n: peer.gains for n, peer in history.peers.items() if peer.weights}
    note(([running_ranking(gains, history.patients, criteria)], spent))
    note(([similarity_ranking(history.peers, criteria)], spent))

    def transferred() -> list[Ranking]:
        theirs, home = models(selection, learner)
        losses = {n: learner.losses(p, own) for n, p in theirs.items()}
        frequencies = knowing_nothing(own.targets, own.targets)
        return [transfer_ranking(losses, home, frequencies, patients_in(own), criteria)]

    def counted() -> Sequence[Ranking]:
        return histogram_rankings(*histograms(selection), federation.task.features, seed, criteria)

    note(timed(transferred))
    note(timed(lambda: [profile_ranking(*profiles(selection), criteria)]))
    note(timed(counted))
    if selection.released:
        return out, []
    note(timed(lambda: influence_rankings(cross_fit(learner, own, records, seed), criteria)))
    all_sites = {site: own, **records}
    found, spent = timed(lambda: cluster(learner, all_sites, site, 2))
    note(([cluster_ranking(learner, found, all_sites, criteria)], spent))
    by = {r.method: r for r, _ in out}
    chosen = chosen_by(list(by.values()), SelectionRule(), site).chosen
    both = [replace(s, chosen=s.peer in chosen) for s in by["add-one-in"].scores]
    spent = next(s for r, s in out if r.method == "add-one-in")
    out.append((replace(by["add-one-in"], method="influence", scores=tuple(both)), spent))
    return out, found.others_in_cluster(site)


class Judge:
    """AUC of ways of learning on one user's test records; the same set of partners is trained with once."""

    def __init__(
        self, learner: Learner, own: Records, test: Records, peers: Mapping[str, Records], seed: int
    ) -> None:
        self.learner, self.own, self.test, self.peers, self.seed = learner, own, test, peers, seed
        self.known: dict[tuple[str, ...], tuple[float, float]] = {}

    def auc(self, way: Approach) -> float:
        return measure(way.predict(self.test), self.test.targets).get("auc", math.nan)

    def partners(self, chosen: Sequence[str]) -> tuple[float, float]:
        """AUC and CPU seconds of a model of the user's and these peers' records."""
        key = tuple(sorted(chosen))
        if key not in self.known:
            there = [self.peers[p] for p in key]
            at = (self.learner, self.own)
            self.known[key] = timed(
                lambda: self.auc(
                    together(*at, there, self.seed, "chosen") if there else alone(*at, self.seed)
                )
            )
        return self.known[key]

    def adapted(self, group: Sequence[str]) -> dict[str, tuple[float, float]]:
        """Each way's AUC and CPU seconds."""
        peers = list(self.peers.values())
        at = (self.learner, self.own, peers, self.seed)
        return {
            "with all sites": self.partners(list(self.peers)),
            "with its group": self.partners(group),
            "fine-tuned": timed(lambda: self.auc(fine_tuned(*at))),
            "models interpolated": timed(lambda: self.auc(interpolated_models(*at))),
            "records interpolated": timed(lambda: self.auc(interpolated_data(*at))),
        }


def choose(study: Study) -> dict[str, Any]:
    """The results of one seed, by method and user."""
    federation = open_sites(study)
    out: dict[str, Any] = {}
    for user in sorted(federation.sites):
        peers = [n for n in sorted(federation.sites) if n != user]
        draw = generator(study.seed, user, "criteria")
        gone, bad = (peers[int(torch.randint(len(peers), (1,), generator=draw))] for _ in range(2))
        settings = {
            "plain": (study, federation),
            "absent": (study, _without(federation, gone)),
            "flipped": (study, with_flipped_labels(federation, bad)),
            "private": (study.with_(privacy=PRIVACY), federation),
            "self": (study, with_flipped_labels(federation, user)),
        }
        for setting, (asked, sites) in settings.items():
            _note(out, setting, user, bad, asked, sites)
    return out


def _note(out: dict[str, Any], setting: str, user: str, bad: str, study: Study, sites: Federation) -> None:
    rankings, group = ask(study, sites, user)
    records = {n: d.without_test for n, d in sites.sites.items()}
    own, test = records.pop(user), sites.sites[user].test
    learner = learner_for(Selection(study, sites, user))
    judge = Judge(learner, own, test, records, derive(study.seed, "partners", user))
    for ranking, spent in rankings:
        entry = out.setdefault(ranking.method, {}).setdefault(user, {})
        if setting == "self":
            continue
        entry[setting] = judge.partners(ranking.chosen)[0]
        if setting == "plain":
            entry |= {
                "alone": judge.partners([])[0],
                "seconds": spent,
                "kilobytes": _sent(ranking.method, study, learner, records),
            }
            entry |= {"chosen": len(ranking.chosen), "honest": bad in ranking.chosen}
        if setting == "flipped":
            places = {s.peer: n for n, s in enumerate(ranking.scores)}
            others = [p for p in places if p != bad]
            entry |= {
                "caught": statistics.fmean(places[p] < places[bad] for p in others),
                "dishonest": bad in ranking.chosen,
            }
    if setting == "private":
        return
    for name, (auc, spent) in judge.adapted(group).items():
        entry = out.setdefault(name, {}).setdefault(user, {})
        entry[setting] = auc
        if setting == "plain":
            entry |= {"alone": judge.partners([])[0], "seconds": spent}
            entry["kilobytes"] = _sent(name, study, learner, records)


def _sent(method: str, study: Study, learner: Learner, peers: Mapping[str, Records]) -> float:
    """The kilobytes that one peer would have to send, on average."""
    weights = sum(t.numel() for t in learner.start.values())
    width = math.prod(next(iter(peers.values())).inputs.shape[1:])
    if method in ("running", "similarity"):
        return 4 * weights * study.rounds / 1000
    if method in ("transfer",):
        return (4 * weights + 8) / 1000
    if method == "profiles":
        return 8 * 200 / 1000
    if method in ("jensen-shannon", "renyi"):
        return 8 * 10 * width / 1000
    return statistics.fmean(4 * len(r) * (width + 1) for r in peers.values()) / 1000


def _without(federation: Federation, gone: str) -> Federation:
    return replace(federation, sites={n: s for n, s in federation.sites.items() if n != gone})


def with_flipped_labels(federation: Federation, bad: str) -> Federation:
    """The same sites, with the labels of one flipped, except in its test records."""
    task, site = federation.task, federation.sites[bad]
    worse = replace(site, train=flipped(site.train, task), validation=flipped(site.validation, task))
    return replace(federation, sites={**federation.sites, bad: worse})


def rows(
    found: Sequence[Mapping[str, Any]], figure: Callable[..., str], grade: Callable[..., str]
) -> list[str]:
    """The lines of the table, one per method; the spread is over seeds, each the mean over users."""
    return [_row(name, [f[name] for f in found], figure, grade) for name in (*ORDER, *ADAPTED)]


def _row(
    name: str, found: Sequence[Mapping[str, Any]], figure: Callable[..., str], grade: Callable[..., str]
) -> str:
    def changes(to: str, since: str = "plain") -> list[float]:
        return [statistics.fmean(f[to] - f[since] for f in seed.values()) for seed in found]

    def lost(setting: str, good: float = -0.01, bad: float = -0.05) -> str:
        values = changes(setting)
        return f"{grade(statistics.fmean(values), good, bad)} ({figure(values)})"

    worst = [min(f["plain"] - f["alone"] for f in seed.values()) for seed in found]
    focus = f"{grade(statistics.fmean(worst), -0.01, -0.05)} ({figure(changes('plain', 'alone'))} / {figure(worst)})"
    spent = statistics.fmean(f["seconds"] for seed in found for f in seed.values())
    sent = statistics.fmean(f["kilobytes"] for seed in found for f in seed.values())
    if name in ADAPTED:
        own = changes("self")
        pays = f"{grade(-statistics.fmean(own), 0.5, 0.2)} ({figure(own)})"
        told, private = "− (nothing reported)", "− (needs peers' records)"
    else:
        rarer = [statistics.fmean(f["honest"] - f["dishonest"] for f in seed.values()) for seed in found]
        pays = f"{grade(statistics.fmean(rarer), 0.5, 0.2)} ({figure(rarer, 2)})"
        caught = [statistics.fmean(f["caught"] for f in seed.values()) for seed in found]
        told = f"{grade(statistics.fmean(caught), 0.9, 0.7)} ({figure(caught, 2, sign=False)})"
        private = lost("private", -0.02, -0.1) if name in ASKED else "− (needs peers' records)"
    return (
        f"| {name} | {focus} | {lost('absent')} | {pays} | {told} | {private} | {lost('flipped')} |"
        f" {sent:.2f} KB, {1000 * spent:.0f} ms |"
    )

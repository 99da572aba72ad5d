"""Clustering: q models, each for the sites that it fits best (Mansour et al. 2020, «HypCluster»)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from confrere.core.params import Params
from confrere.data.records import Records
from confrere.partners.learner import Learner, joined, patients_in
from confrere.partners.ranking import NEEDS_RECORDS, Candidate, Criteria, Finding, Ranking, ranked

TURNS = 20


@dataclass(frozen=True)
class Clusters:
    """Which model each site belongs to, and the models."""

    member: Mapping[str, int]
    models: tuple[Params, ...]

    def others_in_cluster(self, site: str) -> list[str]:
        """The other sites of the same cluster."""
        return sorted(n for n, k in self.member.items() if k == self.member[site] and n != site)


def cluster(learner: Learner, sites: Mapping[str, Records], first: str, q: int) -> Clusters:
    """Assign each site to the model that errs least on it, train each model on its sites, until nothing changes.

    The first model starts from the site `first`, each further one from the site that the models so far fit worst.
    """
    names = sorted(sites)
    q = max(1, min(q, len(names)))
    models = [learner.learn(sites[first])]
    while len(models) < q:
        errs = {n: min(float(learner.losses(m, sites[n]).mean()) for m in models) for n in names}
        models.append(learner.learn(sites[max(names, key=lambda n: (errs[n], n))]))
    member: dict[str, int] = {}
    for _ in range(TURNS):
        fits = {n: [float(learner.losses(m, sites[n]).mean()) for m in models] for n in names}
        now = {n: int(np.argmin(fits[n])) for n in names}
        if now == member:
            break
        member = now
        for k in range(q):
            mine = [sites[n] for n in names if member[n] == k]
            if mine:  # a model that fits no site stays as it is
                models[k] = learner.learn(joined(mine))
    return Clusters(member, tuple(models))


def cluster_ranking(
    learner: Learner, found: Clusters, sites: Mapping[str, Records], criteria: Criteria
) -> Ranking:
    """Peers by how much better the user's cluster fits them than the next best one."""
    candidates, user = [], criteria.user
    own = found.member[user]
    for peer in sorted(sites):
        if peer == user:
            continue
        fits = [learner.losses(m, sites[peer]) for m in found.models]
        others = [f for k, f in enumerate(fits) if k != own]
        next_best = min(others, key=lambda f: float(f.mean())) if others else fits[own]
        favour = patients_in(sites[peer]).effect(next_best - fits[own])
        value, error, same = favour.mean, math.sqrt(favour.variance), found.member[peer] == own
        group = f"the same group as {user}" if same else f"another group than {user}"
        shown = f"{value:+.4f} ± {error:.4f} in loss"

        def sentence(finding: Finding, peer: str = peer, group: str = group, shown: str = shown) -> str:
            sure = "clearly" if finding in ("yes", "no") else "by a narrow margin"
            return f"{peer} belongs {sure} to {group} ({shown})."

        candidates.append(Candidate(peer, value, error, favour, sentence, may_help=same))
    return Ranking(
        "clusters", f"Groups ({len(found.models)})",
        "how much better the model of the user's group fits the peer than the other groups' models; more is better",
        ranked(candidates), NEEDS_RECORDS, True,
    )  # fmt: skip

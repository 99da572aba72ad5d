"""Influence: what a peer's records do to predictions for the user's own patients.

All three forms are measured on records of the user that the model has not been trained on.

- *leave one out*: the loss without the peer minus the loss with all peers. Peers that can replace one another all
  come out near zero.
- *add one in*: the loss alone minus the loss with the peer as the only partner.
- *running*: over the rounds of one training, how much each peer's share of every step lowers the user's held-out loss
  to first order, Σ rate·(α/Σα)·⟨∇L, g⟩. It costs nothing beyond that training.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from confrere.data.records import Records
from confrere.data.split.holdout import folds
from confrere.partners.learner import Learner, Losses, joined, patients_in
from confrere.partners.ranking import NEEDS_RECORDS, Candidate, Criteria, Finding, Ranking, ranked
from confrere.statistics.fixed_models import FixedEffect, Patients


@dataclass(frozen=True)
class CrossFitted:
    """The held-out loss of each of the user's records, with different sets of partners."""

    alone: Losses
    all_peers: Losses
    without: Mapping[str, Losses]
    only: Mapping[str, Losses]
    patients: Patients


def cross_fit(learner: Learner, user: Records, peers: Mapping[str, Records], seed: int) -> CrossFitted:
    """Train with each set of partners, once for each fold of the user's records."""
    names = tuple(sorted(peers))
    without = {n: tuple(other for other in names if other != n) for n in names}
    held_out: dict[tuple[str, ...], Losses] = {
        partners: np.zeros(len(user)) for partners in {(), names, *without.values(), *((n,) for n in names)}
    }
    for fitted, left_out in folds(user, seed):
        for partners, losses in held_out.items():
            params = learner.learn(joined([user.select(fitted), *(peers[p] for p in partners)]))
            losses[left_out.numpy()] = learner.losses(params, user.select(left_out))
    return CrossFitted(
        held_out[()], held_out[names],
        {n: held_out[without[n]] for n in names}, {n: held_out[n,] for n in names},
        patients_in(user),
    )  # fmt: skip


def influence_rankings(found: CrossFitted, criteria: Criteria) -> tuple[Ranking, Ranking]:
    """Leave one out and add one in."""
    user = criteria.user
    left = [
        _candidate(
            n, found.patients.effect(losses - found.all_peers),
            helps=f"Without {n}, predictions for patients of {user} would get worse",
            unclear=f"Without {n}, predictions for patients of {user} would be about as good",
            harms=f"Without {n}, predictions for patients of {user} would get better: it does harm",
        )
        for n, losses in found.without.items()
    ]  # fmt: skip
    added = [
        _candidate(
            n, found.patients.effect(found.alone - losses),
            helps=f"Learning with {n} alone already helps {user}",
            unclear=f"Learning with {n} alone makes no measurable difference to {user}",
            harms=f"Learning with {n} alone would make predictions for {user} worse",
        )
        for n, losses in found.only.items()
    ]  # fmt: skip
    return (
        Ranking(
            "leave-one-out", "Influence, leaving one out",
            "how much the user's held-out loss grows without the peer; more is better", ranked(left),
            NEEDS_RECORDS, True,
        ),
        Ranking(
            "add-one-in", "Influence, adding one",
            "how much the user's held-out loss falls with the peer as the only partner; more is better",
            ranked(added), NEEDS_RECORDS, True,
        ),
    )  # fmt: skip


def running_ranking(slopes: Mapping[str, Losses], patients: Patients, criteria: Criteria) -> Ranking:
    """The running form. `slopes` has, for each peer, how much its steps lowered the loss of each held-out record."""
    on = f"held-out patients of {criteria.user}"
    candidates = [
        _candidate(
            n, patients.effect(gains),
            helps=f"The steps of {n} lowered the error on {on}",
            unclear=f"The steps of {n} made no measurable difference to {on}",
            harms=f"The steps of {n} raised the error on {on}",
        )
        for n, gains in slopes.items()
    ]  # fmt: skip
    return Ranking(
        "running", "Influence, running",
        "how much the peer's gradients lowered the user's held-out loss, summed over the rounds; more is better",
        ranked(candidates), criteria.sends("a gradient in every round"), not criteria.released,
    )  # fmt: skip


def _candidate(peer: str, favour: FixedEffect, *, helps: str, unclear: str, harms: str) -> Candidate:
    value, error = favour.mean, math.sqrt(favour.variance)

    def sentence(finding: Finding) -> str:
        if finding == "too few":
            return (
                f"There are too few held-out patients to judge {peer} ({value:+.4f} ± {error:.4f} in loss)."
            )
        words = {"yes": helps, "no": harms}.get(finding, unclear)
        return f"{words} ({value:+.4f} ± {error:.4f} in loss)."

    return Candidate(peer, value, error, favour, sentence)

"""Influence: how the held-out loss of a site changes when a peer is added, left out, or followed during training.

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
from confrere.partners.ranking import (
    NEEDS_RECORDS,
    Candidate,
    Criteria,
    Finding,
    PartnerScore,
    Ranking,
    ranked,
)
from confrere.statistics.fixed_model_gain import JudgedPatients


@dataclass(frozen=True)
class CrossFitted:
    """The held-out loss of each of the user's records, with different sets of partners."""

    alone: Losses
    all_peers: Losses
    without: Mapping[str, Losses]
    only: Mapping[str, Losses]
    patients: JudgedPatients


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


LEFT_OUT = {
    "yes": "Without {peer}, predictions for patients of {user} would get worse",
    "no": "Without {peer}, predictions for patients of {user} would get better: it does harm",
    "unclear": "Without {peer}, predictions for patients of {user} would be about as good",
}
ADDED = {
    "yes": "Learning with {peer} alone already helps {user}",
    "no": "Learning with {peer} alone would make predictions for {user} worse",
    "unclear": "Learning with {peer} alone makes no measurable difference to {user}",
}
STEPS = {
    "yes": "The steps of {peer} lowered the error on held-out patients of {user}",
    "no": "The steps of {peer} raised the error on held-out patients of {user}",
    "unclear": "The steps of {peer} made no measurable difference to held-out patients of {user}",
}


def influence_rankings(found: CrossFitted, criteria: Criteria) -> tuple[Ranking, Ranking]:
    """Leave one out and add one in."""
    left = {n: losses - found.all_peers for n, losses in found.without.items()}
    added = {n: found.alone - losses for n, losses in found.only.items()}
    return (
        Ranking(
            "leave-one-out", "Influence, leaving one out",
            "how much the user's held-out loss grows without the peer; more is better",
            _ranked(left, found.patients, criteria.user, LEFT_OUT), NEEDS_RECORDS, True,
        ),
        Ranking(
            "add-one-in", "Influence, adding one",
            "how much the user's held-out loss falls with the peer as the only partner; more is better",
            _ranked(added, found.patients, criteria.user, ADDED), NEEDS_RECORDS, True,
        ),
    )  # fmt: skip


def running_ranking(slopes: Mapping[str, Losses], patients: JudgedPatients, criteria: Criteria) -> Ranking:
    """The running form. `slopes` has, for each peer, how much its steps lowered the loss of each held-out record."""
    return Ranking(
        "running", "Influence, running",
        "how much the peer's gradients lowered the user's held-out loss, summed over the rounds; more is better",
        _ranked(slopes, patients, criteria.user, STEPS), criteria.sends("a gradient in every round"),
        not criteria.released,
    )  # fmt: skip


def _ranked(
    gains: Mapping[str, Losses], patients: JudgedPatients, user: str, words: Mapping[str, str]
) -> tuple[PartnerScore, ...]:
    """Peers by the mean gain of the user's held-out records."""
    candidates = []
    for peer, every in gains.items():
        favour = patients.effect(every)
        error = math.sqrt(favour.variance)
        shown = f"({favour.mean:+.4f} ± {error:.4f} in loss)."

        def sentence(finding: Finding, peer: str = peer, shown: str = shown) -> str:
            if finding == "too few":
                return f"There are too few held-out patients to judge {peer} {shown}"
            return f"{words[finding].format(peer=peer, user=user)} {shown}"

        candidates.append(Candidate(peer, favour.mean, error, favour, sentence))
    return ranked(candidates)

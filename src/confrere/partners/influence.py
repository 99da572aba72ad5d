"""Influence: what a peer's records do to predictions for the user's own patients.

All three forms are judged on user's records that the model in question has not learned from.

- *leave one out*: the loss without the peer less the loss with all peers. Peers that can stand in for one another
  all come out near zero.
- *add one in*: the loss alone less the loss with the peer as the only partner.
- *running*: over the rounds of one training, how far each peer's share of every step lowers the user's held-out loss
  to first order, Σ rate·(α/Σα)·⟨∇L, g⟩. It costs nothing beside that training.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from confrere.data.records import Records
from confrere.data.split.holdout import folds
from confrere.partners.learner import Learner, Losses, joined, mean_and_error
from confrere.partners.ranking import PartnerScore, Ranking, ranked


@dataclass(frozen=True)
class CrossFitted:
    """The held-out loss of each of the user's records, with different sets of partners."""

    alone: Losses
    everybody: Losses
    without: Mapping[str, Losses]
    only: Mapping[str, Losses]


def cross_fit(learner: Learner, user: Records, peers: Mapping[str, Records], seed: int) -> CrossFitted:
    """Train with every set of partners that is needed, once for each fold of the user's records."""
    count, names = len(user), sorted(peers)
    held: dict[tuple[str, str], NDArray[np.float64]] = {}

    def judge(
        kind: str,
        name: str,
        partners: Sequence[str],
        learned: Records,
        judged: Records,
        at: NDArray[np.int64],
    ) -> None:
        params = learner.learn(joined([learned, *(peers[p] for p in partners)]))
        held.setdefault((kind, name), np.zeros(count))[at] = learner.losses(params, judged)

    for fitted, left_out in folds(user, seed):
        learned, judged, at = user.select(fitted), user.select(left_out), left_out.numpy()
        judge("alone", "", [], learned, judged, at)
        judge("everybody", "", names, learned, judged, at)
        for name in names:
            judge("only", name, [name], learned, judged, at)
            if len(names) > 1:
                judge("without", name, [n for n in names if n != name], learned, judged, at)
    if len(names) == 1:
        held["without", names[0]] = held["alone", ""]
    return CrossFitted(
        held["alone", ""], held["everybody", ""],
        {n: held["without", n] for n in names}, {n: held["only", n] for n in names},
    )  # fmt: skip


def influence_rankings(found: CrossFitted, user: str, *, z: float) -> tuple[Ranking, Ranking]:
    """Leave one out and add one in."""
    left = {n: losses - found.everybody for n, losses in found.without.items()}
    added = {n: found.alone - losses for n, losses in found.only.items()}
    leave = [_standing(n, gains, z, _leaving(n, user)) for n, gains in left.items()]
    add = [_standing(n, gains, z, _adding(n, user)) for n, gains in added.items()]
    needs = "its records, which no site does"
    return (
        Ranking(
            "leave-one-out", "Influence, leaving one out",
            "how much the user's held-out loss grows without the peer; more is better", ranked(leave), needs, True,
        ),
        Ranking(
            "add-one-in", "Influence, adding one",
            "how much the user's held-out loss falls with the peer as the only partner; more is better",
            ranked(add), needs, True,
        ),
    )  # fmt: skip


def running_ranking(slopes: Mapping[str, Losses], user: str, *, z: float, released: bool) -> Ranking:
    """The running form. `slopes` has, for each peer, how far its steps lowered the loss of each held-out record."""

    def words(peer: str) -> tuple[str, str, str]:
        return (
            f"The steps of {peer} lowered the error on patients of {user} that were held back",
            f"The steps of {peer} made no measurable difference to patients of {user} that were held back",
            f"The steps of {peer} raised the error on patients of {user} that were held back",
        )

    standings = [_standing(n, gains, z, words(n)) for n, gains in slopes.items()]
    return Ranking(
        "running", "Influence, running",
        "how far the peer's gradients lowered the user's held-out loss, summed over the rounds; more is better",
        ranked(standings),
        "a gradient in every round, with noise" if released else "a gradient in every round",
        not released,
    )  # fmt: skip


def _standing(peer: str, gains: Losses, z: float, words: tuple[str, str, str]) -> PartnerScore:
    value, error = mean_and_error(gains)
    helps, hurts = value > z * error, value < -z * error
    said = words[0] if helps else words[2] if hurts else words[1]
    return PartnerScore(peer, value, error, helps, f"{said} ({value:+.4f} ± {error:.4f} in loss).")


def _leaving(peer: str, user: str) -> tuple[str, str, str]:
    return (
        f"Without {peer}, predictions for patients of {user} would get worse",
        f"Without {peer}, predictions for patients of {user} would be about as good",
        f"Without {peer}, predictions for patients of {user} would get better: it does harm",
    )


def _adding(peer: str, user: str) -> tuple[str, str, str]:
    return (
        f"Learning with {peer} alone already helps {user}",
        f"Learning with {peer} alone makes no measurable difference to {user}",
        f"Learning with {peer} alone would make predictions for {user} worse",
    )

"""Transfer loss: how much worse another site's model does on the user's records than on its own.

After the Ndoye factor as adapted in «personalised learning for medical data»: the loss of site i's model on the user's
records, minus its own cross-validated loss. The effect of site i's size is in both terms and cancels, which leaves how
different its patients are. A model that is bad everywhere also scores 0, so both terms are shown, and a peer is not
chosen if its model predicts no better than the class frequencies of the user's patients.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from confrere.data.records import Records
from confrere.data.split.holdout import folds
from confrere.partners.learner import Learner, Losses, mean_and_error
from confrere.partners.ranking import Criteria, PartnerScore, Ranking, ranked

CAP = 4.0
"""Each record's loss is capped here, which bounds how far one record can move a released mean."""

HIDDEN = 0.3
"""A home loss with a larger error is not relied on."""


@dataclass(frozen=True)
class HomeLoss:
    """The mean loss of a site's own model on its own held-out records, with its standard error."""

    loss: float
    error: float


def home_loss(learner: Learner, records: Records, seed: int) -> HomeLoss:
    """The cross-validated loss of a site's model on its own records."""
    held_out = np.zeros(len(records))
    for learned, judged in folds(records, seed):
        params = learner.learn(records.select(learned))
        held_out[judged.numpy()] = learner.losses(params, records.select(judged))
    return HomeLoss(*mean_and_error(np.minimum(held_out, CAP)))


def transfer_ranking(
    on_user: Mapping[str, Losses],
    home: Mapping[str, HomeLoss],
    knowing_nothing: float,
    criteria: Criteria,
) -> Ranking:
    """Peers by increasing transfer loss. `on_user` has the loss of each peer's model on each of the user's records."""
    scores, user, z = [], criteria.user, criteria.z
    for peer, losses in on_user.items():
        there, doubt = mean_and_error(np.minimum(losses, CAP))
        value, error = there - home[peer].loss, math.hypot(doubt, home[peer].error)
        useful = there + z * doubt < knowing_nothing
        chosen, hidden = useful and value <= z * error, home[peer].error > HIDDEN
        if not useful:
            words = f"says no more about the patients of {user} than the frequency of each outcome there"
        elif hidden:
            words = f"is useful for the patients of {user}; its own loss at home is hidden by noise"
        elif value <= -z * error:
            words = f"does even better on the patients of {user} than on its own"
        elif chosen:
            words = (
                f"does about as well on the patients of {user} as on its own: what it learned carries over"
            )
        else:
            words = f"does clearly worse on the patients of {user} than on its own: they differ"
        at = f"{home[peer].loss:.3f} at home" + (", which is mostly noise" if hidden else "")
        sentence = f"The model of {peer} {words} (loss {there:.3f} there, {at})."
        terms = {"loss_on_user": there, "loss_at_home": home[peer].loss, "knowing_nothing": knowing_nothing}
        scores.append(PartnerScore(peer, value, error, chosen, sentence, terms))
    return Ranking(
        "transfer",
        "Transfer loss",
        "how much more a peer's own model errs on the user's records than at home; less is better",
        ranked(scores, least_first=True),
        criteria.sends("its model and its loss at home"),
        not criteria.released,
    )

"""Transfer loss: how much worse another site's model does on the user's records than at home.

After the Ndoye factor as adapted in «personalised learning for medical data»: the loss of site i's model on the user's
records, less its own cross-validated loss. The size of site i's records is in both terms and cancels; what is left is how
unlike its patients are. A model that is bad everywhere also scores 0, so both terms are shown, and a peer is not chosen
if its model says less about the user's patients than the share of each class among them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from confrere.data.records import Records
from confrere.data.split.holdout import folds
from confrere.partners.learner import Learner, Losses, mean_and_error
from confrere.partners.ranking import PartnerScore, Ranking, ranked

CAP = 4.0
"""A record's loss counts up to this, so that one record moves a released mean by a known amount."""

HIDDEN = 0.3
"""A loss at home whose error is larger says nothing."""


@dataclass(frozen=True)
class AtHome:
    """How a site's own model does at home: its mean loss on records it was not trained on, with its standard error."""

    loss: float
    error: float


def at_home(learner: Learner, records: Records, seed: int) -> AtHome:
    """The cross-validated loss of a site's model on its own records."""
    held_out = np.zeros(len(records))
    for learned, judged in folds(records, seed):
        params = learner.learn(records.select(learned))
        held_out[judged.numpy()] = learner.losses(params, records.select(judged))
    return AtHome(*mean_and_error(np.minimum(held_out, CAP)))


def transfer_ranking(
    on_user: Mapping[str, Losses],
    home: Mapping[str, AtHome],
    knowing_nothing: float,
    user: str,
    *,
    z: float,
    released: bool,
) -> Ranking:
    """Peers by increasing transfer loss. `on_user` has the loss of each peer's model on each of the user's records."""
    standings = []
    for peer, losses in on_user.items():
        there, doubt = mean_and_error(np.minimum(losses, CAP))
        value, error = there - home[peer].loss, math.hypot(doubt, home[peer].error)
        useful = there + z * doubt < knowing_nothing
        chosen, hidden = useful and value <= z * error, home[peer].error > HIDDEN
        if not useful:
            said = f"says no more about the patients of {user} than how frequent each outcome is there"
        elif hidden:
            said = f"is of use for the patients of {user}; how it does at home is hidden by noise"
        elif value <= -z * error:
            said = f"does even better on the patients of {user} than on its own"
        elif chosen:
            said = f"does about as well on the patients of {user} as on its own: what it learned carries over"
        else:
            said = f"does clearly worse on the patients of {user} than on its own: they differ"
        at = f"{home[peer].loss:.3f} at home" + (", which is mostly noise" if hidden else "")
        sentence = f"The model of {peer} {said} (loss {there:.3f} there, {at})."
        terms = {"loss_on_user": there, "loss_at_home": home[peer].loss, "knowing_nothing": knowing_nothing}
        standings.append(PartnerScore(peer, value, error, chosen, sentence, terms))
    return Ranking(
        "transfer",
        "Transfer loss",
        "how much more a peer's own model errs on the user's records than at home; less is better",
        ranked(standings, least_first=True),
        "its model, trained with noise, and its loss at home, with noise"
        if released
        else "its model and its loss",
        not released,
    )

"""Transfer loss: how much worse another site's model does on the user's records than on its own.

After the Ndoye factor as adapted in «personalised learning for medical data»: the loss of site i's model on the user's
records, minus its own cross-validated loss. The effect of site i's size is in both terms and cancels, which leaves how
different its patients are. A model that is bad everywhere also scores 0, so both terms are shown, and a peer is not
chosen if its model predicts no better than the class frequencies of the user's patients. It is harmful if its model
predicts clearly worse than these, and clearly worse than at home: one that is bad at home too is useless, often because
of the noise in it, and says nothing about the site.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from confrere.data.records import Records
from confrere.data.split.holdout import folds
from confrere.partners.learner import Learner, Losses, mean_and_error
from confrere.partners.ranking import Candidate, Criteria, Finding, Ranking, ranked
from confrere.statistics.fixed_model_gain import FixedEffect, JudgedPatients, judge_fixed
from confrere.statistics.verdict import Word

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
    patients: JudgedPatients,
    criteria: Criteria,
) -> Ranking:
    """Peers by increasing transfer loss. `on_user` has the loss of each peer's model on each of the user's records."""
    useful = {n: patients.effect(knowing_nothing - np.minimum(losses, CAP)) for n, losses in on_user.items()}
    carried = {n: _carried_over(useful[n], home[n], knowing_nothing) for n in on_user}
    judged = judge_fixed(carried)
    candidates = []
    for peer, favour in useful.items():
        there = knowing_nothing - favour.mean
        value, error = -carried[peer].mean, math.sqrt(carried[peer].variance)
        terms = {"loss_on_user": there, "loss_at_home": home[peer].loss, "knowing_nothing": knowing_nothing}
        differs, hidden = judged[peer].word == "worse", home[peer].error > HIDDEN
        sentence = partial(_sentence, peer, criteria.user, terms, judged[peer].word, hidden)
        # a model that is as bad at home is useless, because of noise or of its records; it does not mislead
        misleads = differs and not hidden
        candidates.append(Candidate(peer, value, error, favour, sentence, terms, not differs, misleads))
    return Ranking(
        "transfer",
        "Transfer loss",
        "how much more a peer's own model errs on the user's records than at home; less is better",
        ranked(candidates, least_first=True),
        criteria.sends("its model and its loss at home"),
        not criteria.released,
    )


def _carried_over(useful: FixedEffect, home: HomeLoss, knowing_nothing: float) -> FixedEffect:
    """The loss at home minus that on the user's records: the transfer loss with its sign changed."""
    there, variance = knowing_nothing - useful.mean, useful.variance + home.error**2
    skewness = useful.skewness * (useful.variance / variance) ** 1.5 if variance > 0 else 0.0
    return replace(useful, mean=home.loss - there, variance=variance, skewness=skewness)


def _sentence(
    peer: str, user: str, terms: Mapping[str, float], compared: Word, hidden: bool, finding: Finding
) -> str:
    if finding == "too few":
        words = f"cannot be judged: {user} has too few patients"
    elif finding == "no":
        words = (
            f"says less about the patients of {user} than the frequency of each outcome there: it misleads"
        )
    elif finding == "unclear" and (compared != "worse" or hidden):
        words = f"says no more about the patients of {user} than the frequency of each outcome there"
    elif hidden:
        words = f"is useful for the patients of {user}; its own loss at home is hidden by noise"
    elif compared == "worse":
        words = f"does clearly worse on the patients of {user} than on its own: they differ"
    elif compared == "better":
        words = f"does even better on the patients of {user} than on its own"
    else:
        words = f"does about as well on the patients of {user} as on its own: what it learned carries over"
    at = f"{terms['loss_at_home']:.3f} at home" + (", which is mostly noise" if hidden else "")
    return f"The model of {peer} {words} (loss {terms['loss_on_user']:.3f} there, {at})."

"""What each peer releases for the choice: its model and loss, a profile and a histogram of its records.

With `privacy.selection_share` every release has noise and is charged to the peer's ledger.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from confrere.core.custody import Scalar
from confrere.core.model import Model
from confrere.core.params import Params
from confrere.core.seeds import derive
from confrere.learning.objectives import Supervised
from confrere.partners.histograms import Histogram, columns_of, histogram, histogram_sum
from confrere.partners.learner import Learner, Losses, losses_of
from confrere.partners.profiles import RecordProfile, features
from confrere.partners.selection_budget import HISTOGRAMS, LOSSES, MODELS, PROFILES, Selection
from confrere.partners.transfer import CAP, HomeLoss, home_loss
from confrere.site.participant import Participant
from confrere.site.site_round import SiteRound

MODEL = "model"
SPREAD = 0.7
"""An assumed standard deviation of one record's loss, because the true one is not released."""

Released = tuple[dict[str, Params], dict[str, HomeLoss]]


def models(selection: Selection, learner: Learner) -> Released:
    """The model of each peer and its loss on its own records."""
    if selection.released:
        return asyncio.run(_released(selection))
    seed = derive(selection.study.seed, "partners")
    records = {n: selection.federation.sites[n].without_test for n in selection.peers}
    trained = {n: learner.learn(r) for n, r in records.items()}
    return trained, {n: home_loss(learner, r, seed) for n, r in records.items()}


async def _released(selection: Selection) -> Released:
    strategy = {"name": "local", "noise": True, "architecture": "proxy"}
    simulation = selection.prepare(MODELS, strategy)
    found: dict[str, Params] = {}
    home: dict[str, HomeLoss] = {}
    for name in selection.peers:
        site = simulation.sites[name]
        model = site.build("proxy")
        for number in range(selection.study.rounds):
            trained = await SiteRound(site, number).train(
                {MODEL: Supervised()}, {MODEL: model}, protect=[MODEL]
            )
            model = trained[MODEL]
        loss, error = released_loss(selection, site, model)
        admitted, scalars = simulation.peers[name].gate.admit(model, {"loss": loss})
        assert admitted is not None
        found[name], home[name] = admitted.params, HomeLoss(scalars["loss"].value, error)
    return found, home


def released_loss(selection: Selection, site: Participant, model: Model) -> tuple[Scalar, float]:
    """The mean loss on a peer's held-out records, with noise, and its standard error.

    Each record's loss, or a patient's mean loss, is capped at `CAP`. The sum is divided by a public number: the declared
    number of records times the held-out share of the study's split.
    """
    paid, split = selection.charge(site, LOSSES, "loss at home"), selection.study.data.split
    count = max(1.0, site.data.declared * split.validation)
    total = torch.tensor([_capped_losses(site, model, paid.unit == "patient").sum()], dtype=torch.float64)
    value = float(paid.release(total, CAP)) / count
    error = float(np.hypot(paid.noise_multiplier * CAP / count, SPREAD / np.sqrt(count)))
    return Scalar(min(max(value, 0.0), CAP), site.released), error


def _capped_losses(site: Participant, model: Model, by_patient: bool) -> Losses:
    """The losses of held-out records, or the mean loss of each patient, capped."""
    records = site.data.validation
    if not len(records):
        return np.zeros(0)
    losses = losses_of(site.outputs(model, records), records)
    if by_patient and records.units is not None:
        patients = torch.unique(records.units, return_inverse=True)[1].numpy()
        losses = np.bincount(patients, losses) / np.bincount(patients)
    return np.minimum(losses, CAP)


def profiles(selection: Selection) -> tuple[RecordProfile, dict[str, RecordProfile]]:
    """The user's own profile, which is not released, and those of its peers."""
    task, seed = selection.federation.task, derive(selection.study.seed, "profiles")

    def rows(name: str) -> Tensor:
        return features(selection.federation.sites[name].without_test, len(task.classes), seed)

    def exact(name: str) -> RecordProfile:
        return RecordProfile((every := rows(name)).mean(0).numpy(), len(every))

    own = exact(selection.user)
    if not selection.released:
        return own, {n: exact(n) for n in selection.peers}
    sums = _released_sums(selection, PROFILES, "profile", lambda n: rows(n).sum(0))
    return own, {
        n: RecordProfile(s.total.numpy() / s.count, s.count, len(s.total) * (s.noise / s.count) ** 2)
        for n, s in sums.items()
    }


def histograms(selection: Selection) -> tuple[Histogram, dict[str, Histogram]]:
    """The user's own histogram, which is not released, and those of its peers."""
    sites, task = selection.federation.sites, selection.federation.task
    seed, columns = derive(selection.study.seed, "profiles"), columns_of(task.inputs)

    def rows(name: str) -> tuple[Tensor, int]:
        return histogram_sum(sites[name].without_test, len(task.classes), seed)

    own = histogram(*rows(selection.user), columns)
    if not selection.released:
        return own, {n: histogram(*rows(n), columns) for n in selection.peers}
    sums = _released_sums(selection, HISTOGRAMS, "histogram", lambda n: rows(n)[0])
    # the declared number counts records; the number of patients is estimated from the histogram
    return own, {
        n: histogram(s.total, 0.0 if sites[n].train.units is not None else s.count, columns, s.noise)
        for n, s in sums.items()
    }


@dataclass(frozen=True)
class ReleasedSum:
    """A sum of rows of length at most 1 as it passed the gate, the noise in it, and a public number of records."""

    total: Tensor
    noise: float
    count: float


def _released_sums(
    selection: Selection, share: float, what: str, total: Callable[[str], Tensor]
) -> dict[str, ReleasedSum]:
    """One release of each peer, charged to this share of the budget before anything is drawn."""
    simulation, found = selection.prepare(share, {"name": "local"}), {}
    for name in selection.peers:
        site = simulation.sites[name]
        paid = selection.charge(site, share, what)
        released = Model(Params({what: paid.release(total(name), 1.0)}), what, site.released)
        admitted, _ = replace(simulation.peers[name].gate, architectures=(what,)).admit(released)
        assert admitted is not None
        count = site.data.declared * (1 - selection.study.data.split.test)
        found[name] = ReleasedSum(admitted.params[what], paid.noise_multiplier, count)
    return found

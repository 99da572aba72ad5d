"""What each peer releases for the choice: its model and loss, a profile and a histogram of its records.

With `privacy.selection_share` every release has noise and is charged to the peer's ledger.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from confrere.core.custody import Scalar
from confrere.core.model import Model
from confrere.core.params import Params
from confrere.core.seeds import derive
from confrere.data.records import Records, SiteData
from confrere.learning.objectives import Supervised
from confrere.partners.budget import HISTOGRAMS, LOSSES, MODELS, PROFILES, Selection
from confrere.partners.histograms import Histogram, columns_of, histogram, histogram_sum
from confrere.partners.learner import Learner, Losses, losses_of
from confrere.partners.profiles import RecordProfile, features
from confrere.partners.transfer import CAP, HomeLoss, home_loss
from confrere.simulation.simulation import Simulation
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
    records = {n: own_records(selection.federation.sites[n]) for n in selection.peers}
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


def own_records(site: SiteData) -> Records:
    """Training and validation records of a site: all but its test records."""
    parts = [r for r in (site.train, site.validation) if len(r)]
    units = None
    if site.train.units is not None:
        units = torch.cat([r.units for r in parts if r.units is not None])
    return Records(torch.cat([r.inputs for r in parts]), torch.cat([r.targets for r in parts]), units)


def profiles(selection: Selection) -> tuple[RecordProfile, dict[str, RecordProfile]]:
    """The user's own profile, which is not released, and those of its peers."""
    task, seed = selection.federation.task, derive(selection.study.seed, "profiles")

    def rows(name: str) -> Tensor:
        return features(own_records(selection.federation.sites[name]), len(task.classes), seed)

    mine = rows(selection.user)
    own = RecordProfile(mine.mean(0).numpy(), len(mine))
    if not selection.released:
        return own, {n: RecordProfile(r.mean(0).numpy(), len(r)) for n in selection.peers for r in [rows(n)]}
    simulation = selection.prepare(PROFILES, {"name": "local"})
    found = {}
    for name in selection.peers:
        total, noise, count = _released_sum(
            selection, simulation, name, rows(name).sum(0), PROFILES, "profile"
        )
        found[name] = RecordProfile(total.numpy() / count, count, len(total) * (noise / count) ** 2)
    return own, found


def histograms(selection: Selection) -> tuple[Histogram, dict[str, Histogram]]:
    """The user's own histogram, which is not released, and those of its peers."""
    task, seed = selection.federation.task, derive(selection.study.seed, "profiles")
    columns = columns_of(task.inputs)

    def rows(name: str) -> tuple[Tensor, int]:
        return histogram_sum(own_records(selection.federation.sites[name]), len(task.classes), seed)

    own = histogram(*rows(selection.user), columns)
    if not selection.released:
        return own, {n: histogram(*rows(n), columns) for n in selection.peers}
    simulation = selection.prepare(HISTOGRAMS, {"name": "local"})
    found = {}
    for name in selection.peers:
        total, noise, count = _released_sum(
            selection, simulation, name, rows(name)[0], HISTOGRAMS, "histogram"
        )
        # the declared number counts records; the number of patients is estimated from the histogram
        by_patient = selection.federation.sites[name].train.units is not None
        found[name] = histogram(total, 0.0 if by_patient else count, columns, noise)
    return own, found


def _released_sum(
    selection: Selection, simulation: Simulation, name: str, total: Tensor, share: float, what: str
) -> tuple[Tensor, float, float]:
    """A sum of rows of length at most 1 as it passed the gate, the noise in it, and a public number of records."""
    site, split = simulation.sites[name], selection.study.data.split
    paid = selection.charge(site, share, what)
    noisy = paid.release(total, 1.0)
    released = Model(Params({what: noisy}), what, site.released)
    admitted, _ = replace(simulation.peers[name].gate, architectures=(what,)).admit(released)
    assert admitted is not None
    count = site.data.declared * (1 - split.test)
    return admitted.params[what], paid.noise_multiplier, count

"""What each peer releases for the choice: its model and loss, a profile and a histogram of its records.

With noise, where the study pays for it.
"""

from __future__ import annotations

import asyncio

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
from confrere.partners.histograms import Histogram, columns_of, histogram, placed
from confrere.partners.learner import Learner, Losses, losses_of
from confrere.partners.profiles import RecordProfile, features
from confrere.partners.transfer import CAP, AtHome, at_home
from confrere.simulation.simulation import Simulation
from confrere.site.participant import Participant
from confrere.site.site_round import SiteRound

MODEL = "model"
SPREAD = 0.7
"""About the standard deviation of one record's loss: what is not known about a peer's records is put in its place."""

Sent = tuple[dict[str, Params], dict[str, AtHome]]


def models(selection: Selection, learner: Learner) -> Sent:
    """The model of each peer and its loss at home; with noise, where the study pays for it."""
    if selection.released:
        return asyncio.run(_released(selection))
    seed = derive(selection.study.seed, "partners")
    records = {n: own_records(selection.federation.sites[n]) for n in selection.peers}
    trained = {n: learner.learn(r) for n, r in records.items()}
    return trained, {n: at_home(learner, r, seed) for n, r in records.items()}


async def _released(selection: Selection) -> Sent:
    strategy = {"name": "local", "noise": True, "architecture": "proxy"}
    simulation = selection.sites(MODELS, strategy)
    found: dict[str, Params] = {}
    home: dict[str, AtHome] = {}
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
        found[name], home[name] = admitted.params, AtHome(scalars["loss"].value, error)
    return found, home


def released_loss(selection: Selection, site: Participant, model: Model) -> tuple[Scalar, float]:
    """The mean loss on a peer's held-out records, with noise, and its standard error.

    What a record, or a patient with several, adds is cut off at `CAP`; the sum is divided by a public number, what the
    declared count makes of the study's split.
    """
    paid, split = selection.pay(site, LOSSES, "loss at home"), selection.study.data.split
    count = max(1.0, site.data.declared * split.validation)
    total = torch.tensor([_cut_off(site, model, paid.unit == "patient").sum()], dtype=torch.float64)
    value = float(paid.release(total, CAP)) / count
    error = float(np.hypot(paid.noise_multiplier * CAP / count, SPREAD / np.sqrt(count)))
    return Scalar(min(max(value, 0.0), CAP), site.released), error


def _cut_off(site: Participant, model: Model, by_patient: bool) -> Losses:
    """The losses of held-out records, or the mean loss of each patient."""
    records = site.data.validation
    if not len(records):
        return np.zeros(0)
    losses = losses_of(site.outputs(model, records), records)
    if by_patient and records.units is not None:
        patients = torch.unique(records.units, return_inverse=True)[1].numpy()
        losses = np.bincount(patients, losses) / np.bincount(patients)
    return np.minimum(losses, CAP)


def own_records(site: SiteData) -> Records:
    """Training and validation records of a site: all but those of the last test."""
    parts = [r for r in (site.train, site.validation) if len(r)]
    units = None
    if site.train.units is not None:
        units = torch.cat([r.units for r in parts if r.units is not None])
    return Records(torch.cat([r.inputs for r in parts]), torch.cat([r.targets for r in parts]), units)


def profiles(selection: Selection) -> tuple[RecordProfile, dict[str, RecordProfile]]:
    """The user's own profile, which stays with it, and those of its peers."""
    task, seed = selection.federation.task, derive(selection.study.seed, "profiles")

    def rows(name: str) -> Tensor:
        return features(own_records(selection.federation.sites[name]), len(task.classes), seed)

    mine = rows(selection.user)
    own = RecordProfile(mine.mean(0).numpy(), len(mine))
    if not selection.released:
        return own, {n: RecordProfile(r.mean(0).numpy(), len(r)) for n in selection.peers for r in [rows(n)]}
    simulation = selection.sites(PROFILES, {"name": "local"})
    found = {}
    for name in selection.peers:
        total, noise, count = _released_sum(
            selection, simulation, name, rows(name).sum(0), PROFILES, "profile"
        )
        found[name] = RecordProfile(total.numpy() / count, count, len(total) * (noise / count) ** 2)
    return own, found


def histograms(selection: Selection) -> tuple[Histogram, dict[str, Histogram]]:
    """The user's own histogram, which stays with it, and those of its peers."""
    task, seed = selection.federation.task, derive(selection.study.seed, "profiles")
    columns = columns_of(task.inputs)

    def rows(name: str) -> tuple[Tensor, int]:
        return placed(own_records(selection.federation.sites[name]), len(task.classes), seed)

    own = histogram(*rows(selection.user), columns)
    if not selection.released:
        return own, {n: histogram(*rows(n), columns) for n in selection.peers}
    simulation = selection.sites(HISTOGRAMS, {"name": "local"})
    found = {}
    for name in selection.peers:
        total, noise, count = _released_sum(
            selection, simulation, name, rows(name)[0], HISTOGRAMS, "histogram"
        )
        # what is declared are records; how many patients there are, the histogram itself must tell
        by_patient = selection.federation.sites[name].train.units is not None
        found[name] = histogram(total, 0.0 if by_patient else count, columns, noise)
    return own, found


def _released_sum(
    selection: Selection, simulation: Simulation, name: str, total: Tensor, share: float, what: str
) -> tuple[Tensor, float, float]:
    """A sum of rows of length 1 at most, with noise, as it left through the gate, the noise, and a public number of records."""
    site, split = simulation.sites[name], selection.study.data.split
    paid = selection.pay(site, share, what)
    noisy = paid.release(total, 1.0)
    released = Model(Params({what: noisy}), what, site.released)
    admitted, _ = simulation.peers[name].gate.admit(released)
    assert admitted is not None
    count = site.data.declared * (1 - split.test)
    return admitted.params[what], paid.noise_multiplier, count

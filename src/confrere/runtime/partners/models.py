"""Each peer's own model and what it errs at home, which transfer loss compares."""

from __future__ import annotations

import asyncio

import numpy as np
import torch

from confrere.core.custody import Custody, Scalar
from confrere.core.model import Model
from confrere.core.params import Params
from confrere.core.seeds import derive
from confrere.data.records import Records, SiteData
from confrere.learning.objectives import Supervised
from confrere.personalize.learner import Learner, Losses, losses_of
from confrere.personalize.transfer import CAP, AtHome, at_home
from confrere.runtime.participant import Participant
from confrere.runtime.partners.budget import LOSSES, MODELS, Selection

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
            trained = await site.round(number).train({MODEL: Supervised()}, {MODEL: model}, protect=[MODEL])
            model = trained[MODEL]
        loss, error = released_loss(selection, site, model)
        admitted, scalars = simulation.offices[name].gate.admit(model, {"loss": loss})
        assert admitted is not None
        found[name], home[name] = admitted.params, AtHome(scalars["loss"].value, error)
    return found, home


def released_loss(selection: Selection, site: Participant, model: Model) -> tuple[Scalar, float]:
    """The mean loss on a peer's held-out records, with noise, and its standard error.

    What a record, or a patient with several, adds is cut off at `CAP`; the sum is divided by a public number, what the
    declared count makes of the study's split.
    """
    paid, split = selection.pay(site, LOSSES, "loss at home"), selection.study.data.split
    count = max(1.0, site.size * split.validation / (1 - split.validation - split.test))
    total = torch.tensor([_cut_off(site, model, paid.unit == "patient").sum()], dtype=torch.float64)
    value = float(paid.source.perturb(total, paid.noise * CAP, CAP)) / count
    error = float(np.hypot(paid.noise * CAP / count, SPREAD / np.sqrt(count)))
    return Scalar(min(max(value, 0.0), CAP), Custody.PROTECTED), error


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

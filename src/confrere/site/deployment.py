"""Which model a site deploys: the collaborative one, unless the site's own is better on its own held-out records.

A study decides what sites exchange; it does not decide what a site uses. Before a model is saved, the site trains one of
its own, alone and without noise, and compares both on held-out records. If its own is better by more than one paired
standard error, it is saved instead. So a peer that sends a harmful model cannot degrade what another site uses, whatever
the strategy (docs/decisions/0005-do-no-harm.md).

This choice is cautious and is no verdict. Whichever the site deploys, the collaborative model is then judged once against
one trained alone, on the test records (`model_verdict`).

All of this reads records, so it is PRIVATE. It takes place after the last round and changes nothing that is sent.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from confrere.core.custody import Custody, public
from confrere.core.errors import TrainingError
from confrere.core.events import Event
from confrere.core.model import Model
from confrere.core.protocols import Predictor
from confrere.core.results import ModelVerdict
from confrere.core.seeds import generator
from confrere.core.strategy_traits import traits
from confrere.data.records import Records
from confrere.exchange.topology import exchanges
from confrere.learning.evaluation import measure
from confrere.learning.fit.tuning import FEW, Search, fit
from confrere.learning.local_training.one_site import failure_reason
from confrere.learning.objectives import Supervised, supervised_loss
from confrere.report import words
from confrere.site.model_verdict import model_verdict
from confrere.site.participant import Participant
from confrere.site.site_round import fitting_job
from confrere.site.site_run import SiteRun

FOLDS = 5
"""How many models of its own a site with few validation records trains, each compared on the records left out."""
FOLDS_OF_A_FOLD = 3
"""How many folds choose the regularisation of each of these models, once; the final one has more, and repeats them."""
STANDARD_ERRORS = 1.0
"""By how many paired standard errors a site's own model must be better to be deployed instead."""


@dataclass(frozen=True)
class Deployment:
    """The model that a site deploys, and why. PRIVATE."""

    predictor: Predictor
    own: bool = False
    """Whether it is the site's own model, trained alone."""
    text: str = ""
    """The comparison in words; empty if there was none."""
    scores: dict[str, float] = field(default_factory=dict)
    """If it is the site's own: its metrics on the test records."""
    verdict: ModelVerdict | None = None
    """The collaborative model against one trained alone, on the test patients; None if there is nothing to judge."""


def deployment_of(run: SiteRun, name: str) -> Deployment:
    """The model that the site with this name deploys at the end of a run; PRIVATE."""
    return choose_deployment(run, name, run.predictor())


def choose_deployment(run: SiteRun, name: str, predictor: Predictor) -> Deployment:
    """Choose between the collaborative model at the site with this name and the site's own, and judge the former.

    Both outcomes are events of the site's journal.
    """
    found = _chosen(run, name, predictor)
    return replace(found, verdict=_verdict(run, name, predictor, found))


def _chosen(run: SiteRun, name: str, predictor: Predictor) -> Deployment:
    if not _needs_comparison(run):
        return Deployment(predictor)
    site = run.judges[name]
    try:
        found = _compare(site, predictor)
    except Exception as error:
        text = f"not compared with a model of its own: {failure_reason(error)}"
        if not site.joined:
            raise TrainingError(f'site "{name}": {text}') from error
        found = Deployment(predictor, text=text)
    data = {"model": "own" if found.own else "collaborative", "text": found.text, "test": found.scores}
    site.journal.add(Event("deployed", name, run.study.rounds, Custody.PRIVATE, data))
    return found


def _verdict(run: SiteRun, name: str, predictor: Predictor, found: Deployment) -> ModelVerdict | None:
    """The final look at the test records, the only one with a verdict: neither model was chosen by them."""
    site = run.judges[name]
    if not _has_peers(run) or site.own_records().patients < 2 or not len(site.data.test):
        return None
    try:
        alone = found.predictor if found.own else _only(train_alone(site, site.own_records()))
        verdict = model_verdict(site, predictor, alone)
    except Exception as error:
        text = f"not judged against training alone: {failure_reason(error)}"
        if not site.joined:
            raise TrainingError(f'site "{name}": {text}') from error
        site.note(run.study.rounds, text)
        return None
    if verdict is not None:
        data = {**verdict.as_json(), "text": words.model_verdict(verdict, deployed=not found.own)}
        site.journal.add(Event("judged", name, run.study.rounds, Custody.PRIVATE, data))
    return verdict


def train_alone(site: Participant, records: Records, search: Search | None = None) -> Model:
    """The model that the site gets from these records of its own, without peers and without noise (as `local` does).

    Its regularisation is chosen by the study's own search unless another one is given.
    """
    start, loss = site.build("private"), Supervised()
    job = fitting_job(site, records, "private", [loss], {"private": start})
    counted = site.counted(loss, start, noisy=False)
    params, _ = fit(job, [counted], start.params, search or site.study.training.search())
    return Model(params, start.architecture, Custody.PRIVATE)


def _has_peers(run: SiteRun) -> bool:
    """False for a site that trains alone, and for pooled records."""
    return exchanges(run.peers.topology) and not traits(run.strategy).pools


def _needs_comparison(run: SiteRun) -> bool:
    """False without peers, and where `finish` has compared by cross-validation."""
    return _has_peers(run) and not (run.study.training.tune and traits(run.strategy).compares_with_alone)


def _compare(site: Participant, predictor: Predictor) -> Deployment:
    every = site.own_records()
    if every.patients < 2:
        return Deployment(predictor, text="not compared with a model of its own: too few records")
    together, alone = _held_out_losses(site, predictor)
    behind = together - alone
    mean, error = float(behind.mean()), float(behind.std()) / math.sqrt(len(behind))
    on = (
        f"on {len(behind)} held-out patients (loss {together.mean():.3f} against {alone.mean():.3f},"
        f" standard error of the difference {error:.3f})"
    )
    if mean <= STANDARD_ERRORS * error:  # False if the model predicts NaN
        return Deployment(
            predictor,
            text=f"deploys the collaborative model: its own is not ahead by more than one standard error {on}",
        )
    deployed, test = _only(train_alone(site, every)), site.data.test
    outputs = site.own_mix(site.predicted(deployed, test))
    scores = measure(outputs, test.targets, site.task.spread) if len(test) else {}
    return Deployment(
        deployed, True, f"deploys its own model: it is ahead by more than one standard error {on}", scores
    )


def _held_out_losses(site: Participant, predictor: Predictor) -> tuple[Tensor, Tensor]:
    """The losses of the collaborative model, and of a model trained alone, for each held-out patient.

    Neither has learned from the validation part. If that has fewer than `FEW` patients or a single class, all of the
    site's records are used: its own model is cross-validated, while the collaborative one may have learned from them.
    Each fold chooses its own regularisation, by a short search, and without the records that judge it.
    """
    validation = site.data.validation
    one_class = site.task.form == "classes" and len(torch.unique(validation.targets)) < 2
    if validation.patients >= FEW and not one_class and len(site.data.train):
        records = validation
        alone = _losses(site, _only(train_alone(site, site.data.train)), records)
    else:
        records = site.own_records()
        search = replace(site.study.training.search(), folds=FOLDS_OF_A_FOLD, repeats=1)
        alone = torch.zeros(len(records), dtype=torch.float64)
        for fitted, left_out in _folds(records, site.study.seed):
            model = train_alone(site, records.select(fitted), search)
            alone[left_out] = _losses(site, _only(model), records.select(left_out))
    return _per_patient(_losses(site, predictor, records), records), _per_patient(alone, records)


def _only(model: Model) -> Predictor:
    return ((public(1.0), model),)


def _losses(site: Participant, predictor: Predictor, records: Records) -> Tensor:
    outputs = site.own_mix(site.predicted(predictor, records)).double()
    targets = records.targets.double() if records.targets.is_floating_point() else records.targets
    return supervised_loss(outputs, targets)


def _patients(records: Records) -> tuple[Tensor, int]:
    """The number of each record's patient, from 0, and how many there are."""
    if records.units is None:
        return torch.arange(len(records)), len(records)
    found, numbers = torch.unique(records.units, return_inverse=True)
    return numbers, len(found)


def _per_patient(losses: Tensor, records: Records) -> Tensor:
    """The mean loss of each patient's records."""
    numbers, count = _patients(records)
    return torch.bincount(numbers, losses, count) / torch.bincount(numbers, minlength=count)


def _folds(records: Records, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Rows to train on and rows to compare on; the records of a patient stay together."""
    numbers, count = _patients(records)
    fold = (torch.randperm(count, generator=generator(seed, "compared")) % FOLDS)[numbers]
    for k in range(min(FOLDS, count)):
        yield (fold != k).nonzero()[:, 0], (fold == k).nonzero()[:, 0]

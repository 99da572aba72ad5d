"""The `Site` that a strategy receives for one round: everything it may use inside the institution."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import nn

from confrere.core.custody import Custody, Scalar, Share, private, strictest
from confrere.core.errors import StudyError, TrainingError
from confrere.core.events import Event
from confrere.core.model import Model
from confrere.core.params import Params
from confrere.core.protocols import Effort, Fitted, Loss, Metrics, Objective, Optimiser
from confrere.core.seeds import derive
from confrere.data.records import Records, concatenate
from confrere.data.tasks import Task
from confrere.learning.evaluation import loss_metrics, predict
from confrere.learning.fit.calibration import best_scale
from confrere.learning.fit.tuning import SeenRecords, fit
from confrere.learning.local_training.one_site import Job, failure_reason
from confrere.learning.objectives import LearnedWith
from confrere.privacy.charged_steps import UNPROTECTED
from confrere.site.masked_share import TakenAt, Weighting, masked_share
from confrere.site.participant import Participant
from confrere.site.training import TrainingCall, check_given, slot_of


class SiteRound:
    """`Site` for one round."""

    def __init__(self, participant: Participant, number: int) -> None:
        self._site, self._round = participant, number
        self.name, self.size = participant.name, participant.size
        self.rehearsal, self.sizes = participant.rehearsal, participant.sizes
        self.paid: str | None = None
        """Under which key the ledger was charged last."""

    def build(self, role: str) -> Model:
        return self._site.build(role)

    def module(self, role: str) -> nn.Module:
        return self._site.layers(role)

    def notify(self, text: str) -> None:
        self._site.journal.add(Event("notice", self.name, self._round, data={"text": text, "told": True}))

    def trained_before(self) -> None:
        """A training of this round was done before a crash; its result is kept and it is not done again."""
        self._count()

    def _count(self) -> tuple[int, ...]:
        """Count a training of this round. A second one is charged, and draws noise, of its own: it gets a number."""
        counts = self._site.trainings
        counts[self._round] = number = counts.get(self._round, 0) + 1
        return (number,) if number > 1 else ()

    def effort(self, role: str, model: Model) -> Effort:
        return self._site.effort(slot_of(role, self._site.released), model)

    def weigh(self, weights: Mapping[str, Scalar], note: str = "") -> None:
        data = {"weights": {name: share.value for name, share in sorted(weights.items())}, "note": note}
        custody = strictest(share.custody for share in weights.values())
        self._site.journal.add(Event("weighed", self.name, self._round, custody, data))

    async def evaluate(self, models: Mapping[str, Model]) -> Mapping[str, Metrics]:
        site = self._site
        found: dict[str, Metrics] = {}
        for role, model in models.items():
            try:
                numbers = self._evaluated(role, model)
            except Exception as error:
                text = f'"{role}" could not be evaluated on the site\'s records: {failure_reason(error)}'
                if not site.joined:
                    raise TrainingError(f'site "{self.name}": {text}') from error
                site.note(self._round, text)
                numbers = {"loss": 0.0, "baseline_loss": 0.0, "accuracy": 0.0, "scale": 0.0}
            found[role] = {name: private(value) for name, value in numbers.items()}
        return found

    def _evaluated(self, role: str, model: Model) -> dict[str, float]:
        site = self._site
        network = site.network(role, model.architecture)
        network.load(model.params)
        held_out = site.data.validation if len(site.data.validation) else site.data.train
        outputs = predict(network.module, held_out.inputs.to(site.device)).cpu()
        numbers = dict(loss_metrics(site.own_mix(outputs), held_out, site.data.train))
        own = site.own_records()
        said = predict(network.module, own.inputs.to(site.device)).cpu()
        return {**numbers, "scale": best_scale(said, own.targets, site.class_weights())}

    async def fit(self, losses: Sequence[Loss], role: str, models: Mapping[str, Model]) -> Fitted:
        if not len(self._site.own_records()):
            return self._unfitted(losses, role, models, "there are no records to train on")
        try:
            return self._fitted(losses, role, models)
        except Exception as error:
            reason = failure_reason(error)
            if not self._site.joined:
                raise TrainingError(
                    f'site "{self.name}": the model "{role}" was not fitted: {reason}'
                ) from error
            return self._unfitted(losses, role, models, reason)

    def _unfitted(
        self, losses: Sequence[Loss], role: str, models: Mapping[str, Model], reason: str
    ) -> Fitted:
        """A model that adds nothing to what the last loss reads, so that what came from peers is used; else the start."""
        model, last = models[role], len(losses) - 1
        if losses[last].reads:
            nothing = Params({name: torch.zeros_like(t) for name, t in model.params.items()})
            model = Model(nothing, model.architecture, Custody.PRIVATE)
        what = "its predictions are those of its peers" if losses[last].reads else "it stays at its start"
        self._site.note(self._round, f'the model "{role}" was not fitted, {what}: {reason}')
        shares = tuple(float(n == last) for n in range(len(losses)))
        return Fitted(model.held(Custody.PRIVATE), last, shares)

    def _fitted(self, losses: Sequence[Loss], role: str, models: Mapping[str, Model]) -> Fitted:
        site = self._site
        job = fitting_job(site, site.own_records(), role, losses, models)
        seen = torch.arange(len(job.records)) < len(site.data.train)
        shares = [loss.ours.value for loss in losses if isinstance(loss, LearnedWith)]
        proxy_training = (
            site.proxy_training(max(shares)) if shares and max(shares) > 0 and bool(seen.any()) else None
        )
        alike = [site.counted(loss, models[role], noisy=False) for loss in losses]
        search = site.study.training.search()
        params, choice = fit(job, alike, models[role].params, search, SeenRecords(seen, proxy_training))
        model = Model(params, models[role].architecture, Custody.PRIVATE)
        data = {
            "role": role, "loss": type(losses[choice.loss]).__name__, "prior": choice.prior,
            "length": choice.length, "held_out_loss": choice.held_out_loss, "shares": list(choice.shares),
        }  # fmt: skip
        site.journal.add(Event("fitted", site.name, self._round, Custody.PRIVATE, data))
        return Fitted(model, choice.loss, choice.shares)

    async def train(
        self, objective: Objective, models: Mapping[str, Model], *, protect: Sequence[str] = ()
    ) -> Mapping[str, Model]:
        check_given(objective, models)
        site, again = self._site, self._count()
        if site.stopping is not None and site.stopping.stopped:
            return dict(models)
        site.start_weights = {models[r].architecture: models[r].params for r in protect if r in models}
        call = TrainingCall(site, self._round, objective, models, protect, again)
        return {**models, **(await self._run(call) or {})}

    async def _run(self, call: TrainingCall) -> dict[str, Model] | None:
        try:
            return await call.run()
        finally:  # also where it failed: what was charged stays charged
            self.paid = call.paid or self.paid

    async def gradient_sum(
        self,
        loss: Loss,
        *,
        at: Model,
        role: str = "model",
        reads: Mapping[str, Model] | None = None,
        weights: Mapping[str, Scalar] | None = None,
    ) -> Model | Share | None:
        site, objective, models = self._site, {role: loss}, {**(reads or {}), role: at}
        check_given(objective, models)
        network = site.network(role, at.architecture)
        if network.normalises:
            raise StudyError(
                f"the {role} network {at.architecture} keeps running statistics, which are not a sum of gradients;"
                " use a network with group normalisation, or exchange models"
            )
        again, weighting = self._count(), Weighting.of(self.name, weights)
        if site.mechanism is not None and site.mechanism.terms is not None:
            return await masked_share(site, self._round, TakenAt(loss, models, role, again), weighting)
        if site.stopping is not None and site.stopping.stopped:
            return None
        nothing = at.params * 0.0
        site.start_weights = {at.architecture: nothing}
        call = TrainingCall(site, self._round, objective, models, [role], again, gradient_only=True)
        found = await self._run(call)
        if found is None:
            return None
        step = site.mechanism  # a release is a mean over the records that a step is expected to draw
        count = len(site.data.train) if step is None else step.expected_batch / float(step.sampling.rate)
        # without noise and records no step was made, and what is no weight has no gradient
        moved = network.trainable(network.flat) if count else {}
        times = count * weighting.own
        total = {n: times * t if n in moved else nothing[n] for n, t in found[role].params.items()}
        return Model(Params(total), at.architecture, strictest([found[role].custody, weighting.custody]))

    def optimiser(self) -> Optimiser:
        return self._site.build_optimiser(self._site.mechanism is not None)


def fitting_job(
    site: Participant, records: Records, role: str, losses: Sequence[Loss], models: Mapping[str, Model]
) -> Job:
    """What `fit` needs to train the model of a role on some of the site's own records, without noise."""
    networks = {}
    for name in {role, *(r for loss in losses for r in loss.reads)}:
        networks[name] = site.network(name, models[name].architecture)
        networks[name].load(models[name].params)
    return Job(
        site=site.name, records=in_doubt(records, site.task), objective={role: losses[0]}, networks=networks,
        anchors={}, private=UNPROTECTED, optimisers={role: site.build_optimiser(False)}, memory={},
        batch_size=site.study.training.batch_size, epochs=1,
        seed=derive(site.study.seed, site.name, "fit"), device=site.device,
    )  # fmt: skip


def in_doubt(records: Records, task: Task) -> Records:
    """The records; where all are of one class, with one more of every class, at their mean.

    That is Laplace's rule of succession: n records of one class leave a chance of about 1/n for another. Without it a
    model whose constant is free would be certain.
    """
    if task.form != "classes" or len(torch.unique(records.targets)) != 1:
        return records
    classes = torch.arange(len(task.classes), dtype=records.targets.dtype)
    made = records.inputs.mean(0, keepdim=True).expand(len(classes), *records.inputs.shape[1:])
    more = Records(made, classes, None if records.units is None else classes.clone())
    return concatenate([records, more])

"""A site at work: records, models, mechanism and ledger behind the narrow face that a strategy sees."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from confrere.core.custody import Custody, Scalar, private, public, strictest
from confrere.core.errors import BudgetExhausted, DataError, StudyError, TrainingError, UnsafeModule
from confrere.core.events import Event, Journal
from confrere.core.model import Architecture, Model
from confrere.core.params import Params
from confrere.core.protocols import (
    Effort,
    Fitted,
    Loss,
    Metrics,
    Objective,
    Predictor,
    Reshapes,
    Strategy,
    loss_custody,
    read_by,
)
from confrere.core.seeds import derive, generator
from confrere.data.records import Records, SiteData, Task
from confrere.learning.balance import Shares, balance, counted, log_shares, released
from confrere.learning.centre import PROFILE
from confrere.learning.echo import Echo
from confrere.learning.engine import Job, Trainer, work
from confrere.learning.evaluate import loss_metrics, measure, predict, predict_chain
from confrere.learning.nets import Centred, describe
from confrere.learning.network import Network, Workshop
from confrere.learning.objectives import Descent, Stacked, Supervised
from confrere.learning.optimisers import SGD, Optimiser
from confrere.learning.pace import paced, slow_for_squares, time_for, time_for_unit_records
from confrere.learning.scale import best_scale
from confrere.learning.tally import TALLY
from confrere.learning.tuning import fit
from confrere.privacy import lint
from confrere.privacy.accounting import Guarantee, epsilon
from confrere.privacy.charges import Charge
from confrere.privacy.clipping import Flat, Quantile
from confrere.privacy.ledger import Budget, Ledger
from confrere.privacy.mechanism import Mechanism
from confrere.privacy.noise import Randomness
from confrere.runtime.said import Kept
from confrere.runtime.stopping import Rest
from confrere.study import Study

SUMS = SGD(1.0)
"""How a proxy is moved while its centre is released: the steps add up plain sums."""

SUMMED = (PROFILE, TALLY)
"""Roles that are not trained to be good at anything: they collect what records say."""

Memory = dict[str, dict[str, dict[str, Tensor]]]
"""Role → {"optimiser": …, "clipping": …}: what stays at the site from round to round."""


@dataclass
class Participant:
    """One site over a whole run."""

    name: str
    data: SiteData
    task: Task
    study: Study
    run: str
    journal: Journal
    trainer: Trainer
    ledger: Ledger
    mechanism: Mechanism | None
    steps: int
    budget: Budget | None
    unproven: str | None
    """Why what this study sends has no proven guarantee; None if it has one. The site consented to it."""
    device: str = "cpu"
    randomness: Randomness | None = None
    """Where noise and sampling come from; None is the reproducible source of a simulation."""
    memory: Memory = field(default_factory=dict)
    spent: bool = False
    rest: Rest | None = None
    """Where the study says when training stops: whether this site has."""
    began: dict[str, Params] = field(default_factory=dict, repr=False)
    """By architecture, the weights that the last training of what is sent began with."""
    among: int = 1
    """How many sites learn together."""
    releases: int = 1
    """How many models it gives out in a round."""
    said: Kept = field(init=False, default_factory=Kept)
    """What its model said about the test records, for comparisons: PRIVATE."""
    workshop: Workshop = field(default_factory=Workshop, repr=False)
    """The networks that it works with; sites of one process share them."""
    further: dict[str, Any] = field(default_factory=dict)
    """Networks that its strategy needs beside the study's own, by role."""
    _architectures: dict[str, Architecture] = field(default_factory=dict)
    _by_role: dict[str, Architecture] = field(default_factory=dict)
    _rules: dict[bool, Optimiser] = field(default_factory=dict)
    _shares: Shares | None = None
    _cost: tuple[Mechanism, int, Charge, float] | None = None

    def __post_init__(self) -> None:
        for role in ("private", "proxy"):  # a network that cannot be built, or does not fit, is noticed here
            self._check_fit(role)

    def _check_fit(self, role: str) -> None:
        """Whether the network of a role takes the site's records and gives the outputs of the task."""
        name, some = self.architecture(role).name, self.data.train.inputs[:2]
        where = f'site "{self.name}": the {role} network {name}'
        try:
            outputs = predict(self.network(role, name).module, some.to(self.device))
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise StudyError(
                f"{where} cannot be used for records of shape {tuple(some.shape[1:])}: {reason}"
            ) from None
        if tuple(outputs.shape) != (wanted := (len(some), outputs_of(self.task))):
            raise StudyError(
                f"{where} gives outputs of shape {tuple(outputs.shape)} for {len(some)} records; this task needs"
                f" {wanted}" + (" (two classes take one output)" if self.task.kind == "binary" else "")
            )

    @property
    def size(self) -> int:
        return self.data.declared

    def architecture(self, role: str) -> Architecture:
        """The network that the study has for a role at this site."""
        found = self._by_role.get(role)
        if found is None:
            found = self._by_role[role] = self._architecture(role)
        return found

    def _architecture(self, role: str) -> Architecture:
        spec = self.further.get(role) or self.study.models.of(self.name, "proxy" if role == PROFILE else role)
        if role == PROFILE:
            name, options = describe(spec) if isinstance(spec, str | dict) else ("", {})
            if name != "centred-linear":
                raise StudyError('only the proxy "centred-linear" has a centre to agree on')
            spec = {"name": name, **options, "profiling": True}
        found = self.workshop.architecture(spec, self.task.inputs, outputs_of(self.task), self.task.branches)
        self._architectures.setdefault(found.name, found)
        return found

    def add_networks(self, strategy: Strategy) -> None:
        """Get to know the networks that a strategy needs beside the study's own."""
        if isinstance(strategy, Reshapes):
            role = strategy.architecture
            self.further = dict(
                strategy.networks(self.study.models.of(self.name, role), self.architecture(role))
            )
            self._by_role = {}
            for further in self.further:
                self._check_fit(further)

    def mechanism_of(self, role: str) -> Mechanism:
        """The mechanism of a private step. What is tallied lies between 0 and 1, so that nothing of it is clipped; the
        noise is such that a step costs the same."""
        assert self.mechanism is not None
        if role != TALLY:
            return self.mechanism
        m = self.mechanism
        noise = m.clipping.effective_noise_multiplier(m.noise_multiplier, m.expected_batch)
        return replace(m, clipping=Flat(1.0), noise_multiplier=noise)

    def check_safe(self, role: str, name: str) -> None:
        """Refuse to train a network privately that mixes records; tried once, on records that are made up."""
        known = (name, self._architectures[name].build)
        if known not in self.workshop.safe:
            made_up = torch.randint(0, 2, (4, *self.task.inputs), generator=generator(0, "made up"))
            try:
                lint.check(self.network(role, name).module, made_up.float().to(self.device))
            except UnsafeModule as error:
                raise UnsafeModule(f"the {role} network {name}: {error}") from None
            self.workshop.safe.add(known)

    def network(self, role: str, name: str) -> Network:
        """The network that a role works with; load weights before you use it."""
        return self.workshop.network(role, self._architectures[name], self.device)

    def build(self, role: str) -> Model:
        arch = self.architecture(role)

        def start() -> Model:
            seed = derive(self.study.seed, "initial", role, arch.name)
            return Model(self.workshop.fresh(arch, seed, self.device), arch.name, Custody.PUBLIC)

        return self.workshop.once(("initial", role, arch, self.study.seed, self.device), start)

    def round(self, number: int) -> SiteRound:
        return SiteRound(self, number)

    def rule(self, protected: bool) -> Optimiser:
        """The optimiser of private, or of plain, training; read from the study once."""
        if protected not in self._rules:
            training = self.study.training
            by_noise = protected and self.mechanism is not None and not training.states_steps
            if by_noise:
                self._rules[protected] = self._paced()
            else:  # the same for all sites
                self._rules[protected] = self.workshop.once(
                    ("rule", protected), lambda: training.rule(protected)
                )
        return self._rules[protected]

    def counted(self, loss: Loss, model: Model, noisy: bool) -> Loss:
        """The loss with all classes counting alike, where the study wants that.

        A private step may only know the class shares that its model brings, which were released before.
        """
        if not self.study.training.balanced or self.task.kind not in ("binary", "multiclass"):
            return loss
        shares = released(model) if noisy else self.shares()
        return balance(loss, shares) if shares is not None else loss

    def shares(self) -> Shares:
        """How frequent each class is among the site's own records; PRIVATE."""
        if self._shares is None:
            self._shares = counted(self.own_records().targets, max(2, outputs_of(self.task)))
        return self._shares

    def worth(self) -> Tensor | None:
        """How much a record of each class counts where all classes count alike; None where they do not."""
        if not self.study.training.balanced or self.task.kind not in ("binary", "multiclass"):
            return None
        shares = torch.tensor([s.value for s in self.shares()], dtype=torch.float64)
        return 1 / (shares * len(shares))

    def own_mix(self, outputs: Tensor) -> Tensor:
        """Outputs that hold for the site's own mix of classes."""
        if not self.study.training.balanced or self.task.kind not in ("binary", "multiclass"):
            return outputs
        return outputs + log_shares(self.shares(), outputs.shape[1]).to(outputs)

    def _paced(self) -> Optimiser:
        """As far as the noise lets private training go; from public numbers only."""
        assert self.mechanism is not None
        steps, clipping = self.steps * self.study.rounds, self.mechanism.clipping
        clip, batch = clipping.norm if isinstance(clipping, Flat) else 1.0, self.mechanism.expected_batch
        noise, proxy = self.mechanism.noise_multiplier, self.network("proxy", self.architecture("proxy").name)
        if isinstance(proxy.module, Centred) and proxy.module.unit:
            time = time_for_unit_records(
                noise_multiplier=noise, steps=steps, batch=batch, clip=clip, sites=self.among
            )
        else:
            time = time_for(
                noise_multiplier=noise, steps=steps, batch=batch, clip=clip,
                parameters=self.build("proxy").params.count, sites=self.among,
            )  # fmt: skip
        if self.task.kind == "regression":
            time = slow_for_squares(time, steps, math.prod(self.task.inputs))
        return paced(time, steps)

    def effort(self, slot: str, model: Model) -> Effort:
        """What a round of plain descent takes; the memory of `slot` says how its clipping stands."""
        training, rule = self.study.training, self.rule(self.mechanism is not None)
        steady = 4 / (1 + math.prod(self.task.inputs))
        rate = rule.learning_rate / (1 - rule.momentum) if isinstance(rule, SGD) else steady
        if self.mechanism is None:
            batch = min(1.0, training.batch_size / self.size)
            return Effort(float(training.epochs), batch, public(0.0), rate)
        state = self.memory.get(slot, {}).get("clipping", {})
        if not state and isinstance(self.mechanism.clipping, Quantile):
            state = {"norm": torch.tensor(self.mechanism.clipping.norm)}
        noise = self.steps * self.mechanism.loudness(model.params.count, state)
        passes = self.steps * float(self.mechanism.sampling.rate)
        return Effort(passes, passes, Scalar(noise, Custody.PROTECTED if state else Custody.PUBLIC), rate)

    def batch(self, seed: int) -> Records:
        """One batch of the training records, drawn at random."""
        rows = torch.randperm(len(self.data.train), generator=generator(seed, "batch"))
        return self.data.train.select(rows[: self.study.training.batch_size])

    def own_records(self) -> Records:
        """Training and validation records together: what a site may use once nothing is held back for choosing."""
        parts = [r for r in (self.data.train, self.data.validation) if len(r)]
        units = None
        if self.data.train.units is not None:  # patients keep their numbers over the parts
            units = torch.cat([r.units for r in parts if r.units is not None])
        return Records(torch.cat([r.inputs for r in parts]), torch.cat([r.targets for r in parts]), units)

    def echo(self, ours: float) -> Echo:
        """How a proxy has learned in which so much is ours: what the judge of it has to know."""
        rule, clipping = self.rule(True), self.mechanism.clipping if self.mechanism else None
        time = math.inf
        if isinstance(rule, SGD):
            time = rule.learning_rate * max(1, self.steps) * self.study.rounds / (1 - rule.momentum)
        clip = clipping.norm if isinstance(clipping, Flat) else math.inf
        return Echo(len(self.data.train) / ours, clip, time)

    def guarantee(self) -> Guarantee | None:
        """What was spent so far and whether it is proven; None if nothing was trained with noise."""
        p = self.study.privacy
        if p is None or not self.ledger.counter:
            return None
        # of all that was ever spent on these records, in this study or before
        found = self.ledger.guarantee(p.delta)
        return found if self.unproven is None or not found.proven else replace(found, proven=False)

    def spending(self) -> dict[str, Any]:
        """What was spent on these records so far, for the journal; nothing if nothing was."""
        found = self.guarantee()
        return {} if found is None else {
            "epsilon": found.epsilon, "delta": found.delta, "unit": found.unit, "accountant": found.accountant,
            "proven": found.proven, "budget": self.budget.epsilon if self.budget else None,
        }  # fmt: skip

    def cost(self) -> tuple[Charge, float]:
        """What a round of private training is charged, and the rate at which its records are drawn."""
        m = self.mechanism
        assert m is not None
        if self._cost is None or self._cost[0] is not m or self._cost[1] != self.steps:
            self._cost = (m, self.steps, m.charge(self.steps), float(m.sampling.rate))
        return self._cost[2], self._cost[3]

    def planned(self) -> Guarantee | None:
        """What all rounds of the study will have cost; None without noise."""
        p = self.study.privacy
        if p is None or self.mechanism is None:
            return None
        steps = self.steps * self.study.rounds * self.releases
        total = epsilon([self.mechanism.charge(steps)], p.delta, p.accountant)
        if self.budget is not None:
            total = min(total, self.budget.epsilon)
        return Guarantee(total, p.delta, p.unit, p.accountant, self.unproven is None)

    def scores(
        self, predictors: Mapping[str, Predictor], fitted: bool = False
    ) -> dict[str, dict[str, dict[str, float]] | None]:
        """All metrics on validation, test and common test records, by role.

        A model that was `fitted` to the end has learned from the validation records: they say nothing then.
        """
        parts: dict[str, Records | None] = {
            "validation": None if fitted else self.data.validation,
            "test": self.data.test,
            "common_test": self.data.common_test,
        }
        out: dict[str, Any] = {}
        counts = fitted or self.study.evaluation.select == "last" or not len(self.data.validation)
        for part, records in parts.items():
            if records is None or len(records) == 0:
                out[part] = None
                continue
            said = {role: self.predicted(terms, records) for role, terms in predictors.items()}
            if part != "common_test":  # which is as the study wants it; the other parts are as the site is
                said = {role: self.own_mix(outputs) for role, outputs in said.items()}
            spread = self.task.spread
            out[part] = {role: measure(outputs, records.targets, spread) for role, outputs in said.items()}
            used = next(iter(predictors))  # the model that the site would use
            if part == "validation":
                counts = self.said.counts(out[part][used], counts)
            elif counts:
                self.said.keep(self.name, part, said[used], records, self.task.spread)
        if self.task.kind in ("binary", "multiclass"):
            usual = int(torch.bincount(self.data.train.targets.long()).argmax())
            tested = {
                part: records for part, records in parts.items() if records is not None and len(records)
            }
            out["majority"] = {p: float((r.targets == usual).double().mean()) for p, r in tested.items()}
        return out

    def predicted(self, terms: Predictor, records: Records) -> Tensor:
        """What several models say together about records."""
        return sum(
            (weight * self.outputs(model, records) for weight, model in terms if weight),
            torch.zeros(len(records), outputs_of(self.task)),
        )

    def outputs(self, model: Model, records: Records) -> Tensor:
        """What a model says about records."""
        network = self.network("judged", model.architecture)
        if (
            network.layers is not None
            and records.inputs.dtype == torch.float32
            and network.fits(model.params)
        ):
            return predict_chain(network.layers, model.params, records.inputs)
        network.load(model.params)
        return predict(network.module, records.inputs.to(self.device)).cpu()


def outputs_of(task: Task) -> int:
    """One logit for two classes: half the parameters, so half the noise, of one output per class."""
    return 1 if task.kind in ("binary", "regression") else len(task.classes)


class SiteRound:
    """`Site` for one round."""

    def __init__(self, participant: Participant, number: int) -> None:
        self._site, self._round = participant, number
        self.name, self.size = participant.name, participant.size
        self.rehearsal = participant.randomness is None or not participant.randomness.secure
        self._trainings = 0

    def build(self, role: str) -> Model:
        return self._site.build(role)

    def module(self, role: str) -> nn.Module:
        return self._site.network(role, self._site.architecture(role).name).module

    def tell(self, text: str) -> None:
        self._site.journal.add(Event("notice", self.name, self._round, data={"text": text, "told": True}))

    def trained_before(self) -> None:
        """A training of this round was done before a crash; its result is kept and it is not done again."""
        self._trainings += 1

    def effort(self, role: str, model: Model) -> Effort:
        return self._site.effort(f"{role} ({Custody.PROTECTED.name.lower()})", model)

    def weigh(self, weights: Mapping[str, Scalar], note: str = "") -> None:
        data = {"weights": {name: share.value for name, share in sorted(weights.items())}, "note": note}
        custody = strictest(share.custody for share in weights.values())
        self._site.journal.add(Event("weighed", self.name, self._round, custody, data))

    async def evaluate(self, models: Mapping[str, Model]) -> Mapping[str, Metrics]:
        site = self._site
        found: dict[str, Metrics] = {}
        for role, model in models.items():
            network = site.network(role, model.architecture)
            network.load(model.params)
            held_out = site.data.validation if len(site.data.validation) else site.data.train
            outputs = predict(network.module, held_out.inputs.to(site.device)).cpu()
            numbers = dict(loss_metrics(site.own_mix(outputs), held_out, site.data.train))
            own = site.own_records()
            said = predict(network.module, own.inputs.to(site.device)).cpu()
            numbers["scale"] = best_scale(said, own.targets, site.worth())
            found[role] = {name: private(value) for name, value in numbers.items()}
        return found

    async def fit(self, losses: Sequence[Loss], role: str, models: Mapping[str, Model]) -> Fitted:
        site, training = self._site, self._site.study.training
        networks = {}
        for name in {role, *(r for loss in losses for r in loss.reads)}:
            networks[name] = site.network(name, models[name].architecture)
            networks[name].load(models[name].params)
        job = Job(
            site=site.name, records=site.own_records(), objective={role: losses[0]}, networks=networks,
            anchors={}, mechanisms={}, optimisers={role: site.rule(False)}, memory={},
            batch_size=training.batch_size, epochs=1, steps=0,
            seed=derive(site.study.seed, site.name, "fit"), device=site.device,
        )  # fmt: skip
        seen = torch.arange(len(job.records)) < len(site.data.train)
        shares = [loss.ours for loss in losses if isinstance(loss, Stacked)]
        echo = site.echo(max(shares)) if shares and max(shares) > 0 else None
        alike = [site.counted(loss, models[role], noisy=False) for loss in losses]
        params, choice = fit(job, role, alike, models[role].params, training.search(), seen, echo)
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
        site, study = self._site, self._site.study
        read = {role: read_by(loss) for role, loss in objective.items()}
        for role, others in read.items():
            for other in (role, *others):
                if other not in models:
                    raise StudyError(
                        f'the objective of "{role}" needs a model called "{other}"; it was not given'
                    )
        self._trainings += 1
        if site.rest is not None and site.rest.resting:
            return dict(models)
        site.began = {models[r].architecture: models[r].params for r in protect if r in models}
        noisy = [r for r in protect if site.mechanism is not None and r in objective]
        for role in noisy:  # before anything is charged
            site.check_safe(role, models[role].architecture)
        trained = dict(objective)
        tallied = TALLY in objective
        if noisy and not self._charge(noisy):
            trained = {r: loss for r, loss in objective.items() if r not in noisy}
            noisy = []
        if not trained:
            return dict(models)
        started = time.perf_counter()
        networks: dict[str, Network] = {}
        weights: dict[str, Params] = {}
        anchors: dict[str, Params] = {}
        custody: dict[str, Custody] = {}
        slots: dict[str, str] = {}
        optimisers: dict[str, Optimiser] = {}
        memory: Memory = {}
        for role, loss in trained.items():
            if role not in SUMMED:
                plain = Supervised() if isinstance(loss, Descent) else loss
                trained[role] = site.counted(plain, models[role], role in noisy)
        for role, loss in trained.items():
            custody[role] = held = self._custody(role, noisy, protect, trained, models)
            # An optimiser's memory shapes the weights as much as the weights themselves do: it is kept apart by custody.
            slots[role] = slot = f"{role} ({held._name_.lower()})"
            if slot in site.memory:
                memory[role] = site.memory[slot]
            optimisers[role] = self._optimiser(role, objective[role], role in noisy)
            for other in (role, *loss.reads):
                if other not in networks:
                    model = models[other]
                    networks[other], weights[other] = site.network(other, model.architecture), model.params
            for other in read[role]:
                anchors[other] = models[other].params
        seed = derive(study.seed, site.name, self._round, "training", *self._again())
        brief = not noisy and all(isinstance(d := objective[r], Descent) and d.one_batch for r in trained)
        job = Job(
            site=site.name,
            records=site.batch(seed) if brief else site.data.train,
            objective=trained,
            networks=networks,
            anchors=anchors,
            mechanisms={r: site.mechanism_of(r) for r in noisy} if noisy else {},
            optimisers=optimisers,
            memory=memory,
            batch_size=len(site.data.train) if tallied else study.training.batch_size,
            epochs=1 if brief or tallied else study.training.epochs_at(site.name),
            steps=site.steps,
            seed=seed,
            device=site.device,
            run=site.run,
            randomness=site.randomness,
            weights=weights,
        )
        try:
            result = work(job) if tallied else await site.trainer.run(job)
        except TrainingError as error:
            raise TrainingError(f"round {self._round + 1}, {error}") from None
        site.memory = {**site.memory, **{slots[r]: m for r, m in result.memory.items() if r in slots}}
        out = dict(models)
        for role, params in result.params.items():
            if not params.is_finite():
                raise TrainingError(
                    f'site "{site.name}", round {self._round + 1}: the weights of "{role}" are no longer finite'
                    " numbers; lower training.learning_rate"
                )
            out[role] = Model(params, models[role].architecture, custody[role])
        if tallied:  # nothing was learned
            return out
        data: dict[str, Any] = {
            "losses": {r: v for r, v in result.losses.items() if math.isfinite(v)},
            "dropped": result.dropped,
            "seconds": round(time.perf_counter() - started, 4),
        }
        data["weights"] = {
            r: w.value for r, loss in objective.items() if (w := getattr(loss, "weight", None)) is not None
        }
        site.journal.add(Event("trained", site.name, self._round, Custody.PRIVATE, data))
        for text in result.notices:
            site.journal.add(Event("notice", site.name, self._round, Custody.PRIVATE, {"text": text}))
        return out

    def _optimiser(self, role: str, loss: Loss, noisy: bool) -> Optimiser:
        if isinstance(loss, Descent):
            return SGD(loss.rate)
        if role == TALLY:  # the mean over the steps
            return SGD(1 / max(1, self._site.steps) if noisy else 1.0)
        return SUMS if role == PROFILE else self._site.rule(noisy)

    def _custody(
        self,
        role: str,
        noisy: Sequence[str],
        protect: Sequence[str],
        objective: Objective,
        models: Mapping[str, Model],
    ) -> Custody:
        """PROTECTED only if noise was added and all that shaped the model is at most PROTECTED.

        A loss that reads a model which is trained beside it without noise reads records from the second step
        on, however public that model was before.
        """
        if role not in protect or models[role].custody == Custody.PRIVATE:  # whatever a study says
            return Custody.PRIVATE
        if role in noisy:
            plain = [r for r in objective if r not in noisy]
            read = {r: m.held(Custody.PRIVATE) if r in plain else m for r, m in models.items()}
            shaped_by = strictest([models[role].custody, loss_custody(objective[role], read)])
            if shaped_by <= Custody.PROTECTED:
                return Custody.PROTECTED
        return Custody.UNPROVEN if self._site.unproven is not None else Custody.PRIVATE

    def _again(self) -> tuple[int, ...]:
        """Tells a second training of the same round from the first: it costs, and draws noise, of its own."""
        return (self._trainings,) if self._trainings > 1 else ()

    def _charge(self, roles: Sequence[str]) -> bool:
        """Write what this round costs before it is computed; False if it would overspend."""
        site, p = self._site, self._site.study.privacy
        assert site.mechanism is not None
        assert p is not None
        mechanism = site.mechanism
        charge, rate = site.cost()
        replays = site.randomness is None or not site.randomness.secure  # the same noise is the same release
        for role in roles:
            key = (site.run, self._round, role, *self._again())
            try:
                site.ledger.spend([charge], key="/".join(map(str, key)), budget=site.budget, replay=replays)
            except BudgetExhausted as refusal:
                if not site.spent:
                    site.spent = True
                    relays = p.when_spent == "relay"
                    data = {"text": str(refusal), "relays": relays, **site.spending()}
                    site.journal.add(Event("budget-spent", site.name, self._round, data=data))
                return False
            data = {
                "role": role,
                "steps": site.steps,
                **site.spending(),
                "noise_multiplier": mechanism.noise_multiplier,
                "sample_rate": rate,
            }
            site.journal.add(Event("charged", site.name, self._round, data=data))
        return True


def check_records(data: SiteData, task: Task, one_class: bool = False) -> None:
    """What training cannot do without."""
    if len(data.train) == 0:
        raise DataError(f'site "{data.name}" has no training records; leave it out or give it some')
    if not bool(data.train.inputs.isfinite().all()):
        raise DataError(
            f'site "{data.name}": the inputs hold NaN or infinite values; encode missing values first'
        )
    if not one_class and task.kind in ("binary", "multiclass") and len(torch.unique(data.train.targets)) < 2:
        only = task.classes[int(data.train.targets[0])]
        raise DataError(
            f'site "{data.name}": all training records are of one class ({only}); a site needs at least two'
            ' (or say data.one_class = "allow")'
        )
    if not one_class and task.kind == "regression" and float(data.train.targets.std(unbiased=False)) == 0:
        only_value = float(data.train.targets[0]) * task.spread + task.centre
        raise DataError(
            f'site "{data.name}": the target is {only_value:g} in all training records; there is nothing to learn.'
            ' Is it the right column? (Or say data.one_class = "allow")'
        )
    if not one_class and task.kind == "multilabel":
        shares = data.train.targets.mean(0)
        for label, share in zip(task.classes, shares.tolist(), strict=True):
            if share in (0.0, 1.0):
                raise DataError(
                    f'site "{data.name}": the label {label} is {"yes" if share else "no"} in all training records;'
                    ' leave it out, or say data.one_class = "allow"'
                )

"""What a site consists of during a run: its records, networks, mechanism, budget and ledger."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from confrere.core.custody import Custody, Scalar, public
from confrere.core.errors import StudyError
from confrere.core.events import Event, Journal
from confrere.core.model import Architecture, Model
from confrere.core.params import Params
from confrere.core.protocols import (
    Effort,
    Loss,
    Optimiser,
    Predictor,
    Reshapes,
    Strategy,
)
from confrere.core.results import Tested
from confrere.core.seeds import derive, generator
from confrere.data.records import Records, SiteData
from confrere.data.tasks import Task
from confrere.learning.balance import balance, counted, log_shares, released
from confrere.learning.evaluation import measure, predict
from confrere.learning.fit.leave_one_out import ProxyTraining
from confrere.learning.local_training.one_site import Memory, Trainer
from confrere.learning.networks.architectures import describe, fresh
from confrere.learning.networks.loss_sum import LOSS_SUM
from confrere.learning.networks.network import Network, NetworkCache
from confrere.learning.networks.tables import Centred
from confrere.learning.objectives import Shares, for_kind
from confrere.learning.private_centre import PROFILE
from confrere.learning.step_schedule import (
    FURTHEST,
    LONGEST,
    paced,
    slow_for_squares,
    time_for,
    time_for_unit_records,
)
from confrere.privacy.accounting import epsilon, per_unit
from confrere.privacy.budget import Budget
from confrere.privacy.charged_steps import UNPROTECTED, PrivateSteps
from confrere.privacy.charges import CEILING, Charge, Guarantee, conditions
from confrere.privacy.clipping import Flat
from confrere.privacy.interpretation import meaning, readings, trade_off
from confrere.privacy.ledger import Ledger
from confrere.privacy.mechanism import Mechanism
from confrere.privacy.noise import Randomness
from confrere.privacy.patient_hashes import fingerprint
from confrere.site.checks import check_fit
from confrere.site.journal_results import tested
from confrere.site.open_sites import records_hash
from confrere.site.predictions import SelectedPredictions
from confrere.site.stopping import Stopping
from confrere.study import Study


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
    ceiling: float = CEILING
    """The ε of all that was ever spent on these records above which noise is taken for no protection."""
    delta: float | None = None
    """The δ at which this site reads ε; None is the study's."""
    device: str = "cpu"
    randomness: Randomness | None = None
    """Where noise and sampling come from; None is the reproducible source of a simulation."""
    memory: Memory = field(default_factory=dict)
    spent: bool = False
    stopping: Stopping | None = None
    """Whether this site has stopped training, where the study says when to."""
    start_weights: dict[str, Params] = field(default_factory=dict, repr=False)
    """By architecture, the weights that the last training of what is sent began with."""
    site_count: int = 1
    """How many sites learn together."""
    releases: int = 1
    """How many protected models it trains in a round, each for `steps` steps on samples of its own."""
    trainings: dict[int, int] = field(default_factory=dict)
    """How many trainings each round has had, whichever handle they were asked of."""
    joined: bool = False
    """Whether it takes part in the field, where an error that only its records cause must stay inside."""
    predictions: SelectedPredictions = field(init=False, default_factory=SelectedPredictions)
    """Its model's predictions for the test records, for comparisons: PRIVATE."""
    network_cache: NetworkCache = field(default_factory=NetworkCache, repr=False)
    """The networks that it works with; sites of one process share them."""
    extra_networks: dict[str, Any] = field(default_factory=dict)
    """Networks that its strategy needs in addition to the study's, by role."""
    architectures: dict[str, Architecture] = field(default_factory=dict)
    """All architectures that the study has at this site, by name; they come in as they are first used."""
    _by_role: dict[str, Architecture] = field(default_factory=dict)
    _optimisers: dict[bool, Optimiser] = field(default_factory=dict)
    _shares: Shares | None = None
    sizes: Mapping[str, int] = field(default_factory=dict)
    """The public training sizes of all sites, where masked sums need them."""
    share_hook: Any = None
    """Of a rehearsal: a `ShareHook` that sees, and may replace, the site's vectors in masked sums."""
    members_at: Callable[[int], int] | None = None
    """The number of members in a round: how many share the noise of a masked sum."""
    reuses: bool = False
    """Of a node: whether a charge of which nothing was released may be used again after a crash."""
    secret: bytes = field(default=b"", repr=False)
    """Of a node: the key of its records' fingerprint. A simulation has none, and its fingerprints stay inside."""
    _fingerprint: tuple[SiteData, str] | None = field(default=None, repr=False)
    _held_out: tuple[SiteData, dict[str, Tested]] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        for role in ("private", "proxy"):  # a network that cannot be built, or does not fit, is noticed here
            check_fit(self, role)

    def reset(self) -> None:
        """Return to the start of a run, with the records as they are now. The ledger keeps what it was charged."""
        self.memory, self.spent, self.predictions = {}, False, SelectedPredictions()
        self.trainings.clear()
        self.start_weights.clear()
        self._shares = None
        if self.stopping is not None:
            self.stopping.reset()

    @property
    def size(self) -> int:
        return self.data.size

    @property
    def rehearsal(self) -> bool:
        """Whether noise and sampling are reproducible, so that nothing here is private in earnest."""
        return self.randomness is None or not self.randomness.secure

    def architecture(self, role: str) -> Architecture:
        """The network that the study has for a role at this site."""
        found = self._by_role.get(role)
        if found is None:
            found = self._by_role[role] = self._architecture(role)
        return found

    def _architecture(self, role: str) -> Architecture:
        spec = self.extra_networks.get(role) or self.study.models.of(
            self.name, "proxy" if role == PROFILE else role
        )
        if role == PROFILE:
            name, options = describe(spec) if isinstance(spec, str | dict) else ("", {})
            if name != "centred-linear":
                raise StudyError('only the proxy "centred-linear" has a centre to agree on')
            spec = {"name": name, **options, "profiling": True}
        found = self.network_cache.architecture(spec, self.task.inputs, self.task.outputs, self.task.branches)
        self.architectures.setdefault(found.name, found)
        return found

    def add_networks(self, strategy: Strategy) -> None:
        """Add the networks that a strategy needs in addition to the study's."""
        if isinstance(strategy, Reshapes):
            role = strategy.architecture
            self.extra_networks = dict(
                strategy.networks(self.study.models.of(self.name, role), self.architecture(role))
            )
            self._by_role = {}
            for role in self.extra_networks:
                check_fit(self, role)

    def mechanism_of(self, role: str) -> Mechanism:
        """The mechanism of a private step. The losses of a private loss sum lie between 0 and 1, so nothing is clipped;
        the noise is chosen so that a step costs the same."""
        assert self.mechanism is not None
        if role != LOSS_SUM:
            return self.mechanism
        m = self.mechanism
        noise = m.clipping.effective_noise_multiplier(m.noise_multiplier, m.expected_batch)
        # also with masked sums a site releases its loss by itself, with the noise of a whole release
        return Mechanism(m.sampling, Flat(1.0), noise, m.expected_batch, m.unit, m.proven)

    def network(self, role: str, name: str) -> Network:
        """The network that a role works with; load weights before you use it."""
        return self.network_cache.network(role, self.architectures[name], self.device)

    def layers(self, role: str) -> nn.Module:
        """A network of this role without numbers in it: the one that works here holds the weights that were loaded last."""
        arch = self.architecture(role)
        return self.network_cache.once(("layers", arch), lambda: copy.deepcopy(fresh(arch, 0)).to("meta"))

    def build(self, role: str) -> Model:
        arch = self.architecture(role)

        def start() -> Model:
            seed = derive(self.study.seed, "initial", role, arch.name)
            return Model(self.network_cache.fresh(arch, seed, self.device), arch.name, Custody.PUBLIC)

        return self.network_cache.once(("initial", role, arch, self.study.seed, self.device), start)

    def note(self, round: int, text: str) -> None:
        """Add a PRIVATE notice about records to the site's own journal."""
        self.journal.add(Event("notice", self.name, round, Custody.PRIVATE, {"text": text}))

    def build_optimiser(self, protected: bool) -> Optimiser:
        """The optimiser of private, or of plain, training; read from the study once."""
        if protected not in self._optimisers:
            training = self.study.training
            by_noise = protected and self.mechanism is not None and not training.states_steps
            if by_noise:
                self._optimisers[protected] = self._paced()
            else:  # the same for all sites
                self._optimisers[protected] = self.network_cache.once(
                    ("optimiser", protected), lambda: training.build_optimiser(protected)
                )
        return self._optimisers[protected]

    def counted(self, loss: Loss, model: Model, noisy: bool) -> Loss:
        """The loss as the task's kind has it, with all classes counting alike where the study wants that.

        A private step may only know the class shares that its model brings, which were released before.
        """
        loss = for_kind(loss, self.task.kind)
        if not self.study.training.balanced or self.task.form != "classes":
            return loss
        shares = released(model) if noisy else self.shares()
        return balance(loss, shares) if shares is not None else loss

    def shares(self) -> Shares:
        """How frequent each class is among the site's own records; PRIVATE."""
        if self._shares is None:
            self._shares = counted(self.own_records().targets, len(self.task.classes))
        return self._shares

    def class_weights(self) -> Tensor | None:
        """How much a record of each class counts where all classes count alike; None where they do not."""
        if not self.study.training.balanced or self.task.form != "classes":
            return None
        shares = torch.tensor([s.value for s in self.shares()], dtype=torch.float64)
        return 1 / (shares * len(shares))

    def own_mix(self, outputs: Tensor) -> Tensor:
        """Outputs that hold for the site's own mix of classes."""
        if not self.study.training.balanced or self.task.form != "classes":
            return outputs
        return outputs + log_shares(self.shares(), outputs.shape[1]).to(outputs)

    def fastest_rate(self) -> float:
        """The largest learning rate that any site of this study can have; the same at every site."""
        protected = self.mechanism is not None
        if not protected or self.study.training.states_steps:
            return float(getattr(self.build_optimiser(protected), "learning_rate", 1.0))
        return paced(self.longest_time(), self.steps * self.study.rounds).learning_rate

    def longest_time(self) -> float:
        """The largest sum of the steps of all rounds, where the noise determines the steps."""
        return FURTHEST if self._has_unit_records() else LONGEST

    def _has_unit_records(self) -> bool:
        """Whether the proxy scales records to norm 1."""
        proxy = self.network("proxy", self.architecture("proxy").name).module
        return isinstance(proxy, Centred) and proxy.unit

    def _paced(self) -> Optimiser:
        """Steps as long as the noise allows; computed from public numbers only."""
        assert self.mechanism is not None
        steps = self.steps * self.study.rounds
        clip, batch = self.mechanism.clipping.bound, self.mechanism.expected_batch
        noise, sites = self.mechanism.noise_multiplier, self.site_count
        if self.mechanism.terms is not None:  # the records of all sites share the noise of one release
            batch, sites = float(sum(self.sizes.values())), 1
        if self._has_unit_records():
            time = time_for_unit_records(
                noise_multiplier=noise, steps=steps, batch=batch, clip=clip, sites=sites
            )
        else:
            time = time_for(
                noise_multiplier=noise, steps=steps, batch=batch, clip=clip,
                parameters=self.build("proxy").params.count, sites=sites,
            )  # fmt: skip
        if self.task.form == "number":
            time = slow_for_squares(time, steps, math.prod(self.task.inputs))
        return paced(time, steps)

    def effort(self, slot: str, model: Model) -> Effort:
        """What a round of plain descent costs; the memory of `slot` has the state of its clipping."""
        training, optimiser = self.study.training, self.build_optimiser(self.mechanism is not None)
        steady = 4 / (1 + math.prod(self.task.inputs))
        rate = steady if optimiser.long_run_rate is None else optimiser.long_run_rate
        if self.mechanism is None:
            batch = min(1.0, training.batch_size / self.size)
            return Effort(float(training.epochs), batch, public(0.0), rate)
        state = self.memory.get(slot, {}).get("clipping", {})
        noise = self.steps * self.mechanism.expected_noise(model.params.count, state)
        passes = self.steps * float(self.mechanism.sampling.rate)
        return Effort(passes, passes, Scalar(noise, self.released if state else Custody.PUBLIC), rate)

    def batch(self, seed: int) -> Records:
        """One batch of the training records, drawn at random."""
        rows = torch.randperm(len(self.data.train), generator=generator(seed, "batch"))
        return self.data.train.select(rows[: self.study.training.batch_size])

    def own_records(self) -> Records:
        """Training and validation records together: what a site may use once nothing is held back for choosing."""
        return self.data.without_test

    def proxy_training(self, ours: float) -> ProxyTraining:
        """How a proxy was trained of which the share `ours` comes from this site, for leave-one-out corrections."""
        optimiser, clipping = self.build_optimiser(True), self.mechanism.clipping if self.mechanism else None
        time = math.inf
        if optimiser.long_run_rate is not None:
            time = optimiser.long_run_rate * max(1, self.steps) * self.study.rounds
        clip = clipping.bound if clipping is not None and clipping.fixed_noise else math.inf
        return ProxyTraining(len(self.data.train) / ours, clip, time)

    def guarantee(self) -> Guarantee | None:
        """What was spent so far and whether it is proven; None if nothing was trained with noise."""
        p = self.study.privacy
        if p is None or not self.ledger.counter:
            return None
        # of all that was ever spent on these records, in this study or before
        found = self.ledger.guarantee(self.delta or p.delta, p.unit, ceiling=self.ceiling)
        return found if self.unproven is None else replace(found, proven=False)

    @property
    def released(self) -> Custody:
        """What noise makes of a model: PROTECTED, or UNPROVEN once the ledger's total is above the ceiling."""
        found = self.guarantee()
        return Custody.UNPROVEN if found is not None and found.above_ceiling else Custody.PROTECTED

    def caveat(self) -> str | None:
        """Why the models that this study sends are gated like UNPROVEN; None if they are not."""
        planned = self.planned()
        if self.unproven is not None or planned is None or not planned.above_ceiling:
            return self.unproven
        return f"all rounds together come to {planned}"

    def spending(self) -> dict[str, Any]:
        """What was spent on these records so far, for the journal; nothing if nothing was."""
        found = self.guarantee()
        return {} if found is None else {
            "epsilon": found.epsilon, "delta": found.delta, "unit": found.unit, "accountant": found.accountant,
            "proven": found.proven, "budget": self.budget.epsilon if self.budget else None,
            "units": self._units(found), "ceiling": found.ceiling, "above_ceiling": found.above_ceiling,
            **({"condition": found.condition} if found.condition else {}),
        }  # fmt: skip

    def _units(self, found: Guarantee) -> dict[str, float | None]:
        """ε for every unit that occurs on these records' ledger, and for the study's; None where there is no bound."""
        other = {u: self.ledger.epsilon(found.delta, u) for u in self.ledger.units() if u != found.unit}
        every = {**other, found.unit: found.epsilon}
        return {u: value if math.isfinite(value) else None for u, value in sorted(every.items())}

    def private_steps(self, roles: Sequence[str], count: int | None = None) -> PrivateSteps:
        """The private steps of a call that protects these roles, a round's or `count`: what is charged, and what draws."""
        if self.mechanism is None or not roles:
            return UNPROTECTED
        mechanisms = {role: self.mechanism_of(role) for role in roles}
        return PrivateSteps(mechanisms, self.steps if count is None else count)

    def round_charge(self) -> Charge | None:
        """What a round costs in which as many models are protected as the strategy states; None without noise."""
        if self.mechanism is None:
            return None
        return self.mechanism.charge(self.steps) * self.releases

    def rounds_left(self, ledger: Ledger | None = None) -> int | None:
        """How many more rounds of private training the budget pays for; None where nothing limits them."""
        charge = self.round_charge()
        if charge is None or self.budget is None:
            return None
        return (ledger or self.ledger).remaining(self.budget, charge)

    @property
    def fingerprint(self) -> str:
        """A keyed hash of the records, so that a charge for others is not taken for a replay; it never leaves the site."""
        if self._fingerprint is None or self._fingerprint[0] is not self.data:
            self._fingerprint = (self.data, fingerprint(self.secret, records_hash(self.data)))
        return self._fingerprint[1]

    def planned(self) -> Guarantee | None:
        """What the ledger will have come to after all rounds of the study; None without noise."""
        p = self.study.privacy
        if p is None or self.mechanism is None:
            return None
        totals = []
        condition = conditions([*self.plan(), *self.ledger.charges()])
        for before in self.ledger.before(self.run):
            total = self.epsilon([*before, *self.plan()])
            if self.budget is not None:  # nothing is spent beyond it
                total = min(total, max(self.budget.epsilon, self.epsilon(before)))
            totals.append(total)
        return Guarantee(
            max(totals),
            self.delta or p.delta,
            p.unit,
            "rdp" if condition else p.accountant,
            self.unproven is None,
            self.ceiling,
            condition,
        )

    def meaning(self, charges: Sequence[Charge]) -> dict[str, Any]:
        """What these charges mean: ε per record, per patient and for the whole file, and the trade-off curve."""
        p = self.study.privacy
        assert p is not None
        delta, group = self.delta or p.delta, self.study.data.split.file_group
        own = per_unit(charges, p.unit)
        curve = None if own is None else trade_off(own, p.accountant)
        return {
            "unit": p.unit,
            "readings": readings(charges, delta, p.unit, p.accountant, file_group=group),
            "file_group": group,
            "sentence": meaning(curve, p.unit),
            "trade_off": None if curve is None else curve.as_json(),
        }

    def plan(self) -> list[Charge]:
        """What all rounds of the study are charged, if no budget ends them; nothing without noise."""
        charge = self.round_charge()
        return [] if charge is None else [charge * self.study.rounds]

    def epsilon(self, charges: Sequence[Charge]) -> float:
        """ε of these charges in the study's unit, at the site's δ; infinite where there is no bound."""
        p = self.study.privacy
        assert p is not None
        found = per_unit(charges, p.unit)
        return math.inf if found is None else epsilon(found, self.delta or p.delta, p.accountant)

    def scores(
        self, predictors: Mapping[str, Predictor], fitted: bool = False
    ) -> dict[str, dict[str, dict[str, float]] | None]:
        """All metrics on validation, test and common test records, by role.

        A model that was `fitted` to the end has learned from the validation records, so they are left out.
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
            outputs = {role: self.predicted(terms, records) for role, terms in predictors.items()}
            if part != "common_test":  # which is as the study wants it; the other parts are as the site is
                outputs = {role: self.own_mix(found) for role, found in outputs.items()}
            spread = self.task.spread
            out[part] = {role: measure(found, records.targets, spread) for role, found in outputs.items()}
            used = next(iter(predictors))  # the model that the site would use
            if part == "validation":
                counts = self.predictions.counts(out[part][used], counts)
            elif counts:
                self.predictions.keep(self.name, part, outputs[used], records, self.task.spread)
        if self.task.form == "classes" and len(self.data.train):
            usual = int(torch.bincount(self.data.train.targets.long()).argmax())
            there = {part: records for part, records in parts.items() if records is not None and len(records)}
            out["majority"] = {p: float((r.targets == usual).double().mean()) for p, r in there.items()}
        out["patients"] = {p: counts.as_json() for p, counts in self.held_out().items() if out.get(p)}
        return out

    def held_out(self) -> dict[str, Tested]:
        """How many patients the figures of each held-out part rest on; PRIVATE."""
        data = self.data
        if self._held_out is None or self._held_out[0] is not data:
            parts = {"validation": data.validation, "test": data.test, "common_test": data.common_test}
            found = {p: tested(r, self.task) for p, r in parts.items() if r is not None}
            self._held_out = data, {p: counts for p, counts in found.items() if counts is not None}
        return self._held_out[1]

    def predicted(self, terms: Predictor, records: Records) -> Tensor:
        """The weighted sum of several models' outputs for records."""
        return sum(
            (weight.value * self.outputs(model, records) for weight, model in terms if weight.value),
            torch.zeros(len(records), self.task.outputs),
        )

    def outputs(self, model: Model, records: Records) -> Tensor:
        """A model's outputs for records."""
        network = self.network("judged", model.architecture)
        if network.module.training:  # it is never trained
            network.module.eval()
        network.load(model.params)
        return predict(network.module, records.inputs.to(self.device)).cpu()

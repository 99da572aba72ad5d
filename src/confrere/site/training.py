"""One training call of a site: what is charged, the job that is trained, and the custody of what comes out."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from confrere.core.custody import Custody, Share, may_leave, strictest
from confrere.core.errors import BudgetExhausted, CustodyError, PrivacyError, StudyError, TrainingError
from confrere.core.events import Event
from confrere.core.loss_inspection import LossContents, contents_of, read_by
from confrere.core.model import Model
from confrere.core.params import Params
from confrere.core.protocols import Loss, Objective, Optimiser
from confrere.core.seeds import derive
from confrere.learning.local_training.one_site import Job, Memory, Trained, train_site
from confrere.learning.networks.loss_sum import LOSS_SUM
from confrere.learning.networks.network import Network
from confrere.learning.objectives import Supervised, stated_rate
from confrere.learning.optimisers import SGD, Collect
from confrere.learning.private_centre import PROFILE, SUMS
from confrere.privacy.charged_steps import UNPROTECTED, PrivateSteps
from confrere.site.checks import check_loss_on_site, check_safe

if TYPE_CHECKING:
    from confrere.site.participant import Participant

SUMMED = (PROFILE, LOSS_SUM)
"""Roles that are not trained to predict: they collect sums over records."""


def check_given(objective: Objective, models: Mapping[str, Model]) -> None:
    """Refuse an objective that needs a model which was not given."""
    given: Mapping[str, object] = models
    for role, model in models.items():
        if isinstance(given[role], Share):
            raise CustodyError(
                f'"{role}" is a share of a masked sum: it has only a part of the noise, and nothing may be trained on it'
            )
        model.params.require_unchanged()
    for role, loss in objective.items():
        for other in (role, *read_by(loss)):
            if other not in models:
                raise StudyError(
                    f'the objective of "{role}" needs a model called "{other}"; it was not given'
                )


@dataclass
class TrainingCall:
    """Everything that one call of `site.train`, or of `site.gradient_sum`, was given and decides.

    With `gradient_only` the call makes a single step on all records, and what comes out in the place of the weights is
    the gradient at them.
    """

    site: Participant
    round: int
    objective: Objective
    models: Mapping[str, Model]
    protect: Sequence[str]
    again: tuple[int, ...] = ()
    """Which call of its round it is, from the second on: each is charged, and draws noise, of its own."""
    gradient_only: bool = False
    paid: str | None = None
    """Under which key the ledger was charged for it."""
    _contents: dict[int, LossContents] = field(default_factory=dict)

    async def run(self) -> dict[str, Model] | None:
        """The trained models; None where nothing was trained."""
        private = self._paid_steps()
        trained = self._trained_losses(private)
        if not trained:
            return None
        started = time.perf_counter()
        custody = self._custodies(private, trained)
        slots = {role: self._slot(role, held) for role, held in custody.items()}
        job = self._job(trained, private, slots)
        loss_only = LOSS_SUM in self.objective
        try:
            result = train_site(job) if loss_only else await self.site.trainer.run(job)
        except TrainingError as error:
            raise TrainingError(f"round {self.round + 1}, {error}") from None
        kept = {slots[r]: m for r, m in result.memory.items() if r in slots}
        self.site.memory = {**self.site.memory, **kept}
        out = {
            role: Model(self._finite(role, params, job, slots), self.models[role].architecture, custody[role])
            for role, params in result.params.items()
        }
        if not loss_only:  # where something was learned
            self._note(result, time.perf_counter() - started)
        return out

    def _paid_steps(self) -> PrivateSteps:
        """The private steps of the call, charged; none where nothing is protected, or the budget does not last."""
        site = self.site
        noisy = [r for r in self.protect if site.mechanism is not None and r in self.objective]
        masked = [r for r in noisy if site.mechanism_of(r).terms is not None]
        if masked:  # before anything is charged
            raise PrivacyError(
                f'"{masked[0]}" cannot be trained with noise at a site of a study with masked sums: a site has only a part of'
                " the noise. Use site.gradient_sum and peers.sum"
            )
        for role in noisy:  # before anything is charged
            contents = self._contents_of(self.objective[role])
            check_safe(site, role, self.models[role].architecture)
            check_loss_on_site(site, role, contents, self.models)
        private = site.private_steps(noisy, 1 if self.gradient_only else None)
        return private if not private or self._charge(private) else UNPROTECTED

    def _contents_of(self, loss: Loss) -> LossContents:
        """What a loss holds, inspected once per call: until the training itself, no loss runs on records."""
        if id(loss) not in self._contents:  # which keeps the loss, so that no other has its id
            self._contents[id(loss)] = contents_of(loss)
        return self._contents[id(loss)]

    def _trained_losses(self, private: PrivateSteps) -> dict[str, Loss]:
        """The roles that are trained, with their losses as the study wants classes to be counted."""
        site, out = self.site, dict(self.objective)
        if not private and site.mechanism is not None:  # the budget does not last for what is protected
            out = {r: loss for r, loss in out.items() if r not in self.protect}
        for role, loss in out.items():
            if role not in SUMMED:
                plain = loss if stated_rate(loss) is None else Supervised()
                out[role] = site.counted(plain, self.models[role], role in private)
        return out

    def _job(self, trained: Objective, private: PrivateSteps, slots: Mapping[str, str]) -> Job:
        site, training = self.site, self.site.study.training
        networks: dict[str, Network] = {}
        weights: dict[str, Params] = {}
        anchors: dict[str, Params] = {}
        for role, loss in trained.items():
            for other in (role, *loss.reads):
                if other not in networks:
                    model = self.models[other]
                    networks[other], weights[other] = site.network(other, model.architecture), model.params
            for other in read_by(self.objective[role]):
                anchors[other] = self.models[other].params
        seed = derive(site.study.seed, site.name, self.round, "training", *self.again)
        rates = [stated_rate(self.objective[r]) for r in trained]
        brief = not private and all(rate is not None and rate.one_batch for rate in rates)
        whole = self.gradient_only or LOSS_SUM in self.objective
        return Job(
            site=site.name,
            records=site.batch(seed) if brief else site.data.train,
            objective=trained,
            networks=networks,
            anchors=anchors,
            private=private,
            optimisers={r: self._optimiser(r, r in private) for r in trained},
            memory=self._memory(slots),
            batch_size=max(1, len(site.data.train)) if whole else training.batch_size,
            epochs=1 if brief or whole else training.epochs_at(site.name),
            seed=seed,
            device=site.device,
            run=site.run,
            randomness=site.randomness,
            weights=weights,
            expendable=frozenset(r for r in trained if r not in self.protect) if site.joined else frozenset(),
        )

    def _memory(self, slots: Mapping[str, str]) -> Memory:
        """What the optimisers and the clippings of the roles remember."""
        memory: Memory = {}
        for role, slot in slots.items():
            before = slot
            if slot not in self.site.memory and slot == self._slot(role, Custody.UNPROVEN):
                before = self._slot(role, Custody.PROTECTED)  # it has just passed the ceiling
            if before in self.site.memory:
                memory[role] = self.site.memory[before]
        return memory

    def _slot(self, role: str, held: Custody) -> str:
        return slot_of(f"gradient of {role}" if self.gradient_only else role, held)

    def _optimiser(self, role: str, noisy: bool) -> Optimiser:
        if self.gradient_only:
            return Collect()
        stated = stated_rate(self.objective[role])
        if stated is not None:
            return SGD(stated.rate)
        if role == LOSS_SUM:  # the mean over the steps
            return SGD(1 / max(1, self.site.steps) if noisy else 1.0)
        return SUMS if role == PROFILE else self.site.build_optimiser(noisy)

    def _custodies(self, private: PrivateSteps, trained: Objective) -> dict[str, Custody]:
        """How closely each trained model is held: as closely as anything that reaches it, however many roles lie between.

        The roles of a call step side by side: from the second step on, a loss that reads one of them reads what that
        role's own loss reads. So custody is raised along what is read until nothing changes.
        """
        found = {r: self._custody(r, private, trained, self.models) for r in trained}
        if len(found) == 1:  # no other role is trained that it could read
            return found
        while True:
            read = {r: m.held(found[r]) if r in found else m for r, m in self.models.items()}
            raised = {r: self._custody(r, private, trained, read) for r in trained}
            if raised == found:
                return found
            found = raised

    def _custody(
        self, role: str, private: PrivateSteps, trained: Objective, models: Mapping[str, Model]
    ) -> Custody:
        """PROTECTED only if noise was added, all that shaped the model is at most PROTECTED, and ε is within the ceiling.

        A loss that reads a model which is trained beside it without noise reads records from the second step
        on, however public that model was before.
        """
        if role not in self.protect or not may_leave(
            models[role].custody, consent=True
        ):  # whatever a study says
            return Custody.PRIVATE
        if role in private:
            plain = [r for r in trained if r not in private]
            read = {r: m.held(Custody.PRIVATE) if r in plain else m for r, m in models.items()}
            shaped_by = strictest([models[role].custody, self._contents_of(trained[role]).custody(read)])
            if may_leave(shaped_by):
                return self._released
            if shaped_by is Custody.UNPROVEN:  # by what arrived so
                return Custody.UNPROVEN
        return Custody.UNPROVEN if self.site.unproven is not None else Custody.PRIVATE

    @cached_property
    def _released(self) -> Custody:
        """What noise makes of a model, after the call was charged."""
        return self.site.released

    def _finite(self, role: str, params: Params, job: Job, slots: Mapping[str, str]) -> Params:
        """The weights if they are numbers; those from before where a failure stays inside the site."""
        if params.is_finite():
            return params
        site = self.site
        broken = TrainingError(
            f'site "{site.name}", round {self.round + 1}: the weights of "{role}" are no longer finite'
            " numbers; lower training.learning_rate"
        )
        if role not in job.expendable:
            raise broken
        site.note(self.round, f"{broken}. It keeps the weights that it had before this round")
        site.memory.pop(slots[role], None)
        return self.models[role].params

    def _note(self, result: Trained, seconds: float) -> None:
        """Put into the journal what the training was like: PRIVATE."""
        site = self.site
        data: dict[str, Any] = {
            "losses": {r: v for r, v in result.losses.items() if math.isfinite(v)},
            "dropped": result.dropped,
            "seconds": round(seconds, 4),
        }
        data["weights"] = {
            r: w.value
            for r, loss in self.objective.items()
            if (w := getattr(loss, "weight", None)) is not None
        }
        site.journal.add(Event("trained", site.name, self.round, Custody.PRIVATE, data))
        for text in result.notices:
            site.note(self.round, text)

    def _charge(self, private: PrivateSteps) -> bool:
        """Write what a training call costs before it is computed; False, and nothing is written, if it would overspend.

        All roles of a call draw from one source, so they are one entry: a replay is free only as a whole. The same noise
        on the same inputs is the same release; with a secure source, no noise is drawn twice.
        """
        site, p = self.site, self.site.study.privacy
        assert p is not None
        roles = "+".join(map(_escaped, private.mechanisms))
        key = "/".join(map(str, (site.run, self.round, roles, *self.again)))
        try:
            site.ledger.spend(
                private.charges,
                key=key,
                budget=site.budget,
                records=site.fingerprint,
                replay_of=self._digest(list(private.mechanisms)) if site.rehearsal else None,
                reuse=site.reuses,
            )
        except BudgetExhausted as refusal:
            if not site.spent:
                site.spent = True
                relays = p.when_spent == "relay"
                data = {"text": str(refusal), "relays": relays, **site.spending()}
                site.journal.add(Event("budget-spent", site.name, self.round, data=data))
            return False
        self.paid = key
        for role, mechanism in private.mechanisms.items():
            data = {
                "role": role,
                "steps": private.count,
                **site.spending(),
                "noise_multiplier": mechanism.noise_multiplier,
                "sample_rate": float(mechanism.sampling.rate),
                "mechanism": mechanism.event,
            }
            site.journal.add(Event("charged", site.name, self.round, data=data))
        return True

    def _digest(self, roles: Sequence[str]) -> str:
        """A hash of what a training of these roles starts from: their losses, their weights, and the weights they read."""
        found = hashlib.blake2b(b"gradient" if self.gradient_only else b"", digest_size=16)
        for role in roles:
            found.update(f"{role!r}: {self._contents_of(self.objective[role]).text}".encode())
            for other in (role, *sorted(read_by(self.objective[role]))):
                model = self.models[other]
                found.update(f"{other!r}: {model.architecture!r} {model.params.digest()}".encode())
        return found.hexdigest()


def _escaped(role: str) -> str:
    """A role as a part of a ledger key: no two lists of roles share a key. Usual names stay as they are.

    >>> _escaped("proxy"), _escaped("x/2+y")
    ('proxy', 'x%2F2%2By')
    """
    return role.replace("%", "%25").replace("/", "%2F").replace("+", "%2B")


def slot_of(role: str, held: Custody) -> str:
    """Under which name the memory of a role's optimiser is kept.

    An optimiser's memory shapes the weights as much as the weights themselves do: it is kept apart by custody.
    """
    return f"{role} ({held._name_.lower()})"

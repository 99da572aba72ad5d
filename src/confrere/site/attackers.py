"""Dishonest sites in a rehearsal: which sites attack, what they do to their records, and what they send instead.

Honest sites run the usual code. At an attacker, an `AttackHook` behind the gate replaces the model that is about to leave;
with masked sums, `ForgedShares` replaces the vector that is about to be masked.
Some attacks need to know what the honest sites send: `ColludingAttackers` records that. It needs all sites in one process;
a node refuses a study with an [attack].
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from confrere.core.errors import StudyError
from confrere.core.model import Model
from confrere.core.seeds import generator
from confrere.core.strict_reader import named
from confrere.data.records import Records, SiteData
from confrere.data.tasks import Task
from confrere.exchange.attacks import Attack, HonestModels
from confrere.exchange.compression import filled, numbers
from confrere.site.masked_share import SiteShare
from confrere.site.participant import Participant
from confrere.study import Study
from confrere.study.exchange_settings import attack_of, attackers_of

LARGEST_FORGED = 2.0**55
"""The largest number that an attacker puts into a masked sum, in grid steps; NaN, which a grid does not have, becomes it."""


@dataclass(frozen=True)
class AttackPlan:
    """Who attacks, and how."""

    name: str
    attack: Attack
    sites: tuple[str, ...]
    honest: tuple[str, ...]

    @property
    def text(self) -> str:
        """The attack in words, for the results."""
        are = "is" if len(self.sites) == 1 else "are"
        return f"attack «{self.name}»: {', '.join(self.sites)} {are} dishonest; means are over the honest sites alone"

    def as_json(self) -> dict[str, object]:
        return {"name": self.name, "attackers": list(self.sites), "honest": list(self.honest)}

    def records(self, data: SiteData, task: Task) -> SiteData:
        """The records that a site trains on."""
        if data.name not in self.sites or not self.attack.on_records:
            return data
        return replace(data, train=flipped(data.train, task), validation=flipped(data.validation, task))


def attack_plan(study: Study, sites: Sequence[str]) -> AttackPlan | None:
    """The attack that a study rehearses among these sites; None if all are honest."""
    attack = attack_of(study)
    if attack is None or study.attack is None:
        return None
    chosen = attackers_of(study, sites)
    return AttackPlan(
        named(study.attack, "attack")[0], attack, chosen, tuple(n for n in sorted(sites) if n not in chosen)
    )


def flipped(records: Records, task: Task) -> Records:
    """The same records with flipped labels."""
    return replace(records, targets=task.traits.flipped(task, records.targets))


def refuse_apart(plan: AttackPlan | None, where: str) -> None:
    """Refuse an attack that needs all models in one process where sites are spread over several."""
    if plan is not None and plan.attack.colludes:
        raise StudyError(
            f'attack "{plan.name}" looks at the models of all honest sites, which {where} does not have in one place;'
            " run it in memory"
        )


@dataclass
class ColludingAttackers:
    """What the attackers know together: the honest sites' models of a round, as they leave."""

    plan: AttackPlan
    present: Callable[[int], frozenset[str]]
    """The sites that take part in a round and are not lost."""
    _seen: dict[int, dict[str, tuple[Model, Tensor] | None]] = field(default_factory=dict)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def record(self, site: str, round: int, model: Model | None, start: Tensor | None) -> None:
        """Add the model that an honest site sends in a round, and the weights from which it was trained."""
        seen = self._seen.setdefault(round, {})
        seen.setdefault(site, None if model is None or start is None else (model, start))
        for old in [r for r in self._seen if r < round - 2]:
            del self._seen[old]
        self._changed.set()

    def reset(self) -> None:
        """Forget the models of all rounds: the run starts again."""
        self._seen.clear()
        self._changed = asyncio.Event()

    def presence_changed(self) -> None:
        self._changed.set()

    async def honest_models(self, round: int, architecture: str) -> HonestModels | None:
        """The honest models of a round, once all have left; None if none has this architecture."""
        while {n for n in self.plan.honest if n in self.present(round)} - set(self._seen.get(round, {})):
            self._changed.clear()
            await self._changed.wait()
        found = [f for _, f in sorted(self._seen.get(round, {}).items()) if f is not None]
        alike = [(numbers(m.params), start) for m, start in found if m.architecture == architecture]
        if not alike:
            return None
        models, starts = torch.stack([m for m, _ in alike]), torch.stack([s for _, s in alike])
        return HonestModels(models, starts, len(self.plan.sites))


@dataclass
class AttackHook:
    """Sees what leaves one site: forges it at an attacker, records it at an honest site."""

    plan: AttackPlan
    site: Participant
    colluders: ColludingAttackers | None = None

    async def leaving(self, model: Model | None, round: int) -> Model | None:
        name, start = self.site.name, self._start(model)
        if name not in self.plan.sites:
            if self.colluders is not None:
                self.colluders.record(name, round, model, start)
            return model
        if model is None or start is None or self.plan.attack.on_records:
            return model
        honest = None
        if self.plan.attack.colludes:
            assert self.colluders is not None
            honest = await self.colluders.honest_models(round, model.architecture)
            if honest is None:
                return model
        chance = generator(self.site.study.seed, name, round, "attack", self.plan.name)
        forged = self.plan.attack.forge(numbers(model.params), start, honest, chance)
        return replace(model, params=filled(forged, model.params, model.params.shapes))

    def _start(self, model: Model | None) -> Tensor | None:
        """The weights from which the round started; zeros where nothing was trained: the update is then the whole model."""
        if model is None:
            return None
        began = self.site.start_weights.get(model.architecture)
        if began is None or began.shapes != model.params.shapes:
            return torch.zeros_like(numbers(model.params))
        return numbers(began)


@dataclass(frozen=True)
class ForgedShares:
    """What attackers put into masked sums: a forged vector in place of the clipped sum with its noise (a `ShareHook`)."""

    plan: AttackPlan

    def leaving(self, share: SiteShare, vector: NDArray[np.int64]) -> NDArray[np.int64]:
        name = share.site.name
        if name not in self.plan.sites or self.plan.attack.on_records:
            return vector
        honest = torch.from_numpy(vector).double()
        chance = generator(share.site.study.seed, name, share.round, "attack", self.plan.name)
        forged = self.plan.attack.forge(honest, torch.zeros_like(honest), None, chance)
        whole = torch.nan_to_num(forged, nan=LARGEST_FORGED).clamp(-LARGEST_FORGED, LARGEST_FORGED)
        return whole.round().long().numpy()

    def opened(self, share: SiteShare, steps: NDArray[np.int64]) -> None:
        """An attacker learns what every site learns."""


def attack_hooks(
    plan: AttackPlan | None, sites: Sequence[Participant], colluders: ColludingAttackers | None = None
) -> dict[str, AttackHook]:
    """The hooks of the sites that need one. With masked sums, where no model is sent, the attackers forge their shares."""
    if plan is None:
        return {}
    masked = [site for site in sites if site.mechanism is not None and site.mechanism.terms is not None]
    if masked:
        for site in masked:
            site.share_hook = ForgedShares(plan)
        return {}
    return {
        s.name: AttackHook(plan, s, colluders) for s in sites if colluders is not None or s.name in plan.sites
    }

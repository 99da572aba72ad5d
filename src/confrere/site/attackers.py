"""Dishonest sites in a rehearsal: who they are, what they do to their records, and what they send instead.

The honest sites go through the same code as ever. At an attacker a `Disguise` stands behind the gate. For attacks that
need to know what the honest sites send, a `Conspiracy` overhears them; it lives in one process and has no place
in a node, which refuses a study with an [attack].
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from confrere.core.errors import StudyError
from confrere.core.model import Model
from confrere.core.seeds import generator
from confrere.data.records import Records, SiteData, Task
from confrere.exchange.attacks import Attack, Crowd
from confrere.exchange.compression import filled, numbers
from confrere.site.participant import Participant
from confrere.study import Study
from confrere.study.exchange_settings import attack_of, attackers_of
from confrere.study.strict import named


@dataclass(frozen=True)
class Plan:
    """Who attacks, and how."""

    name: str
    attack: Attack
    sites: tuple[str, ...]
    honest: tuple[str, ...]

    @property
    def text(self) -> str:
        """In words, for whoever reads the results."""
        are = "is" if len(self.sites) == 1 else "are"
        return f"attack «{self.name}»: {', '.join(self.sites)} {are} dishonest; means are over the honest sites alone"

    def as_json(self) -> dict[str, object]:
        return {"name": self.name, "attackers": list(self.sites), "honest": list(self.honest)}

    def records(self, data: SiteData, task: Task) -> SiteData:
        """The records that a site trains on."""
        if data.name not in self.sites or not self.attack.on_records:
            return data
        return replace(data, train=flipped(data.train, task), validation=flipped(data.validation, task))


def plan_of(study: Study, sites: Sequence[str]) -> Plan | None:
    """The attack that a study rehearses among these sites; None where all are honest."""
    attack = attack_of(study)
    if attack is None or study.attack is None:
        return None
    chosen = attackers_of(study, sites)
    return Plan(
        named(study.attack, "attack")[0], attack, chosen, tuple(n for n in sorted(sites) if n not in chosen)
    )


def flipped(records: Records, task: Task) -> Records:
    """The same records with the labels turned round."""
    return replace(records, targets=task.traits.flipped(task, records.targets))


def refuse_apart(plan: Plan | None, where: str) -> None:
    """An attack that needs all models in one place cannot be rehearsed where there is no such place."""
    if plan is not None and plan.attack.colludes:
        raise StudyError(
            f'attack "{plan.name}" looks at the models of all honest sites, which {where} does not have in one place;'
            " run it in memory"
        )


@dataclass
class Conspiracy:
    """What the attackers know together: the honest sites' models of a round, as they leave."""

    plan: Plan
    present: Callable[[int], frozenset[str]]
    """Who takes part in a round, and is not lost."""
    _heard: dict[int, dict[str, tuple[Model, Tensor] | None]] = field(default_factory=dict)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def overhear(self, site: str, round: int, model: Model | None, start: Tensor | None) -> None:
        heard = self._heard.setdefault(round, {})
        heard.setdefault(site, None if model is None or start is None else (model, start))
        for old in [r for r in self._heard if r < round - 2]:
            del self._heard[old]
        self._changed.set()

    def look_again(self) -> None:
        self._changed.set()

    async def crowd(self, round: int, architecture: str) -> Crowd | None:
        """The honest models of a round, once all that will leave have left; None if there is none of this kind."""
        while {n for n in self.plan.honest if n in self.present(round)} - set(self._heard.get(round, {})):
            self._changed.clear()
            await self._changed.wait()
        found = [f for _, f in sorted(self._heard.get(round, {}).items()) if f is not None]
        alike = [(numbers(m.params), start) for m, start in found if m.architecture == architecture]
        if not alike:
            return None
        return Crowd(
            torch.stack([m for m, _ in alike]), torch.stack([s for _, s in alike]), len(self.plan.sites)
        )


@dataclass
class Mask:
    """What stands behind one site's gate: an attacker's forgery, or an ear at an honest site."""

    plan: Plan
    site: Participant
    conspiracy: Conspiracy | None = None

    async def leaving(self, model: Model | None, round: int) -> Model | None:
        name, start = self.site.name, self._start(model)
        if name not in self.plan.sites:
            if self.conspiracy is not None:
                self.conspiracy.overhear(name, round, model, start)
            return model
        if model is None or start is None or self.plan.attack.on_records:
            return model
        crowd = None
        if self.plan.attack.colludes:
            assert self.conspiracy is not None
            crowd = await self.conspiracy.crowd(round, model.architecture)
            if crowd is None:
                return model
        chance = generator(self.site.study.seed, name, round, "attack", self.plan.name)
        forged = self.plan.attack.forge(numbers(model.params), start, crowd, chance)
        return replace(model, params=filled(forged, model.params, model.params.shapes))

    def _start(self, model: Model | None) -> Tensor | None:
        """What the round began with; where nothing was trained, the update is the whole model."""
        if model is None:
            return None
        began = self.site.began.get(model.architecture)
        if began is None or began.shapes != model.params.shapes:
            return torch.zeros_like(numbers(model.params))
        return numbers(began)


def masks(
    plan: Plan | None, sites: Sequence[Participant], conspiracy: Conspiracy | None = None
) -> dict[str, Mask]:
    """What stands behind the gate of each site that needs something there."""
    if plan is None:
        return {}
    return {
        s.name: Mask(plan, s, conspiracy) for s in sites if conspiracy is not None or s.name in plan.sites
    }

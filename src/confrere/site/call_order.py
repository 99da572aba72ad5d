"""Run the calls of a strategy into its site one at a time, in the order in which they were made.

A site has one network per role, one memory of its optimisers and one count of trainings. Two calls that run side by side,
in threads on a node, would load their weights into the same networks. So calls wait for each other in the order in which
the strategy made them, in every runtime.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from torch import nn

from confrere.core.custody import Scalar, Share
from confrere.core.errors import StudyError, warn_renamed
from confrere.core.model import Model
from confrere.core.protocols import Effort, Fitted, Loss, Metrics, Objective, Optimiser, Site


class OneCallAtATime:
    """The `Site` that a strategy is handed for one round: what computes on records waits until nothing else does."""

    def __init__(self, inner: Site) -> None:
        self._inner, self._turn, self._over = inner, asyncio.Lock(), False
        self.name, self.size, self.rehearsal = inner.name, inner.size, inner.rehearsal
        self.sizes = inner.sizes

    async def close(self) -> None:
        """Wait for a call that the strategy did not wait for; later ones are refused."""
        async with self._turn:
            self._over = True

    def _check_open(self) -> None:
        if self._over:
            raise StudyError(
                f'site "{self.name}": the strategy called the site after its round; await every call within the round'
            )

    async def train(
        self, objective: Objective, models: Mapping[str, Model], *, protect: Sequence[str] = ()
    ) -> Mapping[str, Model]:
        async with self._turn:
            self._check_open()
            return await self._inner.train(objective, models, protect=protect)

    async def gradient_sum(
        self,
        loss: Loss,
        *,
        at: Model,
        role: str = "model",
        reads: Mapping[str, Model] | None = None,
        weights: Mapping[str, Scalar] | None = None,
    ) -> Model | Share | None:
        async with self._turn:
            self._check_open()
            return await self._inner.gradient_sum(loss, at=at, role=role, reads=reads, weights=weights)

    async def evaluate(self, models: Mapping[str, Model]) -> Mapping[str, Metrics]:
        async with self._turn:
            self._check_open()
            return await self._inner.evaluate(models)

    async def fit(self, losses: Sequence[Loss], role: str, models: Mapping[str, Model]) -> Fitted:
        async with self._turn:
            self._check_open()
            return await self._inner.fit(losses, role, models)

    def build(self, role: str) -> Model:
        return self._inner.build(role)

    def module(self, role: str) -> nn.Module:
        return self._inner.module(role)

    def notify(self, text: str) -> None:
        self._inner.notify(text)

    def tell(self, text: str) -> None:
        """The name of `notify` before 0.2."""
        warn_renamed("site.tell", "site.notify")
        self.notify(text)

    def effort(self, role: str, model: Model) -> Effort:
        return self._inner.effort(role, model)

    def optimiser(self) -> Optimiser:
        return self._inner.optimiser()

    def weigh(self, weights: Mapping[str, Scalar], note: str = "") -> None:
        self._inner.weigh(weights, note)

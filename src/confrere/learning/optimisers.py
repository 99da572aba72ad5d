"""Optimisers on one flat weight vector: `start` gives the state, `update` makes a step in place.

They see the released gradient only, so they cost no privacy. A module's parameters may be views into
the flat vector; then a step needs no copying.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor

from confrere.core.errors import StudyError
from confrere.core.protocols import Optimiser

OptimiserState = dict[str, Tensor]


@runtime_checkable
class OwnRates(Protocol):
    """An optimiser with which each site may have a learning rate of its own."""

    def update_at(
        self, rates: Tensor, weights: Tensor, gradient: Tensor, state: OptimiserState, rows: Tensor | slice
    ) -> None:
        """Make a step in these rows, each with its own rate."""


@dataclass(frozen=True)
class SGD:
    """Gradient descent, with heavy-ball momentum where asked; weight decay is L2 (added to the gradient)."""

    learning_rate: float
    momentum: float = 0.0
    weight_decay: float = 0.0
    single_step: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _check(self.learning_rate, self.weight_decay, momentum=self.momentum)

    @property
    def long_run_rate(self) -> float:
        return self.learning_rate / (1 - self.momentum)

    @property
    def stacking_key(self) -> Hashable:
        return SGD, self.momentum, self.weight_decay  # rates may differ, see `update_at`

    @property
    def plain(self) -> bool:
        return not self.momentum and not self.weight_decay

    def start(self, size: int) -> OptimiserState:
        return {"velocity": torch.zeros(size)} if self.momentum else {}

    def update(self, weights: Tensor, gradient: Tensor, state: OptimiserState) -> None:
        if self.weight_decay:
            gradient = gradient.add(weights, alpha=self.weight_decay)
        if self.momentum:
            gradient = state["velocity"].mul_(self.momentum).add_(gradient)
        weights.sub_(gradient, alpha=self.learning_rate)

    def update_at(
        self, rates: Tensor, weights: Tensor, gradient: Tensor, state: OptimiserState, rows: Tensor | slice
    ) -> None:
        moved = gradient.add(weights, alpha=self.weight_decay)
        if self.momentum:
            state["velocity"][rows] = state["velocity"][rows] * self.momentum + moved[rows]
            moved = state["velocity"]
        weights[rows] = weights[rows] - rates[rows] * moved[rows]


@dataclass(frozen=True)
class Collect:
    """Returns the gradient instead of applying it: for a single step."""

    learning_rate: float = 1.0
    long_run_rate: ClassVar[None] = None
    single_step: ClassVar[bool] = True
    plain: ClassVar[bool] = False

    @property
    def stacking_key(self) -> Hashable:
        return self

    def start(self, size: int) -> OptimiserState:
        return {}

    def update(self, weights: Tensor, gradient: Tensor, state: OptimiserState) -> None:
        weights.copy_(gradient)


@dataclass(frozen=True)
class Adam:
    """Adam (Kingma and Ba 2015); weight decay is L2, added to the gradient before its moments."""

    learning_rate: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.0
    long_run_rate: ClassVar[None] = None
    single_step: ClassVar[bool] = False
    plain: ClassVar[bool] = False

    @property
    def stacking_key(self) -> Hashable:
        return type(self), self

    def __post_init__(self) -> None:
        _check(self.learning_rate, self.weight_decay, beta1=self.beta1, beta2=self.beta2)

    def start(self, size: int) -> OptimiserState:
        return {"steps": torch.zeros(()), "mean": torch.zeros(size), "square": torch.zeros(size)}

    def update(self, weights: Tensor, gradient: Tensor, state: OptimiserState) -> None:
        _adam(self, weights, gradient, state, torch._fused_adam_)


@dataclass(frozen=True)
class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019): weights shrink by themselves."""

    weight_decay: float = 1e-2

    def update(self, weights: Tensor, gradient: Tensor, state: OptimiserState) -> None:
        _adam(self, weights, gradient, state, torch._fused_adamw_)


def _adam(
    options: Adam, weights: Tensor, gradient: Tensor, state: OptimiserState, kernel: Callable[..., None]
) -> None:
    """One pass over weights, gradient and moments, by PyTorch's fused kernel.

    Weights may be those of several sites, one in each row: each has then made its own number of steps.
    """
    state["steps"] += 1
    steps, together = state["steps"], [weights.detach(), gradient, state["mean"], state["square"]]
    if steps.ndim and bool((steps != steps[0]).any()):
        rows = [list(t.unbind(0)) for t in [*together, steps]]
    else:
        rows = [[t] for t in [*together, steps[0] if steps.ndim else steps]]
    kernel(
        *rows[:4],
        [],
        rows[4],
        lr=options.learning_rate,
        beta1=options.beta1,
        beta2=options.beta2,
        weight_decay=options.weight_decay,
        eps=options.epsilon,
        amsgrad=False,
        maximize=False,
    )


OPTIMISERS: dict[str, Callable[..., Optimiser]] = {"sgd": SGD, "adam": Adam, "adamw": AdamW}


def optimiser(name: str, **options: Any) -> Optimiser:
    """The optimiser of a study: `optimiser("adam", learning_rate=1e-3)`."""
    if name not in OPTIMISERS:
        raise StudyError(f"there is no optimiser {name!r}; choose one of {', '.join(OPTIMISERS)}")
    try:
        return OPTIMISERS[name](**options)
    except TypeError as e:
        raise StudyError(f"optimiser {name!r}: {e}") from e


def _check(learning_rate: float, weight_decay: float, **shares: float) -> None:
    if not (learning_rate > 0 and math.isfinite(learning_rate)):
        raise StudyError(f"the learning rate must be a positive number, not {learning_rate}")
    if not weight_decay >= 0:
        raise StudyError(f"weight decay cannot be negative: {weight_decay}")
    for name, value in shares.items():
        if not 0 <= value < 1:
            raise StudyError(f"{name} must be in [0, 1), not {value}")

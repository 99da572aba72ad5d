"""Attacks: what a dishonest site sends, to rehearse robust combiners. Simulations only.

An attack forges the model that is about to leave, after the gate, since an attacker ignores the rules. It works on the
*update*, the difference between the trained model and the model at the start of the round, since that is what moves
others. Two attacks need to know what the honest sites are about to send: a simulation provides that, and no attacker in the
field would know as much. An attacker that flips labels changes its records and trains on them as usual. An attack is a
frozen dataclass whose fields are its options in a study:

    @attack("freerider")
    @dataclass(frozen=True)
    class FreeRider:
        colludes: ClassVar[bool] = False
        on_records: ClassVar[bool] = False

        def forge(self, model, start, honest, chance):
            return start  # it learns from others and contributes nothing
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import ClassVar, Literal, Protocol

import torch
from torch import Tensor

from confrere.core.errors import StudyError
from confrere.core.registry import Registry


@dataclass(frozen=True)
class HonestModels:
    """What an omniscient attacker knows of a round: the honest sites' models as rows, and what they started from."""

    models: Tensor
    starts: Tensor
    attackers: int


class Attack(Protocol):
    """A frozen dataclass whose fields are its options in a study."""

    colludes: ClassVar[bool]
    """Whether it needs to know what the honest sites send."""
    on_records: ClassVar[bool]
    """Whether it alters the attacker's records instead of its model."""

    def forge(
        self, model: Tensor, start: Tensor, honest: HonestModels | None, chance: torch.Generator
    ) -> Tensor:
        """The weights that leave in place of the model's, all of them in one row of doubles."""
        ...


attacks: Registry[type[Attack]] = Registry("attack", "confrere.attacks", package="confrere.exchange")
attack = attacks.register


@attack("labelflip")
@dataclass(frozen=True)
class LabelFlip:
    """Train on wrong labels: class c becomes the last class − c, a measured value its opposite around the middle."""

    colludes: ClassVar[bool] = False
    on_records: ClassVar[bool] = True

    def forge(
        self, model: Tensor, start: Tensor, honest: HonestModels | None, chance: torch.Generator
    ) -> Tensor:
        return model


@attack("signflip")
@dataclass(frozen=True)
class SignFlip:
    """Send the update with its sign turned round, `strength` times as long (Li et al., RSA, 2019)."""

    strength: float = 4.0
    colludes: ClassVar[bool] = False
    on_records: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _positive("signflip", "strength", self.strength)

    def forge(
        self, model: Tensor, start: Tensor, honest: HonestModels | None, chance: torch.Generator
    ) -> Tensor:
        return start - self.strength * (model - start)


@attack("scaled")
@dataclass(frozen=True)
class Scaled:
    """Send the update `factor` times as long, so that a mean becomes the attacker's (Bagdasaryan et al. 2020)."""

    factor: float = 100.0
    colludes: ClassVar[bool] = False
    on_records: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _positive("scaled", "factor", self.factor)

    def forge(
        self, model: Tensor, start: Tensor, honest: HonestModels | None, chance: torch.Generator
    ) -> Tensor:
        return start + self.factor * (model - start)


@attack("noise")
@dataclass(frozen=True)
class Noise:
    """Send the model with Gaussian noise, `strength` times as large as the typical change of a weight."""

    strength: float = 20.0
    colludes: ClassVar[bool] = False
    on_records: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _positive("noise", "strength", self.strength)

    def forge(
        self, model: Tensor, start: Tensor, honest: HonestModels | None, chance: torch.Generator
    ) -> Tensor:
        typical = (model - start).square().mean().sqrt() if model.numel() else 0.0
        return model + self.strength * typical * torch.randn(
            model.shape, generator=chance, dtype=torch.float64
        )


@attack("nan")
@dataclass(frozen=True)
class NotANumber:
    """Send NaN in every weight: a plain mean of such models is NaN too."""

    colludes: ClassVar[bool] = False
    on_records: ClassVar[bool] = False

    def forge(
        self, model: Tensor, start: Tensor, honest: HonestModels | None, chance: torch.Generator
    ) -> Tensor:
        return torch.full_like(model, math.nan)


@attack("little")
@dataclass(frozen=True)
class ALittle:
    """Stay within the honest spread and lean all one way: the honest mean less some standard deviations of each weight
    (Baruch et al., A little is enough, 2019).

    `deviations` "auto" is what the paper computes: as far as the attackers may go and still be nearer to the
    mean than enough honest sites to make a majority with them. Among few sites that is little or nothing.
    """

    deviations: float | Literal["auto"] = 1.5
    colludes: ClassVar[bool] = True
    on_records: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.deviations != "auto":
            _positive("little", "deviations", self.deviations)

    def forge(
        self, model: Tensor, start: Tensor, honest: HonestModels | None, chance: torch.Generator
    ) -> Tensor:
        assert honest is not None
        rows = honest.models
        spread = rows.std(0) if len(rows) > 1 else torch.zeros_like(model)
        return rows.mean(0) - self.far(len(rows), honest.attackers) * spread

    def far(self, honest: int, attackers: int) -> float:
        """How many standard deviations away.

        >>> round(ALittle("auto").far(38, 12), 2)
        0.34
        """
        if self.deviations != "auto":
            return self.deviations
        supporters = (honest + attackers) // 2 + 1 - attackers
        share = (honest - supporters) / honest
        return NormalDist().inv_cdf(share) if 0 < share < 1 else 0.0


@attack("innerproduct")
@dataclass(frozen=True)
class InnerProduct:
    """Send the honest sites' mean update turned round, so that what comes out points the wrong way (Xie et al., Fall of
    empires, 2019). A small `strength` hides near the start and fools rules that look for outliers; a large one fools means.
    """

    strength: float = 2.0
    colludes: ClassVar[bool] = True
    on_records: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _positive("innerproduct", "strength", self.strength)

    def forge(
        self, model: Tensor, start: Tensor, honest: HonestModels | None, chance: torch.Generator
    ) -> Tensor:
        assert honest is not None
        began = honest.starts.mean(0)
        return began - self.strength * (honest.models.mean(0) - began)


def _positive(attack: str, option: str, value: float) -> None:
    if not 0 < value < math.inf:
        raise StudyError(f"attack {attack}: {option} is a number above 0, not {value:g}")

"""CoLN: a linear combination of the sites' models with a shift for each weight, layer by layer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from confrere.core.custody import Scalar, strictest
from confrere.core.errors import BadParcel, StudyError, TrainingError
from confrere.core.model import Model
from confrere.core.params import Params
from confrere.core.parcel import Parcel
from confrere.exchange.combine import combiner, models

Form = Literal["exponential", "linear"]


class Diverged(TrainingError):
    """The combined weights are not usable numbers any more."""


@combiner("coln")
@dataclass(frozen=True)
class CombinedLearning:
    """w̄ = Σ_h α_h·w_h + β, with α_h = exp(c·r_h) from the sites' shares r_h of all declared records (CoLN).

    The shift β_i of a weight is its distance between the sites, √Σ_{j<k}(r_j·w_j − r_k·w_k)², where that is below
    the layer's, √Σ_i Σ_{j<k}(w_j − w_k)² / M, and nothing otherwise; a layer is a weight with its bias, M numbers.

    As printed the α are about 1 each, so that the combination of H models is about H times as large as they are,
    round after round. With `normalise` they sum to one, which is our default; without it, a combination that is not
    finite or has a weight beyond `largest` raises `Diverged` instead of going anywhere.
    `form` "linear" is α_h = 1 + r_h, where its authors began.
    """

    rate: float = 1e-3
    form: Form = "exponential"
    normalise: bool = True
    largest: float = 1e6

    def __post_init__(self) -> None:
        if not math.isfinite(self.rate):
            raise StudyError(f"coln: rate is a number, not {self.rate}")
        if self.form not in ("exponential", "linear"):
            raise StudyError(f'coln: form is "exponential" or "linear", not {self.form!r}')
        if not 0 < self.largest < math.inf:
            raise StudyError(
                f"coln: largest is the largest weight that is let pass, above 0, not {self.largest}"
            )

    def __call__(self, own: Model, weight: Scalar, inbox: Sequence[Parcel]) -> Model:
        voices = [(weight, own), *((p.scalar("weight", 1.0), model) for p, model in models(inbox))]
        held = strictest(n.custody for n, _ in voices)  # which of them count is read from all weights
        terms = [(n.value, model) for n, model in voices if n.value > 0]
        if not terms:
            return own.held(held)
        for _, model in terms:
            if model.architecture != own.architecture or model.params.shapes != own.params.shapes:
                raise BadParcel(
                    f"models of different architectures cannot be combined: {own.architecture} and"
                    f" {model.architecture}"
                )
        total = sum(n for n, _ in terms)
        combined = self.combine([n / total for n, _ in terms], [m.params for _, m in terms])
        return Model(combined, own.architecture, strictest([held, *(m.custody for _, m in terms)]))

    def coefficients(self, shares: Sequence[float]) -> list[float]:
        """α of each site, from its share of all declared records."""
        raw = [1 + r if self.form == "linear" else math.exp(self.rate * r) for r in shares]
        return [a / sum(raw) for a in raw] if self.normalise else raw

    def combine(self, shares: Sequence[float], params: Sequence[Params]) -> Params:
        """The combination of weights of one shape."""
        alphas, out = self.coefficients(shares), dict(params[0])
        for layer in layers(params[0]):
            stacked = torch.stack([torch.cat([p[n].double().reshape(-1) for n in layer]) for p in params])
            flat = torch.tensor(alphas, dtype=torch.float64) @ stacked + shift(stacked, shares)
            at = 0
            for name in layer:
                like = params[0][name]
                out[name] = flat[at : at + like.numel()].view(like.shape).to(like.dtype)
                at += like.numel()
        found = Params(out)
        self._check(found)
        return found

    def _check(self, found: Params) -> None:
        finite = found.is_finite()
        reached = max((float(t.abs().max()) for t in found.values() if t.numel()), default=0.0)
        if finite and (self.normalise or reached <= self.largest):
            return
        what = (
            f"a weight of {reached:.2g}, beyond {self.largest:g}"
            if finite
            else "weights that are not numbers"
        )
        raise Diverged(f"the combination has {what}; with normalise = true the weights stay in their range")


def layers(params: Params) -> list[list[str]]:
    """The names of the floating-point tensors, a list for each layer: a weight and its bias belong together."""
    found: dict[str, list[str]] = {}
    for name, tensor in params.items():
        if tensor.is_floating_point():
            found.setdefault(name.rpartition(".")[0] or name, []).append(name)
    return list(found.values())


def shift(weights: Tensor, shares: Sequence[float]) -> Tensor:
    """β of each weight of a layer: `weights` has a row for each site."""
    scaled = weights * torch.tensor(shares, dtype=weights.dtype)[:, None]
    distance = _pairwise(scaled).sqrt()
    layer = _pairwise(weights).sum().sqrt() / weights.shape[1]
    return torch.where(distance < layer, distance, 0.0)


def _pairwise(rows: Tensor) -> Tensor:
    """Σ_{j<k} (row_j − row_k)² in each column, which is H times the squares around the mean."""
    return len(rows) * (rows - rows.mean(0)).square().sum(0)

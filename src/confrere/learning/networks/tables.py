"""Networks for tables: linear, fully connected, and linear around a private centre. No layer mixes records."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from confrere.learning.networks.architectures import flat, network


@network("linear")
def linear(shape: Sequence[int], outputs: int, zeros: bool = False) -> nn.Module:
    """Logistic (or linear) regression: the smallest proxy, so the least noise; `zeros` starts it with weights of 0."""
    layer = nn.Linear(flat(shape), outputs)
    if zeros:
        nn.init.zeros_(layer.weight)
        nn.init.zeros_(layer.bias)
    return nn.Sequential(nn.Flatten(), layer)


@network("mlp")
def mlp(
    shape: Sequence[int], outputs: int, hidden: Sequence[int] = (200, 200), dropout: float = 0.0
) -> nn.Module:
    """Fully connected layers with ReLU; 200-200 is the proxy of the ProxyFL experiments."""
    layers: list[nn.Module] = [nn.Flatten()]
    width = flat(shape)
    for h in hidden:
        layers += [nn.Linear(width, h), nn.ReLU()]
        if dropout:
            layers.append(nn.Dropout(dropout))
        width = h
    return nn.Sequential(*layers, nn.Linear(width, outputs))


class Centred(nn.Module):
    """Linear regression on records that are moved to a common centre and scaled to norm 1.

    Most of a record's norm is what all records share, and a private step has to clip and drown the rest with it.
    So the sites first agree, under the same privacy, on a `mean` and on the class `shares`: with `profiling` these
    two are trained and the `head` rests; otherwise the head is trained and they rest. Both forms have the same
    weights under the same names, so one parcel carries either. The mean counts in multiples of the shares' sum,
    so that whatever scales both (clipping, mixing, a learning rate) cancels.
    """

    STEADY = 0.3
    """The constant input for each class's constant: small, so that it takes little of a record's norm."""

    def __init__(self, inputs: int, outputs: int, unit: bool, profiling: bool) -> None:
        super().__init__()
        self.unit, self.profiling, self.outputs = unit, profiling, outputs
        self.mean = nn.Linear(inputs, 1, bias=False)
        self.shares = nn.Linear(1, max(2, outputs), bias=False)
        self.head = nn.Linear(inputs + 1, outputs, bias=False)
        with torch.no_grad():
            for weight in self.parameters():
                weight.zero_()
        for part in (self.mean, self.shares):
            part.requires_grad_(profiling)
        self.head.requires_grad_(not profiling)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        if self.profiling:
            return torch.cat([self.mean(x), self.shares(x.new_ones(len(x), 1))], 1)
        return self.head(self.features(x))  # type: ignore[no-any-return]

    def features(self, x: Tensor) -> Tensor:
        """Records around the centre, with the constant behind them."""
        total = self.shares.weight.sum()
        x = x.flatten(1) - torch.where(total > 0, self.mean.weight / total.clamp_min(1e-9), 0.0)
        if self.unit:
            x = x / x.norm(dim=1, keepdim=True).clamp_min(1e-6)
        return torch.cat([x, x.new_full((len(x), 1), self.STEADY)], 1)


@network("centred-linear")
def centred_linear(
    shape: Sequence[int], outputs: int, unit: bool = True, profiling: bool = False
) -> nn.Module:
    """Linear regression around a centre on which the sites agree privately: the proxy for features of pictures."""
    return Centred(flat(shape), outputs, unit, profiling)


class Adapted(nn.Module):
    """A site's own input and output layers around the common proxy (Kalra, Wen et al. 2023, section 3.1).

    `common` is the part with the proxy's architecture; the adapters are the site's own and private.
    """

    def __init__(self, before: nn.Module, common: nn.Module, after: nn.Module) -> None:
        super().__init__()
        self.before, self.common, self.after = before, common, after

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self.common(self.before(x)))  # type: ignore[no-any-return]

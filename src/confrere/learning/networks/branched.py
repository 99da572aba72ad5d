"""A network for records with several branches: an image with a history, a volume with laboratory values.

A record is one row of numbers, and its branches say what lies where (docs/decisions/0008). Each branch is encoded by a
network of its own; what they say is joined and classified.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from confrere.core.errors import StudyError
from confrere.core.registry import nearest
from confrere.data.tasks import Branch
from confrere.learning.networks.architectures import checked, describe, flat, network

USUAL: dict[str, Any] = {
    "table": {"name": "mlp", "hidden": [32]},
    "image": "cnn1",
    "series": "gru",
    "bag": "deepsets",
    "volume": "cnn3d",
}
"""How a branch of each kind is encoded where a study does not say."""

SMALL_IMAGE = 10
"""Images of a smaller side are encoded as a table of pixels."""


class Branches(nn.Module):
    """Encoders side by side, each on its own part of a record, and a linear layer on top of their outputs."""

    def __init__(
        self, parts: Sequence[Branch], encoders: Sequence[nn.Module], features: int, outputs: int
    ) -> None:
        super().__init__()
        self.parts = tuple(parts)
        self.encoders = nn.ModuleList(encoders)
        self.head = nn.Linear(features * len(encoders), outputs)

    def forward(self, x: Tensor) -> Tensor:
        encoded = []
        for part, encoder in zip(self.parts, self.encoders, strict=True):
            own = x[:, part.start : part.start + flat(part.shape)].reshape(len(x), *part.shape)
            encoded.append(torch.relu(encoder(own)))
        return self.head(torch.cat(encoded, 1))  # type: ignore[no-any-return]


@network("branches")
def branches(
    shape: Sequence[int],
    outputs: int,
    branches: Sequence[Branch] = (),
    features: int = 16,
    encoders: Mapping[str, Any] | None = None,
) -> nn.Module:
    """Encodes each branch of a record by a network of its own (`encoders`, by the branch's name) and joins them."""
    if len(branches) < 2:
        raise StudyError(
            'network "branches" needs records of several branches, such as an image with a history; these have one:'
            f" inputs of {'×'.join(map(str, shape))}"
        )
    names = [b.name for b in branches]
    for name in encoders or {}:
        if name not in names:
            raise StudyError(
                f'network "branches": the records have no branch "{name}"{nearest(name, names)}; they have:'
                f" {', '.join(names)}"
            )
    made = [_encoder(b, (encoders or {}).get(b.name, _usual(b)), features) for b in branches]
    return Branches(branches, made, features, outputs)


def _usual(branch: Branch) -> Any:
    if branch.kind == "image" and min(branch.shape[-2:]) < SMALL_IMAGE:
        return USUAL["table"]
    return USUAL[branch.kind]


def _encoder(branch: Branch, spec: Any, features: int) -> nn.Module:
    name, options = describe(spec)
    if name == "branches":
        raise StudyError('network "branches": an encoder cannot itself be "branches"')
    build = checked(name, options)
    if "mask" in build.__annotations__:
        options.setdefault("mask", branch.mask)
    try:
        return build(branch.shape, features, **options)
    except StudyError as error:
        raise StudyError(f'branch "{branch.name}": {error}') from None

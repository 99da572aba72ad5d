"""Networks for sequences and bags: time series (steps × values), texts as token numbers, sets of feature vectors.

Sequences of unequal length are padded at their end, and a mask says which steps are there: the last channel of a
time series, or any token number but 0. Padding has no influence: a sequence gives the same output however long the
others are. A bag is a record that is a set, as a whole-slide image is one of its patches' features.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from confrere.core.errors import StudyError
from confrere.learning.networks.architectures import network


def unmasked(x: Tensor, mask: bool) -> tuple[Tensor, Tensor]:
    """Values [records, steps, values], padding made zero, and which steps are there [records, steps, 1]."""
    if x.ndim == 2:
        x = x.unsqueeze(-1)
    if not mask:
        return x, x.new_ones(*x.shape[:2], 1)
    there = (x[..., -1:] > 0.5).to(x.dtype)
    return x[..., :-1] * there, there


def width(shape: Sequence[int], name: str, mask: bool) -> int:
    """How many values a step has."""
    if len(shape) not in (1, 2):
        raise StudyError(
            f'network "{name}" needs sequences (steps × values), not inputs of {"×".join(map(str, shape))}'
        )
    values = (shape[1] if len(shape) == 2 else 1) - mask
    if values < 1:
        raise StudyError(f'network "{name}": with a mask as the last channel, no values are left in a step')
    return values


class Recurrent(nn.Module):
    """An LSTM or GRU over tokens or over a time series; the hidden state after the last step is classified."""

    def __init__(self, embedding: nn.Embedding | None, cells: nn.RNNBase, outputs: int, mask: bool) -> None:
        super().__init__()
        self.mask, self.embedding, self.cells = mask, embedding, cells
        self.head = nn.Linear(cells.hidden_size, outputs)

    def forward(self, x: Tensor) -> Tensor:
        if self.embedding is not None:
            tokens = x.long()
            there = (tokens != 0).unsqueeze(-1)
            x = self.embedding(tokens)
        else:
            x, there = unmasked(x, self.mask)
        states, _ = self.cells(x)
        steps = torch.arange(1, x.shape[1] + 1, device=x.device)
        last = (there[..., 0] * steps).amax(1).long() - 1  # a sequence without any step: the first state
        at = last.clamp_min(0)[:, None, None].expand(-1, 1, states.shape[2])
        return self.head(states.gather(1, at)[:, 0])  # type: ignore[no-any-return]


def _embedding(vocabulary: int, size: int) -> nn.Embedding | None:
    return nn.Embedding(vocabulary, size, padding_idx=0) if vocabulary else None


@network("lstm")
def lstm(
    shape: Sequence[int],
    outputs: int,
    hidden: int = 64,
    vocabulary: int = 0,
    embedding: int = 32,
    mask: bool = False,
) -> nn.Module:
    """A long short-term memory (Hochreiter and Schmidhuber 1997): for token ids give `vocabulary`, for time series not."""
    words = _embedding(vocabulary, embedding)
    inputs = embedding if vocabulary else width(shape, "lstm", mask)
    return Recurrent(words, nn.LSTM(inputs, hidden, batch_first=True), outputs, mask)


@network("gru")
def gru(
    shape: Sequence[int],
    outputs: int,
    hidden: int = 32,
    vocabulary: int = 0,
    embedding: int = 32,
    mask: bool = False,
) -> nn.Module:
    """A gated recurrent unit (Cho et al. 2014): three quarters of an LSTM's weights, so less noise as a proxy."""
    words = _embedding(vocabulary, embedding)
    inputs = embedding if vocabulary else width(shape, "gru", mask)
    return Recurrent(words, nn.GRU(inputs, hidden, batch_first=True), outputs, mask)


class TemporalConvolution(nn.Module):
    """Two convolutions along the time axis; the mean over the steps that are there is classified."""

    def __init__(self, inputs: int, outputs: int, channels: int, reach: int, mask: bool) -> None:
        super().__init__()
        self.mask = mask
        self.first = nn.Conv1d(inputs, channels, reach, padding=reach // 2)
        self.second = nn.Conv1d(channels, channels, reach, padding=reach // 2)
        self.head = nn.Linear(channels, outputs)

    def forward(self, x: Tensor) -> Tensor:
        x, there = unmasked(x, self.mask)
        there = there.transpose(1, 2)
        x = torch.relu(self.first(x.transpose(1, 2))) * there  # a constant must not leak into the padding
        x = torch.relu(self.second(x)) * there
        return self.head(x.sum(2) / there.sum(2).clamp_min(1.0))  # type: ignore[no-any-return]


@network("conv1d")
def conv1d(
    shape: Sequence[int], outputs: int, channels: int = 16, reach: int = 5, mask: bool = False
) -> nn.Module:
    """Convolutions along the time axis, each seeing `reach` steps (an odd number): quick, and blind to where it is."""
    if reach < 1 or reach % 2 == 0:
        raise StudyError(f'network "conv1d": reach is {reach}; it must be an odd number')
    return TemporalConvolution(width(shape, "conv1d", mask), outputs, channels, reach, mask)


Pool = Literal["mean", "sum", "max"]


class DeepSets(nn.Module):
    """Each member of a bag is encoded by itself, the encodings are pooled, and the pool is classified.

    The order of the members does not matter, nor how many places of the bag are empty.
    """

    def __init__(self, inputs: int, outputs: int, hidden: int, pool: Pool, mask: bool) -> None:
        super().__init__()
        self.mask, self.pool = mask, pool
        self.member = nn.Sequential(
            nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU()
        )
        self.head = nn.Sequential(nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, outputs))

    def forward(self, x: Tensor) -> Tensor:
        x, there = unmasked(x, self.mask)
        encoded = self.member(x) * there
        if self.pool == "max":  # after a ReLU nothing is below zero, so empty places never win
            return self.head(encoded.amax(1))  # type: ignore[no-any-return]
        total = encoded.sum(1)
        return self.head(total / there.sum(1).clamp_min(1.0) if self.pool == "mean" else total)  # type: ignore[no-any-return]


@network("deepsets")
def deepsets(
    shape: Sequence[int], outputs: int, hidden: int = 64, pool: Pool = "mean", mask: bool = False
) -> nn.Module:
    """Sets of feature vectors (members × features), pooled by mean, sum or max (Zaheer et al. 2017)."""
    if pool not in ("mean", "sum", "max"):
        raise StudyError(f'network "deepsets": pool is "{pool}"; it is "mean", "sum" or "max"')
    if len(shape) != 2:
        raise StudyError(
            f'network "deepsets" needs bags (members × features), not inputs of {"×".join(map(str, shape))}'
        )
    return DeepSets(width(shape, "deepsets", mask), outputs, hidden, pool, mask)

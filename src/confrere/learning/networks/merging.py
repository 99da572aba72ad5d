"""Merging networks whose units were matched: one layer at a time (FedMA), or all of them at once (PFNM)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from confrere.core.params import Params, Shapes
from confrere.exchange.matching import Prior, match
from confrere.learning.networks.matched import Layer, cap


@dataclass(frozen=True)
class Merging:
    """The layers of a network, how much wider they may get, and what is believed about their units."""

    layers: tuple[Layer, ...]
    growth: float
    prior: Prior

    def caps(self) -> list[int]:
        """The most units that each layer can have; the outputs stay what they are."""
        return [cap(layer.units, self.growth) for layer in self.layers[:-1]] + [self.layers[-1].units]

    def advance(
        self, stage: int, members: Sequence[Mapping[str, Tensor]], shares: Sequence[float], shapes: Shapes
    ) -> list[Params]:
        """Make the layer `stage` common: for each member, its network with one common layer more (FedMA, algorithm 1).

        The layers before it are common already, the same in all members. Its units are matched by what they read
        from these; the last layer's are the classes, and are averaged. `shapes` are those of the next stage.
        """
        layer, last = self.layers[stage], stage == len(self.layers) - 1
        rows = [self._read(stage, member) for member in members]
        if last:
            common = _mean(rows, shares)
            places: Sequence[Tensor] = ()
        else:
            found = match(rows, shares, self.caps()[stage], self.prior)
            common, places = found.units, found.places
        out = []
        for n, member in enumerate(members):
            tensors = dict(member) | self._common(stage, members[0])
            self._write(tensors, layer, common)
            if not last:
                tensors[f"places_{stage}"] = places[n]
                following = self.layers[stage + 1]
                moved = _placed(following.read(member), places[n], self.caps()[stage])
                tensors[following.weight] = moved
            out.append(_shaped(tensors, shapes))
        return out

    def at_once(
        self, members: Sequence[Mapping[str, Tensor]], shares: Sequence[float], shapes: Shapes
    ) -> list[Params]:
        """Merge whole networks of dense layers, the last hidden layer first (PFNM, section 3.2).

        A unit is known by its bias and by what it tells the layer above, whose order is settled; in the first hidden
        layer also by what it reads.
        """
        caps, top = self.caps(), self.layers[-1]
        merged: dict[str, Tensor] = {}
        if top.bias:
            merged[top.bias] = _mean([m[top.bias] for m in members], shares)
        above: Sequence[Tensor] = [torch.arange(top.units)] * len(members)
        width, found = top.units, [dict[str, Tensor]() for _ in members]
        for at in range(len(self.layers) - 2, -1, -1):
            layer, over = self.layers[at], self.layers[at + 1]
            rows = []
            for n, member in enumerate(members):
                tells = torch.zeros(width, layer.units, dtype=torch.float64)
                tells[above[n]] = over.read(member)[:, :, 0]
                parts = [tells.T]
                if layer.bias:
                    parts.append(member[layer.bias].double()[:, None])
                if at == 0:
                    parts.append(layer.read(member).flatten(1))
                rows.append(torch.cat(parts, 1))
            result = match(rows, shares, caps[at], self.prior)
            merged[over.weight] = result.units[:, :width].T
            if layer.bias:
                merged[layer.bias] = result.units[:, width]
            if at == 0:
                merged[layer.weight] = result.units[:, width + bool(layer.bias) :]
            above, width = result.places, len(result.units)
            for n in range(len(members)):
                found[n][f"places_{at}"] = result.places[n]
        if len(self.layers) == 1:
            merged[top.weight] = _mean([top.read(m) for m in members], shares)
        return [_shaped({**merged, **places}, shapes) for places in found]

    def _common(self, stage: int, params: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """One copy of the common layers for all: compression may have rounded others."""
        return {n: params[n] for layer in self.layers[:stage] for n in (layer.weight, layer.bias) if n}

    def prefix(self, stage: int, params: Mapping[str, Tensor]) -> list[Tensor]:
        """The common layers: what members must share to be matched with each other."""
        return list(self._common(stage, params).values())

    def _read(self, stage: int, params: Mapping[str, Tensor]) -> Tensor:
        """The units of a layer as rows, their bias last; what they read from units that are not there is nothing."""
        layer = self.layers[stage]
        weight = layer.read(params)
        if stage > 0:
            weight = weight * self._there(stage - 1, params)[None, :, None]
        rows = weight.flatten(1)
        return torch.cat([rows, params[layer.bias].double()[:, None]], 1) if layer.bias else rows

    def _there(self, stage: int, params: Mapping[str, Tensor]) -> Tensor:
        """Which units of a common layer there are: the others are 0 altogether."""
        layer = self.layers[stage]
        there = params[layer.weight].flatten(1).abs().sum(1) > 0
        return (there | (params[layer.bias] != 0) if layer.bias else there).double()

    @staticmethod
    def _write(tensors: dict[str, Tensor], layer: Layer, rows: Tensor) -> None:
        tensors[layer.weight] = rows[:, :-1] if layer.bias else rows
        if layer.bias:
            tensors[layer.bias] = rows[:, -1]


def _mean(tensors: Sequence[Tensor], shares: Sequence[float]) -> Tensor:
    """The mean weighted by the sites' shares."""
    weights = torch.tensor(shares, dtype=torch.float64) / sum(shares)
    mean: Tensor = torch.tensordot(weights, torch.stack([t.double() for t in tensors]), 1)
    return mean


def _placed(weight: Tensor, places: Tensor, width: int) -> Tensor:
    """What a layer reads, with its inputs at their places among the common units."""
    out = torch.zeros(weight.shape[0], width, weight.shape[2], dtype=weight.dtype)
    out[:, places] = weight
    return out


def _shaped(tensors: Mapping[str, Tensor], shapes: Shapes) -> Params:
    """Tensors in the shapes of a stage, with zeros where units are not there."""
    out = {}
    for name, shape, dtype in shapes:
        given, kind = tensors[name], getattr(torch, dtype)
        if given.numel() == torch.Size(shape).numel():
            out[name] = (
                given.reshape(shape).to(kind).contiguous()
            )  # a column of rows is not yet a row of bytes
            continue
        whole = torch.zeros(shape, dtype=kind)
        flat = whole.flatten(1) if whole.ndim > 1 else whole
        part = given.flatten(1) if given.ndim > 1 else given
        flat[tuple(slice(0, n) for n in part.shape)] = part.to(kind)
        out[name] = flat.reshape(shape).contiguous()
    return Params(out)

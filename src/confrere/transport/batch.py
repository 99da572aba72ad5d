"""Many parcels between the workers of one simulation, as one block of bytes.

`wire` spells each parcel for a stranger: signed, hashed, checked field by field, half a millisecond of work for both ends.
Workers of one simulation are one program that was divided, and hand over thousands of parcels a round. So a batch keeps
the tensors of all its models of one shape together, each model once however many parcels carry it, and the rest in one JSON text:

    length of the JSON (8 bytes, little-endian) · JSON · tensors (safetensors)

Nothing is pickled, and what is PRIVATE is refused here as it is there.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from typing import Any

import torch
from safetensors.torch import load, save

from confrere.core.custody import Custody, Scalar, require_may_leave
from confrere.core.model import Model
from confrere.core.params import Params, Shapes
from confrere.core.parcel import Parcel

LENGTH = struct.Struct("<Q")


def encode(parcels: Sequence[Parcel]) -> bytes:
    """Parcels as bytes; the inverse of `decode`."""
    piles: dict[Shapes, list[Model]] = {}
    numbers_of: dict[Shapes, int] = {}
    places: dict[int, int] = {}
    models: list[list[Any]] = []
    rows = []
    for parcel in parcels:
        model, place = parcel.model, None
        require_may_leave(parcel.custodies)
        if model is not None:
            place = places.get(id(model))
            if place is None:
                pile = piles.setdefault(model.params.shapes, [])
                place = places[id(model)] = len(models)
                number = numbers_of.setdefault(model.params.shapes, len(numbers_of))
                models.append([number, len(pile), model.architecture, model.custody.name])
                pile.append(model)
        numbers = {n: [s.value, s.custody.name] for n, s in parcel.scalars.items()}
        rows.append(
            [
                parcel.run, parcel.epoch, parcel.round, parcel.phase, parcel.sender, parcel.receiver,
                parcel.sequence, place, numbers, parcel.signature.hex(),
            ]
        )  # fmt: skip
    tensors = {}
    for number, (shapes, pile) in enumerate(piles.items()):
        if _alike(shapes):  # one row each
            tensors[str(number)] = torch.stack([m.params.flatten().cpu() for m in pile])
        else:
            for name in pile[0].params:
                tensors[f"{number}/{name}"] = torch.stack([m.params[name].cpu() for m in pile])
    text = json.dumps({"shapes": list(piles), "models": models, "parcels": rows}).encode()
    return LENGTH.pack(len(text)) + text + save(tensors)


def decode(data: bytes) -> list[Parcel]:
    """The parcels of a batch. Their models share its memory, as views."""
    (length,) = LENGTH.unpack_from(data)
    content = json.loads(data[LENGTH.size : LENGTH.size + length])
    shapes: list[Shapes] = [tuple((n, tuple(s), kind) for n, s, kind in pile) for pile in content["shapes"]]
    rows: dict[int, Sequence[torch.Tensor]] = {}
    named: dict[int, dict[str, torch.Tensor]] = {}
    for key, stacked in load(data[LENGTH.size + length :]).items():
        number, _, name = key.partition("/")
        if name:
            named.setdefault(int(number), {})[name] = stacked
        else:
            rows[int(number)] = stacked.unbind(0)

    def params(pile: int, at: int) -> Params:
        if pile in rows:
            return Params.of_flat(rows[pile][at], shapes[pile])
        return Params({n: t[at] for n, t in named.get(pile, {}).items()})

    models = [
        Model(params(pile, at), architecture, Custody[custody])
        for pile, at, architecture, custody in content["models"]
    ]
    return [
        Parcel(
            run, epoch, round, phase, sender, receiver, sequence,
            None if place is None else models[place],
            {n: Scalar(value, Custody[custody]) for n, (value, custody) in numbers.items()},
            bytes.fromhex(signature),
        )
        for run, epoch, round, phase, sender, receiver, sequence, place, numbers, signature in content["parcels"]
    ]  # fmt: skip


def _alike(shapes: Shapes) -> bool:
    """Whether all numbers of a model have one format, so that it can be a row."""
    return len({kind for _, _, kind in shapes}) == 1

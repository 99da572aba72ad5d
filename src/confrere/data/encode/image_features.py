"""Replace pictures by fixed, unlearned features: gradient histograms and a thumbnail.

A private step costs the same whatever it learns, so a proxy should not have to learn what edges are. These features
are fixed: they read one picture at a time and nothing else, so they cost no privacy, and every record comes
out with norm 1, which bounds what it can contribute. Histograms of oriented gradients follow Dalal and Triggs (2005);
that fixed features help private learning is Tramèr and Boneh's finding (2021).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from confrere.core.errors import StudyError
from confrere.core.registry import Registry
from confrere.data.records import Federation, Records, SiteData

Features = Callable[[Tensor], Tensor]
features: Registry[Features] = Registry(
    "kind of features", "confrere.features", package="confrere.data.encode"
)

CELL = 4
DIRECTIONS = 16
AT_ONCE = 1024


@features.register("gradients")
def gradients(pictures: Tensor) -> Tensor:
    """16 directions of gradients in overlapping cells of 8 × 8 pixels, and the picture in blocks of 4 × 4.

    The square root keeps strong edges from drowning the weak ones. Each part loses its own mean, which says how bright
    a picture is and not what it shows; the parts count two to one.
    """
    histograms = _unit(_histograms(pictures).sqrt())
    blocks = _unit(F.avg_pool2d(pictures, CELL))
    return torch.cat([histograms, 0.5 * blocks], 1) / math.sqrt(1.25)


def _histograms(pictures: Tensor) -> Tensor:
    """How much gradient there is in each direction, cell by cell; of several channels the steepest counts."""
    across = _difference(pictures, 3)
    down = _difference(pictures, 2)
    strength = (across.square() + down.square()).sqrt()
    steepest = strength.argmax(1, keepdim=True)
    strength, across, down = (t.gather(1, steepest) for t in (strength, across, down))
    place = (torch.atan2(down, across) % (2 * math.pi)) / (2 * math.pi) * DIRECTIONS
    low = place.floor()
    part = place - low
    first = low.long() % DIRECTIONS
    out = torch.zeros(len(pictures), DIRECTIONS, *pictures.shape[2:], dtype=pictures.dtype)
    out.scatter_add_(1, first, strength * (1 - part))
    out.scatter_add_(1, (first + 1) % DIRECTIONS, strength * part)
    return F.avg_pool2d(out, 2 * CELL, CELL, padding=CELL // 2)


def _difference(pictures: Tensor, axis: int) -> Tensor:
    """The right (lower) neighbour minus the left (upper) one; the edge is repeated."""
    n = pictures.shape[axis]
    at = torch.arange(n)
    after, before = (at + 1).clamp_max(n - 1), (at - 1).clamp_min(0)
    return pictures.index_select(axis, after) - pictures.index_select(axis, before)


def _unit(part: Tensor) -> Tensor:
    flat = part.reshape(len(part), -1)
    flat = flat - flat.mean(1, keepdim=True)
    return F.normalize(flat, dim=1, eps=1e-6)


def with_features(federation: Federation, kind: str) -> Federation:
    """The same federation, every picture replaced by its features."""
    shape = federation.task.inputs
    if len(shape) not in (2, 3) or min(shape[-2:]) < 2 * CELL:
        raise StudyError(
            f'data.features = "{kind}" needs pictures of at least {2 * CELL} × {2 * CELL} pixels,'
            f" not records of shape {tuple(shape)}"
        )
    function = features[kind]
    shared: dict[int, Records] = {}

    def of(records: Records) -> Records:
        if id(records) not in shared:  # the common test set is the same for all sites
            shared[id(records)] = replace(records, inputs=encode(records.inputs, function))
        return shared[id(records)]

    sites: dict[str, SiteData] = {}
    for name, site in federation.sites.items():
        common = of(site.common_test) if site.common_test is not None else None
        sites[name] = replace(
            site, train=of(site.train), validation=of(site.validation), test=of(site.test), common_test=common
        )
    some = next(iter(sites.values())).train.inputs
    return replace(federation, task=replace(federation.task, inputs=tuple(some.shape[1:])), sites=sites)


def encode(pictures: Tensor, function: Features) -> Tensor:
    """The features of many pictures, some at a time."""
    with_channel = pictures.unsqueeze(1) if pictures.ndim == 3 else pictures
    if len(with_channel) == 0:
        return function(torch.zeros(1, *with_channel.shape[1:]))[:0]
    parts = [function(with_channel[i : i + AT_ONCE]) for i in range(0, len(with_channel), AT_ONCE)]
    return torch.cat(parts)

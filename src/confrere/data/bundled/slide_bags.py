"""Simulated whole-slide images: bags of digit pictures, most of which show the slide's subtype."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from confrere.core.errors import StudyError
from confrere.data.federation import Opening
from confrere.data.records import Federation, Records, concatenate
from confrere.data.split.holdout import split
from confrere.data.tasks import Task

SUBTYPES = ("subtype A", "subtype B", "subtype C", "subtype D", "subtype E")
DIGITS = (1, 3, 4, 7, 9)
"""One digit for each subtype; patches that show nothing in particular are the other five."""
NOTE = "bags are made of digits by lot; the common test of a site are the test bags of all others"


@dataclass(frozen=True)
class BagOptions:
    """How bags are made of pictures: the options of a study's data set."""

    bags: int = 300
    """The number of bags at each site."""
    sites: int = 4
    members: int = 12
    """The number of pictures in a bag."""
    share: float = 0.4
    """The share of a bag's members that show its subtype."""
    stain: float = 0.5
    """How much institutions differ in contrast and brightness."""
    concentration: float = 1.0
    """The class shares of a site are drawn from Dirichlet(concentration)."""

    def __post_init__(self) -> None:
        enough = self.sites >= 2 and self.bags >= 10 and self.members >= 2
        if not (enough and 0 < self.share <= 1 and 0 <= self.stain <= 1 and self.concentration > 0):
            raise StudyError(
                "bags: at least 2 sites, 10 bags and 2 members; share and stain lie between 0 and 1, concentration above 0"
            )

    @property
    def telling(self) -> int:
        """The members of a bag that show its subtype."""
        return max(1, round(self.share * self.members))


def bags_of(pictures: Records, opening: Opening, **options: Any) -> Federation:
    """Bags of pictures at several institutions; `options` are those of `BagOptions`.

    No picture is in two bags. The common test of a site is the test bags of all others: its external test.
    """
    wanted = BagOptions(**options)
    maker = _BagMaker(pictures, wanted, np.random.default_rng([opening.seed, 0x511DE]))
    names = [f"institution{k + 1}" for k in range(wanted.sites)]
    sites = {name: split(maker.institution(), opening.seed, opening.split, name) for name in names}
    others = {name: concatenate([s.test for s in sites.values() if s.name != name]) for name in names}
    sites = {name: replace(site, common_test=others[name]) for name, site in sites.items()}
    task = Task("multiclass", SUBTYPES, (wanted.members, 49))
    return Federation(opening.name, task, sites, None, opening.card, (NOTE,))


class _BagMaker:
    """Draws pictures into bags, each picture once."""

    def __init__(self, pictures: Records, options: BagOptions, rng: np.random.Generator) -> None:
        self.pixels, self.options, self.rng = pictures.inputs, options, rng
        labels = pictures.targets.numpy()
        self.left = {
            int(c): [int(i) for i in rng.permutation(np.flatnonzero(labels == c))] for c in range(10)
        }
        self.normal = [i for c in range(10) if c not in DIGITS for i in self.left[c]]
        rng.shuffle(self.normal)
        bags, telling = options.bags * options.sites, options.telling
        fewest = min(map(len, self.left.values()))
        if bags * (options.members - telling) > len(self.normal) or bags * telling > fewest * 3:
            raise StudyError(
                f"bags: {options.sites} × {options.bags} bags of {options.members} need more pictures than there are;"
                " ask for fewer"
            )

    def institution(self) -> Records:
        """The bags of one more institution, with its own class shares and staining."""
        rng, options = self.rng, self.options
        shares = rng.dirichlet(np.full(len(SUBTYPES), options.concentration))
        subtypes = rng.choice(len(SUBTYPES), size=options.bags, p=shares)
        contrast, light = 1 - options.stain * rng.uniform(), options.stain * rng.uniform() * 0.5
        bags = [_vectors(self.pixels[self._members(DIGITS[s])] * contrast + light) for s in subtypes]
        return Records(torch.stack(bags), torch.from_numpy(subtypes.astype(np.int64)))

    def _members(self, digit: int) -> Any:
        own = [self.left[digit].pop() for _ in range(self.options.telling) if self.left[digit]]
        rest = [self.normal.pop() for _ in range(self.options.members - len(own))]
        return self.rng.permutation([*own, *rest])


def _vectors(patches: Tensor) -> Tensor:
    """Features that do not depend on any record: the image in 7 × 7 blocks."""
    return F.avg_pool2d(patches, 4).flatten(1)

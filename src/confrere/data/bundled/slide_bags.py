"""Bags of feature vectors in place of whole-slide pictures: each «slide» is a set of patches, of which most show its subtype."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from confrere.core.errors import StudyError
from confrere.data.records import Card, Federation, Records, SiteData, Task, concatenate
from confrere.data.split.holdout import SPLIT, SplitRule, split_indices

SUBTYPES = ("subtype A", "subtype B", "subtype C", "subtype D", "subtype E")
DIGITS = (1, 3, 4, 7, 9)
"""One digit for each subtype; patches that show nothing in particular are the other five."""


def bags_of(
    pictures: Records,
    card: Card,
    *,
    seed: int,
    split: SplitRule = SPLIT,
    bags: int = 300,
    sites: int = 4,
    members: int = 12,
    share: float = 0.4,
    stain: float = 0.5,
    concentration: float = 1.0,
) -> Federation:
    """`bags` at each site; `share` of a bag's members show its subtype; `stain` is how much institutions differ in their look.

    Class shares of a site are drawn from Dirichlet(`concentration`). No picture is in two bags. The common test of a
    site are the test bags of all others: its external test.
    """
    if (
        sites < 2
        or bags < 10
        or members < 2
        or not 0 < share <= 1
        or not 0 <= stain <= 1
        or concentration <= 0
    ):
        raise StudyError(
            "bags: at least 2 sites, 10 bags and 2 members; share and stain lie between 0 and 1, concentration above 0"
        )
    pixels, labels = pictures.inputs, pictures.targets.numpy()
    rng = np.random.default_rng([seed, 0x511DE])
    left = {int(c): [int(i) for i in rng.permutation(np.flatnonzero(labels == c))] for c in range(10)}
    normal = [i for c in range(10) if c not in DIGITS for i in left[c]]
    rng.shuffle(normal)
    telling = max(1, round(share * members))
    if (
        bags * sites * (members - telling) > len(normal)
        or bags * sites * telling > min(map(len, left.values())) * 3
    ):
        raise StudyError(
            f"bags: {sites} × {bags} bags of {members} need more pictures than there are; ask for fewer"
        )
    cut: dict[str, tuple[Records, Records, Records]] = {}
    for k in range(sites):
        kinds = rng.choice(len(SUBTYPES), size=bags, p=rng.dirichlet(np.full(len(SUBTYPES), concentration)))
        contrast, light = 1 - stain * rng.uniform(), stain * rng.uniform() * 0.5
        made = []
        for kind in kinds:
            own = [left[DIGITS[kind]].pop() for _ in range(telling) if left[DIGITS[kind]]]
            rest = [normal.pop() for _ in range(members - len(own))]
            made.append(_vectors(pixels[rng.permutation([*own, *rest])] * contrast + light))
        records = Records(torch.stack(made), torch.from_numpy(kinds.astype(np.int64)))
        name = f"institution{k + 1}"
        train, validation, test = (records.select(p) for p in split_indices(records, seed, split, name))
        cut[name] = (train, validation, test)
    out = {}
    for name, (train, validation, test) in cut.items():
        others = concatenate([parts[2] for other, parts in cut.items() if other != name])
        out[name] = SiteData(name, train, validation, test, common_test=others)
    task = Task("multiclass", SUBTYPES, (members, 49))
    notes = ("bags are made of digits by lot; the common test of a site are the test bags of all others",)
    return Federation(card.name, task, out, None, card, notes)


def _vectors(patches: Tensor) -> Tensor:
    """Features that no record had a say in: the picture in 7 × 7 blocks."""
    return F.avg_pool2d(patches, 4).flatten(1)

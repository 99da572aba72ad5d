"""An invented gender that misleads at every site, as a published experiment adds it to breast-original."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from confrere.core.errors import StudyError
from confrere.core.seeds import derive
from confrere.data.records import Federation, Records, SiteData

COLUMN = "gender (invented)"


def with_gender(federation: Federation, bias: float, seed: int) -> Federation:
    """The federation with one more feature, 1 for male.

    At every other site, beginning with the first, `bias` of the positive records are male and as many of the negative ones
    female; at the others it is the other way round. In the common test, gender says nothing.
    """
    if not 0.5 <= bias <= 1:
        raise StudyError(f"gender_bias = {bias:g}: it is a share from 0.5 (says nothing) to 1")
    sites: dict[str, SiteData] = {}
    for k, (name, site) in enumerate(sorted(federation.sites.items())):
        share = bias if k % 2 == 0 else 1 - bias
        train, validation, test = (
            _invented(records, (1 - share, share), derive(seed, "gender", name, part))
            for part, records in (("train", site.train), ("validation", site.validation), ("test", site.test))
        )
        common = site.common_test
        if common is not None:  # the same for all sites
            common = _invented(common, (0.5, 0.5), derive(seed, "gender", "common"))
        sites[name] = replace(site, train=train, validation=validation, test=test, common_test=common)
    features = (*federation.task.features, COLUMN)
    task = replace(federation.task, inputs=(federation.task.inputs[0] + 1,), features=features)
    note = f"a gender was invented: {bias:.0%} of the malignant cases are male at every other site, female at the others"
    # the schema does not describe the invented column
    return replace(federation, sites=sites, task=task, schema=None, notes=(*federation.notes, note))


def _invented(records: Records, male: Sequence[float], seed: int) -> Records:
    chance = torch.tensor(male)[records.targets]
    drawn = torch.rand(len(records), generator=torch.Generator().manual_seed(seed % 2**63)) < chance
    return Records(torch.cat([records.inputs, drawn[:, None].float()], 1), records.targets, records.units)

"""Describe a federation, site by site: sizes, labels, missing values, and how far apart the sites are.

The numbers are drawn from the records: PRIVATE for real sites. For bundled sets they are public anyway.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from confrere.data.column_kinds import MISSING
from confrere.data.records import Federation, Records, SiteData, declared_count


@dataclass(frozen=True)
class SiteProfile:
    """One site in numbers."""

    name: str
    train: int
    validation: int
    test: int
    patients: int
    declared: int
    labels: dict[str, float]
    """The share of each class, or what else the kind of task sums up."""
    missing: dict[str, float]
    """The share of gaps in each column that can have them."""
    means: NDArray[np.float64]
    """Of each feature, over the values that are there; NaN without any."""

    @property
    def records(self) -> int:
        return self.train + self.validation + self.test

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "records": self.records,
            "train": self.train,
            "validation": self.validation,
            "test": self.test,
            "patients": self.patients,
            "declared": self.declared,
            "labels": {k: round(v, 4) for k, v in self.labels.items()},
            "missing": {k: round(v, 4) for k, v in self.missing.items()},
        }


@dataclass(frozen=True)
class FederationProfile:
    """A whole federation in numbers. `apart` is in standard deviations of the pooled records."""

    name: str
    sites: tuple[SiteProfile, ...]
    features: tuple[str, ...]
    apart: NDArray[np.float64]
    """[site, feature]: how far a site's mean lies from the mean of all records."""
    two_valued: NDArray[np.bool_]
    """Which features are 0 or 1 wherever they have a value, such as «yes» and «no»: their mean is a share."""

    def shares(self, feature: int) -> list[tuple[float, float]]:
        """For each site, its share of a two-valued feature and that of all other sites' records."""
        own = np.array([s.means[feature] for s in self.sites])
        sizes = np.array([0.0 if np.isnan(m) else s.records for m, s in zip(own, self.sites, strict=True)])
        own = np.nan_to_num(own)
        others = np.maximum(sizes.sum() - sizes, 1.0)
        rest = ((own * sizes).sum() - own * sizes) / others
        return [(float(a), float(np.clip(b, 0, 1))) for a, b in zip(own, rest, strict=True)]

    def most_apart(self, count: int) -> list[int]:
        """The features in which sites differ most; missing-value indicators are left to the gaps."""
        spread = np.abs(self.apart).max(axis=0)
        own = [i for i, f in enumerate(self.features) if not f.endswith(MISSING) and spread[i] > 0]
        return sorted(own, key=lambda i: -spread[i])[:count]


def profile(federation: Federation) -> FederationProfile:
    """Count and average; images are averaged over their pixels, channel by channel."""
    sites = tuple(_site(federation, site) for site in federation.sites.values())
    everyone = torch.cat([_numbers(site.all) for site in federation.sites.values()]).double()
    features = federation.task.features or tuple(f"channel {i + 1}" for i in range(everyone.shape[1]))
    present = _present(everyone, features)
    centre = _mean(everyone, present)
    spread = np.sqrt(_mean((everyone - torch.from_numpy(centre)) ** 2, present))
    spread = np.where(spread > 1e-9, spread, np.inf)
    apart = np.stack([np.nan_to_num((s.means - centre) / spread) for s in sites])
    two_valued = ((everyone == 0) | (everyone == 1) | (present == 0)).all(dim=0).numpy()
    return FederationProfile(federation.name, sites, features, apart, two_valued)


def _numbers(records: Records) -> torch.Tensor:
    x = records.inputs
    return x if x.dim() == 2 else x.flatten(2).mean(dim=2)


def _present(numbers: torch.Tensor, features: Sequence[str]) -> torch.Tensor:
    """1 where a value is there: not for the number that stands in for a missing one."""
    present = torch.ones_like(numbers)
    for i, name in enumerate(features):
        if name + MISSING in features:
            present[:, i] -= numbers[:, features.index(name + MISSING)]
    return present


def _mean(numbers: torch.Tensor, present: torch.Tensor) -> NDArray[np.float64]:
    """The mean of the values that are there; NaN without any."""
    found: NDArray[np.float64] = ((numbers * present).sum(0) / present.sum(0)).numpy()
    return found


def _site(federation: Federation, site: SiteData) -> SiteProfile:
    records, task = site.all, federation.task
    labels = task.traits.summary(task, records.targets)
    gaps = {
        name.removesuffix(MISSING): float(records.inputs[:, i].mean())
        for i, name in enumerate(task.features)
        if name.endswith(MISSING)
    }
    numbers = _numbers(records).double()
    return SiteProfile(
        site.name,
        len(site.train),
        len(site.validation),
        len(site.test),
        records.patients,
        site.declared or declared_count(records.patients),
        labels,
        gaps,
        _mean(numbers, _present(numbers, task.features)),
    )

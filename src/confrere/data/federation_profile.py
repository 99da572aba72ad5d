"""Describe a federation, site by site: sizes, labels, missing values, and how far apart the sites are.

The numbers are drawn from the records: PRIVATE for real sites. For bundled sets they are public anyway.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from confrere.data.records import Federation, Records, SiteData, declared_count
from confrere.data.schema import MISSING


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
    """Which features are 0 or 1 in every record, such as «yes» and «no»: their mean is a share."""

    def shares(self, feature: int) -> list[tuple[float, float]]:
        """For each site, its share of a two-valued feature and that of all other sites' records."""
        own = np.array([s.means[feature] for s in self.sites])
        sizes = np.array([s.records for s in self.sites], dtype=float)
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
    centre, spread = everyone.mean(dim=0).numpy(), everyone.std(dim=0).numpy()
    spread = np.where(spread > 1e-9, spread, np.inf)
    apart = np.stack([(s.means - centre) / spread for s in sites])
    features = federation.task.features or tuple(f"channel {i + 1}" for i in range(apart.shape[1]))
    two_valued = ((everyone == 0) | (everyone == 1)).all(dim=0).numpy()
    return FederationProfile(federation.name, sites, features, apart, two_valued)


def _numbers(records: Records) -> torch.Tensor:
    x = records.inputs
    return x if x.dim() == 2 else x.flatten(2).mean(dim=2)


def _site(federation: Federation, site: SiteData) -> SiteProfile:
    records, task = site.all, federation.task
    labels = task.traits.summary(task, records.targets)
    gaps = {
        name.removesuffix(MISSING): float(records.inputs[:, i].mean())
        for i, name in enumerate(task.features)
        if name.endswith(MISSING)
    }
    return SiteProfile(
        site.name,
        len(site.train),
        len(site.validation),
        len(site.test),
        records.patients,
        site.declared or declared_count(records.patients),
        labels,
        gaps,
        _numbers(records).double().mean(dim=0).numpy(),
    )

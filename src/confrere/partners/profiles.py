"""Similarity of records before any training: the maximum mean discrepancy of two profiles (Gretton et al. 2012).

A profile is the mean of random Fourier features of a site's records, label included (Rahimi and Recht 2007). The features
are drawn from the study's seed and are public. Each record's features have length 1, so one record moves their sum by 1,
and noise makes the profile differentially private (Harder et al. 2021, «DP-MERF»). The expected contributions of noise
and of sampling are subtracted from the distance.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from confrere.core.seeds import generator
from confrere.data.records import Records
from confrere.partners.ranking import Criteria, Ranking, RecordDistance, ranked

WAVES = 100
"""The number of pairs of cosine and sine."""

LABEL = 2.0
"""The distance between two classes, compared with inputs in about −1 … 1."""

SMALL = 0.1
"""A squared distance below this is small; sets with nothing in common have 2."""


@dataclass(frozen=True)
class RecordProfile:
    """The mean features of a site's records; `noise` is the expected squared length of the noise in them."""

    mean: NDArray[np.float64]
    count: float
    noise: float = 0.0

    @property
    def sampling_variance(self) -> float:
        """The expected squared distance between this profile and that of the population it was sampled from."""
        return max(0.0, 1 - float(self.mean @ self.mean) + self.noise) / self.count


def features(records: Records, classes: int, seed: int) -> Tensor:
    """One row of length 1 for each record, or the mean over a patient's records."""
    inputs = records.inputs.reshape(len(records), -1).double()
    if records.targets.is_floating_point():
        labels = records.targets.reshape(len(records), -1).double()
    else:
        labels = torch.nn.functional.one_hot(records.targets.long(), max(2, classes)).double() / math.sqrt(2)
    both = torch.cat([inputs / math.sqrt(max(1, inputs.shape[1])), LABEL * labels], 1)
    waves = torch.randn(both.shape[1], WAVES, generator=generator(seed, "profile"), dtype=torch.float64)
    turns = both @ waves
    found = torch.cat([turns.cos(), turns.sin()], 1) / math.sqrt(WAVES)
    return by_patient(found, records.units)


def by_patient(rows: Tensor, units: Tensor | None) -> Tensor:
    """The mean row of each patient, so that no patient counts for more than one."""
    if units is None:
        return rows
    numbers = torch.unique(units, return_inverse=True)[1]
    patients = torch.zeros(int(numbers.max()) + 1, rows.shape[1], dtype=torch.float64).index_add_(
        0, numbers, rows
    )
    return patients / torch.bincount(numbers).double()[:, None]


def profile_ranking(own: RecordProfile, theirs: Mapping[str, RecordProfile], criteria: Criteria) -> Ranking:
    """Peers by the distance of their records from the user's."""
    candidates = []
    for peer, profile in theirs.items():
        apart, size = profile.mean - own.mean, len(own.mean)
        expected = own.noise + profile.noise + own.sampling_variance + profile.sampling_variance
        value = float(apart @ apart) - expected
        error = math.sqrt(4 * max(0.0, value) * expected / size + 2 * expected**2 / size)
        shown = f"squared distance {value:.4f} ± {error:.4f}; sets with nothing in common have 2"
        distance = RecordDistance(value, error, SMALL, error > 0.5, shown)
        candidates.append(distance.candidate(peer, criteria.user))
    return Ranking(
        "profiles", "Similarity of records",
        "how far apart the profiles of both sites' records are, before any training; less is better",
        ranked(candidates, least_first=True), criteria.sends("a profile of its records"), not criteria.released,
    )  # fmt: skip

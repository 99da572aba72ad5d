"""The public prior of a site's own regression: how strongly it is regularised and how far it leans on the proxy.

Thirty records cannot tell either. What other data sets have shown is public knowledge, and costs no privacy: each candidate
starts with a share of the whole, which the site's own cross-validation then multiplies (`tuning.near_best`).

| candidates | share | log of the strength λ |
|---|---|---|
| training alone, with nothing else on offer | 1 | normal around log 5, standard deviation 0.7 |
| without the proxy | ½ | the same |
| with part of the proxy (½ or all of it) | ½, divided equally | normal around log 100, standard deviation 2 |

A model on top of the proxy has less left to explain, so its weights are expected to be smaller. The constants, the fields
of `PublicPrior`, were chosen on nine federations (docs/decisions/0016-public-prior.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from confrere.learning.fit.exact_regression import Vector

STRENGTHS = tuple(float(f"{10 ** (n / 2):.4g}") for n in range(-2, 11))
"""The strengths of regularisation that are tried for one output: half decades from 0.1 to 100,000.

The last leaves nothing but the constant."""

DECADES = STRENGTHS[0:9:2]
"""The strengths for several classes, whose models take longer to fit: 0.1 to 1,000."""


@dataclass(frozen=True)
class PublicPrior:
    """The prior shares of all candidates. A strength is given by its median and the standard deviation of its natural log."""

    alone: tuple[float, float] = (5.0, 0.7)
    own: tuple[float, float] = alone
    """Without the proxy, where others use it: a site that sets the proxy aside is where it would be alone."""
    on_proxy: tuple[float, float] = (100.0, 2.0)
    trust: float = 0.5
    """The share of all candidates that use the proxy."""

    def shares(self, losses: int, strengths: Sequence[float], flat: bool = False) -> Vector:
        """The shares of `losses` × `strengths` candidates, in this order; they add up to 1.

        The first loss is training alone; the others use the proxy. With `flat`, all strengths of a loss count equally:
        a study that lists its own has another scale in mind.
        """
        expected = [self.alone] if losses == 1 else [self.own] + [self.on_proxy] * (losses - 1)
        weights = [1.0] if losses == 1 else [1 - self.trust] + [self.trust / (losses - 1)] * (losses - 1)
        found = []
        for weight, (median, spread) in zip(weights, expected, strict=True):
            away = np.zeros(len(strengths)) if flat else np.log(np.divide(strengths, median)) / spread
            density = np.exp(-0.5 * np.square(away))
            found.append(weight * density / density.sum())
        return np.concatenate(found)

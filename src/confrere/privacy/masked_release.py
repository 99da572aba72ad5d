"""One site's share of a masked sum: what it costs, and its part of the noise, which is drawn once.

The sites of a masked sum share the noise of one release. A share by itself carries too little noise to be seen or to be
read by a further step: it may only be masked and added up (`exchange.secure`). What is proven for the sum of shares
(Kairouz, Liu, Steinke 2021), if at most t members collude and at most d are missing:

1. A sum is multiplied by its public weight w of at most 1, so one record moves it by at most w·C. Projecting it onto a ball
   of radius w·C·declared does not move two neighbouring sums apart, so the sensitivity stays w·C.
2. Rounding to the grid γ moves each of P coordinates by at most γ/2, two neighbouring sums by at most γ√P.
3. Each of the h = n − t − d honest members that are certainly in the sum adds discrete Gaussian noise of variance σ²/h.
   Rounded continuous noise would not do: its sums are not covered by the theorem.

As for unmasked releases (`privacy.noise`), the sum that is handed in must be one whose *computed* value moves by at most C.
`Clipping.sum` makes such sums: records are clipped by so much more that rounding is covered, and more than a few hundred
of them are added up in double precision (`clipping.ROUNDING`, `per_record.SINGLE`). A sum in single precision is
refused here, since it could have been added up in any other way. `MARGIN` covers the rounding of the weighted sum.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from confrere.core.errors import PrivacyError
from confrere.core.sum_terms import SumTerms
from confrere.privacy.charged_steps import already_released
from confrere.privacy.charges import masked
from confrere.privacy.discrete_gaussian import discrete_gaussian
from confrere.privacy.noise import Randomness

MARGIN = 1 + 2.0**-16
"""The noise is this much larger than charged, for the rounding of doubles in norm and projection."""


class MaskedRelease:
    """A clipped sum over all records of a site that is released only as part of a masked sum.

    Pay `charge`, then `release` once. All arguments but `randomness` are public. Only a simulation, whose noise may be
    repeated, draws it from a source that is not secure.
    """

    def __init__(
        self,
        name: str,
        terms: SumTerms,
        declared: int,
        randomness: Randomness,
        weight: float = 1.0,
        *,
        simulated: bool = False,
    ) -> None:
        if not 0 < weight <= 1:
            raise PrivacyError(f"the weight of a share lies above 0 and is at most 1, not {weight}")
        if not (randomness.secure or simulated):
            raise PrivacyError("the noise of a masked sum must come from a secure source of randomness")
        self.name, self.terms = name, terms
        self.weight = weight
        self.radius = weight * declared * terms.clip * math.sqrt(terms.vectors)
        self.charge = masked(terms, weight=weight)
        self._randomness: Randomness | None = randomness

    def release(self, total: Tensor) -> NDArray[np.int64]:
        """The sum in grid steps, with this site's share of the noise; refused the second time."""
        if total.dtype != torch.float64:
            raise PrivacyError(f"a sum to be masked must be in double precision, not in {total.dtype}")
        flat = total.detach().to("cpu").reshape(-1)
        if flat.numel() != self.terms.size:
            raise PrivacyError(f'"{self.name}" has {flat.numel()} numbers, and {self.terms.size} were agreed')
        if not bool(torch.isfinite(flat).all()):
            raise PrivacyError("a sum that is not finite cannot be protected by noise; nothing was released")
        flat = flat * self.weight
        length = float(torch.linalg.vector_norm(flat))
        if length > self.radius:
            flat = flat * (self.radius / length)
        steps = torch.round(flat / self.terms.grid).numpy().astype(np.int64)
        steps += self._noise()
        return steps

    def noise_only(self) -> NDArray[np.int64]:
        """This site's share of the noise without a sum: costs nothing, and keeps the noise of the others complete."""
        return self._noise()

    def _noise(self) -> NDArray[np.int64]:
        if self._randomness is None:
            raise already_released(self.name)
        source, self._randomness = self._randomness, None
        return discrete_gaussian(self.terms.size, MARGIN * self.terms.share_scale, source.words)

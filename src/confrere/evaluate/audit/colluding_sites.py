"""What sites that collude in a masked sum see of another one: the opened sum less the vectors that they put into it.

The guarantee of a masked sum assumes that t sites collude and d are missing. Those that collude know their own vectors, noise
included, and those that are missing add none; so what hides the observed site is the noise of h = n − t − d sites. Here all
sites are there, and the vectors of d of them are taken off too, which leaves what a sum without them would be.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from confrere.core.custody import Custody
from confrere.core.model import Model
from confrere.site.masked_share import SiteShare


@dataclass
class ColludingSites:
    """The hook of all sites: it takes the vectors of some sites off the opened sums."""

    observed: str
    names: tuple[str, ...]
    """The sites that collude, and as many as may be missing."""
    sums: list[Model] = field(default_factory=list)
    _own: dict[tuple[int, str], NDArray[np.int64]] = field(default_factory=dict)

    def leaving(self, share: SiteShare, vector: NDArray[np.int64]) -> NDArray[np.int64]:
        if share.site.name in self.names:
            known = self._own.get((share.round, share.role))
            self._own[share.round, share.role] = vector if known is None else known + vector
        return vector

    def opened(self, share: SiteShare, steps: NDArray[np.int64]) -> None:
        if share.site.name == self.observed:
            own = self._own.get((share.round, share.role))
            self.sums.append(share.shaped(steps if own is None else steps - own, Custody.PROTECTED))

    def restart(self) -> None:
        """Forget the run that is over."""
        self.sums.clear()
        self._own.clear()

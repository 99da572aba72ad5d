"""The numbers that the members of a masked sum agree on, and what must hold for them.

n members, of which at most t pool what they see or depart from the protocol and at most d drop out: h = n − t − d honest
members are certainly in an opened sum, and each adds noise of variance σ²/h. T = ⌊(n + t)/2⌋ + 1 members must sign a list of
survivors: two such groups have an honest member in common, and that one signs a single list. A new epoch of membership has new
terms.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from confrere.core.errors import PrivacyError, StudyError

FINENESS = 1000
"""Rounding to the grid moves a sum by at most C/1000."""

LEAST_STEPS = 5.0
"""The least noise of one member, in grid steps: a sum of shares is then a discrete Gaussian but for 10^−100."""

MOST_STEPS = 2.0**39
"""The most noise of one member, in grid steps, that is drawn exactly."""

FAR = 12
"""No noise is ever this many standard deviations away."""

MOST_BITS = 64


@dataclass(frozen=True)
class SumTerms:
    """Numbers of a masked sum, all of them public; lengths are in the units of the sum.

    >>> terms = SumTerms(members=8, colluding=2, dropouts=2, noise_std=1.5, clip=1.0, size=1000)
    >>> terms.threshold, terms.honest
    (6, 4)
    >>> terms.condition
    'if at most 2 of the other 7 sites pool what they see or depart from the protocol'
    """

    members: int
    """n."""
    colluding: int
    """t: how many members may pool what they see or depart from the protocol."""
    dropouts: int
    """d: how many members may be missing."""
    noise_std: float
    """σ: the standard deviation of the noise in the opened sum."""
    clip: float
    """C: what one record adds at most."""
    size: int
    """P: the length of the vector that is masked."""
    grid: float = 0.0
    """γ; 0 stands for the coarsest grid that is fine enough."""
    bits: int = MOST_BITS
    """m: sums are computed modulo 2^m."""
    vectors: int = 1
    """K: how many clipped vectors are joined in it. Each record moves each of them by at most C, and all of them by C√K."""

    def __post_init__(self) -> None:
        check_collusion(self.members, self.colluding, self.dropouts)
        if self.size < 1 or self.vectors < 1:
            raise StudyError("a masked sum needs at least one vector of at least one number")
        if not 8 <= self.bits <= MOST_BITS:
            raise StudyError(f"masked sums are computed modulo 2^8 to 2^{MOST_BITS}, not 2^{self.bits}")
        for name, value in (("noise_std", self.noise_std), ("clip", self.clip)):
            if not (math.isfinite(value) and value > 0):
                raise PrivacyError(f"{name} of a masked sum must be a number above 0, not {value}")
        if self.grid == 0:
            object.__setattr__(self, "grid", grid_for(self.clip, self.size))
        for name in ("noise_std", "clip", "grid"):  # 1 and 1.0 are one agreement
            object.__setattr__(self, name, float(getattr(self, name)))
        self._check_grid()

    def _check_grid(self) -> None:
        if not (math.isfinite(self.grid) and self.grid > 0):
            raise PrivacyError(f"the grid of a masked sum must be a number above 0, not {self.grid}")
        rounding = self.grid * math.sqrt(self.size)
        if rounding > self.clip / FINENESS:
            raise PrivacyError(
                f"the grid {self.grid:g} is too coarse: rounding moves a sum of {self.size} numbers by up to {rounding:.3g}, "
                f"and only {self.clip / FINENESS:.3g} is allowed for; use {grid_for(self.clip, self.size):g}"
            )
        if self.share_scale < LEAST_STEPS:
            raise PrivacyError(
                f"the grid {self.grid:g} is too coarse for the noise: each member adds {self.share_scale:.3g} grid steps, "
                f"and at least {LEAST_STEPS:g} are needed; use a finer grid or more noise"
            )

        if self.share_scale > MOST_STEPS:
            raise PrivacyError(
                f"the grid {self.grid:g} is too fine for the noise: each member adds {self.share_scale:.3g} grid steps, and at "
                f"most {MOST_STEPS:.3g} can be drawn; use a coarser grid or less noise"
            )

    def check_sum(self, declared: int) -> None:
        """Refuse if the sum over this number of records in all could wrap around. That would harm the result, not privacy."""
        rounding = self.grid * math.sqrt(self.size) * self.members
        noise = FAR * self.noise_std * math.sqrt(self.members / self.honest)
        largest = (self.clip * math.sqrt(self.vectors) * declared + rounding + noise) / self.grid
        if not largest < 2 ** (self.bits - 1):
            raise PrivacyError(
                f"a masked sum of {self.members} members could reach {largest:.3g} grid steps and wrap around modulo "
                f"2^{self.bits}; use {MOST_BITS} bits, a coarser grid or smaller declared sizes"
            )

    @property
    def honest(self) -> int:
        """h: how many honest members an opened sum certainly has."""
        return self.members - self.colluding - self.dropouts

    @property
    def threshold(self) -> int:
        """T: how many members must sign the same list of survivors."""
        return threshold(self.members, self.colluding)

    @property
    def quorum(self) -> int:
        """How many members each step needs, and how many survivors a list."""
        return max(self.threshold, self.members - self.dropouts)

    @property
    def share_scale(self) -> float:
        """The standard deviation of one member's noise, in grid steps."""
        return self.noise_std / math.sqrt(self.honest) / self.grid

    @property
    def condition(self) -> str:
        """The assumption that the privacy of an opened sum rests on."""
        return collusion_condition(self.members, self.colluding)


def collusion_condition(members: int, colluding: int) -> str:
    """The assumption about the other sites, in words."""
    return f"if at most {colluding} of the other {members - 1} sites pool what they see or depart from the protocol"


def threshold(members: int, colluding: int) -> int:
    """T = ⌊(n + t)/2⌋ + 1.

    >>> threshold(8, 2)
    6
    """
    return (members + colluding) // 2 + 1


def check_collusion(members: int, colluding: int, dropouts: int) -> None:
    """Refuse numbers of members, colluding members and dropouts for which masks do not protect."""
    for name, value in (("colluding", colluding), ("dropouts", dropouts)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise StudyError(f"{name} must be a whole number of at least 0, not {value!r}")
    if members < 3:
        raise StudyError(
            f"a masked sum needs at least 3 members, not {members}: each of two knows the other's part"
        )
    if colluding < 1:
        raise StudyError(
            "colluding = 0 is unsound: every member sees the sum and knows its own noise; use at least 1"
        )
    needed = threshold(members, colluding)
    if dropouts > members - needed:
        raise StudyError(
            f"with {members} members, of which {colluding} may collude, {needed} must sign a list of survivors, so at most "
            f"{max(members - needed, 0)} may drop out, not {dropouts}"
        )
    if members - colluding - dropouts < 2:
        raise StudyError(
            f"{members} members less {colluding} colluding and {dropouts} dropouts leave fewer than 2 honest ones to share the "
            "noise; lower colluding or dropouts, or add members"
        )


def grid_for(clip: float, size: int) -> float:
    """The coarsest power of two with γ√P ≤ C/1000."""
    return math.ldexp(1.0, math.frexp(clip / FINENESS / math.sqrt(size))[1] - 1)

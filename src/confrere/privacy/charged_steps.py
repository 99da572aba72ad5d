"""The private steps of one training call as one value, which is both charged and used to draw the samples.

In every step each protected role draws a sample of its own and makes one release from it. A call with K protected
roles and T steps is therefore K·T runs of their mechanisms, and is charged as such. Roles that shared a Poisson sample
would not be K independent runs but one Gaussian of noise 1/√(Σ 1/z²) at the sampling rate (`charges.on_one_sample`),
because a record that is drawn is drawn for all of them at once. Separate samples never cost more, and far less where
the noise is small: one step of sixteen models with noise 0.727 at rate 1/32 costs ε = 3 (δ = 1e-5) on separate samples,
and ε = 29.7 on a shared one. Roles may still read one another: the outputs of the other models are computed on the
reader's own sample.

Unprotected roles stay PRIVATE, so their batches cost nothing. Where samples are drawn by chance, they learn from the
batches of the first role that draws: in ProxyFL the private model and the proxy see the same records.

In full batches all records take part in every release. K Gaussians of noise z are then exactly one of z/√K, and nothing
depends on whether the batch is called one or K.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

from torch import Tensor

from confrere.core.errors import PrivacyError
from confrere.privacy.charges import Charge, Unit, gaussian
from confrere.privacy.gradients import ClippedSum
from confrere.privacy.mechanism import Mechanism, Release
from confrere.privacy.noise import Randomness
from confrere.privacy.sampling import Patients


@dataclass(frozen=True)
class PrivateSteps:
    """What the protected roles of one training call do: `count` steps of the mechanism of each.

    Pay `charges`, then train with `draw`: there is no other way to a sample.

    >>> from confrere.privacy.clipping import Flat
    >>> from confrere.privacy.sampling import FullBatch
    >>> step = Mechanism(FullBatch(), Flat(1.0), 4.0, 100)
    >>> [charge.count for charge in PrivateSteps({"proxy": step, "critic": step}, 3).charges]
    [6]
    """

    keeps_sums: ClassVar[bool] = False
    """Whether the clipped sums are kept at the site for a masked sum instead of being released."""
    mechanisms: Mapping[str, Mechanism] = field(default_factory=dict)
    count: int = 0

    def __contains__(self, role: object) -> bool:
        """Whether a role is protected."""
        return role in self.mechanisms

    def __bool__(self) -> bool:
        return bool(self.mechanisms)

    @cached_property
    def charges(self) -> tuple[Charge, ...]:
        """What all the steps cost, whatever they will draw; one charge for each kind of event."""
        counts: dict[str, int] = {}
        for mechanism in self.mechanisms.values():
            counts[mechanism.event] = counts.get(mechanism.event, 0) + self.count
        return tuple(Charge(event, count) for event, count in counts.items())

    def batches(self, roles: Iterable[str]) -> list[tuple[str, ...]]:
        """Which of these roles learn from the same records in a private step.

        A role that draws its sample by chance shares it with no other protected role. Unprotected roles join the first
        of these; where there is none, they take no part in private steps.
        """
        full_batches: dict[str, list[str]] = {}
        found: list[list[str]] = []
        plain: list[str] = []
        first: list[str] | None = None
        for role in roles:
            mechanism = self.mechanisms.get(role)
            if mechanism is None:
                (plain if first is None else first).append(role)
            elif mechanism.sampling.rate < 1:
                found.append([role])
                if first is None:
                    first = found[-1]
                    first[:0] = plain
            elif mechanism.unit in full_batches:
                full_batches[mechanism.unit].append(role)
            else:
                found.append(full_batches.setdefault(mechanism.unit, [role]))
        return [tuple(batch) for batch in found]

    def draw(self, units: int | Patients, randomness: Randomness) -> Iterator[Draw]:
        """The samples of one step after the other."""
        for _ in range(self.count):
            rows = {r: m.sampling.draw(units, randomness) for r, m in self.mechanisms.items()}
            yield Draw(self.mechanisms, rows, randomness)


UNPROTECTED = PrivateSteps()
"""A call in which nothing is protected."""


class Draw:
    """The samples of one step, one for each protected role. Each of them pays for one release."""

    def __init__(
        self, mechanisms: Mapping[str, Mechanism], rows: Mapping[str, Tensor], randomness: Randomness
    ) -> None:
        self.rows = rows
        """By role, the records that were drawn: PRIVATE."""
        self._mechanisms, self._randomness = mechanisms, randomness
        self._unused = set(rows)

    def release(self, role: str, clipped: ClippedSum, state: Mapping[str, Tensor]) -> Release:
        """Add the noise of this role to its clipped sum; refused the second time."""
        if role not in self._unused:
            raise already_released(role)
        self._unused.remove(role)
        return self._mechanisms[role].release(clipped, state, self._randomness)


class OneRelease:
    """One sum over all records, released outside of training: what it costs, and its noise, which is added once."""

    def __init__(self, name: str, noise_multiplier: float, unit: Unit, randomness: Randomness) -> None:
        self.name, self.noise_multiplier, self.unit = name, noise_multiplier, unit
        self.charge = gaussian(noise_multiplier, unit=unit)
        self._randomness: Randomness | None = randomness

    def release(self, total: Tensor, sensitivity: float) -> Tensor:
        """The sum with noise, if one unit moves it by at most `sensitivity`; refused the second time."""
        if self._randomness is None:
            raise already_released(self.name)
        source, self._randomness = self._randomness, None
        return source.perturb(total, self.noise_multiplier * sensitivity, sensitivity)


def already_released(role: str) -> PrivacyError:
    """A second release of what was paid for once."""
    return PrivacyError(
        f'"{role}" was charged for one release of this sample and has made it: nothing more was released'
    )

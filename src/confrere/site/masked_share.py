"""A site's share of a masked sum: the clipped sum of its gradients, charged and noised when it is masked.

The share is computed before the members of the sum have answered, and costs nothing then: no noise is drawn and nothing
leaves. `SiteShare` is what the masking protocol asks for charge and vector, in this order and once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from confrere.core.custody import Custody, Scalar, Share, require_may_leave, strictest
from confrere.core.errors import PrivacyError, StudyError
from confrere.core.events import Event
from confrere.core.model import Model
from confrere.core.params import Params
from confrere.core.protocols import Loss
from confrere.core.seeds import derive
from confrere.core.sum_terms import SumTerms
from confrere.privacy.charged_steps import PrivateSteps
from confrere.privacy.charges import Charge, masked
from confrere.privacy.gate import Gate
from confrere.privacy.masked_mechanism import MaskedSteps
from confrere.privacy.masked_release import MaskedRelease
from confrere.privacy.noise import Seeded
from confrere.site.assemble import consents
from confrere.site.checks import check_loss_on_site, check_safe
from confrere.site.training import TrainingCall

if TYPE_CHECKING:
    from confrere.site.participant import Participant


class ShareHook(Protocol):
    """Sees, and may replace, what a site adds to masked sums in a rehearsal. No node has one."""

    def leaving(self, share: SiteShare, vector: NDArray[np.int64]) -> NDArray[np.int64]: ...

    def opened(self, share: SiteShare, steps: NDArray[np.int64]) -> None:
        """The sum that the site was given, in grid steps."""


@dataclass(frozen=True)
class TakenAt:
    """Which gradients a share adds up: the loss, the models, the trained role, and which call of its round it is."""

    loss: Loss
    models: Mapping[str, Model]
    role: str
    again: tuple[int, ...] = ()


@dataclass(frozen=True)
class Weighting:
    """What the sites' sums are multiplied by; it is known to all of them."""

    own: float = 1.0
    all_sites: Mapping[str, float] = field(default_factory=dict)
    custody: Custody = Custody.PUBLIC

    @classmethod
    def of(cls, site: str, weights: Mapping[str, Scalar] | None) -> Weighting:
        """Refuses weights that are beyond 1, that may not leave, or that do not name the site."""
        if weights is None:
            return cls()
        custody = strictest(weight.custody for weight in weights.values())
        require_may_leave([custody])
        values = {name: float(weight.value) for name, weight in weights.items()}
        if site not in values or not all(0 <= value <= 1 for value in values.values()):
            raise StudyError("the weights of a sum are numbers from 0 to 1, one for each site")
        return cls(values[site], values, custody)


@dataclass
class SiteShare:
    """What a share holds: a clipped sum (None at a site without budget or weight), and how it is paid for and noised."""

    site: Participant
    round: int
    release: MaskedRelease
    at: Model
    """The common model that the gradients were taken at."""
    role: str
    total: torch.Tensor | None
    key: str
    """Under which key the ledger is charged."""
    replay_of: str | None
    counts: bool = False
    """Whether the site's numbers are in the sum too; not at a site whose budget is spent."""
    weights: Mapping[str, float] = field(default_factory=dict)
    """What each site's sum is multiplied by; 1 for a site that is not named."""
    paid: bool = False

    @property
    def terms(self) -> SumTerms:
        return self.release.terms

    def charge(self) -> None:
        """Write the charge; noise alone costs nothing."""
        site = self.site
        if self.total is None or self.paid:
            return
        site.ledger.spend(
            [self.release.charge],
            key=self.key,
            budget=site.budget,
            records=site.fingerprint,
            replay_of=self.replay_of,
            reuse=site.reuses,
        )
        self.paid = True
        data = {
            "role": self.role, "steps": 1, **site.spending(),
            "noise_multiplier": self.terms.noise_std / self.terms.clip, "sample_rate": 1.0,
            "mechanism": self.release.charge.event,
        }  # fmt: skip
        site.journal.add(Event("charged", site.name, self.round, data=data))

    def draw(self) -> NDArray[np.int64]:
        """The vector in grid steps, with this site's part of the noise; refused the second time, and before the charge."""
        if self.total is not None and not self.paid:
            raise PrivacyError(f'"{self.role}" was not charged; nothing was released')
        vector = self.release.noise_only() if self.total is None else self.release.release(self.total)
        return vector if self.site.share_hook is None else self.site.share_hook.leaving(self, vector)

    def opened(self, steps: NDArray[np.int64], custody: Custody) -> Model:
        """An opened sum as a vector in the shape of the model; what is not trained has no gradient."""
        if self.site.share_hook is not None:
            self.site.share_hook.opened(self, steps)
        return self.shaped(steps, custody)

    def shaped(self, steps: NDArray[np.int64], custody: Custody) -> Model:
        """A vector in grid steps in the shape of the model."""
        network = self.site.network(self.role, self.at.architecture)
        flat = torch.from_numpy(steps.astype(np.float64) * self.terms.grid)
        moved = network.trainable(flat)
        nothing = {name: torch.zeros_like(t) for name, t in self.at.params.items() if name not in moved}
        ordered = {name: moved[name] if name in moved else nothing[name] for name in self.at.params}
        return Model(Params(ordered), self.at.architecture, custody)


def anew(share: SiteShare, opens_as: Custody, attempt: int) -> tuple[SiteShare, Custody]:
    """The same sum for another attempt, with its own noise and charge; noise alone if the budget does not pay for it."""
    site, old = share.site, share.release
    key = f"{share.key.split('/attempt ')[0]}/attempt {attempt + 1}"
    source = site.randomness or Seeded(derive(site.study.seed, site.name, "masked noise", key))
    release = MaskedRelease(share.role, old.terms, site.size, source, old.weight, simulated=site.rehearsal)
    release.charge = old.charge
    found = replace(share, release=release, key=key, paid=False)
    if found.total is None:
        return found, opens_as
    if not _affordable(site, share.round, found):
        return replace(found, total=None, counts=False), opens_as
    charges = [] if _repeated(found) else [release.charge]
    return found, strictest([opens_as, _released_with(site, charges)])


def held_by(gate: Gate, share: Share) -> SiteShare:
    """What a share holds, from the gate."""
    held = gate.admit_share(share)
    if not isinstance(held, SiteShare):
        raise PrivacyError("only site.gradient_sum makes shares of masked sums")
    return held


@dataclass
class MaskedCall(TrainingCall):
    """A call of `site.gradient_sum` whose clipped sum is kept for a masked sum: nothing is charged or noised yet."""

    steps: MaskedSteps = field(default_factory=MaskedSteps)

    def _paid_steps(self) -> PrivateSteps:
        for role in self.protect:
            check_safe(self.site, role, self.models[role].architecture)
            check_loss_on_site(self.site, role, self._contents_of(self.objective[role]), self.models)
        return self.steps

    def digest(self) -> str:
        return self._digest(list(self.protect))


async def masked_share(site: Participant, round: int, taken: TakenAt, weighting: Weighting) -> Share:
    """The share of this round; noise alone where the budget is spent, the weight is 0 or the site has stopped training."""
    assert site.mechanism is not None
    assert site.members_at is not None
    role, again, at = taken.role, taken.again, taken.models[taken.role]
    size, weight = site.network(role, at.architecture).flat.numel(), weighting.own
    mechanism = site.mechanism.among(site.members_at(round), size)
    assert mechanism.terms is not None
    key = "/".join(map(str, (site.run, round, role, "masked", *again)))
    seed = derive(site.study.seed, site.name, round, "masked noise", site.run, role, *again)
    source = site.randomness or Seeded(seed)
    release = MaskedRelease(role, mechanism.terms, site.size, source, weight or 1.0, simulated=site.rehearsal)
    release.charge = masked(  # which also says whether the cost is proven
        mechanism.terms, unit=mechanism.unit, proven=mechanism.proven, weight=release.weight
    )
    call = MaskedCall(
        site, round, {role: taken.loss}, taken.models, [role], again, gradient_only=True,
        steps=MaskedSteps({role: mechanism}, 1),
    )  # fmt: skip
    replay = call.digest() if site.rehearsal else None
    share = SiteShare(site, round, release, at, role, None, key, replay, weights=weighting.all_sites)
    noise_as = strictest([at.custody, weighting.custody])
    if site.stopping is not None and site.stopping.stopped:
        return Share(share, noise_as)
    if weight == 0:  # a sum of zeros, which costs nothing
        return Share(replace(share, counts=True), noise_as)
    if not _affordable(site, round, share):
        return Share(share, noise_as)
    found = await call.run()
    assert found is not None
    share = replace(share, total=call.steps.sums[role], counts=True)
    charges = [] if _repeated(share) else [release.charge]
    opens_as = strictest([found[role].custody, weighting.custody, _released_with(site, charges)])
    return Share(share, opens_as)


def _released_with(site: Participant, charges: Sequence[Charge]) -> Custody:
    """What noise makes of a sum once these charges are written: UNPROVEN above the site's ceiling."""
    ledgers = (site.ledger, *site.ledger.also)
    spent = max(site.epsilon([*ledger.charges(), *charges]) for ledger in ledgers)
    above = spent > site.ceiling or site.unproven is not None
    return Custody.UNPROVEN if above else Custody.PROTECTED


def _repeated(share: SiteShare) -> bool:
    """Whether a resumed rehearsal computes a share again that it was charged for."""
    site = share.site
    return site.ledger.repeated(share.key, site.fingerprint, share.replay_of) is not None


def _affordable(site: Participant, round: int, share: SiteShare) -> bool:
    """Whether the budget and the ceiling allow one more share. A share that a resumed rehearsal repeats was paid for."""
    reached = _limit_reached(site, share.release.charge)
    if reached is None or _repeated(share):
        return True
    if not site.spent:
        site.spent = True
        text = f"{reached}; the site adds its part of the noise to masked sums from here on"
        data = {"text": text, "relays": True, **site.spending()}
        site.journal.add(Event("budget-spent", site.name, round, data=data))
    return False


def _limit_reached(site: Participant, charge: Charge) -> str | None:
    """Which limit of the site one more charge would pass; None if there is room for it.

    Every attempt at a sum asks, since each has its own charge. A site that consents to releases above its ceiling has none.
    """
    if site.budget is not None and site.ledger.remaining(site.budget, charge) < 1:
        return f"the budget of {site.budget} is spent"
    if site.unproven is not None or consents(site.study, site):
        return None
    above = _released_with(site, [charge]) is not Custody.PROTECTED
    return f"the site's ceiling of ε = {site.ceiling:g} is reached" if above else None

"""Validate every incoming parcel: sender, round, form and bounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from confrere.core.custody import may_leave
from confrere.core.errors import BadParcel
from confrere.core.params import Shapes
from confrere.core.parcel import Parcel
from confrere.exchange.packing import Packing
from confrere.exchange.screening import WIDEST, Bounds, Outlier, screen
from confrere.node.equivocation import LEAVING
from confrere.node.malloc import give_back
from confrere.node.store import mass_of
from confrere.site.masked_messages import check_message, is_masked
from confrere.site.peers import ANSWER, EXCHANGE, is_common
from confrere.site.shared_distances import check_shared, is_shared
from confrere.site.stopping import STOPPED_ROUNDS
from confrere.transport import wire
from confrere.transport.body import Body
from confrere.transport.ledger_marks import genuine

MassFlow = Callable[[int, int], tuple[Mapping[str, float], float]]
"""For an epoch and a round: the mass that each peer has claimed since that round, and what the epoch has brought in all."""
RECENT = 2
"""A peer is doubted by what it has claimed since this number of rounds before; honest peers may be that far ahead."""
LONGEST_NAME = 64
"""Characters of a number's name."""


@dataclass(frozen=True)
class ParcelRules:
    """Who may send what in this run, from the signed roster and the study alone."""

    me: str
    run: str
    rounds: int
    keys: Mapping[str, Ed25519PublicKey]
    """The peers, and the keys that they sign with."""
    shapes: Mapping[str, Shapes]
    """The tensors of each architecture of the study."""
    sizes: Mapping[str, int] = field(default_factory=dict)
    """The public training sizes of the members: a sender's weight is its own."""
    numbers: tuple[str, ...] | None = None
    """The names of the numbers that the strategy sends (`*` stands for any text); None where it does not state them."""
    bounds: Bounds = WIDEST
    start_mass: float | None = None
    """The mass that this site starts with in an epoch of membership, where the strategy has mass."""
    packing: Packing = field(default_factory=lambda: Packing(None, lambda _: None))
    """In which form models travel."""
    limits: wire.Limits = wire.STANDARD
    accept_unproven: bool = False
    masked: bool = False
    """Whether the study has masked sums."""
    by_servers: bool = False
    """Whether sites compute distances by way of two servers."""

    def inspect(self, sender: str, body: Body) -> Parcel:
        """The parcel that a peer has brought, if its form is right; otherwise a BadParcel."""
        if sender not in self.keys:
            raise BadParcel("its sender is not in the roster")
        if body.file is not None:
            give_back()  # what the parcel before this one took
        parcel = wire.decode(body, limits=self.limits, key=self.keys)
        if parcel.phase == LEAVING:
            self._check_leave_message(parcel)
            return parcel
        if parcel.sender != sender or parcel.receiver != self.me:
            raise BadParcel(f'it is from "{parcel.sender[:80]}" to "{parcel.receiver[:80]}"')
        self._check_place(parcel)
        self._check_numbers(parcel)
        self._check_model(parcel)
        return parcel

    def check_bounds(self, parcel: Parcel, flow: MassFlow) -> None:
        """Refuse what no honest site of this study can send: an Outlier.

        That is also mass that would leave this site with more than all sites started with. The peer that has claimed the
        most in the last rounds is the one to doubt; what the others send still counts. By the whole epoch a peer could
        claim little for many rounds, and then more than all sites have.
        """
        shared = is_shared(parcel.phase)
        screen(parcel, self.bounds, 0.0 if shared else self.packing.largest(parcel, is_common(parcel.phase)))
        claimed = mass_of(parcel)
        if not claimed or self.start_mass is None:
            return
        recent, change = flow(parcel.epoch, parcel.round - RECENT)
        own, most = recent.get(parcel.sender, 0.0) + claimed, self.bounds.mass * (1 + 1e-6)
        if self.start_mass + change + claimed > most and own >= max(recent.values(), default=0.0):
            raise Outlier(
                f"with its mass of {claimed:g} this site would hold more than all sites have, {self.bounds.mass:g}"
            )

    def check_message_bounds(self, parcel: Parcel) -> None:
        """Refuse a message of a masked sum whose numbers no honest site sends: an Outlier."""
        screen(parcel, self.bounds, 0.0)

    def _check_leave_message(self, parcel: Parcel) -> None:
        """A signed record of a change in membership; any peer may bring it, whichever site it is addressed to."""
        if parcel.run != self.run:
            raise BadParcel("it belongs to another run")
        if set(parcel.scalars) != {"leaves"} or parcel.model is not None:
            raise BadParcel("it says that its sender leaves, and not when")
        if not 1 <= parcel.scalar("leaves").value <= self.rounds or parcel.round >= self.rounds:
            raise BadParcel("it says that its sender leaves in a round that this run has not")

    def _check_place(self, parcel: Parcel) -> None:
        if parcel.run != self.run:
            raise BadParcel("it belongs to another run")
        known = parcel.phase in (EXCHANGE, ANSWER) or is_common(parcel.phase)
        known = known or (self.masked and is_masked(parcel.phase))
        known = known or (self.by_servers and is_shared(parcel.phase))
        if not known or parcel.round >= self.rounds:
            raise BadParcel(
                f"it is for round {parcel.round + 1}, phase {parcel.phase}, which this run has not"
            )
        if parcel.mark is not None and not genuine(parcel.mark, self.keys[parcel.sender]):
            raise BadParcel("its sender has not signed its ledger mark")

    def _check_numbers(self, parcel: Parcel) -> None:
        for name in parcel.scalars:
            if len(name) > LONGEST_NAME or not self._known(name):
                raise BadParcel(f'its number "{name[:80]}" is none of this study')
        weight, size = parcel.scalars.get("weight"), self.sizes.get(parcel.sender)
        if weight is not None and size is not None and weight.value != size:
            raise BadParcel(
                f"its weight is {weight.value:g}, and by the signed roster its sender counts {size}"
            )

    def _known(self, name: str) -> bool:
        if self.numbers is None or name in ("ledger", STOPPED_ROUNDS):
            return True
        return any(fnmatchcase(name, pattern) for pattern in self.numbers)

    def _check_model(self, parcel: Parcel) -> None:
        model, whole = parcel.model, is_common(parcel.phase)
        if is_masked(parcel.phase):
            check_message(parcel)
        elif is_shared(parcel.phase):
            check_shared(parcel)
        elif model is not None:
            known = self.shapes.get(model.architecture)
            if known is None or self.packing.form(known, whole) != model.params.shapes:
                raise BadParcel(f'its model "{model.architecture[:80]}" is not one of this study')
        if not all(may_leave(held, consent=self.accept_unproven) for held in parcel.custodies):
            raise BadParcel("it has no proven guarantee, and this site accepts only parcels that have one")
        if not is_masked(parcel.phase) and not is_shared(parcel.phase):
            self.packing.check(parcel, whole)

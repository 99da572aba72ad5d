"""The gate: the rules that everything passes before it leaves a site.

| rule | what it stops |
|---|---|
| tagged | a share of a masked sum; a bare number, or weights without custody: what shaped them is unknown |
| released | anything but PUBLIC, PROTECTED and, if the site has accepted that, UNPROVEN (also above the ceiling on ε) |
| unchanged | weights that were overwritten in place after they had got their custody |
| known_architecture | a model whose architecture is none of the study's: its name is text that could carry anything |
| known_names | a number with a name that the strategy does not write out: it is text that could carry anything |
| finite | NaN and infinity, which would spread to every peer |
| within_limits | more than the site lets out at once |
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

from confrere.core.custody import Custody, Scalar, Share, may_leave
from confrere.core.errors import ConfrereError, CustodyError, StudyError, TrainingError
from confrere.core.events import Event
from confrere.core.model import Model
from confrere.privacy.strategy_lint import is_written_out


@dataclass(frozen=True)
class GateLimits:
    """How much may leave in one go."""

    bytes: int = 256 * 2**20
    scalars: int = 64


@dataclass(frozen=True)
class Gate:
    """Lets through what may leave, refuses the rest, and says why.

    `on_event` receives every refusal; the notice names the rule and the thing, never a value.
    """

    accept_unproven: bool = False
    limits: GateLimits = field(default_factory=GateLimits)
    site: str | None = None
    on_event: Callable[[Event], None] | None = None
    architectures: Collection[str] | None = None
    """The names of the study's architectures at this site; None lets every name through."""
    names: frozenset[str] | None = None
    """The names of numbers that a custom strategy writes out; None lets every name through."""

    def admit(
        self, model: Model | None, scalars: Mapping[str, Scalar] | None = None, *, round: int | None = None
    ) -> tuple[Model | None, Mapping[str, Scalar]]:
        """The same model and numbers, if they may leave; otherwise an error, and nothing has left."""
        leaving = Outgoing(model, dict(scalars or {}))
        try:
            for rule in RULES:
                rule(self, leaving)
        except ConfrereError as refusal:
            if self.on_event is not None:
                self.on_event(
                    Event("notice", self.site, round, data={"text": f"refused at the gate: {refusal}"})
                )
            raise
        return leaving.model, leaving.scalars

    def admit_share(self, share: Share) -> object:
        """What a share holds, to be masked and added up, if its sum may leave; otherwise an error, and nothing has left."""
        if not isinstance(share, Share):
            raise CustodyError("a masked sum adds up shares; only site.gradient_sum makes them")
        self.admit_derived("masked sum", share.opens_as)
        return share._held

    def admit_derived(self, what: str, custody: Custody) -> None:
        """Return if something that is made of values of this custody, behind the gate, may leave; otherwise an error."""
        try:
            released(self, Outgoing(None, {what: Scalar(0.0, custody)}))
        except ConfrereError as refusal:
            if self.on_event is not None:
                self.on_event(Event("notice", self.site, data={"text": f"refused at the gate: {refusal}"}))
            raise


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A model and numbers that are about to leave."""

    model: Model | None
    scalars: Mapping[str, Scalar]

    def tags(self) -> list[tuple[str | None, Custody]]:
        """The custody of each number, under its name, and of the model, under None."""
        tags: list[tuple[str | None, Custody]] = [(n, scalar.custody) for n, scalar in self.scalars.items()]
        return tags if self.model is None else [(None, self.model.custody), *tags]


def tagged(gate: Gate, leaving: Outgoing) -> None:
    model: Any = leaving.model
    if isinstance(model, Share) or any(isinstance(s, Share) for s in leaving.scalars.values()):
        raise CustodyError(
            "a share of a masked sum leaves its site only behind masks, by peers.sum; by itself it has too little noise"
        )
    if model is not None and not (isinstance(model, Model) and isinstance(model.custody, Custody)):
        raise CustodyError(
            "weights without custody cannot be sent; wrap them in a Model that says who may see them"
        )
    for name, scalar in leaving.scalars.items():
        if not (isinstance(scalar, Scalar) and isinstance(scalar.custody, Custody)):
            raise CustodyError(
                f'a bare number cannot be sent: "{name}" does not say what shaped it; '
                f"public({name}) if no record did, private({name}) if one did"
            )


def released(gate: Gate, leaving: Outgoing) -> None:
    consent = gate.accept_unproven
    for name, custody in leaving.tags():
        if may_leave(custody, consent=consent):
            continue
        thing = "model" if name is None else f'number ("{name}")'
        if custody is Custody.UNPROVEN:
            raise CustodyError(
                f"a {thing} without a proven privacy guarantee, or above the site's ceiling on ε, may not leave the site; "
                "change the study, or accept it with accept_unproven_privacy = true in site.toml"
            )
        raise CustodyError(
            f"a {custody.name.lower()} {thing} may not leave the site; only what was trained with "
            "differential privacy, or never saw a record, may"
        )


def unchanged(gate: Gate, leaving: Outgoing) -> None:
    if leaving.model is not None:
        leaving.model.params.require_unchanged()


def known_architecture(gate: Gate, leaving: Outgoing) -> None:
    if (
        leaving.model is None
        or gate.architectures is None
        or leaving.model.architecture in gate.architectures
    ):
        return
    raise CustodyError(
        "the architecture of a model is none of the study's, so it may not leave the site; build models with site.build"
        " and keep their architecture"
    )


def known_names(gate: Gate, leaving: Outgoing) -> None:
    if gate.names is None:
        return
    if any(not is_written_out(name, gate.names) for name in leaving.scalars):
        raise CustodyError(
            "the name of a number is not written out in the strategy, so it may not leave the site: a name that is made up"
            " during a run could carry a value. Write it out, such as peers.exchange(model, loss=…)"
        )


def finite(gate: Gate, leaving: Outgoing) -> None:
    if leaving.model is not None and not leaving.model.params.is_finite():
        broken = [n for n, t in leaving.model.params.items() if not t.isfinite().all()]
        raise TrainingError(
            f'a model with NaN or infinite weights (in "{broken[0]}") is not sent; '
            "train with a smaller learning rate"
        )
    for name, scalar in leaving.scalars.items():
        if not isfinite(scalar.value):
            raise TrainingError(f'the number "{name}" is not finite, so it is not sent')


def within_limits(gate: Gate, leaving: Outgoing) -> None:
    if len(leaving.scalars) > gate.limits.scalars:
        raise StudyError(
            f"{len(leaving.scalars)} numbers at once; this site lets {gate.limits.scalars} leave with a model"
        )
    if leaving.model is not None:
        size = leaving.model.params.bytes
        if size > gate.limits.bytes:
            raise StudyError(
                f"a model of {size:,} bytes; this site lets {gate.limits.bytes:,} leave at once: "
                "choose a smaller proxy, or raise the site's own limit"
            )


RULES: tuple[Callable[[Gate, Outgoing], None], ...] = (
    tagged,
    released,
    unchanged,
    known_architecture,
    known_names,
    finite,
    within_limits,
)

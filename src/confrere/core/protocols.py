"""What a strategy may touch: a site (inside the building), its peers (outside), and objectives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, ClassVar, Protocol, runtime_checkable

from torch import Tensor, nn

from confrere.core.custody import Custody, Scalar, Tagged, strictest
from confrere.core.model import Architecture, Model
from confrere.core.parcel import Inbox, Parcel

Metrics = Mapping[str, Scalar]


class Loss(Protocol):
    """What one model is trained to make small, record by record.

    A loss is a frozen dataclass. Its fields are public options; a field that depends on records is a
    `Tagged` value, and its custody becomes the custody of the loss. `reads` names the other models
    whose outputs it needs; it is handed these and no others, so what it reads cannot be understated.
    """

    @property
    def reads(self) -> frozenset[str]: ...

    def __call__(self, own: Tensor, others: Mapping[str, Tensor], targets: Tensor) -> Tensor:
        """One loss per record. `others` are outputs of the models in `reads`, without gradient."""
        ...


Objective = Mapping[str, Loss]
"""For each trained role («private», «proxy», «model») the loss it is trained with."""


@runtime_checkable
class Proximal(Protocol):
    """A loss that also pulls the weights towards those of another model (one of its `reads`)."""

    @property
    def anchor(self) -> str: ...

    @property
    def pull(self) -> float: ...


def loss_custody(loss: Loss, models: Mapping[str, Model]) -> Custody:
    """How closely a model must be held that is trained with this loss: the strictest of what it reads."""
    tags = [tag for f in fields(loss) for tag in _tags(getattr(loss, f.name))]  # type: ignore[arg-type]
    return strictest([*tags, *(models[role].custody for role in read_by(loss))])


def read_by(loss: Loss) -> frozenset[str]:
    """Every model that shapes what is trained with this loss: its `reads`, and what its weights are pulled to."""
    anchor = getattr(loss, "anchor", None)  # a Proximal has one
    return loss.reads if anchor is None else loss.reads | {anchor}


def _tags(value: Any) -> list[Custody]:
    """The custody of everything tagged in a value, however deep: class weights come as a tuple."""
    if value is None or isinstance(value, str | int | float):
        return []
    if isinstance(value, list | tuple | set | frozenset):
        return [tag for part in value for tag in _tags(part)]
    if isinstance(value, Tagged | Model):
        return [value.custody]
    if isinstance(value, Mapping):
        return [tag for part in value.values() for tag in _tags(part)]
    if is_dataclass(value) and not isinstance(value, type):  # a loss within a loss
        return [tag for f in fields(value) for tag in _tags(getattr(value, f.name))]
    return []


@dataclass(frozen=True)
class Fitted:
    """A model trained to the end, and which of the offered losses won."""

    model: Model
    loss: int
    shares: tuple[float, ...] = ()
    """How much each loss has in the model, where it is the mean of several; PRIVATE."""


@dataclass(frozen=True)
class Effort:
    """What a site puts into a round of plain descent, as far as it is public."""

    passes: float
    """How often a round goes through the declared records."""
    passes_of_a_batch: float
    """The same where a round is one batch; private steps are what they are."""
    noise: Scalar
    """The expected squared length of the noise in the sum of a round's gradients."""
    rate: float
    """The learning rate that the study states for descent, or that its noise allows."""


Predictor = Sequence[tuple[float, Model]]
"""Models whose weighted outputs are added up to one prediction."""


class Site(Protocol):
    """What a strategy may touch inside the building."""

    name: str
    size: int
    """The declared, public number of records: weights and rates use it, never the true count."""
    rehearsal: bool
    """Whether noise and sampling are reproducible, so that nothing here is private in earnest."""

    def build(self, role: str) -> Model:
        """A fresh model. The same role starts from the same weights everywhere; PUBLIC."""
        ...

    async def train(
        self, objective: Objective, models: Mapping[str, Model], *, protect: Sequence[str] = ()
    ) -> Mapping[str, Model]:
        """One round of local training; returns every model it was given, the trained ones replaced.

        Roles in `protect` are trained with the study's mechanism and charged to the ledger before the
        first step. They come out PROTECTED only if all that their loss reads is at most PROTECTED.
        All other roles come out PRIVATE. A site whose budget is spent returns protected roles as given.
        """
        ...

    def module(self, role: str) -> nn.Module:
        """A network of this role to look at: its layers, never its weights."""
        ...

    def tell(self, text: str) -> None:
        """Put a notice into the site's journal, for people."""
        ...

    async def evaluate(self, models: Mapping[str, Model]) -> Mapping[str, Metrics]:
        """How good models are on the site's own held-out records: PRIVATE numbers."""
        ...

    async def fit(self, losses: Sequence[Loss], role: str, models: Mapping[str, Model]) -> Fitted:
        """Train `role` to the end on all of the site's own records; PRIVATE.

        Which of the losses, how strongly regularised and for how long is chosen by cross-validation, so
        that training alone and training on top of what peers sent are tuned with the same effort.
        """
        ...

    def effort(self, role: str, model: Model) -> Effort:
        """What a round of descent for this role takes: for strategies that compare gradients."""
        ...

    def weigh(self, weights: Mapping[str, Scalar], note: str = "") -> None:
        """Put down, for the report, how much each peer counts in this site's model from this round on."""
        ...


class Peers(Protocol):
    """What a strategy may touch outside of the building."""

    me: str
    round: int
    epoch: int
    """Changes when somebody joins or leaves for good; undelivered parcels are cancelled then."""
    members: tuple[str, ...]
    centre: str | None
    """The synchronising site of this round, where the topology has one."""
    kept: float
    """The share of the mass that stays at home in this round."""
    combiner: Combiner | None
    """How the study wants models to be combined; None leaves it to the strategy."""

    async def exchange(self, model: Model | None, **scalars: Scalar) -> Inbox:
        """Send along this round's edges and receive what arrives along them; None sends word of nothing.

        The scalar `mass` is special: it is conserved, so each receiver gets its share of it
        (a column of the topology) and `kept` of it stays.
        """
        ...

    async def answer(self, models: Mapping[str, Model], **scalars: Scalar) -> Inbox:
        """Send back along the edges to named senders; receive the answers of those one had sent to."""
        ...

    async def tell_newcomers(self, model: Model) -> None:
        """Where a study draws the sites of each round: let those of the next one know the common model.

        Everybody may call it; one of those who are there sends.
        """
        ...

    async def news(self) -> Model | None:
        """The common model, at a site that was not there in the round before; None if there is no news."""
        ...


class Strategy(Protocol):
    """A way to collaborate: a frozen dataclass whose fields are its options in a study."""

    deploys: ClassVar[tuple[str, ...]]
    """The fields of its state that are models, the one that the site would use first."""

    def init(self, site: Site) -> Any:
        """The state before the first round."""
        ...

    async def round(self, state: Any, site: Site, peers: Peers) -> Any:
        """The state after a round. Awaits `site` and `peers` and nothing else."""
        ...


@runtime_checkable
class Finishes(Protocol):
    """A strategy whose sites do something of their own when all rounds are over."""

    async def finish(self, state: Any, site: Site) -> Any:
        """The state that a site keeps. Awaits `site` and nothing else."""
        ...


@runtime_checkable
class Releases(Protocol):
    """A strategy whose sites give out more than one model in a round; a budget has to last for all of them."""

    def releases(self, sites: int) -> int: ...


@runtime_checkable
class LooksAtMembers(Protocol):
    """A strategy that does not go with any members; it refuses them before anything starts."""

    def look_at(self, members: Sequence[str], rehearsal: bool) -> Sequence[str]:
        """What has to be said about these members; a `StudyError` where it cannot go on with them."""
        ...


@runtime_checkable
class Reshapes(Protocol):
    """A strategy whose models take other shapes on the way than the study's own."""

    architecture: str

    def networks(self, spec: Any, base: Architecture) -> Mapping[str, Any]:
        """The further networks that it needs, by role and in a study's words, made from the one that it exchanges."""
        ...


@runtime_checkable
class Predicts(Protocol):
    """A strategy whose sites predict with more than one model at once."""

    def predictors(self, state: Any) -> Mapping[str, Predictor]:
        """For each role that is evaluated, the models whose weighted outputs are added up."""
        ...


class Topology(Protocol):
    """Who sends to whom in a round: a pure function of round and members, so nobody coordinates."""

    def column(self, round: int, members: Sequence[str], sender: str) -> Mapping[str, float]:
        """The shares of the sender's mass by receiver, itself included; they sum to one."""
        ...

    def centre(self, round: int, members: Sequence[str]) -> str | None:
        """The synchronising site, if this topology has one."""
        ...


class Combiner(Protocol):
    """Own model and inbox in, one model out."""

    def __call__(self, own: Model, weight: float, inbox: Sequence[Parcel]) -> Model: ...


class Transport(Protocol):
    """Moves parcels. The memory transport is a transport like any other."""

    async def send(self, to: str, parcel: Parcel) -> int:
        """Hand over a parcel for delivery; returns the bytes that it takes on the wire."""
        ...

    async def receive(self) -> Parcel: ...

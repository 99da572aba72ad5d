"""The interfaces between the parts: strategy, site, peers, loss, topology, combiner and transport."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, runtime_checkable

from torch import Tensor, nn

from confrere.core.custody import Scalar, Share
from confrere.core.distances import Distances, OpenedMean, Table, TwoServers
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


Predictor = Sequence[tuple[Scalar, Model]]
"""Models whose weighted outputs are added up to one prediction."""


class Optimiser(Protocol):
    """Turns released gradients into steps."""

    @property
    def learning_rate(self) -> float: ...

    @property
    def long_run_rate(self) -> float | None:
        """How far a step moves the weights in the long run, per unit of a constant gradient; None if the length of a
        step does not grow with the gradient."""

    @property
    def stacking_key(self) -> Hashable | None:
        """What the optimisers of several sites must share so that one `update` serves all, with the weights of a site in
        each row; None if there is no such update."""

    @property
    def single_step(self) -> bool:
        """Whether it makes one step on all records of a site, however many these are."""

    @property
    def plain(self) -> bool:
        """Whether a step subtracts the gradient times the learning rate, and does nothing else."""

    def start(self, size: int) -> dict[str, Tensor]:
        """The state before the first step, for a vector of this size."""

    def update(self, weights: Tensor, gradient: Tensor, state: dict[str, Tensor]) -> None:
        """Moves the weights, and the state, in place."""


@dataclass(frozen=True)
class OpenedSum:
    """What `Peers.sum` opens: the sum, with the strictest custody of what went into it."""

    vector: Model
    scalars: Mapping[str, Scalar]
    since: int
    """The common state that the vectors in it were computed from."""
    version: int
    """Identifies the common state that follows from it: the state before, the round, and whose vectors are in it."""


class Site(Protocol):
    """What a strategy may touch inside the building."""

    name: str
    size: int
    """The declared, public number of records: weights and rates use it, never the true count."""
    sizes: Mapping[str, int]
    """The declared sizes of all sites of the study, where the runtime knows them; else empty."""
    rehearsal: bool
    """Whether noise and sampling are reproducible, so that nothing here is private in earnest."""

    def build(self, role: str) -> Model:
        """A fresh model. The same role starts from the same weights everywhere; PUBLIC."""
        ...

    async def train(
        self, objective: Objective, models: Mapping[str, Model], *, protect: Sequence[str] = ()
    ) -> Mapping[str, Model]:
        """One round of local training; returns every model it was given, the trained ones replaced.

        Roles in `protect` are trained with the study's mechanism, each on samples of its own, and charged to the
        ledger before the first step: all of them, or none where the budget does not last. They come out PROTECTED
        only if all that their loss reads is at most PROTECTED. All other roles come out PRIVATE.
        A site whose budget is spent returns protected roles as given.
        """
        ...

    async def gradient_sum(
        self,
        loss: Loss,
        *,
        at: Model,
        role: str = "model",
        reads: Mapping[str, Model] | None = None,
        weights: Mapping[str, Scalar] | None = None,
    ) -> Model | Share | None:
        """The sum of the training records' gradients at a released model, as a vector of its shape.

        With the study's mechanism it is one private step: clipped by record (or patient), noised, charged before it is
        drawn, and of the custody that `train` would give a protected model. With Poisson sampling the sum stands for
        all records, not for those drawn. Without a mechanism it is the plain sum. `reads` are the models that the loss
        reads. None where the site's budget is spent, or the site has stopped training. With masked sums it is a `Share`,
        which is charged and noised when it is masked; a site without budget then adds its part of the noise alone.

        `weights` are the weights of all sites' sums, released or public, from 0 to 1; None is 1 everywhere. The sum is
        multiplied by that of this site, and a record then moves a share by so much less.
        """
        ...

    def optimiser(self) -> Optimiser:
        """The optimiser for what was released; its learning rate follows from public numbers, and may be the site's own."""
        ...

    def module(self, role: str) -> nn.Module:
        """A network of this role to look at: its layers, never its weights."""
        ...

    def notify(self, text: str) -> None:
        """Add a notice to the site's journal."""
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
        """Record, for the report, how much each peer counts in this site's model from this round on."""
        ...


class Peers(Protocol):
    """What a strategy may touch outside of the building."""

    me: str
    round: int
    epoch: int
    """Changes when a site joins or leaves for good; undelivered parcels are cancelled then."""
    members: tuple[str, ...]
    centre: str | None
    """The synchronising site of this round, where the topology has one."""
    kept: float
    """The share of the mass that stays at home in this round."""
    combiner: Combiner | None
    """How the study wants models to be combined; None leaves it to the strategy."""
    largest: float
    """The largest weight that a model of this study may have: peers refuse a model beyond it."""
    diverged: bool
    """Whether the last `sum` found sites in different states and opened nothing; this site sends its state to the others."""

    async def exchange(self, model: Model | None, **scalars: Scalar) -> Inbox:
        """Send along this round's edges and receive what arrives along them; None sends an empty parcel.

        The scalar `mass` is special: it is conserved, so each receiver gets its share of it
        (a column of the topology) and `kept` of it stays.
        """
        ...

    async def answer(self, models: Mapping[str, Model], **scalars: Scalar) -> Inbox:
        """Send back along the edges to named senders; receive the answers of those one had sent to."""
        ...

    async def sum(self, vector: Model | Share | None, *, since: int, **scalars: Scalar) -> OpenedSum | None:
        """The sum of the vectors, and of each number, over all sites that are present; the same at all of them.

        `since` identifies the common state that a vector was computed from (0 before the first sum, then the last
        one's `version`). Vectors from another state than most sites have are left out. A site in another state is given
        None and takes part again once it has the common state (`latest_common`). A site without a vector is
        given what the others add up to. None also where no site had a vector, or the centre did not answer, or a masked sum
        was given up.
        """
        ...

    async def distances(
        self, vector: Model | None, roles: TwoServers, table: Table, **scalars: Scalar
    ) -> Distances | None:
        """Squared distances of all vectors from the user's, computed by two servers that see no vector.

        Every site that is present calls it, with its own, released vector or with none. The servers learn the distances
        and the numbers; None at all other sites, and where something is missing. `table` is what a server keeps from
        round to round: each is given the other's, so that one that missed a round can catch up.
        """
        ...

    async def open_mean(self, weights: Mapping[str, Scalar], table: Table) -> OpenedMean | None:
        """Open the weighted mean of the vectors of `distances` to the user, and to nobody else.

        Both servers call it with the same weights and table, or nothing is opened; without weights only the table is
        sent. None at all sites but the user, and there if a server did not answer.
        """
        ...

    async def send_common(self, *models: Model, **scalars: Scalar) -> None:
        """Send the common model, and what belongs to it, to the sites that were not there in this round.

        Every site calls it with the model that it has in common with the others; one of those that are present sends.
        Without it a site that returns, or joins late, would train a model that the others have long left behind.
        """
        ...

    async def latest_common(self, models: int = 1) -> tuple[Parcel, ...]:
        """The n newest common models (see `send_common`), for a site that missed a round.

        Empty at a site that took part in the previous round, and if nothing was sent.
        """
        ...


class Strategy(Protocol):
    """A way to collaborate: a frozen dataclass whose fields are its options in a study.

    Beyond the members below it may state any of `StrategyTraits` (strategy_traits.py), as class variables or, where they
    depend on options, as properties.
    """

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
    """A strategy whose sites do something of their own when all rounds are over.

    One that compares its result with training alone there, by cross-validation (`site.fit`), states
    `compares_with_alone = True`. The result of any other is compared before a site deploys it (site/deployment.py).
    """

    async def finish(self, state: Any, site: Site) -> Any:
        """The state that a site keeps. Awaits `site` and nothing else."""
        ...


@runtime_checkable
class Releases(Protocol):
    """A strategy whose sites train more than one protected model in a round; a budget has to last for all of them."""

    def releases(self, sites: int) -> int:
        """How many protected models a site trains in a round: noise and rounds are planned for as many."""
        ...


@runtime_checkable
class ChecksMembers(Protocol):
    """A strategy that checks the members before a run starts."""

    def check_members(self, members: Sequence[str], rehearsal: bool) -> Sequence[str]:
        """Remarks about these members; raises a `StudyError` if the strategy cannot run with them."""
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
    """Who sends to whom in a round: a pure function of round and members, so no coordinator is needed."""

    def column(self, round: int, members: Sequence[str], sender: str) -> Mapping[str, float]:
        """The shares of the sender's mass by receiver, itself included; they sum to one."""
        ...

    def centre(self, round: int, members: Sequence[str]) -> str | None:
        """The synchronising site, if this topology has one."""
        ...


class Combiner(Protocol):
    """Own model and inbox in, one model out."""

    def __call__(self, own: Model, weight: Scalar, inbox: Sequence[Parcel]) -> Model: ...


@runtime_checkable
class GossipCombiner(Combiner, Protocol):
    """A combiner that can also be used in gossip, where a site often receives from one peer at a time."""

    def gossip(
        self, own: Model, inbox: Sequence[Parcel], kept: float, step: Scalar
    ) -> tuple[Model, Model | None]:
        """The own model moved by the share that is not kept, and moved in full (None if nothing arrived)."""
        ...


class Transport(Protocol):
    """Moves parcels. The memory transport is a transport like any other."""

    async def send(self, to: str, parcel: Parcel) -> int:
        """Hand over a parcel for delivery; returns the bytes that it takes on the wire."""
        ...

    async def receive(self) -> Parcel: ...

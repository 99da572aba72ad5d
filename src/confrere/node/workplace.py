"""Setting up what a node works with, and refusing to start where a promise could not be kept."""

from __future__ import annotations

import fcntl
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import IO, Protocol

from confrere.core.errors import CheckpointError, CustodyError
from confrere.core.events import Event, Journal
from confrere.core.protocols import LooksAtMembers, Strategy
from confrere.node.couriers import Reception
from confrere.node.diary import Worker
from confrere.node.membership import exchanges
from confrere.node.setting import Setting
from confrere.node.store import Store
from confrere.privacy.ledger import Ledger
from confrere.privacy.noise import secure
from confrere.runtime.assemble import consents, participant_of
from confrere.runtime.combining import exchange_rules
from confrere.runtime.participant import Participant
from confrere.runtime.simulate import _mark
from confrere.transport import wire
from confrere.transport.body import Body
from confrere.transport.receipt import Receipt


class Links(Protocol):
    """What a node needs of its connections: `transport.grpc.Connections`, or a double of it."""

    async def start(self) -> None: ...
    async def stop(self) -> None: ...
    async def send(self, to: str, parcel_id: str, body: Body) -> Receipt: ...
    async def wait_connected(self, peer: str, timeout: float) -> None: ...
    @property
    def connected(self) -> frozenset[str]: ...
    @property
    def last_contact(self) -> Mapping[str, float]: ...
    @property
    def bytes_sent(self) -> Mapping[str, int]: ...
    @property
    def bytes_received(self) -> Mapping[str, int]: ...


def only_one(setting: Setting) -> IO[str]:
    """Hold the node's folder for this process alone, as long as the file is open."""
    setting.home.mkdir(parents=True, exist_ok=True, mode=0o700)
    lock = open(setting.home / "lock", "a")  # noqa: SIM115
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.close()
        raise CheckpointError(
            f"{setting.home}: a node is at work here already; see `confrere status`"
        ) from None
    return lock


def ledger_of(setting: Setting) -> Ledger:
    """One for all studies on these records."""
    privacy = setting.study.privacy
    return Ledger(setting.ledger, dataset=setting.me, accountant=privacy.accountant if privacy else "pld")


def site_of(setting: Setting, strategy: Strategy, journal: Journal, ledger: Ledger) -> Participant:
    """The site itself. Its noise and its sampling are secure, but for a rehearsal's."""
    site = participant_of(
        setting.study, strategy, setting.data, setting.task,
        run=setting.run, journal=journal, trainer=Worker(), ledger=ledger, doubt=setting.doubt,
        among=len(setting.members),
    )  # fmt: skip
    if isinstance(strategy, LooksAtMembers):
        strategy.look_at(list(setting.members), setting.rehearsal)
    if not setting.rehearsal:
        site.randomness = secure()
    if site.unproven is not None and not consents(setting.study, site) and exchanges(setting, 0):
        raise CustodyError(
            f'site "{setting.me}" takes no part: {site.unproven}, so that what leaves it would have no proven'
            " guarantee. If that is wanted, say accept_unproven_privacy = true in site.toml"
        )
    return site


def refuse_other_records(setting: Setting, store: Store) -> None:
    """A run goes on with the records that it was started with, or what was held out would be learned from."""
    mark, known = _mark(setting.data), store.facts().get("records")
    if known is None:
        store.note(records=mark)
    elif known != mark:
        raise CheckpointError(
            f'site "{setting.me}": its records are not those that this run was started with; put them back, or agree on'
            " a new study for the new ones"
        )


def refuse_older_than_ledger(setting: Setting, store: Store, ledger: Ledger) -> None:
    """A round is charged once the state before it is in the store: one that paid for a later round has forgotten it."""
    start = f"{setting.run}/"
    keys = [
        str(entry["key"]).removeprefix(start) for entry in ledger.entries() if entry["key"].startswith(start)
    ]
    paid = max((int(key.split("/")[0]) for key in keys), default=-1)
    known = store.newest()
    if paid > (-1 if known is None else known):
        raise CheckpointError(
            f"{setting.home} is an old copy, or a new folder: its ledger has paid for round {paid + 1} of this run, and"
            f" the folder knows of {0 if known is None else known} rounds. Bring back the newest folder; if there is"
            " none, leave (`confrere roster leave`) and agree on another run (another seed)"
        )


def reception_of(
    setting: Setting,
    site: Participant,
    store: Store,
    tell: Callable[[Event], None],
    *,
    epoch: Callable[[], int],
    accept_unproven: bool,
) -> Reception:
    """Who may send what: members of the roster, models of this study, no larger than those."""
    models = [site.build(role) for role in ("private", "proxy", *site.further)]
    largest = 2 * max(4 * m.params.count for m in models) + 2**18
    return Reception(
        setting.me, setting.run, setting.study.rounds, {n: m.key for n, m in setting.peers.items()},
        {m.architecture: m.params.shapes for m in models}, store, tell, epoch=epoch,
        accept_unproven=accept_unproven,
        limits=replace(wire.STANDARD, total=min(wire.STANDARD.total, largest)),
        packing=exchange_rules(setting.study, site)["packing"],
    )  # fmt: skip

"""Masked sums on a node: its real keys, ledger, messages and store, in the place of what a simulation makes up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from confrere.core.errors import StudyError
from confrere.core.events import Event
from confrere.exchange.secure.member_site import MemberSite
from confrere.exchange.secure.messages import MOST_ATTEMPTS
from confrere.node.conduct import Conduct
from confrere.node.config import NodeConfig
from confrere.node.delivery import ParcelReceiver
from confrere.node.failpoints import reach
from confrere.node.handshake_state import HandshakeCallbacks
from confrere.node.node_journal import NodeJournal
from confrere.node.replay import DurableMailbox, OutboxTransport, durably, in_thread
from confrere.node.shortage import Shortage
from confrere.node.store import Store
from confrere.node.sum_log import RecordedFacts, StoredSums
from confrere.node.sum_messages import SUCCESSORS, MessageContext, SumMessages
from confrere.privacy.ledger import Ledger
from confrere.site.masked_sums import Answers, MaskedSums
from confrere.study import Study
from confrere.study.masked_settings import check_members, masked_of

FEWEST_KEPT = 3
"""Messages of a peer, as large as any can be, for which there is always a place in memory."""


class SummingNode(Protocol):
    """What masked sums need of a node."""

    me: str
    done: int
    members: list[str]
    study: Study
    config: NodeConfig
    store: Store
    ledger: Ledger
    journal: NodeJournal
    mailbox: DurableMailbox
    outbox: OutboxTransport
    conduct: Conduct
    handshake: HandshakeCallbacks
    parcel_receiver: ParcelReceiver
    sums: SumMessages | None

    async def wait_for_space(self, shortage: Shortage) -> None: ...
    def allow(self, size: int) -> None: ...


def sum_messages(node: SummingNode) -> SumMessages | None:
    """The messages of this node's masked sums; None if the study has none."""
    if masked_of(node.study) is None:
        return None

    async def count(size: int) -> None:
        node.allow(size)
        await durably(node.wait_for_space, node.store.count_bytes, size)

    out = MessageContext(node.me, node.outbox.sealed, count, node.conduct.add, node.handshake)
    most = max(node.config.caps.peer_bytes, FEWEST_KEPT * node.parcel_receiver.rules.limits.total)
    found = SumMessages(out, node.study.patience, len(node.members), Answers(), most)
    node.parcel_receiver.sums = found
    return found


def masks_of_node(node: SummingNode) -> dict[str, Any]:
    """The option of `site_run_of` with which the node's site adds up."""
    if node.sums is None:
        return {}
    config = node.config
    return {
        "masks": MaskedSums(
            config.sizes,
            plain=False,
            keys={name: member.key.public_bytes_raw() for name, member in config.members.items()},
            own=MemberSite(node.me, config.identity.key, RecordedFacts(node.ledger)),
            attempts=MOST_ATTEMPTS,
            successors=SUCCESSORS,
            channel=node.sums,
            log=StoredSums(node.store, lambda: node.mailbox.call_counter, node.wait_for_space),
            answers=node.sums.answers,
            work=in_thread,
            passing=lambda point: reach(point),
        )
    }


def sums_are_over(node: SummingNode, members: Sequence[str]) -> bool:
    """Whether too few members are left for masked sums of this study: then its rounds are over."""
    try:
        check_members(node.study, members, node.done)
    except StudyError as error:
        text = f"{error}. The rounds of this study end here"
        if not any(e.data.get("text") == text for e in node.journal.events if e.kind == "notice"):
            node.journal.add(Event("notice", node.me, node.done, data={"text": text}))
        return True
    return False


def latest_rounds(node: SummingNode) -> dict[str, int]:
    """The latest round that each peer has sent something in."""
    found = node.store.latest_rounds()
    for peer, round in ({} if node.sums is None else node.sums.latest).items():
        found[peer] = max(round, found.get(peer, -1))
    return found

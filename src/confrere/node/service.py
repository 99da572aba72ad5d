"""Run a node as a process: read its files, serve its control socket, handle signals."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

from confrere.core.errors import StudyError
from confrere.core.events import Event
from confrere.node import metrics_endpoint, open_files, roster
from confrere.node.config import (
    NodeConfig,
    check_partners,
    listening_address,
    load_node_site,
    load_study,
    open_own,
    own_part,
)
from confrere.node.control import Control
from confrere.node.malloc import share_heap
from confrere.node.node import Node
from confrere.node.status import status_of
from confrere.study import load
from confrere.study.reading import LEDGER
from confrere.transport.grpc.identity import load_identity


def read_node_config(study_path: Path, site_path: Path) -> NodeConfig:
    """What a node is started with. Everything that can be wrong with files goes wrong here."""
    site = load_node_site(site_path)
    identity = load_identity(Path(site.keys))
    identity.check()
    digest = load(study_path).digest()
    signed = roster.load_signed(Path(site.roster), digest)
    study = load_study(study_path, identity.name, signed.members)
    check_partners(identity.name, signed.members, site.caps)
    data, task, schema, doubt = open_own(
        study, identity.name, site, signed.members[identity.name].declared, identity.secret("split")
    )
    return NodeConfig(
        study=own_part(study, identity.name, site), identity=identity, members=signed.members,
        roster=signed.hash, epoch=signed.epoch, data=data, task=task, schema=schema, doubt=doubt,
        home=Path(site.home), ledger=Path(site.ledger), agreed=study.hash(), digest=digest,
        listen=listening_address(site.listen, identity.member.address), metrics=site.metrics,
        caps=site.caps, roster_path=Path(site.roster), population=site.population,
        earlier=earlier_ledger(site_path, Path(site.ledger)),
    )  # fmt: skip


def earlier_ledger(site_path: Path, ledger: Path) -> Path | None:
    """The ledger beside site.toml, if that is no longer the one in use."""
    beside = site_path.resolve().parent / LEDGER
    return beside if beside.is_file() and beside.resolve() != ledger.resolve() else None


async def serve(node: Node, until_done: bool = False) -> None:
    """Run a node with its control socket and its metrics, until it is over or is stopped."""
    life = asyncio.create_task(node.run(until_done))
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, life.cancel)

    async def answer(what: str) -> Mapping[str, Any]:
        if what == "status":
            return await asyncio.to_thread(status_of, node)
        if what in ("pause", "resume"):
            node.pause(what == "pause")
            text = "paused: no new round begins; what is owed is delivered" if node.paused else "goes on"
        elif what == "leave":
            await node.leave()
            text = "leaves for good; the node notifies its peers and can then be stopped"
        elif what == "stop":
            loop.call_later(0.1, life.cancel)
            text = "stops when what is being computed is done; started again, it goes on"
        else:
            raise StudyError(f"a node accepts stop, pause, resume, leave or status, not «{what}»")
        node.journal.add(Event("notice", node.me, node.done, data={"text": f"owner command: {what}"}))
        return {"text": text}

    async with AsyncExitStack() as stack:
        await stack.enter_async_context(Control(node.config.home, answer))
        if node.config.metrics is not None:
            stack.callback(metrics_endpoint.serve(node.config.metrics, node))
        with suppress(asyncio.CancelledError):
            await life


def run_node(
    study_path: Path,
    site_path: Path,
    *,
    until_done: bool = False,
    listeners: tuple[Callable[[Event], None], ...] = (),
) -> None:
    """Run `confrere node`; its noise is always drawn from the secure source."""
    open_files.raise_limit()
    config = read_node_config(study_path, site_path)

    async def begin() -> None:
        await serve(Node(config, listeners=listeners), until_done)

    share_heap()
    asyncio.run(begin())

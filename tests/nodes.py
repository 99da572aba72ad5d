"""A rehearsal whose nodes are tasks of this process: the same stores, ledgers, keys and journals, without sockets.

Starting a process and PyTorch in it takes seconds; a node as a task starts at once.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from confrere.core.errors import ConfrereError
from confrere.core.events import Event
from confrere.node.node import Node
from confrere.simulation.finished_run import Run
from confrere.simulation.rehearsal import NodeProcess, RehearsalNodes, rehearsal_config, rehearse
from confrere.study import Study
from tests.unit.node.wires import Network


class Killed(BaseException):
    """The node has ended without a chance to do anything more."""


@dataclass
class Tasks(RehearsalNodes):
    """Nodes as tasks of this process. A node is killed for good at the first event for which `killed` is true.

    The event must be one of the exchange: a node trains in a thread, which cannot be ended from inside.
    """

    network: Network = field(default_factory=Network)
    killed: Callable[[Event], bool] = lambda event: False
    interrupted: Callable[[Event], bool] = lambda event: False
    """Whether the whole rehearsal is cancelled at this event."""
    running: dict[str, asyncio.Task[tuple[int, str]]] = field(default_factory=dict)

    async def run(self) -> None:
        self._whole = asyncio.current_task()
        await super().run()

    def _interrupt(self) -> None:
        """Cancel the whole rehearsal, once: nodes that are stopping are not interrupted again."""
        whole, self._whole = self._whole, None
        if whole is not None:
            whole.cancel()

    def stop(self, node: NodeProcess) -> None:
        if node.name in self.running:
            self.running[node.name].cancel()

    async def _run_process(self, node: NodeProcess, first: bool) -> tuple[int, str]:
        loop = asyncio.get_running_loop()

        def listen(event: Event) -> None:
            loop.call_soon_threadsafe(self._copy_event, node, event.as_json())  # a node trains in a thread
            if self.interrupted(event):
                loop.call_soon_threadsafe(self._interrupt)
            if self.killed(event):
                raise Killed

        server = Node(
            rehearsal_config(self.folder, node.name), connect=self.network.connect, listeners=(listen,)
        )
        self.running[node.name] = asyncio.create_task(_end_of(server))
        try:
            return await self.running[node.name]
        except asyncio.CancelledError:
            return 0, ""


async def _end_of(node: Node) -> tuple[int, str]:
    try:
        await node.run()
    except Killed:
        return -signal.SIGKILL, ""
    except ConfrereError as error:
        return 2, str(error)
    return 0, ""


def nodes_in_process(
    study: Study,
    out: Path,
    *,
    listeners: tuple[Callable[[Event], None], ...] = (),
    **options: Any,
) -> Run:
    """`rehearse` with nodes that are tasks of this process; `options` are fields of `Tasks`."""
    return rehearse(study, out=out, listeners=listeners, start_nodes=partial(Tasks, **options))

"""All sites of a study as real nodes on this machine: loopback, throw-away certificates, and seeded noise.

The step between a simulation and the field. Every site is a process of its own with store, ledger, keys and TLS;
only the noise is drawn from the study's seed, so that the outcome can be compared with the simulation's. For the
same reason nothing of it is private, and `confrere node` has no way to ask for it.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from confrere.core.errors import ConfrereError, StudyError
from confrere.core.events import Event, Journal, verified
from confrere.core.owner_only import make_private_folder
from confrere.core.seeds import NOT_PRIVATE
from confrere.node import roster as rosters
from confrere.node.config import NodeConfig
from confrere.node.malloc import share_heap
from confrere.node.node import Node
from confrere.node.service import serve
from confrere.node.store import Store
from confrere.simulation.collaboration import Collaboration
from confrere.simulation.finished_run import Run, RunTimer, started
from confrere.simulation.run_folder import ROSTER, RunFolder, resume_folder
from confrere.site import snapshot
from confrere.site.assemble import has_own_networks
from confrere.site.open_sites import inputs_caveat, open_site, open_sites
from confrere.site.site_folder import STORE, site_folder_of
from confrere.site.site_run import run_id
from confrere.site.stopping import Clock, stop_text
from confrere.study import Caps, Study, load
from confrere.study.masked_settings import check_nodes
from confrere.transport.grpc.connections import free_ports
from confrere.transport.grpc.identity import enroll, load_identity

OWN = ("run-started", "resumed", "round-started", "connected", "disconnected", "unreachable", "refused")
"""Events of a single node that the journal of the whole rehearsal does not repeat."""


def rehearse(
    study: Study,
    *,
    out: str | Path,
    listeners: tuple[Callable[[Event], None], ...] = (),
    command: str = "",
    start_nodes: Callable[[Path, Iterable[str], Journal], RehearsalNodes] | None = None,
) -> Run:
    """Run a study with a node for each site; the same study gives what the simulation gives.

    `start_nodes` makes the object that starts and supervises the nodes; by default each node is a separate process.
    """
    return _rehearse(RunFolder(Path(out), study, command), False, listeners, start_nodes or RehearsalNodes)


def resume_rehearsal(
    path: str | Path,
    *,
    listeners: tuple[Callable[[Event], None], ...] = (),
    start_nodes: Callable[[Path, Iterable[str], Journal], RehearsalNodes] | None = None,
) -> Run:
    """Go on with an interrupted rehearsal: every node starts again from its own folder."""
    folder, _ = resume_folder(Path(path), of_nodes=True)
    return _rehearse(folder, True, listeners, start_nodes or RehearsalNodes)


def _rehearse(
    folder: RunFolder,
    again: bool,
    listeners: tuple[Callable[[Event], None], ...],
    start_nodes: Callable[[Path, Iterable[str], Journal], RehearsalNodes],
) -> Run:
    study = folder.study
    if has_own_networks(study):
        raise StudyError("a node builds networks by name; run your own modules in memory")
    if study.attack is not None:
        raise StudyError(
            "attack: nodes are honest, in a rehearsal too; `confrere simulate` rehearses attacks"
        )
    all_sites = Collaboration(study, open_sites(study))
    check_nodes(study, len(all_sites.names))
    if all_sites.pools:
        raise StudyError(f'strategy "{study.strategy_name}" needs all records in one place; run it in memory')
    all_sites.prepare()
    journal = folder.open(again)
    for listener in listeners:
        journal.listen(listener)
    nodes = start_nodes(folder.path, all_sites.names, journal)
    try:
        if again:
            watch = RunTimer(journal, time.perf_counter())
            nodes.catch_up()
        else:
            watch = started(all_sites, journal, False, 0)
            journal.add(Event("notice", data={"text": NOT_PRIVATE, "rehearsal": True}))
            nodes.enroll(study, {n: d.declared for n, d in all_sites.federation.sites.items()})
        asyncio.run(nodes.run())
        nodes.note_stop(study)
        for name, state in nodes.states(study).items():
            all_sites.runs[name].state = state
        return watch.finish(all_sites, folder)
    except ConfrereError:
        if max(nodes.rounds, default=0) < 1:  # no round is over: there is nothing to go on with
            folder.discard_if_nothing_was_done(journal)
        raise
    finally:
        journal.close()


@dataclass
class NodeProcess:
    """One site's process."""

    name: str
    process: asyncio.subprocess.Process | None = None
    finished: bool = False
    settled: bool = False
    lost: str = ""
    round: int = 0
    starts: int = 0
    """How often its process was started."""
    wanted: bool = True
    """Whether its process is started again when it dies."""


@dataclass
class RehearsalNodes:
    """The nodes of a rehearsal, started, watched and, in tests, killed."""

    folder: Path
    names: Iterable[str]
    journal: Journal
    environment: Mapping[str, str] = field(default_factory=dict)
    revive: bool = False
    """Whether a node that was killed is started again."""
    nodes: dict[str, NodeProcess] = field(default_factory=dict)
    rounds: set[int] = field(default_factory=set)
    """The rounds that some site has begun."""
    _seen: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.nodes = {n: NodeProcess(n) for n in self.names}

    def enroll(self, study: Study, declared: Mapping[str, int]) -> None:
        """Keys, addresses and a roster signed by all, with these declared sizes, for this rehearsal alone."""
        ports = free_ports(len(list(self.names)))
        members = {}
        for name, port in zip(self.names, ports, strict=True):
            home = site_folder_of(self.folder, name)
            make_private_folder(home)
            members[name] = enroll(name, f"127.0.0.1:{port}", home / "keys", declared=declared[name])
        common = rosters.Roster(dict(sorted((n, i.member) for n, i in members.items())))
        path = self.folder / ROSTER
        rosters.save(common, path)
        for identity in members.values():
            rosters.keep_signature(rosters.sign(common, study.digest(), identity), path)

    async def run(self) -> None:
        """Wait until all nodes have finished, or none can go on."""
        watched = [asyncio.create_task(self._supervise(p)) for p in self.nodes.values()]
        try:
            while not self._over():
                await asyncio.sleep(0.05)
        finally:
            for node in self.nodes.values():
                node.wanted = False
                self.stop(node)
            with suppress(TimeoutError):
                await asyncio.wait_for(asyncio.gather(*watched, return_exceptions=True), 60.0)
            for task in watched:
                task.cancel()
            await asyncio.gather(*watched, return_exceptions=True)
        lost = [p for p in self.nodes.values() if not p.finished]
        if len(lost) == len(self.nodes):
            raise StudyError(f'no site finished; site "{lost[0].name}": {lost[0].lost or "it was stopped"}')

    def stop(self, node: NodeProcess) -> None:
        """Ask a node to end; what it has done is kept."""
        if node.process is not None:
            with suppress(ProcessLookupError):
                node.process.send_signal(signal.SIGTERM)

    def kill(self, name: str) -> None:
        """Kill a node without warning, as a power cut does."""
        process = self.nodes[name].process
        if process is not None:
            with suppress(ProcessLookupError):
                process.kill()

    def _over(self) -> bool:
        there = [p for p in self.nodes.values() if not p.lost]
        if not all(p.finished for p in there):
            return False
        return all(p.settled for p in there) or len(there) < len(self.nodes)

    async def _supervise(self, node: NodeProcess) -> None:
        first = True
        while node.wanted:
            code, stderr = await self._run_process(node, first)
            first = False
            if not node.wanted or code == 0:
                return
            if not self.revive or code != -signal.SIGKILL:
                node.lost = (stderr.splitlines() or [f"its process ended with code {code}"])[-1]
                data = {"text": node.lost}
                self.journal.add(Event("lost", node.name, node.round, data=data))
                return

    async def _run_process(self, node: NodeProcess, first: bool) -> tuple[int, str]:
        environment = {**os.environ, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
        if first:
            environment |= self.environment
        else:
            environment.pop("CONFRERE_FAILPOINT", None)
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "confrere.simulation.rehearsal", str(self.folder), node.name,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, limit=2**24, env=environment,
            process_group=0,  # Ctrl-C reaches the rehearsal only, which then stops its nodes
        )  # fmt: skip
        node.process, node.starts = process, node.starts + 1
        if not node.wanted:  # the rehearsal was interrupted while the process was being started
            self.stop(node)
        assert process.stdout is not None
        assert process.stderr is not None
        stderr = asyncio.create_task(process.stderr.read())
        try:
            async for line in process.stdout:
                with suppress(ValueError):  # a line cut short by a kill
                    self._copy_event(node, json.loads(line))
            return await process.wait(), (await stderr).decode(errors="replace").strip()
        except asyncio.CancelledError:
            with suppress(ProcessLookupError):
                process.kill()
            raise

    def _copy_event(self, node: NodeProcess, row: dict[str, Any]) -> None:
        """Copy a node's event into the common journal, once even if it is sent again."""
        event = Event.of_json(row)
        node.round = max(node.round, event.round or 0)
        node.finished |= bool(event.data.get("finished"))
        node.settled |= bool(event.data.get("settled"))
        if event.kind == "round-started" and event.round is not None and event.round not in self.rounds:
            self.rounds.add(event.round)
            self.journal.add(replace(event, site=None))
        if event.kind in OWN:
            return
        key = _key(event)
        if key not in self._seen:
            self._seen.add(key)
            self.journal.add(event)

    def catch_up(self) -> None:
        """Before nodes start again: what the journal holds already, and what nodes have written since."""
        for event in self.journal.events:
            self._seen.add(_key(event))
            if event.kind == "round-started" and event.round is not None:
                self.rounds.add(event.round)
        for node in self.nodes.values():
            path = site_folder_of(self.folder, node.name) / "journal.jsonl"
            for event, _ in verified(path) if path.exists() else ():
                self._copy_event(node, event.as_json())

    def note_stop(self, study: Study) -> None:
        """Add a notice for the whole run, as a simulation does, where the sites have stopped before the last round."""
        notices = [e for e in self.journal.events if e.kind == "notice" and e.data.get("stopped")]
        if not notices or any(e.site is None for e in notices):
            return
        done = max(int(e.data["stopped"]) for e in notices)
        reasons = [why for e in notices for why in e.data["reasons"]]
        data = {"text": stop_text(Clock(), study.stop, done, reasons), "stopped": done}
        self.journal.add(Event("notice", None, done - 1, data=data))

    def states(self, study: Study) -> dict[str, Any]:
        """The last state of every site that finished."""
        found = {}
        run = run_id(study)
        for node in self.nodes.values():
            if node.finished:
                store = Store(site_folder_of(self.folder, node.name) / STORE, run=run, site=node.name)
                body = next(iter(store.latest()), None)
                store.close()
                if body is not None:
                    found[node.name] = snapshot.loads(body[1])["state"]
        return found


def _key(event: Event) -> str:
    """The same for a fact however often a node states it."""
    about = [event.site, event.kind, event.round, *(event.data.get(k) for k in ("role", "to", "phase"))]
    about.append(sorted(event.data.get("losses", ())))  # a round may train several times
    return json.dumps(about if event.kind != "notice" else [*about, event.data.get("text")])


def rehearsal_config(folder: Path, name: str) -> NodeConfig:
    """What one node of a rehearsal is started with."""
    study, home = load(folder / "study.toml"), site_folder_of(folder, name)
    identity = load_identity(home / "keys")
    signed = rosters.load_signed(folder / ROSTER, study.digest())
    federation = open_site(study, name)
    own = study.sites.get(name)
    return NodeConfig(
        study=study, identity=identity, members=signed.members, roster=signed.hash, epoch=signed.epoch,
        data=federation.sites[name], task=federation.task, schema=federation.schema,
        doubt=inputs_caveat(federation), home=home, ledger=home / "ledger.sqlite", agreed=study.hash(), digest=study.digest(),
        listen=identity.member.address, rehearsal=True, caps=own.caps if own else Caps(),
    )  # fmt: skip


def main() -> None:
    """Entry point of a node's process; the rehearsal reads its events from standard output."""
    folder, name = Path(sys.argv[1]), sys.argv[2]
    torch.set_num_threads(1)

    def print_event(event: Event) -> None:
        sys.stdout.write(json.dumps(event.as_json()) + "\n")
        sys.stdout.flush()

    async def begin() -> None:
        await serve(Node(rehearsal_config(folder, name), listeners=(print_event,)))

    try:
        share_heap()
        asyncio.run(begin())
    except ConfrereError as error:
        sys.stderr.write(str(error))
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()

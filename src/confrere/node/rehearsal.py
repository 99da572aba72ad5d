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
import socket
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import torch

from confrere.core.custody import Custody
from confrere.core.errors import ConfrereError, StudyError
from confrere.core.events import Event, Journal
from confrere.node import roster as rosters
from confrere.node.daemon import Node
from confrere.node.heap import share_heap
from confrere.node.service import serve
from confrere.node.setting import Setting
from confrere.node.store import Store
from confrere.runtime import checkpoint
from confrere.runtime.records import doubt_about, open_sites
from confrere.runtime.run import Folder, Run, started
from confrere.runtime.simulate import Simulation
from confrere.study import Caps, Study, load
from confrere.transport.identity import enroll, load_identity

LABEL = "a rehearsal: the noise is drawn from the study's seed, so that nothing here is private"
OWN = ("run-started", "resumed", "round-started", "connected", "disconnected", "unreachable", "refused")
"""Events of a single node that the journal of the whole rehearsal does not repeat."""


def rehearse(
    study: Study,
    *,
    out: str | Path,
    listeners: tuple[Callable[[Event], None], ...] = (),
    command: str = "",
) -> Run:
    """Run a study with a node for each site; the same study gives what the simulation gives."""
    if "[" in str(study.as_dict()["models"]["private"]):
        raise StudyError("a node builds networks by name; run your own modules in memory")
    if study.attack is not None:
        raise StudyError(
            "attack: nodes are honest, in a rehearsal too; `confrere simulate` rehearses attacks"
        )
    simulation = Simulation(study, open_sites(study))
    if simulation.pools:
        raise StudyError(f'strategy "{study.strategy_name}" needs all records in one place; run it in memory')
    simulation.prepare()
    folder = Folder(Path(out), study, command)
    journal = folder.open()
    for listener in listeners:
        journal.listen(listener)
    try:
        watch = started(simulation, journal, False, 0)
        journal.add(Event("notice", data={"text": LABEL}))
        troupe = Troupe(folder.path, simulation.names, journal)
        troupe.enroll(study)
        asyncio.run(troupe.play())
        simulation.states.update(troupe.states(study))
        return watch.finish(simulation, folder)
    except ConfrereError:
        folder.discard_if_nothing_was_done(journal)
        raise
    finally:
        journal.close()


def home_of(folder: Path, name: str) -> Path:
    """Where a site's node keeps its files; whatever a site is called, it stays in the folder."""
    return folder / "sites" / quote(name, safe=" ")


@dataclass
class Player:
    """One site's process."""

    name: str
    process: asyncio.subprocess.Process | None = None
    finished: bool = False
    settled: bool = False
    lost: str = ""
    round: int = 0
    lives: int = 0
    """How often its process was started."""
    wanted: bool = True
    """Whether its process is started again when it dies."""


@dataclass
class Troupe:
    """The nodes of a rehearsal, started, watched and, by whoever tests them, killed."""

    folder: Path
    names: Iterable[str]
    journal: Journal
    environment: Mapping[str, str] = field(default_factory=dict)
    revive: bool = False
    """Whether a node that was killed is started again."""
    players: dict[str, Player] = field(default_factory=dict)
    _seen: set[str] = field(default_factory=set)
    _round: int = -1

    def enroll(self, study: Study) -> None:
        """Keys, addresses and a roster signed by all, for this rehearsal alone."""
        ports = free_ports(len(list(self.names)))
        members = {}
        for name, port in zip(self.names, ports, strict=True):
            home = home_of(self.folder, name)
            home.mkdir(parents=True, mode=0o700)
            members[name] = enroll(name, f"127.0.0.1:{port}", home / "keys")
        common = rosters.Roster(dict(sorted((n, i.member) for n, i in members.items())))
        path = self.folder / "sites" / "roster.toml"
        rosters.save(common, path)
        for identity in members.values():
            rosters.keep_signature(rosters.sign(common, study.digest(), identity), path)

    async def play(self) -> None:
        """Until everybody is through, or nobody can go on."""
        self.players = {n: Player(n) for n in self.names}
        watched = [asyncio.create_task(self._see_through(p)) for p in self.players.values()]
        try:
            while not self._over():
                await asyncio.sleep(0.05)
        finally:
            for player in self.players.values():
                player.wanted = False
                if player.process is not None:
                    with suppress(ProcessLookupError):
                        player.process.send_signal(signal.SIGTERM)
            with suppress(TimeoutError):
                await asyncio.wait_for(asyncio.gather(*watched, return_exceptions=True), 60.0)
            for task in watched:
                task.cancel()
            await asyncio.gather(*watched, return_exceptions=True)
        lost = [p for p in self.players.values() if not p.finished]
        if len(lost) == len(self.players):
            raise StudyError(
                f'no site came to the end; site "{lost[0].name}": {lost[0].lost or "it was stopped"}'
            )

    def kill(self, name: str) -> None:
        """As the power does."""
        process = self.players[name].process
        if process is not None:
            with suppress(ProcessLookupError):
                process.kill()

    def _over(self) -> bool:
        there = [p for p in self.players.values() if not p.lost]
        if not all(p.finished for p in there):
            return False
        return all(p.settled for p in there) or len(there) < len(self.players)

    async def _see_through(self, player: Player) -> None:
        first = True
        while player.wanted:
            code, complaint = await self._one_life(player, first)
            first = False
            if not player.wanted or code == 0:
                return
            if not self.revive or code != -signal.SIGKILL:
                player.lost = (complaint.splitlines() or [f"its process ended with code {code}"])[-1]
                data = {"text": player.lost}
                self.journal.add(Event("lost", player.name, player.round, data=data))
                return

    async def _one_life(self, player: Player, first: bool) -> tuple[int, str]:
        surroundings = {**os.environ, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
        if first:
            surroundings |= self.environment
        else:
            surroundings.pop("CONFRERE_FAILPOINT", None)
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "confrere.node.rehearsal", str(self.folder), player.name,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, limit=2**24, env=surroundings,
        )  # fmt: skip
        player.process, player.lives = process, player.lives + 1
        assert process.stdout is not None
        assert process.stderr is not None
        complaint = asyncio.create_task(process.stderr.read())
        try:
            async for line in process.stdout:
                with suppress(ValueError):  # a line that a kill has torn
                    self._hear(player, json.loads(line))
            return await process.wait(), (await complaint).decode(errors="replace").strip()
        except asyncio.CancelledError:
            with suppress(ProcessLookupError):
                process.kill()
            raise

    def _hear(self, player: Player, row: dict[str, Any]) -> None:
        """Put what a node tells into the common journal, once however often it is told."""
        event = Event(
            row["kind"], row["site"], row["round"], Custody[row["custody"]], row["data"], row["time"]
        )
        player.round = max(player.round, event.round or 0)
        player.finished |= bool(event.data.get("finished"))
        player.settled |= bool(event.data.get("settled"))
        if event.kind == "round-started" and event.round is not None and event.round > self._round:
            self._round = event.round
            self.journal.add(replace(event, site=None))
        if event.kind in OWN:
            return
        about = [event.site, event.kind, event.round, *(event.data.get(k) for k in ("role", "to", "phase"))]
        key = json.dumps(about if event.kind != "notice" else [*about, event.data.get("text")])
        if key not in self._seen:
            self._seen.add(key)
            self.journal.add(event)

    def states(self, study: Study) -> dict[str, Any]:
        """The last state of every site that came to the end."""
        found = {}
        run = f"{study.name}-{study.hash()}-{study.seed}"
        for player in self.players.values():
            if player.finished:
                store = Store(home_of(self.folder, player.name) / "node.sqlite", run=run, site=player.name)
                body = next(iter(store.latest()), None)
                store.close()
                if body is not None:
                    found[player.name] = checkpoint.loads(body[1])["state"]
        return found


def free_ports(count: int) -> list[int]:
    """Ports on the loopback interface that nobody uses at this moment."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in sockets]
    finally:
        for one in sockets:
            one.close()


def rehearsal_setting(folder: Path, name: str) -> Setting:
    """What one node of a rehearsal is started with."""
    study, home = load(folder / "study.toml"), home_of(folder, name)
    identity = load_identity(home / "keys")
    signed = rosters.load_signed(folder / "sites" / "roster.toml", study.digest())
    federation = open_sites(study)
    own = study.sites.get(name)
    return Setting(
        study=study, identity=identity, members=signed.members, roster=signed.hash, epoch=signed.epoch,
        data=federation.sites[name], task=federation.task, schema=federation.schema,
        doubt=doubt_about(federation), home=home, ledger=home / "ledger.sqlite", agreed=study.hash(), digest=study.digest(),
        listen=identity.member.address, rehearsal=True, caps=own.caps if own else Caps(),
    )  # fmt: skip


def main() -> None:
    """Entry of a node's process; whoever rehearses reads its events from standard output."""
    folder, name = Path(sys.argv[1]), sys.argv[2]
    torch.set_num_threads(1)

    def tell(event: Event) -> None:
        sys.stdout.write(json.dumps(event.as_json()) + "\n")
        sys.stdout.flush()

    async def begin() -> None:
        await serve(Node(rehearsal_setting(folder, name), listeners=(tell,)))

    try:
        share_heap()
        asyncio.run(begin())
    except ConfrereError as error:
        sys.stderr.write(str(error))
        sys.exit(2)


if __name__ == "__main__":
    main()

"""One process per site on this machine: each opens its own records alone and talks to the others by parcels.

The parent starts the sites, writes down what they tell it, and says who is gone. It never sees a model before
the end. Everything else is what the memory simulation does: same strategies, gates, seeds and mailboxes.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import torch

from confrere.core.custody import Custody
from confrere.core.errors import ConfrereError, StudyError
from confrere.core.events import Event, Journal
from confrere.core.protocols import Finishes
from confrere.learning.engine import OneAtATime
from confrere.privacy.gate import Gate
from confrere.runtime import checkpoint
from confrere.runtime.assemble import consents, has_own_networks, leaving_when_spent, participant_of
from confrere.runtime.attackers import masks, plan_of, refuse_apart
from confrere.runtime.combining import exchange_rules
from confrere.runtime.faults import Fault, Faults
from confrere.runtime.mailbox import Mailbox
from confrere.runtime.office import Office
from confrere.runtime.records import doubt_about, open_sites
from confrere.runtime.run import Folder, Run, started
from confrere.runtime.simulate import Simulation, predictors
from confrere.runtime.stopping import Clock, all_rest, look_at_rest, stop_text
from confrere.study import Study, load
from confrere.transport.process import ProcessTransport, meeting_place

SUPERVISOR = "supervisor"


def simulate_processes(
    study: Study,
    sites: Mapping[str, Any] | None = None,
    *,
    out: str | Path | None = None,
    device: str = "cpu",
    listeners: tuple[Callable[[Event], None], ...] = (),
    faults: tuple[Fault, ...] = (),
    command: str = "",
) -> Run:
    """Run a study with one process per site; the same study gives the same parameters as in memory.

    The records must be files or a bundled set, since every process opens its own.
    """
    if sites is not None or has_own_networks(study):
        raise StudyError(
            "one process per site needs records in files and networks by name; run your own arrays and modules in memory"
        )
    simulation = Simulation(study, open_sites(study), device=device)
    if simulation.pools:
        raise StudyError(f'strategy "{study.strategy_name}" needs all records in one place; run it in memory')
    refuse_apart(simulation.plan, "one process per site")
    simulation.prepare()
    if out is None:
        with tempfile.TemporaryDirectory() as folder:
            run = _run(simulation, Folder(Path(folder) / "run", study, command), listeners, faults)
            return replace(run, folder=None)
    return _run(simulation, Folder(Path(out), study, command), listeners, faults)


def _run(
    simulation: Simulation,
    folder: Folder,
    listeners: tuple[Callable[[Event], None], ...],
    faults: tuple[Fault, ...],
) -> Run:
    journal = folder.open()
    for listener in listeners:
        journal.listen(listener)
    try:
        watch = started(simulation, journal, False, 0)
        with meeting_place() as place:
            asyncio.run(_supervise(simulation, folder.path, place, journal, faults))
        for name in simulation.names:
            path = state_file(folder.path, name)
            if path.exists():
                simulation.states[name] = checkpoint.load(path)["state"]
        return watch.finish(simulation, folder)
    except ConfrereError:
        folder.discard_if_nothing_was_done(journal)
        raise
    finally:
        journal.close()


async def _supervise(
    simulation: Simulation, folder: Path, place: Path, journal: Journal, faults: tuple[Fault, ...]
) -> None:
    (folder / "states").mkdir(exist_ok=True)
    told: dict[str, int] = {}
    async with ProcessTransport(SUPERVISOR, place) as post:

        async def watch(name: str) -> str | None:
            """See one site through; what stopped it, if something did."""
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "confrere.runtime.processes", str(folder), name, str(place),
                json.dumps([asdict(f) for f in faults if f.site == name]), simulation.device,
                stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, limit=2**24,
            )  # fmt: skip
            assert process.stdout is not None
            assert process.stderr is not None
            complaint = asyncio.create_task(process.stderr.read())
            last = 0
            try:
                async for line in process.stdout:
                    event = Event.of_json(json.loads(line))
                    last = max(last, event.round or 0)
                    journal.add(event)
                code = await process.wait()
            except asyncio.CancelledError:
                process.kill()
                raise
            if code == 0:
                return None
            told[name] = last
            journal.add(Event("lost", name, last, data={"text": f"its process ended with code {code}"}))
            for other in simulation.names:
                if other != name and other not in told:
                    await post.tell(other, {"gone": name, "since": last})
            return (await complaint).decode(errors="replace").strip() or f"its process ended with code {code}"

        found = await asyncio.gather(*(watch(name) for name in simulation.names))
    stopped = {n: why for n, why in zip(simulation.names, found, strict=True) if why is not None}
    if len(stopped) == len(simulation.names):
        name, why = next(iter(stopped.items()))
        raise StudyError(f'no site came to the end; site "{name}": {why.splitlines()[-1]}')


def state_file(folder: Path, site: str) -> Path:
    """Where a site leaves its last state; whatever a site is called, it stays in the folder."""
    return folder / "states" / f"{quote(site, safe=' ')}.safetensors"


async def take_part(
    study: Study, name: str, place: Path, folder: Path, faults: tuple[Fault, ...], device: str
) -> None:
    """The life of one site's process."""

    def tell(event: Event) -> None:
        sys.stdout.write(json.dumps(event.as_json()) + "\n")
        sys.stdout.flush()

    async def die(fault: Fault) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    journal = Journal(None, listeners=(tell,))
    strategy = study.rule()
    federation = open_sites(study)
    plan = plan_of(study, sorted(federation.sites))
    run = f"{study.name}-{study.hash()}-{study.seed}"
    sites = {
        n: participant_of(
            study,
            strategy,
            d if plan is None else plan.records(d, federation.task),
            federation.task,
            run=run,
            journal=journal,
            trainer=OneAtATime(),
            device=device,
            doubt=doubt_about(federation),
            among=len(federation.sites),
        )
        for n, d in federation.sites.items()
        if n == name or (study.privacy is not None and study.privacy.when_spent == "leave")
    }
    churn, site, names = leaving_when_spent(study, sites), sites[name], sorted(federation.sites)
    mailbox = Mailbox()
    dead: set[str] = set()

    def heed(message: Mapping[str, Any]) -> None:
        """The supervisor says who is gone: wait for it no longer, and stop trying to reach it."""
        dead.add(str(message["gone"]))
        mailbox.gone(str(message["gone"]), int(message["since"]))
        transport.forget(str(message["gone"]))

    transport = ProcessTransport(
        name, place, run=run, on_event=journal.add, on_control=heed,
        on_refused=lambda parcel, why: office.refuse(parcel, why),
    )  # fmt: skip
    gate = Gate(accept_unproven=consents(study, site), site=name)
    office = Office(
        name, run, names, study.graph(), churn, gate, transport, journal,
        patience=study.patience, faults=Faults(faults, die), mailbox=mailbox,
        counter=lambda: site.ledger.counter, rest=site.rest,
        disguise=masks(plan, [site]).get(name), **exchange_rules(study, site),
    )  # fmt: skip
    async with transport:
        pump = asyncio.create_task(office.pump())
        state: Any = None
        clock = Clock()
        for number in range(study.rounds):
            if name not in office.calendar.present(number):
                if name in office.calendar.at_work(number):
                    journal.add(Event("absent", name, number, data={"text": "could not be reached"}))
            else:
                if state is None:
                    state = strategy.init(site.round(number))
                if site.rest is not None:
                    late = number > 0 and clock.up(study.stop)  # as in memory, one round is always done
                    site.rest.begin(time_is_up=late, spent=site.spent)
                state = await strategy.round(state, site.round(number), office.round(number))
                if site.rest is not None:
                    look_at_rest(site, strategy, state, number, office.calendar.hearing(number))
            resting = (
                all_rest([site.rest], churn, number) if name in office.calendar.members(number) else None
            )
            due = (number + 1) % study.evaluation.every == 0 or number + 1 == study.rounds or resting
            if due and state is not None:
                scores = site.scores(predictors(strategy, state))
                journal.add(Event("evaluated", name, number, Custody.PRIVATE, scores))
            if resting and number + 1 < study.rounds:
                text = stop_text(Clock(), study.stop, number + 1, resting)
                journal.add(
                    Event("notice", name, number, data={"text": text, "stopped": number + 1, "told": True})
                )
                break
        if state is not None and study.training.tune and isinstance(strategy, Finishes):
            state = await strategy.finish(state, site.round(study.rounds))
            scores = site.scores(predictors(strategy, state), fitted=True)
            journal.add(Event("evaluated", name, study.rounds, Custody.PRIVATE, scores))
        checkpoint.save(state_file(folder, name), {"state": state})
        for peer in dead:
            transport.forget(peer)
        await transport.drain(study.patience)
        pump.cancel()


def main() -> None:
    """Entry of a site's process; the parent reads events from its standard output."""
    folder, name, place, faults, device = sys.argv[1:6]
    torch.set_num_threads(1)
    planned = tuple(Fault(**f) for f in json.loads(faults))
    try:
        study = load(Path(folder) / "study.toml")
        asyncio.run(take_part(study, name, Path(place), Path(folder), planned, device))
    except ConfrereError as error:
        sys.stderr.write(str(error))
        sys.exit(2)


if __name__ == "__main__":
    main()

"""Start or continue a simulation on a backend: one process, several processes, or a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from confrere.core.errors import StudyError
from confrere.core.events import Event
from confrere.data.records import Federation
from confrere.learning.local_training.one_site import Trainer
from confrere.simulation.finished_run import Run
from confrere.simulation.run_folder import RunFolder, resume_folder
from confrere.simulation.sharded import ShardedSimulation, WorkerPool
from confrere.simulation.simulation import Simulation
from confrere.simulation.workers import Processes
from confrere.site.attackers import refuse_apart
from confrere.site.faults import Fault
from confrere.site.open_sites import Source, open_sites
from confrere.study import Study

ENGINES = ("memory", "ray")
MOST_WORKERS = 10_000


def simulate(
    study: Study,
    sites: Mapping[str, Source] | Federation | None = None,
    *,
    out: str | Path | None = None,
    device: str = "cpu",
    listeners: tuple[Callable[[Event], None], ...] = (),
    faults: tuple[Fault, ...] = (),
    trainer: Trainer | str | None = None,
    command: str = "",
    workers: int | None = None,
    engine: str = "memory",
) -> Run:
    """Simulate a study on this machine and return its result.

    `sites` are your own records: {"a": (inputs, targets), …}, DataFrames, files, or `SiteData`; without them,
    what the study names. With `out`, the journal, the metrics and a checkpoint per round are kept there.
    `trainer` is "cohort" (sites are trained together, the default), "one" (one at a time), or one of your own.
    `workers` spreads the sites over this many processes; with the engine "ray", over a cluster.

    >>> run = confrere.simulate(study, sites)
    >>> 0 <= run.sites["site0"].metrics.accuracy <= 1
    True
    """
    federation = open_sites(study, sites)
    simulation = simulation_on(
        engine, workers, study, federation, device=device, faults=faults, trainer=trainer
    )
    folder = RunFolder(Path(out), study, command) if out is not None else None
    return simulation.run(folder, listeners)


def resume(
    path: str | Path,
    sites: Mapping[str, Source] | None = None,
    *,
    study: Study | None = None,
    device: str = "cpu",
    listeners: tuple[Callable[[Event], None], ...] = (),
    trainer: Trainer | str | None = None,
    workers: int | None = None,
    engine: str = "memory",
) -> Run:
    """Continue an interrupted simulation; it ends as it would have without the interruption.

    `path` is the run's folder. Records that were given to `simulate` as `sites` are given again, and so is a study with
    functions in it; the other arguments are those of `simulate`.

    >>> run = confrere.resume(interrupted, sites)
    >>> run.folder == interrupted
    True
    """
    folder, found = resume_folder(Path(path), study)
    simulation = simulation_on(
        engine, workers, found, open_sites(found, sites), device=device, trainer=trainer
    )
    return simulation.run(folder, listeners, again=True)


def simulation_on(
    engine: str, workers: int | None, study: Study, federation: Federation, **more: Any
) -> Simulation:
    """A simulation on this engine; `workers` None is one process in memory, and all processors of a Ray cluster."""
    if engine not in ENGINES:
        raise StudyError(f'there is no engine "{engine}"; there are {", ".join(ENGINES)}')
    if workers is not None and not 1 <= workers <= MOST_WORKERS:
        raise StudyError(f"--workers is {workers}; it must be between 1 and {MOST_WORKERS:,}")
    plain = Simulation(study, federation, **more)
    if plain.pools:  # all records are in one place: there is nothing to spread
        return plain
    pool: WorkerPool
    if engine == "ray":
        from confrere.simulation.ray import Cluster

        pool = cluster = Cluster.connect()
        shards = min(cluster.processors() if workers is None else workers, len(plain.names))
    else:
        shards = min(1 if workers is None else workers, len(plain.names))
        if shards == 1:
            return plain
        pool = Processes()
    if more.get("faults"):
        raise StudyError(
            "faults: the loss of a single site is simulated in one process; leave workers and engine out"
        )
    refuse_apart(plain.plan, "a simulation that is spread over workers")
    return ShardedSimulation(study, federation, pool=pool, shards=shards, **more)

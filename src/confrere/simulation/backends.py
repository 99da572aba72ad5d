"""Choose a simulation backend: one process, several processes, or a Ray cluster."""

from __future__ import annotations

from typing import Any

from confrere.core.errors import StudyError
from confrere.data.records import Federation
from confrere.simulation.sharded import ShardedSimulation, WorkerPool
from confrere.simulation.simulation import Simulation
from confrere.simulation.workers import Processes
from confrere.site.attackers import refuse_apart
from confrere.study import Study

ENGINES = ("memory", "ray")
MOST_WORKERS = 10_000


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

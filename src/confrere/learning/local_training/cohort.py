"""The simulation's trainer: groups jobs that arrive together into one stacked computation.

Sites take their turns on one event loop. A job waits until the loop has gone round without another job coming in: by
then every site has handed in its job or waits for something else. So no site has to be counted, and one that is
absent, lost or late does not hold up the others: a job that comes later is done later. Results do not depend on it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Protocol, runtime_checkable

from confrere.core.errors import ConfrereError, StudyError
from confrere.learning.local_training.many_sites import train_together
from confrere.learning.local_training.one_site import Job, OneAtATime, Trained, Trainer, train_site
from confrere.learning.local_training.stacked_losses import kind_of as kind_of_loss
from confrere.learning.local_training.stacked_losses import needed
from confrere.learning.local_training.stacked_network import Dense

MOST_NUMBERS = 1 << 24
"""About this many numbers of records and activations are worked on at once: more would not stay in fast memory."""

LEAST_SHARE = 0.5
"""In full batches a site with less than this share of the largest one's records is worked on apart: padding costs."""


@runtime_checkable
class ReportsNotices(Protocol):
    """A trainer that has something to report about how it trains."""

    report: Callable[[str], None] | None


class Cohort:
    """Trains sites together whose networks, losses, mechanisms and optimisers agree; all others one at a time."""

    def __init__(self, report: Callable[[str], None] | None = None) -> None:
        self.report = report
        """Called once for each reason why sites are trained one at a time."""
        self._reported: set[str] = set()
        self._waiting: list[tuple[Job, asyncio.Future[Trained]]] = []

    async def run(self, job: Job) -> Trained:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Trained] = loop.create_future()
        if not self._waiting:
            loop.call_soon(self._wait_or_train, 0)
        self._waiting.append((job, future))
        return await future

    def _wait_or_train(self, seen: int) -> None:
        """Wait as long as jobs come in, then do them."""
        if len(self._waiting) > seen:
            asyncio.get_running_loop().call_soon(self._wait_or_train, len(self._waiting))
            return
        waiting, self._waiting = self._waiting, []
        waiting = [(job, future) for job, future in waiting if not future.done()]
        try:
            self._train(waiting)
        except Exception as error:  # otherwise all sites would wait for ever
            for _, future in waiting:
                if not future.done():
                    future.set_exception(error)

    def _train(self, waiting: Sequence[tuple[Job, asyncio.Future[Trained]]]) -> None:
        for part in self._groups([job for job, _ in waiting]):
            jobs, futures = [waiting[at][0] for at in part], [waiting[at][1] for at in part]
            for future, result in zip(futures, train_group(jobs), strict=True):
                if isinstance(result, BaseException):
                    future.set_exception(result)
                else:
                    future.set_result(result)

    def _groups(self, jobs: Sequence[Job]) -> Iterator[list[int]]:
        """Which jobs are done together; a job of a kind of its own is done alone."""
        alike: dict[Hashable, list[int]] = {}
        for at, job in enumerate(jobs):
            reason = why_not_stacked(job)
            if reason is None:
                alike.setdefault(kind_of(job), []).append(at)
            else:
                if len(jobs) > 1:
                    self._report_once(reason)
                yield [at]
        for together in alike.values():
            yield from _groups_that_fit(jobs, together)

    def _report_once(self, reason: str) -> None:
        if reason not in self._reported:
            self._reported.add(reason)
            if self.report is not None:
                self.report(f"sites are trained one at a time: {reason}")


TRAINERS: dict[str, Callable[[], Trainer]] = {"cohort": Cohort, "one": OneAtATime}


def trainer_of(name: Trainer | str | None) -> Trainer:
    """The trainer of this name; a trainer is itself, and None is the usual one."""
    if name is None:
        return Cohort()
    if isinstance(name, str):
        if name not in TRAINERS:
            raise StudyError(f'there is no trainer "{name}"; there are {", ".join(TRAINERS)}')
        return TRAINERS[name]()
    return name


def train_group(jobs: Sequence[Job]) -> Sequence[Trained | BaseException]:
    """Results of the jobs; an error affects only its own site."""
    try:
        if len(jobs) > 1:
            return train_together(jobs)
        return [train_site(jobs[0])]
    except (ConfrereError, RuntimeError, ValueError, ArithmeticError) as error:
        return [error, *(type(error)(*error.args) for _ in jobs[1:])]


def why_not_stacked(job: Job) -> str | None:
    """Why a job cannot be done together with others; None if it can."""
    if job.device != "cpu":
        return f"stacking is for the processor, and this study computes on {job.device}"
    for role in _roles(job):
        if role not in job.weights:
            return f'the weights of "{role}" are in its network already'
        if job.networks[role].layers is None:
            kind = type(job.networks[role].module).__name__
            return f'the network of "{role}" ({kind}) is not a chain of dense layers'
    if job.records.inputs.dtype != job.networks[next(iter(job.objective))].flat.dtype:
        return "the records are not single-precision numbers"
    for optimiser in job.optimisers.values():
        if getattr(optimiser, "stacking_key", None) is None:
            return f"the optimiser {type(optimiser).__name__} is not known on stacks"
    if job.private.keeps_sums:
        return "each site's sum of gradients is kept for a masked sum"
    for mechanism in job.private.mechanisms.values():
        if mechanism.unit != "record":
            return f"privacy is per {mechanism.unit}"
    return None


def kind_of(job: Job) -> Hashable:
    """What jobs must share to be done together. Sizes, weights, noise and rates may differ from site to site."""
    return (
        tuple((r, kind_of_loss(loss), job.optimisers[r].stacking_key) for r, loss in job.objective.items()),
        tuple([(r, job.networks[r].layers) for r in sorted(_roles(job))]),
        tuple([(r, m.sampling.rate < 1, m.clipping) for r, m in job.private.mechanisms.items()]),
        (None if _in_one_batch(job) else job.batch_size, job.epochs),
        (job.records.inputs.shape[1:], job.records.targets.dtype, job.records.targets.shape[1:]),
    )


def _in_one_batch(job: Job) -> bool:
    """Whether a job is a single step on all records of its site, however many these are."""
    return all(optimiser.single_step for optimiser in job.optimisers.values())


def _roles(job: Job) -> set[str]:
    return {*job.objective, *(r for loss in job.objective.values() for r in needed(loss))}


def _groups_that_fit(jobs: Sequence[Job], together: Sequence[int]) -> Iterator[list[int]]:
    """Cohorts that fit into fast memory, of sites whose full batches do not differ too much."""
    first = jobs[together[0]]
    full = any(m.sampling.rate == 1 for m in first.private.mechanisms.values())
    width = sum(
        layer.outputs + layer.inputs
        for role in _roles(first)
        for layer in first.networks[role].layers or ()
        if isinstance(layer, Dense)
    )
    weights = sum(first.networks[r].flat.numel() for r in first.objective)
    cohort: list[int] = []
    most = used = 0
    for at in sorted(together, key=lambda i: -len(jobs[i].records)):
        records = len(jobs[at].records)
        batch = records if full else min(records, max(first.batch_size, _expected(jobs[at])))
        most = most or batch
        needs = most * width + jobs[at].records.inputs.numel() + 4 * weights
        if cohort and (used + needs > MOST_NUMBERS or (full and batch < LEAST_SHARE * most)):
            yield sorted(cohort)
            cohort, used, most = [], 0, batch
            needs = most * width + jobs[at].records.inputs.numel() + 4 * weights
        cohort.append(at)
        used += needs
    yield sorted(cohort)


def _expected(job: Job) -> int:
    return int(max((m.expected_batch for m in job.private.mechanisms.values()), default=0.0)) + 1

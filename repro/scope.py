"""What each way of learning reaches by the number of sites that take part: the collaborative scope of Weight Erosion's plan.

A user among K sites can learn with 0 … K − 1 of the others. Every set of two or more sites is run once for every seed, and
what a user reaches in a scope is the mean over all sets of that size that it belongs to. Alone it is what the
comparison's own way of learning alone reaches: the first arm whose name begins with «local».
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations

from confrere.core.errors import StudyError
from confrere.core.results import ALONE
from confrere.data.records import Federation
from confrere.evaluate.compare import variant
from confrere.simulation.finished_run import Run
from confrere.study import Study

MOST_SITES = 6
"""With more, there are too many sets of sites to run each of them."""

Scope = dict[str, dict[str, list[dict[str, float]]]]
"""By arm and user: `sites`, `mean` and `std` over seeds of each scope, the smallest first."""

RunOne = Callable[[Study, Federation], Run]


def scopes(
    study: Study,
    seeds: Sequence[int],
    chosen: Mapping[str, str],
    measure: str,
    run: RunOne,
    opened: Callable[[Study], Federation],
) -> Scope:
    """Every arm, in the setting that was chosen for it, with every set of the study's sites."""

    def named(arm: str) -> Study:
        return variant(study, f"{arm}@{chosen[arm]}" if arm in chosen else arm)

    arms = study.comparison.arms
    single = next((arm for arm in arms if arm.startswith(ALONE)), ALONE)
    out: Scope = {}
    for arm in arms:
        if arm == single:
            continue
        by_seed = [
            reached(named(arm).with_(seed=s), named(single).with_(seed=s), measure, run, opened)
            for s in seeds
        ]
        out[arm] = {
            user: [
                {
                    "sites": size,
                    "mean": statistics.fmean(v),
                    "std": statistics.stdev(v) if len(v) > 1 else 0.0,
                }
                for size in sorted(by_seed[0][user])
                if (v := [found[user][size] for found in by_seed if size in found[user]])
            ]
            for user in sorted(by_seed[0])
        }
    return out


def reached(
    study: Study, single: Study, measure: str, run: RunOne, opened: Callable[[Study], Federation]
) -> dict[str, dict[int, float]]:
    """What each user comes to in each scope, with one seed."""
    federation = opened(study)
    names = sorted(federation.sites)
    if len(names) > MOST_SITES:
        raise StudyError(
            f'figures = ["scope"] runs every set of sites: {len(names)} sites have {2 ** len(names) - 1:,} of them.'
            f" It is for up to {MOST_SITES} sites"
        )
    found: dict[str, dict[int, list[float]]] = {n: {} for n in names}
    _note(
        found, run(single, opened(single)), 1, measure
    )  # whose records may be others than those of this arm
    for size in range(2, len(names) + 1):
        for together in combinations(names, size):
            own = study if size == len(names) else study.with_(partners=list(together))
            part = replace(federation, sites={n: federation.sites[n] for n in together})
            _note(found, run(own, part), size, measure)
    return {user: {s: statistics.fmean(v) for s, v in sizes.items()} for user, sizes in found.items()}


def _note(found: dict[str, dict[int, list[float]]], run: Run, size: int, measure: str) -> None:
    for user, entry in run.sites.items():
        if measure in entry.metrics:
            found[user].setdefault(size, []).append(entry.metrics[measure])

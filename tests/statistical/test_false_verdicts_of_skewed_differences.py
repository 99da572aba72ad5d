"""How often a comparison says better or worse where two models are equally good, with realistic differences of patients.

The two models of each site are those of `test_false_model_verdicts`, with a little luck of training in each seed. If one model
is too certain, the differences are strongly skewed. Words are those of the rule itself, as in `test_false_verdicts`.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.statistical.test_false_model_verdicts import KINDS, Flags, Floats, Sites, drawn, null_of
from tests.statistical.test_false_verdicts import KINDS as NORMAL
from tests.statistical.test_false_verdicts import Simulated, simulated

LUCK = 0.02
"""Standard deviation of a seed's log-odds around those of the model."""
COMPARISONS, BATCH = 2000, 200
PREVALENCES = (0.5, 0.3)
SKEWED = "one too certain"


@dataclass(frozen=True)
class Design:
    """A comparison; re-split, a quarter of the patients are tested in each seed."""

    seeds: int
    sites: int
    patients: int
    resplit: bool

    def __str__(self) -> str:
        tested = "re-split" if self.resplit else "common test"
        return f"{self.seeds} seeds, {self.sites} sites, {self.patients} patients, {tested}"


DESIGNS = tuple(
    Design(seeds, sites, 80 if resplit else 40, resplit)
    for resplit, seeds, sites in itertools.product((False, True), (3, 5, 10), (2, 5, 10))
)


def compared(kind: str, prevalence: float, design: Design, comparisons: int = COMPARISONS) -> Simulated:
    """Comparisons × sites in which nothing differs, by log loss."""
    rng, (centre, strength) = np.random.default_rng(3), null_of(kind, "log_loss", prevalence)
    parts = []
    for _ in range(comparisons // BATCH):
        sites = drawn(rng, kind, centre, strength, (BATCH * design.sites, design.patients))
        parts.append(_judged(rng, sites, design))
    return Simulated.joined(parts)


def _judged(rng: np.random.Generator, sites: Sites, design: Design) -> Simulated:
    shape = (len(sites.ill), design.seeds, design.patients)
    before, after = (
        _loss(sites.ill[:, None, :], odds[:, None, :] + LUCK * rng.standard_normal(shape))
        for odds in (sites.one, sites.two)
    )
    gains, count = before - after, design.patients
    here: NDArray[np.bool_] = np.ones(shape, dtype=bool)
    if design.resplit:
        count = design.patients // 4
        order = rng.random(shape)
        here = order <= np.partition(order, count - 1)[..., count - 1 : count]
    differences = (gains * here).sum(axis=-1) / count
    contributions = here * (gains - differences[..., None]) / np.sqrt(count * (count - 1))
    tested = here.any(axis=1)
    rarer = np.minimum((sites.ill & tested).sum(axis=-1), (~sites.ill & tested).sum(axis=-1))
    batch = (BATCH, design.sites)
    return Simulated.of(
        differences.reshape(*batch, -1), contributions.reshape(*batch, *shape[1:]), rarer.reshape(batch)
    )


def wrong_comparisons(nulls: Simulated) -> float:
    """The share of comparisons with a wrong word at any site, of those with any site to judge."""
    assert nulls.judged is not None
    return float(nulls.clear().any(axis=-1)[nulls.judged.any(axis=-1)].mean())


def _loss(ill: Flags, odds: Floats) -> Floats:
    return np.asarray(np.logaddexp(0, np.where(ill, -odds, odds)))


@pytest.mark.slow
@pytest.mark.parametrize("design", DESIGNS, ids=str)
@pytest.mark.parametrize("kind", list(KINDS))
def test_a_comparison_of_models_that_are_as_good_seldom_says_better_or_worse(
    kind: str, design: Design
) -> None:
    """Anywhere in the comparison: 6 % are allowed, 7 % with the error of 2,000 draws."""
    found = {prevalence: wrong_comparisons(compared(kind, prevalence, design)) for prevalence in PREVALENCES}
    assert max(found.values()) <= 0.07, found


@dataclass(frozen=True)
class Power:
    """How often a difference is seen of which the long tail argues against it, and one of which it argues in favour."""

    prevalence: float
    rule: tuple[float, float]
    calibrated: tuple[float, float]


def powers(design: Design) -> list[Power]:
    """With the rule, and with a bootstrap that errs in 6 % of the nulls of any kind, at most; a difference of 4 errors."""
    normal = [simulated(7, k, design.resplit, 1000, design.sites, design.seeds) for k in NORMAL]
    skewed = {prevalence: compared(SKEWED, prevalence, design, 1000) for prevalence in PREVALENCES}
    widened = max(n.widened() for n in (*normal, *skewed.values()))
    found = []
    for prevalence, n in skewed.items():
        against, for_it = 4 * n.spread, -4 * n.spread
        found.append(
            Power(
                prevalence,
                (n.seen(against), n.seen(for_it)),
                (n.seen_by_bootstrap(against, widened), n.seen_by_bootstrap(for_it, widened)),
            )
        )
    return found


@pytest.mark.slow
@pytest.mark.parametrize("design", [d for d in DESIGNS if d.seeds >= 5 and d.sites != 5], ids=str)
def test_a_skewed_difference_is_seen_almost_as_often_as_by_a_calibrated_bootstrap(design: Design) -> None:
    """Over both directions, since it is not known which model is the better one."""
    for power in powers(design):
        assert sum(power.rule) >= 0.75 * sum(power.calibrated), power


@pytest.mark.slow
def test_the_test_notices_a_rule_that_ignores_skewness() -> None:
    nulls = compared(SKEWED, 0.5, Design(5, 10, 40, False), 1000)
    assert wrong_comparisons(replace(nulls, difference=replace(nulls.difference, skewness=0.0))) > 0.15


if __name__ == "__main__":
    for kind, prevalence, design in itertools.product(KINDS, PREVALENCES, DESIGNS):
        share = wrong_comparisons(compared(kind, prevalence, design))
        print(f"{kind}, {prevalence:.0%} ill, {design}: {share:.3f}", flush=True)
    for design in DESIGNS:
        for power in powers(design):
            print(f"{design}: {power}", flush=True)

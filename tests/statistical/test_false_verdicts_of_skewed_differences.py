"""How often a comparison says better or worse where two models are equally good, with realistic differences of patients.

The two models of each site are those of `test_false_model_verdicts`, with a little luck of training in each seed. The rule is
that of `statistics.verdict`: `variance_parts`, `p_value` and `holm_levels`, over the sites that have enough patients. A change
of that rule has to be made here too.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray

from confrere.statistics.intervals import holm_levels, p_value, variance_parts
from confrere.statistics.verdict import LEAST_RARER
from tests.statistical.test_false_model_verdicts import KINDS, Flags, Floats, drawn, null_of

LUCK = 0.02
"""Standard deviation of a seed's log-odds around those of the model."""
COMPARISONS, BATCH = 2000, 200
PREVALENCES = (0.5, 0.3)
SKEWED = "one too certain"
TOO_OFTEN = (
    "the interval of a comparison has no correction for skewness: 8 to 24 % of these comparisons contain a wrong word"
    " (docs/decisions/0012-one-rule.md, Consequence)"
)


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


DESIGNS = (
    Design(5, 5, 40, False),
    Design(5, 10, 40, False),
    Design(5, 5, 80, True),
    Design(10, 10, 80, True),
)


def wrong_comparisons(kind: str, prevalence: float, design: Design) -> float:
    """The share of comparisons with a wrong word at any site, by log loss."""
    rng, (centre, strength) = np.random.default_rng(3), null_of(kind, "log_loss", prevalence)
    wrong = judged = 0
    for _ in range(COMPARISONS // BATCH):
        sites = drawn(rng, kind, centre, strength, (BATCH * design.sites, design.patients))
        p = p_values(rng, sites.ill, sites.one, sites.two, design).reshape(BATCH, design.sites)
        enough = np.isfinite(p)
        for row, here in zip(p, enough, strict=True):
            if here.any():
                judged += 1
                wrong += bool((row[here] <= holm_levels(row[here])).any())
    return wrong / judged


def p_values(rng: np.random.Generator, ill: Flags, one: Floats, two: Floats, design: Design) -> Floats:
    """Of the difference at each site; NaN where too few patients of the rarer class are tested."""
    shape = (len(ill), design.seeds, design.patients)
    ills = ill[:, None, :]
    before, after = (_loss(ills, odds[:, None, :] + LUCK * rng.standard_normal(shape)) for odds in (one, two))
    gains, count = before - after, design.patients
    here: NDArray[np.bool_] = np.ones(shape, dtype=bool)
    if design.resplit:
        count = design.patients // 4
        order = rng.random(shape)
        here = order <= np.partition(order, count - 1)[..., count - 1 : count]
    differences = (gains * here).sum(axis=-1) / count
    contributions = here * (gains - differences[..., None]) / np.sqrt(count * (count - 1))
    between, shared = variance_parts(differences, contributions)
    tested = here.any(axis=1)
    rarer = np.minimum((ill & tested).sum(axis=-1), (~ill & tested).sum(axis=-1))
    p = p_value(differences.mean(axis=-1), between, shared, design.seeds, np.maximum(rarer - 1, 1), steps=24)
    return np.asarray(np.where(rarer >= LEAST_RARER, p, np.nan))


def _loss(ill: Flags, odds: Floats) -> Floats:
    return np.asarray(np.logaddexp(0, np.where(ill, -odds, odds)))


@pytest.mark.slow
@pytest.mark.parametrize("design", DESIGNS, ids=str)
@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(k, marks=pytest.mark.xfail(strict=True, raises=AssertionError, reason=TOO_OFTEN))
        if k == SKEWED
        else k
        for k in KINDS
    ],
)
def test_a_comparison_of_models_that_are_as_good_seldom_says_better_or_worse(
    kind: str, design: Design
) -> None:
    """Anywhere in the comparison: 6 % are allowed, 7 % with the error of 2,000 draws."""
    found = {prevalence: wrong_comparisons(kind, prevalence, design) for prevalence in PREVALENCES}
    assert max(found.values()) <= 0.07, found


if __name__ == "__main__":
    for kind, prevalence, design in itertools.product(KINDS, PREVALENCES, DESIGNS):
        share = wrong_comparisons(kind, prevalence, design)
        print(f"{kind}, {prevalence:.0%} ill, {design}: {share:.3f}", flush=True)

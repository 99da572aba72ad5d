"""The planner: its formulas hold for noise that is really drawn, and its words say what they mean."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from confrere.core.errors import StudyError
from confrere.privacy.accounting import calibrate
from confrere.privacy.forecast import (
    CANNOT_KNOW,
    CLEAR,
    ENOUGH,
    GRADIENT_VARIANCE,
    MEAN_GRADIENT,
    Contributor,
    Forecast,
    balanced_worth,
    least_noise,
    noise_over_steps,
    warnings,
)

BUDGET = "ε = 3 (δ = 1e-05, per record, PLD)"


def alike(sites: int, records: int, parameters: int, noise: float = 1.3906) -> Forecast:
    return Forecast(parameters, tuple(Contributor(f"site {k}", records, noise) for k in range(sites)))


def test_the_ratio_is_that_of_noise_which_is_really_drawn() -> None:
    rng, sigma, steps, clip = np.random.default_rng(0), 1.5, 16, 0.5
    sites, records, parameters = 4, 300, 2000
    z = sigma * math.sqrt(steps)  # what so many full-batch steps take
    noise = rng.normal(0, z * clip, (steps, sites, parameters)).sum((0, 1))
    signal = steps * sites * records * MEAN_GRADIENT * clip
    drawn = signal / np.linalg.norm(noise)
    assert alike(sites, records, parameters, sigma).signal_to_noise == pytest.approx(drawn, rel=0.05)


def test_a_proxy_is_worth_as_many_records_as_miss_the_truth_by_as_much() -> None:
    rng, sigma, sites, records, parameters = np.random.default_rng(1), 2.0, 4, 200, 50
    forecast, misses = alike(sites, records, parameters, sigma), []
    spread = math.sqrt(GRADIENT_VARIANCE / parameters)  # v over all parameters; the truth is 0
    for _ in range(60):
        noisy = rng.normal(0, spread, (sites * records, parameters)).sum(0)
        noisy += rng.normal(0, sigma, (sites, parameters)).sum(0)
        misses.append(float((noisy / (sites * records)) @ (noisy / (sites * records))))
    assert GRADIENT_VARIANCE / float(np.mean(misses)) == pytest.approx(forecast.worth, rel=0.1)


@pytest.mark.parametrize("steps", [1, 20, 600])
def test_full_batches_cost_as_much_in_many_steps_as_in_one(steps: int) -> None:
    z = calibrate(3.0, 1e-5, sample_rate=1, steps=steps)
    assert noise_over_steps(z, 1.0, steps) == pytest.approx(least_noise(3.0, 1e-5), rel=1e-4)


def test_drawing_samples_never_brings_less_noise_than_full_batches() -> None:
    z = calibrate(3.0, 1e-5, sample_rate=Fraction(1, 10), steps=100)
    assert noise_over_steps(z, 0.1, 100) > least_noise(3.0, 1e-5)


def test_sites_with_more_noise_are_counted_with_it() -> None:
    careful = Forecast(100, (Contributor("a", 500, 1.0), Contributor("b", 500, 3.0)))
    assert careful.noise == pytest.approx(math.sqrt(10))
    assert careful.worth < alike(2, 500, 100, 1.0).worth


def test_the_largest_proxy_is_the_last_with_a_clear_signal() -> None:
    most = alike(8, 1000, 1).largest_proxy
    assert alike(8, 1000, most).signal_to_noise >= CLEAR > alike(8, 1000, most + 1).signal_to_noise
    assert alike(2, 5, 1).largest_proxy == 0


def test_much_noise_is_called_noise_and_little_a_signal() -> None:
    assert alike(8, 1000, 199_210).judged() == "noise"
    assert alike(8, 1000, 50).judged() == "signal"
    assert alike(8, 1000, 8450).judged() == "unclear"  # a clear update, worth less than a site's own records


def test_what_a_site_may_expect_depends_on_what_it_has_and_on_what_is_new_to_it() -> None:
    sizes = {"tiny": 42, "small": 600, "large": 4000}
    forecast = Forecast(38, tuple(Contributor(n, r, 1.3906) for n, r in sizes.items()))
    assert forecast.worth > 4000  # and yet most of it comes from the large site itself
    assert [forecast.outlook(s) for s in forecast.sites] == [CANNOT_KNOW, CANNOT_KNOW, "expect little"]
    assert forecast.worth_beside(forecast.sites[2]) < 642
    assert forecast.judged() == "signal"
    assert forecast.outlook(forecast.sites[2], own=300) == "gain likely"


def test_a_gain_is_likely_only_where_a_declared_mix_says_that_a_site_lacks_something() -> None:
    forecast = alike(8, 1000, 50)
    site = forecast.sites[0]
    assert forecast.outlook(site) == CANNOT_KNOW
    assert forecast.outlook(site, own=float(site.records)) == CANNOT_KNOW
    assert forecast.outlook(site, own=balanced_worth(1000, 10, 0.8)) == "gain likely"
    assert forecast.judged() == "signal"


def test_a_site_with_an_uneven_mix_knows_less_than_its_records_say() -> None:
    assert balanced_worth(1000, 10, 0.1) == pytest.approx(1000)
    assert balanced_worth(1000, 10, 0.8) == pytest.approx(100 / (1 / 800 + 9 / (200 / 9)))
    forecast = alike(8, 1000, 5000)
    assert forecast.judged() == "unclear"
    assert forecast.judged({s.name: balanced_worth(1000, 10, 0.8) for s in forecast.sites}) == "signal"


def test_a_proxy_that_is_too_large_is_warned_of_with_the_size_that_fits() -> None:
    forecast = alike(8, 1000, 199_210)
    (text,) = warnings(forecast, BUDGET)
    assert text.startswith(f"this proxy has 199,210 parameters: at {BUDGET} with 1,000 records per site its")
    assert f"updates would be noise (signal-to-noise about 0.{round(forecast.signal_to_noise * 100)}" in text
    assert f"a proxy of at most {forecast.largest_proxy:,} parameters keeps a signal" in text
    (text,) = warnings(alike(8, 1000, 100_000), BUDGET)
    assert "about as much noise as signal" in text
    (text,) = warnings(alike(2, 5, 10), BUDGET)
    assert "no proxy is small enough" in text


def test_a_proxy_that_knows_less_than_the_sites_is_warned_of_and_a_good_one_is_not() -> None:
    (text,) = warnings(alike(8, 1000, 8450), BUDGET)
    assert "about as much as 238 records" in text
    assert "sites have 1,000 records of their own: expect little" in text
    assert warnings(alike(8, 1000, 8450), BUDGET, uneven=True) == []  # who knows what the sites know?
    assert len(warnings(alike(8, 1000, 199_210), BUDGET, uneven=True)) == 1
    assert warnings(alike(8, 1000, 50), BUDGET) == []


def test_nonsense_is_refused() -> None:
    with pytest.raises(StudyError, match="at least one parameter"):
        alike(2, 100, 0)
    with pytest.raises(StudyError, match="at least one record"):
        alike(2, 0, 10)


def test_no_gain_is_foretold_where_records_are_few_for_the_parameters() -> None:
    few, enough = alike(4, 125, 35), alike(4, 1250, 35)
    assert few.signal_to_noise > CLEAR
    assert few.worth < ENOUGH * 35
    assert few.judged() == "unclear"
    assert enough.worth > ENOUGH * 35
    assert enough.judged() == "signal"

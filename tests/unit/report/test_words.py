"""Plain words first, symbols second, and never an ε without what it means."""

from __future__ import annotations

import pytest

from confrere.core.results import Measured, PrivacySpent
from confrere.report import words
from confrere.statistics.verdict import EARLIER, Gain


def test_privacy_is_told_with_all_its_terms() -> None:
    spent = PrivacySpent(1.8, 1e-5, "record", True, "pld", 3.0)
    assert words.privacy(spent) == "1.8 of 3.0 (ε, δ = 1e-5, per record, accountant pld)"


def test_an_unproven_guarantee_says_so() -> None:
    said = words.privacy(PrivacySpent(1.8, 1e-5, "patient", False, "rdp"))
    assert said == "1.8 (ε, δ = 1e-5, per patient, accountant rdp): as published, not proven"


def test_no_guarantee_shows_no_epsilon() -> None:
    assert words.privacy(None) == "no privacy guarantee: trained without noise"


@pytest.mark.parametrize(
    ("spent", "shown"), [(2.01, "2.1"), (2.0, "2.0"), (0.301, "0.31"), (12.34, "12.4"), (1e-4, "0.01")]
)
def test_epsilon_is_never_shown_smaller_than_it_is(spent: float, shown: str) -> None:
    assert words.epsilon(spent) == shown


@pytest.mark.parametrize(
    ("count", "shown"),
    [(0, "0 B"), (999, "999 B"), (34_180, "34 KB"), (1_234_567, "1.2 MB"), (999_999, "1.0 MB"), (None, "–")],
)
def test_bytes_come_in_human_units(count: int | None, shown: str) -> None:
    assert words.size(count) == shown


@pytest.mark.parametrize(
    ("metric", "value", "shown"),
    [
        ("accuracy", Measured(0.8642, 0.0081), "86.4 ± 0.8 %"),
        ("auc", Measured(0.9141, 0.0123), "0.914 ± 0.012"),
        ("auc", Measured(0.9141, 0.00001), "0.914 ± <0.001"),
        ("accuracy", Measured(0.8642), "86.4 %"),
        ("rmse", Measured(41.23, 0.5), "41.2 ± 0.5"),
        ("auc", None, "–"),
    ],
)
def test_a_figure_carries_its_spread(metric: str, value: Measured | None, shown: str) -> None:
    assert words.measured(metric, value) == shown


def test_a_gain_has_a_sign_and_nothing_has_none() -> None:
    assert words.signed("auc", -0.0123) == "−0.012"
    assert words.signed("accuracy", 0.0123) == "+1.2"
    assert words.signed("auc", -0.00001) == "0.000"


def test_long_lists_are_cut() -> None:
    assert words.listing(["A", "B", "C"]) == "A, B and C"
    assert words.listing(list("ABCDEFGH"), 4) == "A, B, C and 5 more"
    assert words.listing(["A"]) == "A"


def test_an_axis_has_as_many_decimals_as_it_needs() -> None:
    assert words.even(["0.850", "0.900", "0.950"]) == ["0.85", "0.90", "0.95"]
    assert words.even(["80.0 %", "85.0 %"]) == ["80 %", "85 %"]
    assert words.even(["0", "+0.020"]) == ["0", "+0.02"]
    assert words.even(["100", "200"]) == ["100", "200"]


def test_no_difference_in_any_seed_is_said_in_words() -> None:
    assert words.gained("auc", Gain(0.0, 0.0, 0.0, 0.0, 5)) == "no difference in any seed"
    assert words.gained("accuracy", Gain(0.012, 0.01, 0.004, 0.02, 5)) == (
        "+1.2 points (95 % interval +0.4 to +2.0)"
    )


@pytest.mark.parametrize(
    ("gain", "said"),
    [
        (
            Gain(0.036, 0.01, 0.005, 0.067, 5, "better"),
            "better by 0.036 (corrected 95 % interval 0.005 to 0.067)",
        ),
        (
            Gain(-0.036, 0.01, -0.067, -0.005, 5, "worse"),
            "worse by 0.036 (corrected 95 % interval 0.005 to 0.067)",
        ),
        (
            Gain(0.008, 0.01, -0.005, 0.021, 5, "no clear difference"),
            "+0.008, not clear (corrected 95 % interval −0.005 to +0.021; + is better)",
        ),
        (
            Gain(-0.006, 0.01, -0.03, 0.018, 5, "no clear difference"),
            "−0.006, not clear (corrected 95 % interval −0.030 to +0.018; + is better)",
        ),
        (Gain(0.1, None, None, None, 1, "too few to judge"), "+0.100, not judged (one seed; + is better)"),
        (Gain(0.1, None, None, None, 5, EARLIER), "+0.100, not judged (+ is better)"),
        (Gain(0.0, 0.0, 0.0, 0.0, 5), "no difference in any seed"),
    ],
)
def test_better_and_worse_are_said_only_where_the_verdict_says_so(gain: Gain, said: str) -> None:
    assert words.compared("auc", gain) == said

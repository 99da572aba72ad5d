"""Studies and plans that would never end are refused, or answered at once."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest

from confrere.core.errors import StudyError
from confrere.privacy.accounting import epsilon
from confrere.privacy.charges import gaussian
from confrere.study import load, parse

NESTED = {"lists": "x = " + "[" * 5000 + "]" * 5000, "tables": "[" + ".".join("a" * 3000) + "]"}


@pytest.mark.parametrize("text", NESTED.values(), ids=list(NESTED))
def test_a_file_that_is_nested_without_end_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "study.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(StudyError, match="nested"):
        load(path)


def test_rounds_without_end_are_refused() -> None:
    with pytest.raises(StudyError, match="rounds"):
        parse({"rounds": 10**20})


def test_hardly_any_noise_is_answered_at_once_and_never_too_low() -> None:
    charges = [gaussian(1e-3, Fraction(1, 10), 10)]
    assert epsilon(charges, 1e-5) == epsilon([gaussian(1e-3, 1, 10)], 1e-5) > 1e6
    assert epsilon([gaussian(0.019, Fraction(1, 2))], 1e-5) > epsilon([gaussian(0.021, Fraction(1, 2))], 1e-5)

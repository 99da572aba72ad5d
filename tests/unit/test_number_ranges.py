"""Every number of a study and of a site.toml is finite and bounded; what is not is refused in a line."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from confrere.cli import main
from confrere.core.errors import ConfrereError, StudyError
from confrere.core.strict_reader import LARGEST, RANGES
from confrere.study import load, parse
from confrere.study.reading import load_site

NAN, INF = float("nan"), float("inf")
DIGITS = "9" * 5000

OUT_OF_RANGE: dict[str, dict[str, Any]] = {
    "seed": {"seed": 10**1000},
    "negative seed": {"seed": -(10**1000)},
    "patience": {"patience": INF},
    "patience of a year": {"patience": 3e7},
    "patience of nothing": {"patience": NAN},
    "rounds": {"rounds": 10**9},
    "no rounds": {"rounds": 0},
    "epochs": {"training": {"epochs": 10**9}},
    "no epochs": {"training": {"epochs": 0}},
    "site_epochs": {"training": {"site_epochs": {"a": 10**9}}},
    "batch_size": {"training": {"batch_size": 10**22}},
    "learning_rate": {"training": {"learning_rate": INF}},
    "momentum": {"training": {"momentum": NAN}},
    "tune_lengths": {"training": {"tune_lengths": [10**12]}},
    "steps": {"privacy": {"epsilon": 3.0, "steps": 10**12}},
    "privacy.batch_size": {"privacy": {"epsilon": 3.0, "batch_size": 0}},
    "epsilon": {"privacy": {"epsilon": NAN}},
    "clipping": {"privacy": {"epsilon": 3.0, "clipping": {"name": "flat", "norm": INF}}},
    "hours": {"stop": {"hours": INF}},
    "every": {"evaluation": {"every": 0}},
    "range": {"data": {"range": [0.0, INF]}},
    "churn": {"churn": {"probability": NAN}},
    "strategy": {"strategy": {"name": "personal", "epochs": 10**9}},
    "topology": {"topology": {"name": "exponential", "keep": NAN}},
    "caps": {"sites": {"a": {"caps": {"epsilon": INF}}}},
    "declared": {"sites": {"a": {"declared": 10**100}}},
    "seeds": {"comparison": {"seeds": 10**9}},
}


@pytest.mark.parametrize("what", OUT_OF_RANGE)
def test_a_number_out_of_range_is_refused_with_its_key(what: str) -> None:
    with pytest.raises(ConfrereError) as refusal:
        parse(OUT_OF_RANGE[what])
    assert what in str(refusal.value) or what not in RANGES
    assert len(str(refusal.value)) < 300


def test_the_ends_of_a_range_are_taken() -> None:
    assert (
        parse({"seed": LARGEST, "patience": 86400.0, "rounds": 1, "training": {"epochs": 100_000}}).seed
        == LARGEST
    )


def test_a_seed_of_5000_digits_is_refused_in_a_file_and_on_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "study.toml"
    path.write_text(f"seed = {DIGITS}\n", encoding="utf-8")
    with pytest.raises(StudyError, match="too many digits"):
        load(path)
    path.write_text('[data]\nbundled = "thyroid"\n', encoding="utf-8")
    with pytest.raises(StudyError, match="too many digits"):
        load(path, [f"seed={DIGITS}"])
    for seed in (DIGITS, "9" * 1000):
        monkeypatch.setattr(sys, "argv", ["confrere", "simulate", str(path), "--seed", seed])
        with pytest.raises(SystemExit) as left:
            main()
        assert left.value.code == 2
        assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize(
    "line",
    [f"declared = {DIGITS}", "limit_mb = nan", "[caps]\nepsilon = inf", "[caps]\nrounds = 99999999999"],
)
def test_a_site_toml_is_read_with_the_same_ranges(tmp_path: Path, line: str) -> None:
    path = tmp_path / "site.toml"
    path.write_text(line + "\n", encoding="utf-8")
    with pytest.raises(StudyError):
        load_site(path)

"""`confrere epsilon` and `confrere calibrate`: published values, stable keys, clear refusals."""

from __future__ import annotations

import json
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from confrere.cli.calibrate import calibrate
from confrere.cli.epsilon import epsilon
from confrere.core.errors import ConfrereError

app = typer.Typer()
app.command("epsilon")(epsilon)
app.command("calibrate")(calibrate)

PLAN = {"--records": "2338", "--batch": "32", "--epochs": "30", "--delta": "1e-5"}
KEYS = {"epsilon", "delta", "accountant", "steps", "sample_rate", "noise_multiplier", "unit"}
MEANING = {"readings", "file_group", "sentence", "trade_off", "above_ceiling"}


def run(command: str, *flags: str, **changes: str) -> Any:
    options = {**PLAN, **({"--noise-multiplier": "1.4"} if command == "epsilon" else {"--epsilon": "3"})}
    options.update({"--" + name.replace("_", "-"): value for name, value in changes.items()})
    words = [word for pair in options.items() for word in pair]
    return CliRunner().invoke(app, [command, *words, *flags])


@pytest.mark.parametrize(("accountant", "value"), [("rdp", 2.36), ("pld", 2.16)])
def test_the_published_histology_site_comes_out(accountant: str, value: float) -> None:
    found = json.loads(run("epsilon", "--json", accountant=accountant).stdout)
    assert set(found) == KEYS | MEANING
    assert round(found["epsilon"], 2) == value
    assert (found["steps"], found["sample_rate"], found["unit"]) == (2220, 1 / 74, "record")
    assert (found["noise_multiplier"], found["delta"], found["accountant"]) == (1.4, 1e-5, accountant)


def test_calibrate_prints_the_noise_and_its_cost_within_the_target() -> None:
    found = json.loads(run("calibrate", "--json", epochs="2", unit="patient").stdout)
    assert set(found) >= KEYS
    assert 2.99 <= found["epsilon"] <= 3
    back = json.loads(
        run("epsilon", "--json", epochs="2", noise_multiplier=str(found["noise_multiplier"])).stdout
    )
    assert back["epsilon"] == found["epsilon"]
    assert found["unit"] == "patient"


def test_people_are_told_in_plain_words() -> None:
    said = run("epsilon", epochs="3").stdout
    assert "ε = " in said
    assert "per record, PLD" in said
    assert "is right at most" in said
    assert "222 steps" in said
    assert "A noise multiplier of" in run("calibrate", epochs="1").stdout


@pytest.mark.parametrize(
    ("command", "change", "words"),
    [
        ("epsilon", {"noise_multiplier": "0"}, "no privacy"),
        ("epsilon", {"noise_multiplier": "nan"}, "above 0"),
        ("epsilon", {"noise_multiplier": "1e-300"}, "between 0.001 and 1e+06"),
        ("epsilon", {"noise_multiplier": "1e308"}, "between 0.001 and 1e+06"),
        ("epsilon", {"epochs": "30000000000000"}, "at most 16,777,216 steps"),
        ("epsilon", {"delta": "0"}, "between 0 and 1"),
        ("epsilon", {"delta": "1"}, "between 0 and 1"),
        ("epsilon", {"delta": "1e-3"}, "1/n"),
        ("epsilon", {"batch": "2339"}, "batch"),
        ("epsilon", {"batch": "0"}, "batch"),
        ("epsilon", {"records": "0"}, "at least 1"),
        ("epsilon", {"epochs": "0"}, "epochs"),
        ("epsilon", {"unit": "hospital"}, "unit"),
        ("epsilon", {"accountant": "magic"}, "accountant"),
        ("calibrate", {"epsilon": "0"}, "above 0"),
        ("calibrate", {"epsilon": "-1"}, "above 0"),
        ("calibrate", {"epsilon": "inf"}, "above 0"),
    ],
)
def test_impossible_plans_are_refused_in_a_line_or_two(
    command: str, change: dict[str, str], words: str
) -> None:
    result = run(command, "--json", **change)
    assert isinstance(result.exception, ConfrereError)
    assert words in str(result.exception)
    assert len(str(result.exception)) < 220
    assert result.stdout == ""


def test_epsilon_comes_with_the_curve_behind_it_and_with_what_it_means() -> None:
    found = json.loads(run("epsilon", "--json").stdout)
    assert found["readings"]["record"] == found["epsilon"]
    assert found["readings"]["patient"] is None
    assert found["readings"]["file"] == found["epsilon"]  # by hash, one record moves no other
    assert found["trade_off"]["mu"] is None
    points = found["trade_off"]["points"]
    assert points[0] == [0.0, pytest.approx(1, abs=1e-4)]
    assert points[-1] == [1.0, 0.0]
    assert "right at most 60.2 % of the time" in found["sentence"]
    assert found["above_ceiling"] is False
    bounded = json.loads(run("epsilon", "--json", records_per_patient="3").stdout)
    assert bounded["readings"]["patient"] > bounded["readings"]["file"]


def test_patients_protect_their_records_at_twice_the_sensitivity() -> None:
    found = json.loads(run("epsilon", "--json", unit="patient").stdout)["readings"]
    assert found["patient"] < found["record"] < 3 * found["patient"]


def test_an_epsilon_above_the_usual_ceiling_says_so() -> None:
    said = run("epsilon", noise_multiplier="0.1").stdout
    assert "above the usual ceiling of 10" in said
    assert "protects nobody" in said


def test_the_renyi_accountant_prints_its_answer_and_nothing_else(capfd: pytest.CaptureFixture[str]) -> None:
    change = {"records": "1000", "batch": "250", "epochs": "40", "noise_multiplier": "1", "delta": "1e-3"}
    found = json.loads(run("epsilon", "--json", accountant="rdp", **change).stdout)
    assert 20.9 < found["epsilon"] < 20.98
    assert capfd.readouterr().err == ""

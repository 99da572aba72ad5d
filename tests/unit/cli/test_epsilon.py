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


def run(command: str, *flags: str, **changes: str) -> Any:
    options = {**PLAN, **({"--noise-multiplier": "1.4"} if command == "epsilon" else {"--epsilon": "3"})}
    options.update({"--" + name.replace("_", "-"): value for name, value in changes.items()})
    words = [word for pair in options.items() for word in pair]
    return CliRunner().invoke(app, [command, *words, *flags])


@pytest.mark.parametrize(("accountant", "value"), [("rdp", 2.36), ("pld", 2.16)])
def test_the_published_histology_site_comes_out(accountant: str, value: float) -> None:
    found = json.loads(run("epsilon", "--json", accountant=accountant).stdout)
    assert set(found) == KEYS
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
    assert "% sure at most" in said
    assert "222 steps" in said
    assert "A noise multiplier of" in run("calibrate", epochs="1").stdout


@pytest.mark.parametrize(
    ("command", "change", "words"),
    [
        ("epsilon", {"noise_multiplier": "0"}, "no privacy"),
        ("epsilon", {"noise_multiplier": "nan"}, "above 0"),
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
        ("calibrate", {"epsilon": "0.05", "accountant": "rdp"}, "PLD"),
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

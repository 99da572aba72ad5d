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


# Masked sums


def masked(command: str, *words: str) -> Any:
    return CliRunner().invoke(app, [command, "--masked", "--delta", "1e-5", *words])


@pytest.mark.parametrize(("epsilon", "noise"), [("3", 1.49), ("1", 4.05)])
def test_the_noise_of_one_masked_sum_is_that_of_zero_concentrated_privacy(epsilon: str, noise: float) -> None:
    found = json.loads(masked("calibrate", "--epsilon", epsilon, "--sites", "8", "--json").stdout)
    assert round(found["noise_multiplier"], 2) == noise
    assert found["epsilon"] <= float(epsilon) == found["target_epsilon"]
    assert (found["accountant"], found["steps"], found["sample_rate"]) == ("rdp", 1, 1.0)


def test_a_masked_plan_states_its_assumption_and_what_a_site_adds() -> None:
    options = ["--sites", "8", "--colluding", "2", "--dropouts", "2", "--clipping", "0.5", "--rounds", "100"]
    found = json.loads(masked("epsilon", *options, "--noise-multiplier", "15", "--json").stdout)
    assert set(found) == KEYS | MEANING | {"condition", "masked"}
    assert found["condition"].startswith("if at most 2 of the other 7 sites")
    about = found["masked"]
    assert (about["honest"], about["threshold"]) == (4, 6)
    assert about["noise_std"] == 7.5
    assert about["site_variance"] == pytest.approx(7.5**2 / 4)
    text = masked("epsilon", *options, "--noise-multiplier", "15").stdout
    assert "if at most 2 of the other 7 sites pool what they see" in text
    assert "each adds a variance of 14.06 (7.5²/4)" in text
    back = json.loads(masked("calibrate", *options, "--epsilon", str(found["epsilon"]), "--json").stdout)
    assert back["noise_multiplier"] == pytest.approx(15, rel=1e-4)


def test_masks_cost_no_more_than_the_noise_of_one_site_would_by_the_same_accountant() -> None:
    options = [
        "--records",
        "1000",
        "--batch",
        "1000",
        "--epochs",
        "100",
        "--accountant",
        "rdp",
        "--delta",
        "1e-5",
    ]
    plain = CliRunner().invoke(app, ["epsilon", *options, "--noise-multiplier", "15", "--json"])
    together = masked("epsilon", "--sites", "8", "--rounds", "100", "--noise-multiplier", "15", "--json")
    one, other = (json.loads(r.stdout)["epsilon"] for r in (plain, together))
    assert one <= other <= 1.002 * one


MASKED_REFUSED = {
    "no sites": ([], "--masked needs --sites"),
    "t = 0": (["--sites", "8", "--colluding", "0"], "colluding = 0 is unsound"),
    "two members": (["--sites", "2"], "at least 3 members"),
    "too many dropouts": (["--sites", "8", "--dropouts", "4"], "at most 3 may drop out"),
    "batches": (["--sites", "8", "--batch", "32"], "--batch does not apply with --masked"),
    "no rounds": (["--sites", "8", "--rounds", "0"], "--rounds must be from 1"),
    "no clipping": (["--sites", "8", "--clipping", "0"], "--clipping must be a number above 0"),
    "too little noise": (["--sites", "200", "--noise-multiplier", "0.001"], "too coarse for the noise"),
}


@pytest.mark.parametrize("case", MASKED_REFUSED)
def test_a_masked_plan_that_does_not_protect_is_refused(case: str) -> None:
    options, reason = MASKED_REFUSED[case]
    found = masked("epsilon", "--noise-multiplier", "15", *options)
    assert isinstance(found.exception, ConfrereError)
    assert reason in str(found.exception)


def test_what_a_plan_without_masks_needs_is_named() -> None:
    found = CliRunner().invoke(app, ["epsilon", "--noise-multiplier", "1.4", "--delta", "1e-5"])
    assert isinstance(found.exception, ConfrereError)
    assert "Missing option --records" in str(found.exception)
    found = CliRunner().invoke(
        app, ["epsilon", "--noise-multiplier", "1.4", "--delta", "1e-5", "--sites", "8"]
    )
    assert "--sites does not apply without --masked" in str(found.exception)

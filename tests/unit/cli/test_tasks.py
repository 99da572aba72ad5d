"""Every kind of task from the command line: table, JSON and report; and what cannot be learned from, in a line or two."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest

from tests.unit.cli.command import Desk

HEAD = """
rounds = 2
strategy = "fedavg"
[training]
tune = false
tune_priors = [1.0]
[sites.a]
data = "a.csv"
[sites.b]
data = "b.csv"
[schema.columns.age]
range = [0, 100]
"""
STAY = '[schema.label]\ncolumn = "stay"\nkind = "regression"\nrange = [0, 40]\nunit = "days"\n'
LABELS = '[schema.label]\nkind = "multilabel"\ncolumns = ["left", "right"]\n'
PULSE = '[schema.columns.pulse]\nkind = "series"\nshape = [3, 1]\nrange = [0, 200]\n'
SCAN = '[schema.columns.scan]\nkind = "volume"\nshape = [4, 4, 4]\nrange = [-10, 10]\n'

ENCODED = '[models.proxy]\nname = "branches"\nencoders = { puls = "gru" }\n'

Spoil = Callable[[pd.DataFrame], None]


def write(desk: Desk, body: str, spoil: Spoil | None = None) -> str:
    rng = np.random.default_rng(0)
    for site in ("a", "b"):
        age = rng.integers(20, 80, 40)
        frame = pd.DataFrame({"age": age, "stay": (age / 4 + rng.normal(size=40)).round(1)})
        frame["left"], frame["right"] = (age > 50).astype(int), (rng.random(40) < 0.4).astype(int)
        if "scan" in body or "pulse" in body:
            for n in range(40):
                np.save(desk.folder / f"{site}{n}.npy", rng.normal(size=(4, 4, 4)))
                np.save(desk.folder / f"{site}p{n}.npy", rng.uniform(50, 150, (1 + n % 3, 1)))
            frame["scan"] = [f"{site}{n}.npy" for n in range(40)]
            frame["pulse"] = [f"{site}p{n}.npy" for n in range(40)]
        if spoil is not None and site == "b":
            frame = frame.astype(object)
            spoil(frame)
        frame.to_csv(desk.folder / f"{site}.csv", index=False)
    (desk.folder / "study.toml").write_text(HEAD + body)
    return "study.toml"


@pytest.mark.parametrize(
    ("body", "metrics"),
    [
        (STAY, {"rmse", "r2"}),
        (LABELS, {"auc", "accuracy", "macro_accuracy", "f1", "log_loss"}),
        (PULSE + SCAN + LABELS + '[models]\nproxy = "branches"\n', {"auc", "accuracy", "macro_accuracy", "f1", "log_loss"}),
    ],
    ids=["number", "labels", "branches"],
)  # fmt: skip
def test_a_task_goes_from_the_study_to_table_and_report(desk: Desk, body: str, metrics: set[str]) -> None:
    study = write(desk, body)
    found = desk.confrere(
        "compare", study, "--strategies", "fedavg", "--seeds", "2", "--out", "run", "--json"
    ).json
    assert set(found["strategies"]["fedavg"]["mean"]) == metrics
    assert set(found["strategies"]["fedavg"]["gain_over_alone"]) == metrics
    page = desk.confrere("report", "run")
    assert page.code == 0
    text = next((desk.folder / "run").glob("*.html")).read_text()
    assert ("RMSE" if "rmse" in metrics else "F1") in text


def test_a_study_that_stops_says_so(desk: Desk) -> None:
    study = write(desk, STAY + "[stop]\nhours = 1e-9\n")
    answer = desk.confrere("simulate", study, "--json")
    assert answer.json["stopped"]["rounds"] == 1
    assert "stopped after 1 round, as the study says" in desk.confrere("simulate", study).out.replace(
        "\n", " "
    )
    assert "training stops before the last round" in desk.confrere("check", study).out


def _text(frame: pd.DataFrame) -> None:
    frame.loc[3, "stay"] = "long"


def _gap(frame: pd.DataFrame) -> None:
    frame.loc[3, "stay"] = None


def _constant(frame: pd.DataFrame) -> None:
    frame["stay"] = 7.5


def _never(frame: pd.DataFrame) -> None:
    frame["right"] = 0


def _long(frame: pd.DataFrame) -> None:
    frame.loc[3, "pulse"] = "a0.npy"


@pytest.mark.parametrize(
    ("body", "spoil", "says"),
    [
        (STAY, _text, "b.csv, line 5, column stay: 'long' is not a number"),
        (STAY, _gap, "b.csv, line 5, column stay: the label is missing"),
        (STAY, _constant, 'site "b": the target is 7.5 in all records'),
        (LABELS, _never, 'site "b": the label right is no in all records'),
        (PULSE + LABELS, _long, "b.csv, line 5, column pulse: is 4 × 4 × 4, and the schema says (at most) 3 × 1"),
        (PULSE.replace("[3, 1]", "[2, 1]") + LABELS, None, "has 3 steps, and the schema has room for 2"),
        (SCAN.replace("[4, 4, 4]", "[4, 4, 5]") + LABELS, None, "bring all volumes to one size"),
        (PULSE + LABELS + ENCODED, None, 'no branch "puls" (did you mean "pulse"?)'),
        (STAY + '[models]\nproxy = "branches"\n', None, "these have one"),
        (STAY + '[models]\nproxy = "cnn3d"\n', None, 'network "cnn3d" needs volumes'),
        (LABELS.replace('"left", ', ""), None, "at least two `columns`"),
    ],
)  # fmt: skip
def test_what_cannot_be_learned_from_is_refused(
    desk: Desk, body: str, spoil: Spoil | None, says: str
) -> None:
    study = write(desk, body, spoil)
    assert says in desk.refused("simulate", study, "--out", "run")

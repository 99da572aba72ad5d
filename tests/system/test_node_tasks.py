"""Nodes with records of several branches, numbers to predict and fixed features: to the end, and into a prediction."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from confrere.learning.evaluation import predict as outputs_of
from confrere.learning.networks.architectures import architecture
from confrere.learning.networks.network import Network
from confrere.simulation.backends import simulate
from confrere.simulation.rehearsal import rehearse
from confrere.site.open_sites import open_sites
from confrere.site.saved_model import SavedModel, predictions
from confrere.site.site_folder import site_folder_of
from confrere.study import load

NUMBERS = """
rounds = 25
strategy = "avgpush"
patience = 600.0
[training]
optimiser = "sgd"
learning_rate = 0.001
[stop]
change = 0.01
in_a_row = 2
[models]
proxy = { name = "branches", features = 3, encoders = { pulse = { name = "gru", hidden = 3 } } }
[schema.label]
column = "stay"
kind = "regression"
range = [0, 40]
unit = "days"
[schema.columns.age]
range = [0, 100]
[schema.columns.pulse]
kind = "series"
shape = [4, 1]
range = [0, 200]
[sites.north]
data = "north.csv"
accept_unproven_privacy = true
[sites.south]
data = "south.csv"
accept_unproven_privacy = true
"""

PICTURES = """
rounds = 1
strategy = "local"
patience = 600.0
[data]
features = "gradients"
[training]
balanced = true
[schema.label]
column = "ill"
[schema.columns.scan]
kind = "image"
size = [8, 8]
[sites.north]
data = "north.csv"
[sites.south]
data = "south.csv"
"""


def write(folder: Path, body: str) -> Path:
    rng = np.random.default_rng(0)
    for site, count in (("north", 40), ("south", 30)):
        rows = []
        for n in range(count):
            risk = rng.normal()
            np.save(
                folder / f"{site}{n}.npy", np.clip(90 + 20 * risk + rng.normal(size=(1 + n % 4, 1)), 1, 199)
            )
            pixels = rng.integers(0, 60, (8, 8)).astype(np.uint8)
            pixels[:, 4:] += np.uint8(150 if risk > 0.4 else 0)
            Image.fromarray(pixels).save(folder / f"{site}{n}.png")
            ill = "yes" if risk > 0.4 else "no"
            rows.append((f"{site}{n}.npy", f"{site}{n}.png", int(rng.integers(20, 80)), 20 + 5 * risk, ill))
        frame = pd.DataFrame(rows, columns=["pulse", "scan", "age", "stay", "ill"])
        frame["stay"] = frame["stay"].clip(0, 40)
        frame.to_csv(folder / f"{site}.csv", index=False)
    (folder / "study.toml").write_text(body)
    return folder / "study.toml"


def test_nodes_stop_where_the_simulation_stops_and_predict_in_the_unit_of_the_column(tmp_path: Path) -> None:
    study = load(write(tmp_path, NUMBERS))
    memory = simulate(study)
    assert 3 < memory.result.stopped.rounds < 25
    run = rehearse(study, out=tmp_path / "run")
    said = [e.data for e in run.events if e.kind == "notice" and e.data.get("stopped")]
    assert {s["stopped"] for s in said} == {memory.result.stopped.rounds}
    assert run.mean == pytest.approx(memory.mean, abs=1e-4)
    model = SavedModel(site_folder_of(tmp_path / "run", "north") / "model")
    found = predictions(model, tmp_path / "north.csv")
    assert len(found) == 40
    assert found["prediction"].between(0, 40).all()


def test_a_prediction_sees_the_features_that_the_model_has_learned_from(tmp_path: Path) -> None:
    study = load(write(tmp_path, PICTURES))
    run = rehearse(study, out=tmp_path / "run")
    found = predictions(
        SavedModel(site_folder_of(tmp_path / "run", "north") / "model"), tmp_path / "north.csv"
    )
    federation = open_sites(study)
    network = Network(architecture("linear", federation.task.inputs, 1))
    network.load(run.models["north"]["model"].params)
    site = federation.sites["north"]
    yes = (torch.cat([site.train.targets, site.validation.targets]) == 1).double()
    odds = torch.log(
        (yes.sum() + 1) / ((1 - yes).sum() + 1)
    )  # the site's own mix, since all classes count alike
    expected = torch.sigmoid(outputs_of(network.module, site.all.inputs)[:, 0] + odds)
    assert sorted(found["probability of yes"]) == pytest.approx(sorted(expected.tolist()), abs=1e-4)

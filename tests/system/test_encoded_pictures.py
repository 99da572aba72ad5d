"""A study whose pictures become features of an ONNX encoder: in every runtime, on nodes, in saved models, in commands."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from confrere.core.errors import ConfrereError, DataError
from confrere.evaluate.study_check import check
from confrere.node.config import open_own
from confrere.simulation.backends import simulate
from confrere.simulation.rehearsal import rehearse
from confrere.site.open_sites import open_sites
from confrere.site.saved_model import SavedModel, predictions
from confrere.site.site_folder import site_folder_of
from confrere.study import Study, load, load_site
from tests.unit.data.tiny_onnx import WIDTH, model, save

STUDY = """
rounds = 3
strategy = "proxyfl"
topology = "complete"
patience = 600.0
[data]
encoder = {{ file = "enc.onnx", sha256 = "{sha256}" }}
[training]
tune_priors = [1.0]
[privacy]
epsilon = 8.0
delta = 1e-3
[schema.label]
column = "ill"
[schema.columns.scan]
kind = "image"
size = [10, 10]
[sites.north]
data = "north/scans.csv"
[sites.south]
data = "south/scans.csv"
"""


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CONFRERE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "features"


@pytest.fixture
def study(tmp_path: Path) -> Study:
    rng = np.random.default_rng(0)
    for site, count in (("north", 60), ("south", 50)):
        folder = tmp_path / site
        folder.mkdir()
        rows = []
        for n in range(count):
            ill = n % 2 == 0
            pixels = rng.integers(0, 60, (10, 10)).astype(np.uint8)
            pixels[3:7, 3:7] += np.uint8(150 if ill else 0)
            Image.fromarray(pixels).save(folder / f"{n}.png")
            rows.append({"scan": f"{n}.png", "ill": "yes" if ill else "no"})
        pd.DataFrame(rows).to_csv(folder / "scans.csv", index=False)
    sha256 = save(tmp_path / "enc.onnx")
    (tmp_path / "study.toml").write_text(STUDY.format(sha256=sha256), encoding="utf-8")
    return load(tmp_path / "study.toml")


def weights(run: Any) -> dict[str, torch.Tensor]:
    return {
        f"{site}/{role}/{name}": t
        for site, models in run.models.items()
        for role, found in models.items()
        for name, t in found.params.items()
    }


def test_every_runtime_learns_from_the_same_features(study: Study, tmp_path: Path) -> None:
    memory = simulate(study, out=tmp_path / "memory")
    assert open_sites(study).task.inputs == (WIDTH,)
    assert any("features of enc.onnx (SHA-256" in str(e.data) for e in memory.events)
    spread = simulate(study, workers=2, out=tmp_path / "spread")
    nodes = rehearse(study, out=tmp_path / "nodes")
    for other in (spread, nodes):
        found = weights(other)
        for name, value in weights(memory).items():
            assert torch.allclose(found[name], value, atol=1e-5), name
    for folder in ("memory", "nodes"):
        saved = SavedModel(site_folder_of(tmp_path / folder, "north") / "model")
        assert saved.encoder is not None
        assert len(predictions(saved, tmp_path / "north" / "scans.csv", tmp_path / "enc.onnx")) == 60
    card = (site_folder_of(tmp_path / "memory", "north") / "model" / "card.md").read_text(encoding="utf-8")
    assert "- Encoder: enc.onnx (SHA-256" in card


def test_a_saved_model_finds_its_encoder_and_refuses_another(study: Study, tmp_path: Path) -> None:
    run = simulate(study, out=tmp_path / "run")
    assert run.models
    home, records = site_folder_of(tmp_path / "run", "south") / "model", tmp_path / "south" / "scans.csv"
    saved = SavedModel(home)
    with pytest.raises(DataError, match=r"takes features of enc\.onnx .*name it with --encoder PATH"):
        predictions(saved, records)
    (home / "enc.onnx").write_bytes((tmp_path / "enc.onnx").read_bytes())
    found = predictions(saved, records)
    ill = (pd.read_csv(records)["ill"] == "yes").to_numpy()
    probability = found["probability of yes"].to_numpy()
    assert probability[ill].min() > probability[~ill].max()
    save(tmp_path / "other.onnx", model(seed=4))
    with pytest.raises(DataError, match=r"other\.onnx has the SHA-256 checksum"):
        predictions(saved, records, tmp_path / "other.onnx")


def test_a_node_uses_its_own_copy_and_keeps_features_in_its_own_folder(
    study: Study, tmp_path: Path, own_cache: Path
) -> None:
    (tmp_path / "enc.onnx").rename(tmp_path / "north" / "mine.onnx")
    site = tmp_path / "north" / "site.toml"
    site.write_text('data = "scans.csv"\nencoder = "mine.onnx"\n', encoding="utf-8")
    config = load_site(site)
    home = tmp_path / "north" / "node"
    config = replace(config, home=str(home))
    data, task, _, _ = open_own(study, "north", config, 60, b"key")
    assert task.inputs == (WIDTH,)
    assert len(data.all) == 60
    assert (home.stat().st_mode & 0o777, (home / "features").stat().st_mode & 0o777) == (0o700, 0o700)
    assert not own_cache.exists()
    save(tmp_path / "north" / "mine.onnx", model(seed=7))
    with pytest.raises(DataError, match=r"mine\.onnx has the SHA-256 checksum"):
        open_own(study, "north", config, 60, b"key")
    (tmp_path / "north" / "mine.onnx").unlink()
    with pytest.raises(DataError, match=r"mine\.onnx: no such file"):
        open_own(study, "north", config, 60, b"key")


def test_the_file_may_lie_beside_the_records_of_each_site(study: Study, tmp_path: Path) -> None:
    content = (tmp_path / "enc.onnx").read_bytes()
    (tmp_path / "enc.onnx").unlink()
    (tmp_path / "north" / "enc.onnx").write_bytes(content)
    with pytest.raises(DataError, match=r"south/enc\.onnx: no such file"):
        open_sites(study)
    save(tmp_path / "south" / "enc.onnx", model(seed=2))
    with pytest.raises(DataError, match=r"south/enc\.onnx has the SHA-256 checksum"):
        open_sites(study)
    (tmp_path / "south" / "enc.onnx").write_bytes(content)
    assert open_sites(study).task.inputs == (WIDTH,)


def test_records_that_are_open_already_are_not_encoded_twice(study: Study) -> None:
    once = open_sites(study)
    assert open_sites(study, once).sites["north"].train is not None
    assert torch.equal(open_sites(study, once).sites["north"].train.inputs, once.sites["north"].train.inputs)
    other = replace(study, data=replace(study.data, encoder=replace(study.data.encoder, size=16)))
    with pytest.raises(ConfrereError, match="already features of another encoder"):
        open_sites(other, once)
    assert check(study).sites["north"].proxy_parameters == WIDTH + 1


def command(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    line = [sys.executable, "-m", "confrere", *arguments]
    return subprocess.run(line, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_the_commands_apply_the_encoder_and_refuse_in_one_or_two_lines(study: Study, tmp_path: Path) -> None:
    assert study.data.encoder is not None
    found = command(tmp_path, "check", "study.toml", "--json")
    assert found.returncode == 0, found.stderr
    assert json.loads(found.stdout)["sites"]["north"]["proxy_parameters"] == WIDTH + 1
    done = command(tmp_path, "simulate", "study.toml", "--out", "run", "--json")
    assert done.returncode == 0, done.stderr
    predicted = command(
        tmp_path,
        "predict",
        "run/sites/north/model",
        "north/scans.csv",
        "-o",
        "p.csv",
        "--encoder",
        "enc.onnx",
    )
    assert predicted.returncode == 0, predicted.stderr
    shown = command(tmp_path, "datasets", "show", "digits", "--encoder", "enc.onnx")
    assert shown.returncode == 0, shown.stderr
    assert f"{WIDTH} features of enc.onnx" in " ".join(shown.stdout.split())
    bad = [
        ("check", "study.toml", "--set", 'data.encoder={name="resnet"}'),
        ("check", "study.toml", "--set", f'data.encoder={{file="enc.onnx", sha256="{"0" * 64}"}}'),
        ("check", "study.toml", "--set", f'data.encoder={{file="gone.onnx", sha256="{"0" * 64}"}}'),
        ("datasets", "show", "thyroid", "--encoder", "enc.onnx"),
        ("datasets", "show", "digits", "--encoder", "gone.onnx"),
    ]
    for arguments in bad:
        refused = command(tmp_path, *arguments)
        assert refused.returncode == 2, arguments
        assert "Traceback" not in refused.stderr
        assert len(refused.stderr.strip()) < 500, refused.stderr

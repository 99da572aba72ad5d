"""A folder of pictures is a site's data: labelled by a file in it, or by its sub-folders."""

from __future__ import annotations

import tomllib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from confrere.core.errors import DataError
from confrere.data.column_kinds import Translation
from confrere.data.encode.encoder import encode
from confrere.data.federation import Opening, Source, of_files
from confrere.data.read.sources import ReadOptions, read
from confrere.data.schema import Schema
from confrere.data.schema_draft import draft
from confrere.data.schema_toml import schema_toml
from confrere.data.split.holdout import SplitRule
from confrere.simulation.backends import simulate
from confrere.study import load
from tests.unit.data.test_images_and_texts import dicom

CLASSES = """
[schema.label]
column = "label"
classes = ["cat", "dog"]
[schema.columns.image]
kind = "image"
size = [8, 8]
"""


def picture(path: Path, shade: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(shade)
    pixels = np.clip(rng.normal(shade, 20, (10, 12)), 0, 255).astype(np.uint8)
    Image.fromarray(pixels).save(path)
    return path


def pets(folder: Path, count: int = 12) -> Path:
    for i in range(count):
        picture(folder / "cat" / f"{i}.png", 60 + i)
        picture(folder / "dog" / f"{i}.png", 180 + i)
    return folder


def schema_of(text: str = CLASSES) -> Schema:
    return Schema.from_dict(tomllib.loads(text)["schema"])


def test_sub_folders_are_the_classes(tmp_path: Path) -> None:
    frame = read(pets(tmp_path / "a", 2))
    assert list(frame["image"]) == ["cat/0.png", "cat/1.png", "dog/0.png", "dog/1.png"]
    site = of_files({"a": tmp_path / "a"}, schema_of(), Opening(split=SplitRule((0.5, 0.25, 0.25)))).sites[
        "a"
    ]
    assert tuple(site.all.inputs.shape) == (4, 1, 8, 8)
    assert sorted(site.all.targets.tolist()) == [0, 0, 1, 1]
    light = site.all.inputs.mean(dim=(1, 2, 3))
    assert bool((light[site.all.targets == 1] > light[site.all.targets == 0].max()).all())


def test_a_label_file_in_the_folder_says_what_the_pictures_show(tmp_path: Path) -> None:
    pets(tmp_path / "a", 2)
    pd.DataFrame({"file": ["cat/0.png", "dog/1.png"], "finding": ["dog", "cat"]}).to_csv(
        tmp_path / "a" / "labels.csv", index=False
    )
    text = CLASSES.replace('"label"', '"finding"').replace("columns.image", "columns.file")
    site = of_files({"a": tmp_path / "a"}, schema_of(text), Opening(split=SplitRule((0.5, 0.5, 0.0)))).sites[
        "a"
    ]
    assert len(site.all) == 2  # what the file says counts, not the sub-folders
    light = site.all.inputs.mean(dim=(1, 2, 3))
    assert bool(light[site.all.targets == 1] < light[site.all.targets == 0])


def test_dicom_and_png_lie_side_by_side_with_and_without_an_ending(tmp_path: Path) -> None:
    picture(tmp_path / "a" / "dog" / "0.png", 200)
    (tmp_path / "a" / "cat").mkdir()
    dicom(tmp_path / "a" / "cat" / "1.dcm", np.full((8, 8), 4095, np.uint16))
    dicom(tmp_path / "a" / "cat" / "IM0001", np.full((8, 8), 2048, np.uint16))
    frame = read(tmp_path / "a")
    assert list(frame["image"]) == ["cat/1.dcm", "cat/IM0001", "dog/0.png"]
    records = encode(frame, schema_of(), "", Translation(folder=str(tmp_path / "a")))
    assert records.inputs[0].mean() == 1
    assert records.inputs[1].mean() == pytest.approx(2048 / 4095)
    assert draft(frame).schema.column("image").kind == "image"


@pytest.mark.parametrize("form", ["classes", "file"])
def test_a_study_runs_on_folders(tmp_path: Path, form: str) -> None:
    for site in ("north", "south"):
        pets(tmp_path / site)
        if form == "file":
            frame = read(tmp_path / site)
            frame.to_csv(tmp_path / site / "labels.csv", index=False)
    (tmp_path / "study.toml").write_text(
        'name = "pets"\nstrategy = "fedavg"\nrounds = 2\n[training]\ntune = false\n'
        '[models]\nprivate = "cnn1"\nproxy = "cnn1"\n'
        '[sites.north]\ndata = "north"\n[sites.south]\ndata = "south/"\n'
        + CLASSES.replace("[8, 8]", "[28, 28]")
    )
    run = simulate(load(tmp_path / "study.toml"))
    assert set(run.sites) == {"north", "south"}
    assert "auc" in run.sites["north"].metrics


@pytest.mark.parametrize("form", ["classes", "file"])
def test_a_draft_of_a_folder_becomes_a_schema_that_reads_it(tmp_path: Path, form: str) -> None:
    frame = read(pets(tmp_path / "a"))
    if form == "file":
        frame.to_csv(tmp_path / "a" / "anything.csv", index=False)
        frame = read(tmp_path / "a")
    proposal = draft(frame)
    assert proposal.schema.unconfirmed == ["label.classes"]  # drawn from the names of the sub-folders
    assert not proposal.schema.identifying
    text = "\n".join(x for x in schema_toml(proposal.schema).splitlines() if not x.startswith("private"))
    records = encode(frame, schema_of(text), "", Translation(folder=str(tmp_path / "a")))
    assert tuple(records.inputs.shape) == (24, 1, 64, 64)
    assert records.targets.tolist() == [0] * 12 + [1] * 12


def test_stray_files_and_empty_sub_folders_are_told_not_guessed(tmp_path: Path) -> None:
    pets(tmp_path / "a")
    (tmp_path / "a" / "bird").mkdir()
    (tmp_path / "a" / "cat" / "notes.md").write_text("shy")
    (tmp_path / "a" / "cat" / ".DS_Store").write_text("x")
    site = of_files({"a": tmp_path / "a"}, schema_of()).sites["a"]
    said = " ".join(site.notes)
    assert "1 file passed over, not a picture: 'cat/notes.md'" in said
    assert "sub-folders without a picture: 'bird'" in said
    assert len(site.all) == 24


def test_a_picture_without_a_class_is_refused(tmp_path: Path) -> None:
    picture(pets(tmp_path / "a") / "lost.png", 9)
    with pytest.raises(DataError, match=r"'lost.png' lies in no sub-folder"):
        read(tmp_path / "a")


def test_a_truncated_picture_is_named_with_its_folder(tmp_path: Path) -> None:
    path = pets(tmp_path / "a") / "dog" / "3.png"
    path.write_bytes(path.read_bytes()[:60])
    with pytest.raises(DataError, match=r"a, record 18, column image: dog/3.png cannot be read as a picture"):
        of_files({"a": tmp_path / "a"}, schema_of())
    path.with_suffix(".dcm").write_bytes(b"\0" * 128 + b"DICM" + b"\1\2\3")
    path.unlink()
    with pytest.raises(DataError, match=r"record 18, column image: dog/3.dcm cannot be read as DICOM"):
        of_files({"a": tmp_path / "a"}, schema_of())


@pytest.mark.parametrize(("content", "match"), [
    ({}, "holds no picture"),
    ({"x.csv": "file,label\n", "y.csv": "file,label\n"}, "which one has the labels"),
    ({"labels.csv": "file,label\ncat/0.png,cat\n", "y.csv": "a,b\n1,2\n"}, ""),
])  # fmt: skip
def test_which_table_has_the_labels(tmp_path: Path, content: dict[str, str], match: str) -> None:
    folder = tmp_path / "a"
    folder.mkdir()
    for name, text in content.items():
        (folder / name).write_text(text)
    if match:
        with pytest.raises(DataError, match=match):
            read(folder)
    else:
        assert list(read(folder)["label"]) == ["cat"]


def test_a_folder_that_is_larger_than_expected_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="a: has 0 MB where at most 0 MB were expected"):
        read(pets(tmp_path / "a"), ReadOptions(limit=100))


def test_a_folder_streams_to_the_same_records(tmp_path: Path) -> None:
    whole = of_files({"a": pets(tmp_path / "a")}, schema_of()).sites["a"]
    pieces = of_files({"a": Source(tmp_path / "a", stream=True)}, schema_of()).sites["a"]
    assert torch.equal(whole.train.inputs, pieces.train.inputs)

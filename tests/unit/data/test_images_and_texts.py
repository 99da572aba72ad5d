"""Pictures and texts become numbers without looking at other records."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from confrere.core.errors import DataError, StudyError
from confrere.data.column_kinds import Column, Translation
from confrere.data.column_kinds.texts import bucket
from confrere.data.encode.encoder import encode
from confrere.data.encode.labels import task_of
from confrere.data.read.image_files import read_image
from confrere.data.schema import Schema
from confrere.data.tasks import Label

LABEL = Label(column="y")


def dicom(path: Path, pixels: np.ndarray[tuple[int, ...], np.dtype[np.uint16]]) -> Path:
    pydicom = pytest.importorskip("pydicom")
    from pydicom.dataset import FileDataset, FileMetaDataset

    meta = FileMetaDataset()
    meta.TransferSyntaxUID = pydicom.uid.ExplicitVRLittleEndian
    meta.MediaStorageSOPClassUID = pydicom.uid.CTImageStorage
    meta.MediaStorageSOPInstanceUID = pydicom.uid.generate_uid()
    file = FileDataset(str(path), {}, file_meta=meta, preamble=b"\0" * 128)
    file.Rows, file.Columns = pixels.shape
    file.SamplesPerPixel, file.PhotometricInterpretation = 1, "MONOCHROME2"
    file.BitsAllocated, file.BitsStored, file.HighBit, file.PixelRepresentation = 16, 12, 11, 0
    file.PixelData = pixels.astype("<u2").tobytes()
    file.save_as(path, enforce_file_format=True)
    return path


def test_a_folder_of_pictures_with_a_label_file_becomes_records(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for i in range(3):
        Image.fromarray(rng.integers(0, 255, (20, 30, 3), dtype=np.uint8)).save(tmp_path / f"{i}.png")
    frame = pd.DataFrame({"file": ["0.png", "1.png", "2.png"], "y": [0, 1, 0]})
    for channels, shape in ((1, (1, 8, 10)), (3, (3, 8, 10))):
        column = Column("file", kind="image", size=(8, 10), channels=channels)  # type: ignore[arg-type]
        schema = Schema(label=LABEL, columns=(column,))
        records = encode(frame, schema, "", Translation(folder=str(tmp_path)))
        assert tuple(records.inputs.shape[1:]) == shape == task_of(schema).inputs
        assert 0 <= float(records.inputs.min()) <= float(records.inputs.max()) <= 1


def test_a_picture_of_the_right_size_keeps_its_pixels(tmp_path: Path) -> None:
    pixels = np.arange(64, dtype=np.uint8).reshape(8, 8) * 4
    Image.fromarray(pixels).save(tmp_path / "a.png")
    assert np.allclose(read_image(tmp_path / "a.png", (8, 8))[0] * 255, pixels)


def test_sixteen_bit_pictures_keep_their_depth(tmp_path: Path) -> None:
    pixels = (np.arange(64, dtype=np.uint16) * 1000).reshape(8, 8)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    assert np.allclose(read_image(tmp_path / "a.png", (8, 8))[0] * 65535, pixels)


def test_dicom_pixels_are_scaled_by_the_depth_that_the_file_declares(tmp_path: Path) -> None:
    pixels = np.linspace(0, 4095, 64).astype(np.uint16).reshape(8, 8)
    read = read_image(dicom(tmp_path / "a.dcm", pixels), (8, 8))
    assert np.allclose(read[0] * 4095, pixels, atol=0.01)


def test_a_truncated_dicom_file_is_a_message(tmp_path: Path) -> None:
    path = dicom(tmp_path / "a.dcm", np.zeros((64, 64), dtype=np.uint16))
    raw = path.read_bytes()
    for cut in (10, 140, 300, len(raw) // 2, len(raw) - 5):
        path.write_bytes(raw[:cut])
        with pytest.raises(DataError, match=r"a\.dcm cannot be read as DICOM"):
            read_image(path, (8, 8))


def test_an_image_beside_a_history_is_a_branch_of_a_flat_record(tmp_path: Path) -> None:
    Image.fromarray(np.full((4, 4), 255, dtype=np.uint8)).save(tmp_path / "a.png")
    schema = Schema(
        label=LABEL, columns=(Column("age", range=(0, 100)), Column("scan", kind="image", size=(4, 4)))
    )
    frame = pd.DataFrame({"age": [50], "scan": ["a.png"], "y": [1]})
    records = encode(frame, schema, "", Translation(folder=str(tmp_path)))
    history, scan = task_of(schema).branches
    assert (history.name, history.start, history.shape) == ("table", 0, (2,))
    assert (scan.name, scan.start, scan.shape, scan.kind) == ("scan", 2, (1, 4, 4), "image")
    assert bool((records.inputs[0, scan.start :] == 1).all())


def test_words_are_hashed_the_same_everywhere() -> None:
    assert [bucket(w, 1024) for w in ("fever", "cough")] == [465, 868]


def test_texts_become_hashed_counts_or_token_numbers() -> None:
    frame = pd.DataFrame({"note": ["No fever, no cough", "Fever!", None], "y": [0, 1, 0]})
    hashed = Schema(label=LABEL, columns=(Column("note", kind="text", buckets=64, ngrams=2),))
    x = encode(frame, hashed).inputs
    assert x.shape == (3, 64)
    assert x.norm(dim=1).tolist() == pytest.approx([1, 1, 0], abs=1e-6)
    ids = Schema(label=LABEL, columns=(Column("note", kind="text", encoding="ids", buckets=50, length=6),))
    tokens = encode(frame, ids).inputs
    assert tokens.shape == (3, 6)
    assert tokens[0, 0] == tokens[0, 2] != 0
    assert tokens[0, 1] == tokens[1, 0]
    assert tokens[2].tolist() == [0] * 6
    with pytest.raises(StudyError, match="must be the only column"):
        Schema.from_dict(
            {"label": "y", "columns": {"note": {"kind": "text", "encoding": "ids"}, "age": {"range": [0, 1]}}}
        )

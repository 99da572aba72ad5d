"""A user's own encoder in an ONNX file: the checksum decides, and its shapes are checked before any record is read."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from confrere.core.errors import ConfrereError, DataError, StudyError
from confrere.data.encode.frozen_encoder import Encoder
from confrere.data.encode.public_features import encode_pictures, open_encoder, with_encoder
from confrere.data.records import Federation, Records, SiteData
from confrere.data.tasks import Task
from tests.unit.data.tiny_onnx import IN, OUT, WIDTH, checksum, helper, model, onnx, save


def federation(*shape: int) -> Federation:
    inputs = torch.rand(12, *shape, generator=torch.Generator().manual_seed(0))
    records = Records(inputs, torch.arange(12) % 2)
    return Federation(
        "f", Task("binary", ("no", "yes"), shape), {"a": SiteData("a", records, records, records)}
    )


def opened(path: Path, made: Any = None, **options: Any) -> Any:
    return open_encoder(Encoder(file=str(path), sha256=save(path, made), **options), [path])


def test_pictures_are_encoded_one_at_a_time_whatever_batches_the_file_allows(tmp_path: Path) -> None:
    found = [
        with_encoder(
            federation(1, 8, 8), opened(tmp_path / f"{batch}.onnx", model((batch, *IN[1:]), (batch, WIDTH)))
        )
        for batch in ("batch", 1)
    ]
    assert found[0].task.inputs == (WIDTH,)
    assert torch.equal(found[0].sites["a"].train.inputs, found[1].sites["a"].train.inputs)


def test_pictures_are_resized_to_what_the_file_takes_and_grey_becomes_colour(tmp_path: Path) -> None:
    encoder = opened(tmp_path / "e.onnx", model(("batch", 3, 8, 8)))
    grey = torch.rand(4, 1, 20, 14)
    colour = encoder.fitted(grey)
    assert colour.shape == (4, 3, 8, 8)
    assert torch.equal(colour[:, 0], colour[:, 2])
    assert encode_pictures([grey], encoder)[0].shape == (4, WIDTH)


def test_a_file_without_a_size_takes_that_of_the_study_or_of_the_pictures(tmp_path: Path) -> None:
    free = model(("batch", 1, "height", "width"))
    assert opened(tmp_path / "e.onnx", free).fitted(torch.rand(1, 1, 9, 11)).shape == (1, 1, 9, 11)
    assert opened(tmp_path / "e.onnx", free, size=32).fitted(torch.rand(1, 1, 9, 11)).shape == (1, 1, 32, 32)
    with pytest.raises(StudyError, match=r"size is 32, and e\.onnx takes pictures of 8 × 8"):
        opened(tmp_path / "e.onnx", size=32)


def test_a_file_with_another_checksum_is_refused_at_the_site_that_has_it(tmp_path: Path) -> None:
    agreed, other = tmp_path / "e.onnx", tmp_path / "other.onnx"
    spec = Encoder(file=str(agreed), sha256=save(agreed))
    save(other, model(seed=1))
    for copies in ([other], [agreed, other]):
        with pytest.raises(
            DataError, match=r"other\.onnx has the SHA-256 checksum .*: it is not the encoder of the study"
        ):
            open_encoder(spec, copies)


def test_a_missing_file_is_named_with_what_to_do(tmp_path: Path) -> None:
    spec = Encoder(file="e.onnx", sha256="0" * 64)
    with pytest.raises(DataError, match=r'e\.onnx: no such file.*site\.toml, encoder = "PATH"'):
        open_encoder(spec, [tmp_path / "e.onnx"])


BATCH_NORM = helper.make_node(
    "BatchNormalization", ["picture", "ones", "zeros", "zeros", "ones"], ["x", "m", "v"], training_mode=1
)
LESS_THE_MEAN = [
    helper.make_node("ReduceMean", ["picture"], ["mean"], axes=[0], keepdims=1),
    helper.make_node("Sub", ["picture", "mean"], ["less"]),
    helper.make_node("Add", ["less", "half"], ["x"]),
]


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (model((2, *IN[1:]), (2, WIDTH)), "must have one input, float .*it has picture"),
        (model(("batch", 2, 8, 8)), "must have one input, float .*it has picture"),
        (model(("batch", 1, 8, "width")), "must have one input, float .*it has picture"),
        (
            model(("batch", 1, "h", "w"), ("batch", "n"), pool=False),
            "with a fixed number of features; it has features",
        ),
        (model(before=[BATCH_NORM]), "export it in evaluation mode"),
        (model(before=LESS_THE_MEAN), "mixes the pictures of a batch; export it in evaluation mode"),
        (
            model(before=[helper.make_node("Dropout", ["picture", "half", "yes"], ["x"])]),
            "gives other features each time",
        ),
    ],
    ids=["two at once", "two channels", "half free", "free output", "batch norm", "batch mean", "dropout"],
)
def test_a_network_that_is_no_function_of_one_picture_is_refused(
    made: Any, words: str, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match=words) as error:
        with_encoder(federation(1, 8, 8), opened(tmp_path / "e.onnx", made))
    assert len(str(error.value)) < 400


def test_two_inputs_or_outputs_are_refused(tmp_path: Path) -> None:
    outputs = model()
    outputs.graph.output.append(helper.make_tensor_value_info("pooled", 1, ["batch", WIDTH, 1, 1]))
    with pytest.raises(DataError, match="must have one output"):
        opened(tmp_path / "e.onnx", outputs)
    inputs = model(before=[helper.make_node("Add", ["picture", "second"], ["x"])])
    inputs.graph.input.append(helper.make_tensor_value_info("second", 1, list(IN)))
    with pytest.raises(DataError, match="must have one input"):
        opened(tmp_path / "e.onnx", inputs)


def test_weights_in_another_file_are_refused_since_the_checksum_does_not_cover_them(tmp_path: Path) -> None:
    path = tmp_path / "e.onnx"
    onnx.save_model(model(), str(path), save_as_external_data=True, location="w.bin", size_threshold=0)
    with pytest.raises(DataError, match="keeps weights in other files"):
        open_encoder(Encoder(file=str(path), sha256=checksum(path)), [path])


def test_a_constant_in_another_file_is_refused_however_deep_it_lies(tmp_path: Path) -> None:
    outside = onnx.TensorProto(data_type=1, dims=[1], data_location=onnx.TensorProto.EXTERNAL)
    outside.external_data.add(key="location", value="w.bin")
    constant = helper.make_node("Constant", [], ["c"], value=outside)
    branch = helper.make_graph([constant], "inside", [], [helper.make_tensor_value_info("c", 1, [1])])
    made = model(before=[helper.make_node("If", ["yes"], ["x"], then_branch=branch, else_branch=branch)])
    with pytest.raises(DataError, match="keeps weights in other files"):
        opened(tmp_path / "e.onnx", made)


@pytest.mark.parametrize("content", [b"", b"no network at all", bytes(1000)])
def test_a_file_that_is_no_network_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "e.onnx"
    path.write_bytes(content)
    with pytest.raises(ConfrereError) as error:
        open_encoder(Encoder(file=str(path), sha256=checksum(path)), [path])
    assert "e.onnx" in str(error.value)
    assert "\n" not in str(error.value)


def test_without_onnxruntime_it_says_how_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(StudyError, match=r'needs onnxruntime: pip install "confrere\[onnx\]"'):
        opened(tmp_path / "e.onnx")


def test_the_tiny_network_has_the_shapes_that_the_tests_state(tmp_path: Path) -> None:
    encoder = opened(tmp_path / "e.onnx", model(IN, OUT))
    assert (encoder.channels, encoder.size, encoder.width) == (1, (8, 8), WIDTH)

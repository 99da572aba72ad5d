"""Tiny networks in ONNX files, for the tests of encoders. Importing this skips a test where onnx is not installed."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason='ONNX encoders need pip install "confrere[onnx]"')
pytest.importorskip("onnxruntime", reason='ONNX encoders need pip install "confrere[onnx]"')

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

WIDTH = 5
IN, OUT = ("batch", 1, 8, 8), ("batch", WIDTH)


def model(
    inputs: Sequence[Any] = IN,
    outputs: Sequence[Any] = OUT,
    *,
    before: Sequence[Any] = (),
    pool: bool = True,
    seed: int = 0,
) -> Any:
    """A convolution whose outputs are averaged over the picture (`pool`). `before` are nodes from «picture» to «x»."""
    rng = np.random.default_rng(seed)
    channels = inputs[1] if isinstance(inputs[1], int) else 1
    kernel = rng.normal(size=(WIDTH, channels, 3, 3)).astype(np.float32)
    start = "x" if before else "picture"
    nodes = [
        *before,
        helper.make_node("Conv", [start, "kernel"], ["wide"], kernel_shape=[3, 3]),
        helper.make_node("Relu", ["wide"], ["bent"]),
        helper.make_node("GlobalAveragePool" if pool else "Identity", ["bent"], ["pooled"]),
        helper.make_node("Flatten", ["pooled"], ["features"]),
    ]
    ones, zeros = np.ones(channels, np.float32), np.zeros(channels, np.float32)
    weights = {"kernel": kernel, "ones": ones, "zeros": zeros, "yes": np.array(True), "half": np.float32(0.5)}
    used = {name for node in nodes for name in node.input}
    graph = helper.make_graph(
        nodes,
        "tiny",
        [helper.make_tensor_value_info("picture", TensorProto.FLOAT, list(inputs))],
        [helper.make_tensor_value_info("features", TensorProto.FLOAT, list(outputs))],
        [numpy_helper.from_array(np.asarray(w), n) for n, w in weights.items() if n in used],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 15)])
    made.ir_version = 8
    return made


def save(path: Path, made: Any = None) -> str:
    """Write a network; its checksum."""
    path.write_bytes((made or model()).SerializeToString())
    return checksum(path)


def checksum(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()

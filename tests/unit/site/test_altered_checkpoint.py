"""A checkpoint that somebody has altered is refused in words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from confrere.core.errors import CheckpointError
from confrere.site import snapshot

ALTERED = {
    "a table that is a list": {"map": [1]},
    "a module that is not there": {"map": {"a": {"class": "confrere.nothing:X", "fields": {}}}},
    "fields that are a list": {"map": {"a": {"class": "confrere.core.parcel:Parcel", "fields": [1]}}},
    "a class without a name": {"map": {"a": {"class": 5, "fields": {}}}},
    "weights that are a number": {"map": {"a": {"params": 3}}},
    "weights of another size": {"map": {"a": {"flat": "t", "shapes": [["w", [2], "float32"]]}}},
    "weights of a size below nothing": {"map": {"a": {"flat": "t", "shapes": [["w", [-1, -1], "float32"]]}}},
    "weights of another format": {"map": {"a": {"flat": "t", "shapes": [["w", [1], "int64"]]}}},
    "numbers for tensors": {"map": {"a": {"params": {"x": 3}}}},
    "values that a class refuses": {
        "map": {"a": {"class": "confrere.privacy.ledger:Budget", "fields": {"epsilon": -1, "delta": 2}}}
    },
}


@pytest.mark.parametrize("content", [*ALTERED.values(), None], ids=[*ALTERED, "a bottomless text"])
def test_an_altered_checkpoint_is_refused(tmp_path: Path, content: Any) -> None:
    path = tmp_path / "round-00001.safetensors"
    text = "[" * 100_000 if content is None else json.dumps(content)
    save_file({"t": torch.zeros(1)}, path, {"format": snapshot.FORMAT, "content": text})
    with pytest.raises(CheckpointError):
        snapshot.load(path)

"""A run at rest: what goes in comes out, whole or not at all, and nothing in it can run."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from confrere.core.custody import Custody, private, public
from confrere.core.errors import CheckpointError
from confrere.core.model import Model
from confrere.core.params import Params
from confrere.core.parcel import Parcel
from confrere.site import snapshot


@dataclass(frozen=True)
class State:
    model: Model
    notes: tuple[Any, ...]


MODEL = Model(
    Params({"w": torch.randn(3, generator=torch.Generator().manual_seed(0))}), "net", Custody.PROTECTED
)
NOTES = (1, 2.5, None, True, "é", [1, (2,)], {"k": private(3.0)})


def test_what_goes_in_comes_out(tmp_path: Path) -> None:
    parcel = Parcel("run", 0, 1, 0, "a", "b", 3, MODEL, {"mass": public(0.25)}, b"\x00\xff")
    content = {
        "state": State(MODEL, NOTES),
        "parcels": [parcel],
        "memory": {"steps": torch.tensor(7), "empty": torch.zeros(0)},
        "bytes": b"",
    }
    snapshot.save(tmp_path / "c.safetensors", content)
    found = snapshot.load(tmp_path / "c.safetensors")
    state, sent = found["state"], found["parcels"][0]
    assert isinstance(state, State)
    assert state.model.params.equals(MODEL.params)
    assert (state.model.custody, state.notes) == (Custody.PROTECTED, NOTES)
    assert (sent.id, sent.scalars, sent.signature) == (parcel.id, parcel.scalars, parcel.signature)
    assert (int(found["memory"]["steps"]), found["bytes"]) == (7, b"")


@pytest.mark.parametrize("odd", [{1: 2}, object(), lambda: 0, {1, 2}])
def test_what_cannot_be_kept_is_said_before_a_file_is_written(tmp_path: Path, odd: Any) -> None:
    with pytest.raises(CheckpointError):
        snapshot.save(tmp_path / "c.safetensors", {"odd": odd})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("damage", [b"", b"junk", b"\xff" * 100, None])
def test_a_damaged_file_is_an_error_and_no_crash(tmp_path: Path, damage: bytes | None) -> None:
    path = tmp_path / "c.safetensors"
    snapshot.save(path, {"model": MODEL})
    path.write_bytes(path.read_bytes()[:-3] if damage is None else damage)
    with pytest.raises(CheckpointError):
        snapshot.load(path)
    with pytest.raises(CheckpointError, match="no such checkpoint"):
        snapshot.load(tmp_path / "nowhere.safetensors")


@pytest.mark.parametrize(
    "address", ["os:system", "subprocess:Popen", "confrere.cli:main", "pathlib:Path", "no.such:Thing"]
)
def test_a_checkpoint_builds_known_dataclasses_and_nothing_else(address: str) -> None:
    with pytest.raises(CheckpointError):
        snapshot.unpack({"class": address, "fields": {}}, {})


def test_a_write_that_fails_leaves_the_last_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "c.safetensors"
    snapshot.save(path, {"n": 1})

    def fail(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    for step in ("os.replace", "os.fsync"):
        with monkeypatch.context() as patch:
            patch.setattr(step, fail)
            with pytest.raises(CheckpointError, match="No space left"):
                snapshot.save(path, {"n": 2})
        assert snapshot.load(path)["n"] == 1
        assert os.listdir(tmp_path) == ["c.safetensors"]

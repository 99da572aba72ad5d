"""What is about patients, or is a secret, can be read by its owner alone, whatever the umask is."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest

import confrere
from confrere.cli import predict as predict_command
from confrere.core.errors import CheckpointError
from confrere.core.owner_only import make_private_folder, require_owner_only, write_private
from confrere.node.control import SOCKET, Control
from confrere.node.node import Node
from confrere.site import saved_model as saved
from tests.unit.node.sites import settings
from tests.unit.node.wires import Network


@pytest.fixture(autouse=True)
def _open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_private_file_is_never_open_and_replaces_an_open_one(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("old")
    os.chmod(path, 0o644)
    write_private(path, "new")
    assert (path.read_text(), mode(path), [p.name for p in tmp_path.iterdir()]) == ("new", 0o600, ["a.csv"])
    assert mode(make_private_folder(tmp_path / "b" / "c")) == 0o700


@pytest.mark.parametrize("open_to", [0o040, 0o020, 0o004, 0o001, 0o010])
@pytest.mark.parametrize("what", ["file", "folder"])
def test_what_is_open_to_others_is_refused_with_the_remedy(what: str, open_to: int, tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.mkdir() if what == "folder" else path.touch()
    closed = 0o700 if what == "folder" else 0o600
    os.chmod(path, closed | open_to)
    with pytest.raises(CheckpointError, match=f"chmod {closed:o} {path}"):
        require_owner_only(path, CheckpointError)
    os.chmod(path, closed)
    require_owner_only(path, CheckpointError)


def test_predictions_are_readable_by_their_owner_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saved, "SavedModel", lambda path: path)
    monkeypatch.setattr(saved, "predictions", lambda model, data, encoder: pd.DataFrame({"risk": [0.25]}))
    predict_command.predict(tmp_path / "model", tmp_path / "data.csv", tmp_path / "out.csv")
    assert mode(tmp_path / "out.csv") == 0o600
    assert (tmp_path / "out.csv").read_text() == "risk\n0.25\n"


def test_the_folder_of_a_run_is_its_owners_alone(tmp_path: Path) -> None:
    study = confrere.Study(data=confrere.Data(bundled="thyroid"), rounds=1, strategy="local")
    confrere.simulate(study, out=tmp_path / "runs" / "one")
    assert mode(tmp_path / "runs" / "one") == 0o700


def test_the_files_of_a_run_are_their_owners_alone_in_an_open_folder_too(tmp_path: Path) -> None:
    study = confrere.Study(data=confrere.Data(bundled="thyroid"), rounds=1, strategy="local")
    tmp_path.chmod(0o755)
    confrere.simulate(study, out=tmp_path)
    modes = {str(p.relative_to(tmp_path)): mode(p) for p in tmp_path.rglob("*")}
    assert {"journal.jsonl", "predictions.npz", "result.json", "checkpoints"} <= modes.keys()
    assert {name: f"{m:o}" for name, m in modes.items() if m & 0o077} == {}


def test_a_node_refuses_an_open_folder_and_says_how_to_close_it(tmp_path: Path) -> None:
    async def story() -> None:
        place = settings(tmp_path)["site0"]
        Node(place, connect=Network().connect).close()
        assert mode(place.home) == 0o700
        os.chmod(place.home, 0o750)
        with pytest.raises(CheckpointError, match=f"chmod 700 {place.home}"):
            Node(place, connect=Network().connect)

    asyncio.run(story())


def test_the_control_socket_is_its_owners_and_the_umask_stays(tmp_path: Path) -> None:
    async def story() -> None:
        async with Control(tmp_path, lambda what: None):  # type: ignore[arg-type, return-value]
            assert mode(tmp_path / SOCKET) == 0o600
            assert os.umask(0) == 0

    asyncio.run(story())

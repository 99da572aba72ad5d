"""The cache of features: whole after a kill, mended after damage, for its owner only."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from confrere.core.errors import DataError
from confrere.data.encode.feature_cache import FeatureCache, features_folder
from confrere.data.encode.frozen_encoder import Encoder, FrozenEncoder
from confrere.data.encode.public_features import GROUP, encode_pictures

IDENTITY = "f" * 64
WIDTH = 5


def cache(folder: Path) -> FeatureCache:
    return FeatureCache(folder / "features", IDENTITY, WIDTH)


def entries(count: int, start: int = 0) -> dict[bytes, np.ndarray]:
    rng = np.random.default_rng(start)
    return {f"{start + n:016d}".encode(): rng.normal(size=WIDTH).astype(np.float32) for n in range(count)}


def same(found: dict[bytes, np.ndarray], wanted: dict[bytes, np.ndarray]) -> bool:
    return found.keys() == wanted.keys() and all(np.array_equal(found[k], wanted[k]) for k in wanted)


class Counting:
    """Counts the pictures that it encodes."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, pictures: Tensor) -> Tensor:
        self.count += 1
        return torch.stack([(pictures * k).sin().mean((1, 2, 3)) for k in range(1, WIDTH + 1)], 1)


def encoder(run: Counting) -> FrozenEncoder:
    return FrozenEncoder(Encoder(name="efficientnet-lite0"), 1, None, WIDTH, run)


def pictures(count: int) -> Tensor:
    return torch.rand(count, 1, 8, 8, generator=torch.Generator().manual_seed(1))


def test_what_was_written_is_read_by_the_next_process(tmp_path: Path) -> None:
    first = cache(tmp_path)
    first.write(entries(1200))
    first.close()
    again = cache(tmp_path)
    assert same(again.read([*entries(1200), b"unknown"]), entries(1200))


def test_a_damaged_entry_counts_as_missing_and_is_computed_again(tmp_path: Path) -> None:
    run, images = Counting(), pictures(10)
    kept = cache(tmp_path)
    (before,) = encode_pictures([images], encoder(run), kept)
    kept.close()
    with sqlite3.connect(kept.path) as database:
        rows = database.execute("SELECT key, numbers FROM features ORDER BY key").fetchall()
        flipped = bytes([rows[0][1][0] ^ 1]) + rows[0][1][1:]
        database.execute("UPDATE features SET numbers = ? WHERE key = ?", (flipped, rows[0][0]))
        database.execute("UPDATE features SET numbers = ? WHERE key = ?", (rows[1][1][:-1], rows[1][0]))
        database.execute("UPDATE features SET numbers = 7 WHERE key = ?", (rows[2][0],))
        # the features of one picture under the key of another
        database.execute("UPDATE features SET numbers = ? WHERE key = ?", (rows[4][1], rows[3][0]))
    (after,) = encode_pictures([images], encoder(run), cache(tmp_path))
    assert torch.equal(before, after)
    assert run.count == 10 + 4
    (third,) = encode_pictures([images], encoder(run), cache(tmp_path))
    assert torch.equal(before, third)
    assert run.count == 14


@pytest.mark.parametrize("damage", ["rubbish", "truncated", "zeros inside", "empty"])
def test_a_damaged_file_is_replaced(damage: str, tmp_path: Path) -> None:
    run, images = Counting(), pictures(300)
    kept = cache(tmp_path)
    (before,) = encode_pictures([images], encoder(run), kept)
    kept.close()
    content = kept.path.read_bytes()
    kept.path.write_bytes({
        "rubbish": b"no database at all" * 500,
        "truncated": content[: len(content) // 2],
        "zeros inside": content[:4096] + bytes(len(content) - 4096),
        "empty": b"",
    }[damage])  # fmt: skip
    (after,) = encode_pictures([images], encoder(run), cache(tmp_path))
    assert torch.equal(before, after)
    assert run.count <= 600
    (third,) = encode_pictures([images], encoder(run), cache(tmp_path))
    assert torch.equal(before, third)


def test_damage_that_is_found_after_the_file_was_opened_loses_entries_and_nothing_else(
    tmp_path: Path,
) -> None:
    kept = cache(tmp_path)
    kept.write(entries(2000))
    kept.close()
    content = kept.path.read_bytes()
    with kept.path.open("r+b") as file:
        file.seek(2 * 4096)
        file.write(bytes(255 for _ in range(len(content) - 2 * 4096)))
    again = cache(tmp_path)
    found = again.read(list(entries(2000)))
    assert len(found) < 2000
    assert same(found, {k: entries(2000)[k] for k in found})
    again.write(entries(10, start=5000))
    again.close()
    assert same(cache(tmp_path).read(list(entries(10, start=5000))), entries(10, start=5000))


KILLED = """
import sys, time
from pathlib import Path
import torch
sys.path.insert(0, {root!r})
from tests.unit.data.test_feature_cache import cache, encoder, pictures, Counting
from confrere.data.encode.public_features import encode_pictures

class Slow(Counting):
    def __call__(self, images):
        time.sleep(0.002)
        return super().__call__(images)

torch.set_num_threads(1)
encode_pictures([pictures(2000)], encoder(Slow()), cache(Path({folder!r})), lambda done, all: print(done, flush=True))
"""


def test_a_killed_process_loses_at_most_the_last_group(tmp_path: Path) -> None:
    root = str(Path(__file__).parents[3])
    code = KILLED.format(root=root, folder=str(tmp_path))
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    told = [int(process.stdout.readline()) for _ in range(3)]
    time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert told == [GROUP, 2 * GROUP, 3 * GROUP]
    run = Counting()
    (found,) = encode_pictures([pictures(2000)], encoder(run), cache(tmp_path))
    assert 0 < run.count <= 2000 - 3 * GROUP
    (fresh,) = encode_pictures([pictures(2000)], encoder(Counting()))
    assert torch.equal(found, fresh)


def test_two_processes_do_not_compute_the_same_features(tmp_path: Path) -> None:
    root = str(Path(__file__).parents[3])
    code = KILLED.format(root=root, folder=str(tmp_path)).replace("pictures(2000)", "pictures(400)")
    both = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]
    told = [process.communicate()[0].split() for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert sorted(told) == [[], ["128", "256", "384", "400"]]


def test_a_folder_that_others_can_read_is_refused(tmp_path: Path) -> None:
    cache(tmp_path).close()
    (tmp_path / "features").chmod(0o755)
    with pytest.raises(DataError, match="is open to others than its owner"):
        cache(tmp_path)


def test_a_folder_that_cannot_be_made_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "features").write_text("a file")
    with pytest.raises(DataError, match="cannot be made: Not a directory; set CONFRERE_CACHE"):
        cache(tmp_path)


def test_the_folder_follows_the_cache_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONFRERE_CACHE", str(tmp_path / "own"))
    assert features_folder() == tmp_path / "own" / "features"
    monkeypatch.delenv("CONFRERE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert features_folder() == tmp_path / "xdg" / "confrere" / "features"

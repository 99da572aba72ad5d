"""The declarations of the bundled data sets, read from sets.toml."""

from __future__ import annotations

import difflib
import importlib.util
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from importlib import resources
from pathlib import Path, PurePosixPath
from typing import Any

import pandas as pd

from confrere.core.errors import DataError, StudyError
from confrere.data.bundled.fetch import PackageFile, Recipe, fetched, is_fetched
from confrere.data.read.sources import read
from confrere.data.records import Card
from confrere.data.reference_values import measurements
from confrere.data.schema import Schema, plain

CARD = ("summary", "source", "licence", "size", "sites", "task")
REGISTRY = {"pip": "PyPI", "npm": "npm", "apt": "Debian"}


@dataclass(frozen=True)
class InstalledFile:
    """A data file of a package that pip installs; the package is located, not imported."""

    package: str
    file: str
    install: str
    """What to pass to `pip install` if the package is missing."""

    @property
    def folder(self) -> Path | None:
        spec = importlib.util.find_spec(self.package)
        locations = spec.submodule_search_locations if spec else None
        return Path(next(iter(locations))) if locations else None


@dataclass(frozen=True)
class BundledSet:
    """One data set: its card, where its files come from, what its columns mean, and how it becomes sites."""

    card: Card
    recipe: Recipe | None = None
    installed: InstalledFile | None = None
    table: Mapping[str, Any] = field(default_factory=dict)
    """The schema as it is written in sets.toml."""
    units: Mapping[str, str] = field(default_factory=dict)
    """The units of the file, where they differ from the schema."""
    least: int = 0
    """Sites with fewer records are left out, unless an option says otherwise."""
    cut: Mapping[str, Any] = field(default_factory=dict)
    """The default partition into sites, for a set that has none."""
    classes: tuple[str, ...] = ()
    """The classes of a set of pictures."""

    @property
    def name(self) -> str:
        return self.card.name

    @property
    def here(self) -> bool:
        """Whether the set can be opened without fetching or installing anything."""
        if self.recipe is not None:
            return is_fetched(self.recipe)
        return self.installed is not None and self.installed.folder is not None

    @cached_property
    def schema(self) -> Schema:
        columns: dict[str, Any] = {}
        for row in self.table["columns"]:
            stated = {k: v for k, v in row.items() if k not in ("name", "names", "measurement")}
            if "measurement" in row:
                stated = plain(measurements()[row["measurement"]].column(row["name"])) | stated
            columns |= dict.fromkeys(row.get("names", [row.get("name")]), stated)
        return Schema.from_dict({**self.table, "columns": columns}, f"sets.toml: {self.name}")

    def folder(self) -> Path:
        """The cache folder of a set that was fetched."""
        if self.recipe is None:
            raise DataError(f"{self.name}: is not a set that is fetched")
        return fetched(self.recipe)

    def file(self) -> Path:
        """The one file of a set that is a table."""
        if self.installed is None:
            return self.folder() / "table.csv"
        folder = self.installed.folder
        if folder is None:
            raise DataError(
                f"{self.name}: is a file of {self.installed.package}, which is not installed: "
                f'pip install "{self.installed.install}"'
            )
        path = folder / self.installed.file
        if not path.is_file():
            raise DataError(f"{self.name}: the installed {self.installed.package} has no {path.name}")
        return path

    def frame(self) -> pd.DataFrame:
        """The table of the set, unchanged."""
        return read(self.file())


@cache
def sets() -> dict[str, BundledSet]:
    """All bundled sets by name, in the order in which they are listed."""
    reached = _packaged("baselines.toml")
    return {name: _set(name, row, reached.get(name, {})) for name, row in _packaged("sets.toml").items()}


def known(name: str) -> BundledSet:
    """The set of this name; an unknown one is a StudyError that names the nearest."""
    if name not in sets():
        near = difflib.get_close_matches(name, sets(), n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(sets())}"
        raise StudyError(f"there is no bundled data set {name!r}; {hint}")
    return sets()[name]


def _packaged(file: str) -> dict[str, Any]:
    return tomllib.loads(resources.files(__package__).joinpath(file).read_text(encoding="utf-8"))


def _set(name: str, row: Mapping[str, Any], reached: Mapping[str, Any]) -> BundledSet:
    rest = dict(row)
    recipe, table = _recipe(name, rest), rest.pop("schema", {})
    installed = InstalledFile(**rest.pop("installed")) if "installed" in rest else None
    facts = {key: rest.pop(key) for key in CARD}
    card = Card(
        name,
        **facts,
        reach=reached.get("sentence", "not measured"),
        caveats=tuple(rest.pop("caveats", ())),
        fetched=recipe is not None,
    )
    return BundledSet(card, recipe, installed, table, classes=tuple(rest.pop("classes", ())), **rest)


def _recipe(name: str, rest: dict[str, Any]) -> Recipe | None:
    """Take `fetch` and `files` out of a declaration; the card's source says where they come from."""
    if "fetch" not in rest:
        return None
    fetch, files = {"version": "", "part": "", **rest.pop("fetch")}, rest.pop("files")
    part = fetch.pop("part")
    recipe = Recipe(
        name, files=tuple(_package_file(path, sha, len(files)) for path, sha in files.items()), **fetch
    )
    words = (REGISTRY[recipe.client], recipe.package, recipe.version, f"({part})" if part else "")
    rest["source"] = f"{' '.join(w for w in words if w)}, through `confrere datasets fetch {name}`"
    return recipe


def _package_file(path: str, sha256: str, files: int) -> PackageFile:
    """A set of one file is a table; several files keep their names, unpacked."""
    packed = path.endswith(".gz")
    becomes = PurePosixPath(path.removesuffix(".gz")).name if files > 1 else "table.csv"
    pickled = path.endswith((".pickle", ".pkl.compress"))
    return PackageFile(path, sha256, becomes, "gunzip" if packed else "pickle" if pickled else "copy")

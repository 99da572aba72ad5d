"""The generated reference leaves nothing out."""

from __future__ import annotations

import dataclasses
import importlib.util
import inspect
import json
import re
import typing
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from confrere import api
from confrere.data.schema import Schema
from confrere.study import SiteConfig, Study

ROOT = Path(__file__).parents[2]


def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("reference_pages", ROOT / "scripts" / "reference_pages.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


PAGES = generator()


def tables(kind: type) -> Iterator[type]:
    """A dataclass and all dataclasses inside it."""
    yield kind
    for hint in typing.get_type_hints(kind).values():
        part = PAGES.part_of(hint)
        if part is not None:
            yield from tables(part)


KINDS = sorted({k for top in (Study, SiteConfig, Schema) for k in tables(top)}, key=lambda k: k.__name__)


@pytest.mark.parametrize("kind", KINDS, ids=lambda k: k.__name__)
def test_every_key_of_a_study_a_site_and_a_schema_is_described(kind: type) -> None:
    described = PAGES.descriptions(kind)
    assert inspect.getdoc(kind)
    assert {f.name for f in dataclasses.fields(kind)} <= set(described), "put a string beneath the field"


def test_a_key_without_a_description_is_noticed() -> None:
    assert set(PAGES.descriptions(Half)) == {"told"}


@dataclasses.dataclass
class Half:
    told: int = 0
    """What it does."""
    untold: int = 0


def test_every_key_is_on_its_page() -> None:
    text = PAGES.study_page() + PAGES.site_page() + PAGES.schema_page()
    for kind in KINDS:
        for field in dataclasses.fields(kind):
            assert f"| `{field.name}` |" in text, (kind, field.name)


def test_every_command_and_every_visible_option_is_on_the_page() -> None:
    import typer.main

    from confrere.cli import add_commands, app

    add_commands()
    text = PAGES.commands_page()
    top: Any = typer.main.get_command(app)
    for name, command in top.commands.items():
        for full, one in [
            (name, command),
            *((f"{name} {s}", c) for s, c in getattr(command, "commands", {}).items()),
        ]:
            assert f"## `confrere {full}`" in text
            section = text.split(f"## `confrere {full}`")[1].split("\n## ")[0]
            for option in one.params:
                if not getattr(option, "hidden", False) and option.opts[0].startswith("--"):
                    assert option.opts[0] in section, (full, option.opts)
                    assert option.help, (full, option.opts)


def test_every_public_name_has_a_docstring_and_a_place() -> None:
    text = PAGES.api_page()
    for name in api.__all__:
        if not name.startswith("__"):
            assert f"::: confrere.api.{name}\n" in text
            assert inspect.getdoc(getattr(api, name)), name


def test_every_exit_code_is_on_the_page() -> None:
    from confrere.cli.audit import BROKEN
    from confrere.core import errors

    kinds = [k for k in vars(errors).values() if isinstance(k, type) and issubclass(k, errors.ConfrereError)]
    assert {0, 1, 130, BROKEN, *(k.exit_code for k in kinds)} == set(PAGES.EXIT_CODES)


def test_the_page_of_json_documents_names_every_key_that_is_recorded() -> None:
    text = (ROOT / "docs" / "reference" / "json.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(\w+)", text))
    for path in (ROOT / "tests" / "golden" / "recorded").rglob("*.json"):
        found = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(found, dict) and "sites" in found and "mean" in found:
            assert set(found) <= named, (path.name, set(found) - named)


def test_the_page_of_files_names_everything_in_a_run_folder(tmp_path: Path, small_run: Path) -> None:
    text = (ROOT / "docs" / "reference" / "files.md").read_text(encoding="utf-8")
    for path in small_run.rglob("*"):
        if path.is_file():
            pattern = re.sub(r"sites/[^/]+/", "sites/NAME/", path.relative_to(small_run).as_posix())
            pattern = re.sub(r"\d+", "N", pattern)
            assert f"`{pattern}`" in text or f"`{path.name}`" in text, pattern


@pytest.fixture(scope="module")
def small_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import confrere

    folder = tmp_path_factory.mktemp("runs") / "small"
    study = confrere.load(ROOT / "studies" / "quickstart.toml", ["rounds=2", "training.tune=false"])
    confrere.simulate(study, out=folder).report()
    return folder

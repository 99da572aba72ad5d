"""Registries: a file in the right folder is found, and an unknown name is refused with the known ones."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from confrere.core.errors import StudyError
from confrere.core.registry import Registry

FILE = """
from {package} import things
things.register("{name}")({value})
"""


def test_a_file_in_the_folder_is_found_without_being_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "some_things"
    folder.mkdir()
    (folder / "__init__.py").write_text(
        "from confrere.core.registry import Registry\n"
        "things: Registry[object] = Registry('thing', package='some_things')\n"
    )
    for value, name in enumerate(("beta", "alpha")):
        (folder / f"{name}.py").write_text(FILE.format(package="some_things", name=name, value=value))
    monkeypatch.syspath_prepend(tmp_path)
    try:
        from some_things import things  # type: ignore[import-not-found]

        assert things.names() == ["alpha", "beta"]
        assert things.values() == [1, 0]
    finally:
        for module in [m for m in sys.modules if m.startswith("some_things")]:
            del sys.modules[module]


def test_every_registry_of_the_package_finds_its_files() -> None:
    from confrere.core.registry import strategies
    from confrere.data.encode.image_features import features
    from confrere.data.tasks import task_kinds
    from confrere.exchange.attacks import attacks
    from confrere.exchange.combine import combiners
    from confrere.exchange.compression import compressions
    from confrere.exchange.topology import topologies
    from confrere.learning.networks.architectures import networks
    from confrere.privacy.clipping import clippings

    for registry in (
        strategies, features, task_kinds, attacks, combiners, compressions, topologies, networks, clippings,
    ):  # fmt: skip
        assert registry.package is not None, registry.kind
        assert registry.group is not None, registry.kind
        assert registry.names(), registry.kind


def test_two_things_of_one_name_are_refused() -> None:
    table: Registry[type] = Registry("thing")
    table.register("one")(int)
    table.register("one")(int)
    with pytest.raises(StudyError, match='two thing definitions are called "one"'):
        table.register("one")(float)


def test_an_unknown_name_is_refused_with_the_nearest_and_all_known_ones() -> None:
    table: Registry[type] = Registry("thing")
    table.register("mean")(int)
    table.register("median")(float)
    with pytest.raises(
        StudyError, match=r'unknown thing "maen" \(did you mean "mean"\?\); known: mean, median'
    ):
        table["maen"]

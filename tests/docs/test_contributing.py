"""The table «Add one of the others» in CONTRIBUTING.md is true, and the walk in docs/architecture.md can be walked.

`tests/unit/test_add_one_of_each.py` follows the rows of metric, combiner, clipping, task kind, data source and report
section; the rows of topology, compression, attack and network are followed here, that of column kinds in
`tests/unit/data/test_column_kinds.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from torch import nn

import confrere
from confrere.core.registry import Registry
from confrere.exchange.attacks import SignFlip, attack, attacks
from confrere.exchange.compression import HalfPrecision, compression, compressions
from confrere.exchange.topology import Ring, topologies, topology
from confrere.learning.networks.architectures import flat, network, networks
from tests.conftest import arrays

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
ROWS = re.findall(
    r"^\| ([a-z ]+) \| `@(\w+)\([^`]*`, ([\w/.]+) \| (.+?) \| (.+?) \| ([\w/.]+) \|$", TEXT, re.MULTILINE
)


def test_the_table_has_a_row_for_each() -> None:
    ours = "metric combiner topology compression attack clipping network task_kind column_kind data_source"
    ours += " report_section"
    assert [decorator for _, decorator, *_ in ROWS] == ours.split()


def test_the_page_of_the_architecture_names_files_that_exist() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    named = re.findall(r"`(\w+/[\w/]+\.py)`", text)
    assert len(named) > 12
    for name in named:
        assert (ROOT / "src" / "confrere" / name).exists() or (ROOT / name).exists(), name


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_a_row_names_a_decorator_a_folder_a_group_and_a_test_that_exist(row: tuple[str, ...]) -> None:
    _, decorator, module, folder, group, test = row
    found = import_module("confrere." + module.removesuffix(".py").strip("/").replace("/", "."))
    assert callable(getattr(found, decorator))
    assert (ROOT / test).exists()
    if folder != "the same file":
        assert (ROOT / "src" / "confrere" / folder).is_dir()
        registries = [v for v in vars(found).values() if isinstance(v, Registry)]
        assert group.strip("`") in {r.group for r in registries}


@pytest.fixture
def one_of_each() -> Iterator[list[str]]:
    used: list[str] = []

    @topology("one-topology")
    @dataclass(frozen=True)
    class OneTopology(Ring):
        def column(self, *args: Any) -> Any:
            used.append("topology")
            return super().column(*args)

    @compression("one-compression")
    @dataclass(frozen=True)
    class OneCompression(HalfPrecision):
        def press(self, *args: Any) -> Any:
            used.append("compression")
            return super().press(*args)

    @attack("one-attack")
    @dataclass(frozen=True)
    class OneAttack(SignFlip):
        def forge(self, *args: Any) -> Any:
            used.append("attack")
            return super().forge(*args)

    @network("one-network")
    def one_network(shape: tuple[int, ...], outputs: int, width: int = 3) -> nn.Module:
        used.append(f"network of width {width}")
        return nn.Sequential(
            nn.Flatten(), nn.Linear(flat(shape), width), nn.Tanh(), nn.Linear(width, outputs)
        )

    yield used
    for registry, name in (
        (topologies, "topology"),
        (compressions, "compression"),
        (attacks, "attack"),
        (networks, "network"),
    ):
        registry.remove(f"one-{name}")


def test_a_study_uses_a_topology_a_compression_an_attack_and_a_network_of_ones_own(
    one_of_each: list[str],
) -> None:
    study = confrere.Study(
        name="one-of-each",
        rounds=2,
        strategy="avgpush",
        topology="one-topology",
        compression="one-compression",
        attack={"name": "one-attack", "attackers": 1},
        models=confrere.Models(proxy={"name": "one-network", "width": 4}),
    )
    confrere.simulate(study, arrays())
    assert set(one_of_each) == {"topology", "compression", "attack", "network of width 4"}

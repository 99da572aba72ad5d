"""The table «Add one of the others» in CONTRIBUTING.md is true, and the walk in docs/architecture.md can be walked.

`tests/unit/test_add_one_of_each.py` follows the rows of metric, combiner, clipping, task kind, data source and report
section; the rows of topology, compression, attack and network are followed here, that of column kinds in
`tests/unit/data/test_column_kinds.py`.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

import confrere
from confrere.core.custody import Custody, public
from confrere.core.metrics import Predictions
from confrere.core.model import Model
from confrere.core.params import Params
from confrere.core.registry import Registry, names_in_source
from confrere.data.column_kinds import Column
from confrere.data.column_kinds.numbers import NumberColumn
from confrere.data.encode.frozen_encoder import NamedEncoder
from confrere.data.tasks.classes import Binary
from confrere.exchange.attacks import SignFlip, attack, attacks
from confrere.exchange.compression import HalfPrecision, compression, compressions
from confrere.exchange.topology import Ring, topologies, topology
from confrere.learning.networks.architectures import flat, network, networks
from confrere.privacy.clipping import Clipping
from confrere.report.page.markup import section, tag
from tests.conftest import arrays

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
ROWS = re.findall(
    r"^\| ([a-z ]+) \| `@(\w+)\([^`]*`, ([\w/.]+) \| (.+?) \| (.+?) \| ([\w/.]+) \|$", TEXT, re.MULTILINE
)


def test_the_table_has_a_row_for_each() -> None:
    ours = "metric combiner topology compression attack clipping network task_kind column_kind data_source"
    ours += " encoder report_section"
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
    assert folder == "the same file" or (ROOT / "src" / "confrere" / folder).is_dir()
    registries = [v for v in vars(found).values() if isinstance(v, Registry)]
    assert group.strip("`") in {r.group for r in registries}


def example(text: str, decorator: str) -> str:
    """The indented block of a docstring that begins with a decorator."""
    block = re.search(rf"^    @{decorator}\(.*\n(?:(?:    .*)?\n)*", text + "\n", re.MULTILINE)
    return textwrap.dedent(block[0]) if block else ""


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_the_example_in_the_docstring_of_a_module_runs(row: tuple[str, ...]) -> None:
    _, decorator, module, *_ = row
    found = import_module("confrere." + module.removesuffix(".py").strip("/").replace("/", "."))
    (registry,) = [v for v in vars(found).values() if isinstance(v, Registry) and v.group in row[4]]
    code = example(found.__doc__ or "", decorator)
    assert code, f"the docstring of {module} shows no example of @{decorator}"
    before = set(registry.names())
    names = {
        "Binary": Binary, "NamedEncoder": NamedEncoder, "NumberColumn": NumberColumn, "public": public,
        "section": section, "tag": tag,
        "binary_cross_entropy_with_logits": binary_cross_entropy_with_logits,
    }  # fmt: skip
    space = {**vars(found), **names, "__name__": "an_example"}
    exec(compile(code, module, "exec", dont_inherit=True), space)
    (added,) = set(registry.names()) - before
    try:
        thing: Any = registry[added]
        if isinstance(thing, type):
            thing = thing()
        uses = USES.get(decorator)
        assert uses is None or uses(thing)
    finally:
        registry.remove(added)


PREDICTIONS = Predictions(np.zeros((4, 1)), np.array([0, 1, 0, 1]))
PARAMS = Params({"w": torch.tensor([0.5, 0.25])})
SHAPES: Any = PARAMS.shapes
MODEL = Model(PARAMS, "linear", Custody.PUBLIC)
USES: dict[str, Any] = {
    "metric": lambda m: m.compute(PREDICTIONS, np.ones((1, 4))) == 0.5,
    "combiner": lambda c: c(MODEL, public(1.0), []).params["w"].tolist() == [0.5, 0.25],
    "topology": lambda t: t.column(0, ["a", "b", "c"], "a") == {"a": 1 / 3, "b": 1 / 3, "c": 1 / 3},
    "compression": lambda c: c.press(torch.tensor([0.5, 0.25]), PARAMS, torch.zeros(2), None)["w"].tolist() == [0.5, 0.25],
    "attack": lambda a: a.forge(torch.ones(2), torch.zeros(2), None, torch.Generator()).tolist() == [0, 0],
    "clipping": lambda c: isinstance(c, Clipping) and (c.bound, c.noise_std(2.0, 1.0, {})) == (0.5, 1.0),
    "network": lambda n: n((3,), 1)(torch.zeros(2, 3)).shape == (2, 1),
    "task_kind": lambda k: k.loss(torch.zeros(2, 1), torch.tensor([0, 1])).tolist() == pytest.approx([0.693, 3.466], abs=1e-3),
    "column_kind": lambda k: k.problems(Column("x", kind="number", range=(0, 1))) == ["a percentage has range = [0, 100]"],
    "report_section": lambda s: "north, south" in str(s.make(SimpleNamespace(sites=["north", "south"]))),
}  # fmt: skip
"""What each example must do when it is used."""


def test_names_are_read_from_source_as_they_are_registered() -> None:
    assert names_in_source("confrere.exchange", "attack") == attacks.names()
    assert names_in_source("confrere.exchange", "topology") == topologies.names()


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

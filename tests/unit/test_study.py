"""A study: strict TOML in, the same TOML out, and a hash that says whether two sites mean the same."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from confrere.core.errors import StudyError
from confrere.exchange.topology import Exponential, Star
from confrere.strategies.fedprox import FedProx
from confrere.study import Models, Privacy, Study, Training, load, merged, named, parse
from confrere.study.churn import Churn

FULL = """
name = "full"
title = "Everything at once"
rounds = 7
seed = 3
patience = 5.5
[strategy]
name = "fedprox"
pull = 1
[topology]
name = "star"
leader = "a"
[models]
private = { name = "mlp", hidden = [8, 4] }
[models.sites.a]
private = "linear"
[training]
learning_rate = 1
[training.protected]
optimiser = "sgd"
[privacy]
epsilon = 3
delta = 1e-6
clipping = { name = "flat", norm = 0.5 }
[churn]
absent = { a = [1, 2] }
probability = 0.1
[sites.a]
data = "a.csv"
declared = 100
[sites.b]
data = "/somewhere/b.csv"
[schema.label]
column = "y"
classes = ["no", "yes"]
[schema.columns.age]
range = [0, 120]
[variants.star]
topology = { name = "star", leader = "b" }
"""


def written(folder: Path, text: str = FULL) -> Path:
    path = folder / "study.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_what_is_written_is_what_is_meant(tmp_path: Path) -> None:
    study = load(written(tmp_path))
    assert study.build_strategy() == FedProx(pull=1.0)
    assert study.graph() == Star("a")
    assert study.privacy == Privacy(3.0, 1e-6, clipping={"name": "flat", "norm": 0.5})
    assert study.churn == Churn(absent={"a": [1, 2]}, probability=0.1)
    assert study.models.of("a", "private") == "linear"
    assert study.models.of("b", "private") == {"name": "mlp", "hidden": [8, 4]}
    assert study.models.of("a", "proxy") == study.models.of("b", "proxy") == "linear"


def test_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    study = load(written(tmp_path))
    assert study.sites["a"].data == str(tmp_path / "a.csv")
    assert study.sites["b"].data == "/somewhere/b.csv"


def test_a_study_without_a_name_is_called_after_its_file(tmp_path: Path) -> None:
    assert load(written(tmp_path, "rounds = 1")).name == "study"
    assert load(written(tmp_path)).name == "full"


def test_what_is_written_back_means_the_same(tmp_path: Path) -> None:
    study = load(written(tmp_path))
    again = parse(tomllib.loads(study.to_toml()))
    assert again == study
    assert again.hash() == study.hash()


@pytest.mark.parametrize(
    "change",
    [
        {"rounds": 8},
        {"strategy": "fedavg"},
        {"topology": "ring"},
        {"privacy": None},
        {"models": Models(proxy="mlp")},
        {"churn": Churn()},
        {"training": Training(epochs=2)},
    ],
)
def test_the_hash_changes_with_what_sites_must_agree_on(tmp_path: Path, change: dict[str, Any]) -> None:
    study = load(written(tmp_path))
    assert study.with_(**change).hash() != study.hash()


def test_the_hash_does_not_change_with_seed_title_or_the_order_of_the_file(tmp_path: Path) -> None:
    study = load(written(tmp_path))
    assert replace(study, seed=9, title="x", question="y").hash() == study.hash()
    table = tomllib.loads(FULL)
    turned = dict(reversed(table.items()))
    turned["sites"] = dict(reversed(table["sites"].items()))
    assert parse(turned).hash() == parse(table).hash()


def test_a_module_of_ones_own_is_part_of_the_hash_by_its_shape() -> None:
    one, same, other = (
        Study(models=Models(proxy=make))
        for make in (lambda: nn.Linear(2, 1), lambda: nn.Linear(2, 1), lambda: nn.Linear(3, 1))
    )
    assert one.hash() == same.hash() != other.hash()


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (["rounds=3"], {"rounds": 3}),
        (["strategy=fedavg"], {"strategy": "fedavg"}),
        (["strategy.pull=0.5"], {"strategy": {"name": "fedprox", "pull": 0.5}}),
        (["privacy.epsilon=1", "privacy.delta=1e-7"], {"privacy": {"epsilon": 1.0, "delta": 1e-7}}),
        (["models.proxy={name='mlp', hidden=[2]}"], {"models": {"proxy": {"name": "mlp", "hidden": [2]}}}),
        (["churn.leave={a=4}"], {"churn": {"leave": {"a": 4}}}),
        (["title=two words"], {"title": "two words"}),
    ],
)
def test_set_writes_one_key(tmp_path: Path, changes: list[str], expected: dict[str, Any]) -> None:
    found = load(written(tmp_path), changes).as_dict()
    before = load(written(tmp_path)).as_dict()
    for key, value in expected.items():
        if isinstance(value, dict) and key != "strategy":
            assert {k: found[key][k] for k in value} == value
            assert {k: v for k, v in found[key].items() if k not in value} == {
                k: v for k, v in before[key].items() if k not in value
            }
        else:
            assert found[key] == value


def test_a_name_may_come_with_options_or_alone() -> None:
    assert named("ring", "topology") == ("ring", {})
    assert named({"name": "ring", "keep": 0.5}, "topology") == ("ring", {"keep": 0.5})
    with pytest.raises(StudyError, match="the name is missing"):
        named({"keep": 0.5}, "topology")


def test_the_strategys_own_graph_is_used_unless_the_study_names_one() -> None:
    assert Study(strategy="avgpush").graph() == Exponential()
    assert Study(strategy="avgpush", topology={"name": "exponential", "keep": 0.0}).graph() == Exponential(
        0.0
    )


def test_variants_merge_tables_and_replace_the_rest(tmp_path: Path) -> None:
    study = load(written(tmp_path))
    found = merged(study, {"privacy": {"epsilon": 1.0}, "strategy": {"name": "fedavg"}, "rounds": 2}, "here")
    assert (found.rounds, found.strategy) == (2, {"name": "fedavg"})
    assert found.privacy == replace(study.privacy, epsilon=1.0)  # type: ignore[type-var]
    with pytest.raises(StudyError, match=r'here: unknown key "privacy\.eps"'):
        merged(study, {"privacy": {"eps": 1.0}}, "here")
    own = Study(models=Models(proxy=lambda: nn.Linear(2, 1)))
    assert merged(own, {"rounds": 3}, "here").models == own.models


def test_the_studies_that_come_along_are_in_order() -> None:
    folder = Path(__file__).parents[2] / "studies"
    found = [load(path) for path in sorted(folder.glob("*.toml"))]
    assert "quickstart" in [s.name for s in found]

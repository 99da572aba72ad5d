"""Rehearsal sites cut from a study's own records, whatever they are, by every way that there is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from confrere.core.errors import DataError, StudyError
from confrere.data.split.partitions import PARTITIONS
from confrere.site.open_sites import open_sites
from confrere.study import Data, Study, load

SCHEMA = """
name = "own"
[data]
file = "all.csv"
one_class = "allow"
partition = {partition}
[schema.label]
column = "ill"
[schema.columns.age]
range = [0, 100]
[schema.columns.weight]
range = [20, 180]
[schema.columns.sex]
kind = "category"
categories = ["f", "m"]
"""

WAYS: dict[str, str] = {
    "iid": "{ name = 'iid', sites = 4 }",
    "p_major": "{ name = 'p_major', sites = 2, p = 0.7 }",
    "dirichlet": "{ name = 'dirichlet', sites = 3, concentration = 0.5 }",
    "label": "{ name = 'label', sites = 2, classes_per_site = 1 }",
    "feature": "{ name = 'feature', sites = 3, column = 'age', strength = 1.0 }",
    "size": "{ name = 'size', sites = 3, ratio = 3.0 }",
    "missing": "{ name = 'missing', sites = 3, columns = ['age', 'weight', 'sex'], share = 0.5 }",
    "inequality": "{ name = 'inequality', sites = 3, degree = 0.8 }",
    "given": "{ name = 'given', sites = 2, counts = [[60, 20], [20, 60]] }",
    "column": "{ name = 'column', column = 'age', edges = [30, 60] }",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"age": rng.integers(1, 99, 300), "weight": rng.integers(40, 120, 300)})
    frame["sex"] = np.where(rng.random(300) < 0.5, "f", "m")
    frame["ill"] = np.where(rng.random(300) < 0.4, "yes", "no")
    frame.to_csv(tmp_path / "all.csv", index=False)
    return tmp_path


def opened(folder: Path, partition: str, seed: int = 0) -> Any:
    path = folder / "study.toml"
    path.write_text(SCHEMA.replace("{partition}", partition))
    return open_sites(load(path, [f"seed={seed}"]))


def test_every_way_is_tried_on_ones_own_file() -> None:
    assert set(WAYS) == {*PARTITIONS, "column"}


@pytest.mark.parametrize("way", WAYS)
def test_ones_own_file_is_cut_into_sites(folder: Path, way: str) -> None:
    found = opened(folder, WAYS[way])
    sizes = {n: len(s.all) for n, s in found.sites.items()}
    assert len(sizes) >= 2
    assert sum(sizes.values()) <= 300
    assert any("a rehearsal" in note for note in found.notes)
    again, other = opened(folder, WAYS[way]), opened(folder, WAYS[way], seed=1)
    first = next(iter(found.sites))
    assert torch.equal(found.sites[first].train.inputs, again.sites[first].train.inputs)
    assert not torch.equal(found.sites[first].train.inputs, other.sites[first].train.inputs)


def test_the_skew_is_the_one_that_was_asked_for(folder: Path) -> None:
    def ill(site: Any) -> float:
        return float(site.all.targets.float().mean())

    shares = [ill(s) for s in opened(folder, WAYS["p_major"]).sites.values()]
    assert sorted(shares) == pytest.approx([0.3, 0.7], abs=0.05)
    assert sorted(ill(s) for s in opened(folder, WAYS["label"]).sites.values()) == [0, 1]
    ages = [s.all.inputs[:, 0] for s in opened(folder, WAYS["feature"]).sites.values()]
    assert ages[0].max() <= ages[1].min()
    counts = [len(s.all) for s in opened(folder, WAYS["size"]).sites.values()]
    assert counts == pytest.approx([208, 69, 23], abs=1)
    by_age = opened(folder, WAYS["column"]).sites
    assert sorted(by_age) == ["age 30 to 60", "age 60 and above", "age below 30"]
    assert float(by_age["age 30 to 60"].all.inputs[:, 0].min()) == pytest.approx((30 - 50) / 50)
    by_sex = opened(folder, "{ name = 'column', column = 'sex' }").sites
    assert sorted(by_sex) == ["sex=f", "sex=m"]


def test_each_site_lacks_other_values(folder: Path) -> None:
    found = opened(folder, WAYS["missing"])
    gaps = [i for i, n in enumerate(found.task.features) if n.endswith(" missing")]
    table = np.array([s.all.inputs[:, gaps].mean(0).numpy() for s in found.sites.values()])
    assert np.diag(table) == pytest.approx([0.5] * 3, abs=0.15)  # three standard errors
    assert table.sum() == pytest.approx(np.trace(table))


@pytest.mark.parametrize("of", ["label", "feature", "size", "missing"])
def test_inequality_grows_with_its_degree(folder: Path, of: str) -> None:
    def apart(degree: float) -> float:
        sites = opened(folder, f"{{ name = 'inequality', sites = 3, of = '{of}', degree = {degree} }}").sites
        parts = [s.all for s in sites.values()]
        if of == "size":
            return float(np.std([len(p) for p in parts]))
        if of == "label":
            return float(np.std([float(p.targets.float().mean()) for p in parts]))
        column = {"feature": 0, "missing": 1}[of]
        return float(np.std([float(p.inputs[:, column].mean()) for p in parts]))

    assert apart(0.0) < apart(0.4) < apart(0.9)


@pytest.mark.parametrize("task", ["regression", "multilabel"])
def test_numbers_and_labels_can_be_skewed_too(task: str) -> None:
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(400, 3))
    targets = rng.normal(size=400) if task == "regression" else (rng.random((400, 2)) < 0.4).astype(float)
    study = Study(data=Data(partition={"name": "p_major", "sites": 3, "p": 0.8}))
    sites = open_sites(study, {"all": (inputs, targets)}).sites
    means = np.array([s.all.targets.double().reshape(len(s.all), -1).mean(0).numpy() for s in sites.values()])
    assert float(means.std(0).max()) > 0.2


def test_a_bundled_set_with_sites_of_its_own_can_be_cut_anew() -> None:
    study = Study(data=Data(bundled="thyroid", partition={"name": "dirichlet", "sites": 3}))
    assert list(open_sites(study).sites) == ["site1", "site2", "site3"]


@pytest.mark.parametrize(
    ("partition", "says"),
    [
        ("{ name = 'dirichet' }", "known are"),
        ("{ sites = 3 }", "the name is missing"),
        ("{ name = 'iid', concentration = 1 }", "has no option 'concentration'"),
        ("{ name = 'iid', sites = 400 }", "would have no patient"),
        ("{ name = 'iid', sites = 'three' }", "data.partition"),
        ("{ name = 'feature', column = 'agee' }", 'did you mean "age"?'),
        ("{ name = 'column', column = 'agee' }", 'did you mean "age"?'),
        ("{ name = 'column', column = 'age' }", "give edges in order"),
        ("{ name = 'column' }", "needs its column"),
        ("{ name = 'column', column = 'age', sites = 3, p = 1 }", "has no option 'p'"),
        ("{ name = 'iid', columns = ['age'] }", "takes no values away"),
        ("{ name = 'missing', columns = ['agee'] }", "cannot be blanked"),
        ("{ name = 'inequality', of = 'age' }", "label, feature, size or missing"),
        ("{ name = 'inequality', of = 'size', degree = 1 }", "must be below 1"),
        ("{ name = 'inequality', degree = 2 }", "it must be from 0 to 1"),
    ],
)  # fmt: skip
def test_a_wrong_partition_is_refused_in_words(folder: Path, partition: str, says: str) -> None:
    with pytest.raises((StudyError, DataError)) as caught:
        opened(folder, partition)
    assert says in str(caught.value)


def test_one_file_of_one_site_says_how_to_cut_it(folder: Path) -> None:
    path = folder / "study.toml"
    path.write_text(SCHEMA.replace("partition = {partition}\n", ""))
    with pytest.raises(StudyError, match=r'data.partition = \{ name = "iid", sites = 4 \}'):
        open_sites(load(path))
    path.write_text(SCHEMA.replace("{partition}", WAYS["iid"]) + "[sites.a]\ndata = 'all.csv'\n")
    with pytest.raises(StudyError, match="drop one"):
        open_sites(load(path))

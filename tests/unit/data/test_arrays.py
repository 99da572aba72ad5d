"""Arrays by site: what their classes are is stated by the study, or counted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import confrere
from confrere.core.errors import DataError, StudyError
from confrere.data.arrays import of_arrays
from confrere.site.open_sites import open_sites
from confrere.study import Data, Study


def arrays(classes: int = 2, records: int = 40) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    return rng.normal(size=(records, 3)), np.arange(records) % classes


def test_a_study_states_the_classes_so_that_they_do_not_come_from_the_records() -> None:
    study = Study(data=Data(classes=("low", "middle", "high")))
    task = open_sites(study, {"a": arrays(2)}).task
    assert task.classes == ("low", "middle", "high")
    assert task.kind == "multiclass"
    assert open_sites(Study(), {"a": arrays(2)}).task.classes == ("0", "1")


def test_a_class_that_the_study_does_not_name_is_refused() -> None:
    with pytest.raises(DataError, match=r'site "b": there is a class 2, and data.classes names 2'):
        of_arrays({"a": arrays(2), "b": arrays(3)}, classes=("no", "yes"))


def test_classes_of_a_table_are_in_its_schema() -> None:
    with pytest.raises(StudyError, match=r"schema.label.classes"):
        open_sites(Study(data=Data(classes=("a", "b"))), {"a": "a.csv"})


def test_values_have_no_classes() -> None:
    inputs, targets = arrays()
    values = {"a": (inputs, targets.astype(np.float32))}
    assert of_arrays(values).task.kind == "regression"
    with pytest.raises(StudyError, match="not classes"):
        of_arrays(values, classes=("no", "yes"))


def test_a_study_and_the_library_cut_arrays_the_same_way() -> None:
    from confrere.core.seeds import derive

    study = open_sites(Study(seed=5), {"a": arrays()}).sites["a"]
    library = of_arrays({"a": arrays()}, seed=derive(5, "split")).sites["a"]
    assert study.train.inputs.equal(library.train.inputs)


def test_arrays_that_cannot_be_learned_from_are_refused() -> None:
    inputs, targets = arrays()
    for source, match in (
        ((inputs, targets - 1), "negative"),
        ((inputs, np.full(40, np.nan)), "NaN"),
        ((inputs, np.array(["x"] * 40)), "class numbers"),
        ((inputs * np.inf, targets), "infinite"),
        ((inputs[:0], targets[:0]), "no records"),
        ((inputs, targets, np.array([None] * 40, dtype=object)), "no patient id"),
    ):
        with pytest.raises(DataError, match=match):
            of_arrays({"a": source})  # type: ignore[dict-item]


def test_labels_of_zero_and_one_in_several_columns_are_many_labels_whatever_their_type() -> None:
    inputs, _ = arrays()
    labels = np.stack([np.arange(40) % 2, np.arange(40) % 3 == 0], axis=1)
    for given in (labels, labels.astype(bool), labels.astype(np.float64)):
        found = of_arrays({"a": (inputs, given)}, classes=("left", "right"))
        assert (found.task.kind, found.task.classes) == ("multilabel", ("left", "right"))
        assert found.sites["a"].train.targets.dtype == torch.float32
    with pytest.raises(DataError, match="each 0 or 1; there is 2"):
        of_arrays({"a": (inputs, labels * 2)})


def test_a_number_is_scaled_by_its_public_range() -> None:
    inputs, _ = arrays()
    values = np.linspace(20.0, 60.0, 40)
    found = of_arrays({"a": (inputs, values)}, range=(0, 100))
    assert (found.task.centre, found.task.spread) == (50, 50)
    assert float(found.sites["a"].all.targets.max()) == pytest.approx(0.2)
    with pytest.raises(DataError, match=r"the target 20 is not within data.range = \[30, 100\]"):
        of_arrays({"a": (inputs, values)}, range=(30, 100))
    with pytest.raises(StudyError, match="this task is binary"):
        of_arrays({"a": arrays()}, range=(0, 1))


def test_several_arrays_by_name_are_the_branches_of_a_record() -> None:
    inputs, targets = arrays()
    parts = {"history": inputs, "pulse": np.ones((40, 5, 2)), "scan": np.zeros((40, 1, 4, 4))}
    found = of_arrays({"a": (parts, targets), "b": (parts, targets)})
    assert [(b.name, b.start, b.shape, b.kind) for b in found.task.branches] == [
        ("history", 0, (3,), "table"),
        ("pulse", 3, (5, 2), "series"),
        ("scan", 13, (1, 4, 4), "image"),
    ]
    assert found.task.inputs == (29,)
    fewer = {"history": inputs, "pulse": np.ones((39, 5, 2))}
    with pytest.raises(DataError, match="each record needs all branches; there are history 40, pulse 39"):
        of_arrays({"a": (fewer, targets)})
    with pytest.raises(DataError, match=r'site "b": its records have history .* those of "a"'):
        of_arrays({"a": (parts, targets), "b": ({"history": inputs}, targets)})


def test_sequences_of_unequal_length_are_padded_and_marked_and_not_guessed_at() -> None:
    _, targets = arrays()
    ragged = [np.ones((1 + n % 3, 2)) for n in range(40)]
    with pytest.raises(DataError, match=r"confrere.padded\(sequences\)"):
        of_arrays({"a": (ragged, targets)})
    whole = confrere.padded(ragged, steps=4)
    assert whole.shape == (40, 4, 3)
    assert whole[1, :, 2].tolist() == [1, 1, 0, 0]
    assert of_arrays({"a": (whole, targets)}).task.inputs == (4, 3)
    with pytest.raises(DataError, match="has 3 steps, and there is room for 2"):
        confrere.padded(ragged, steps=2)
    with pytest.raises(DataError, match="differ in their values"):
        confrere.padded([np.ones((2, 2)), np.ones((2, 3))])

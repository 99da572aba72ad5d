"""Arrays by site: what their classes are is stated by the study, or counted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from confrere.core.errors import DataError, StudyError
from confrere.data.arrays import of_arrays
from confrere.runtime.records import open_sites
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

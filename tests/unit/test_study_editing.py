"""One key of a study's file is changed, and nothing else."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from confrere.core.errors import StudyError
from confrere.study.editing import with_list, write_list

TEXT = """# My study.
name = "mine"   # a name
rounds = 3
strategy = { name = "fedavg" }

[data]
bundled = "thyroid"  # five sites
partners = "not this one"
"""


def test_comments_and_layout_stay() -> None:
    new = with_list(TEXT, "partners", ["a", "b"], "because")
    assert new.replace('partners = ["a", "b"]  # because\n', "") == TEXT
    assert tomllib.loads(new)["partners"] == ["a", "b"]
    assert tomllib.loads(new)["data"] == tomllib.loads(TEXT)["data"]


def test_an_earlier_choice_is_replaced_even_over_several_lines() -> None:
    old = with_list(TEXT, "partners", ["x"]).replace('["x"]', '[\n  "x",  # [why]\n  "y",\n]')
    assert tomllib.loads(old)["partners"] == ["x", "y"]
    assert with_list(old, "partners", ["a"]) == with_list(TEXT, "partners", ["a"])


@pytest.mark.parametrize(
    "text",
    ["", "rounds = 3", "[data]\nbundled = 'thyroid'\n", "# only words\n", "a = '''\n[no table]\n'''\n"],
)
def test_any_file_can_be_given_a_choice(text: str) -> None:
    new = with_list(text, "partners", ["é", 'say "b"'])
    assert tomllib.loads(new) == {**tomllib.loads(text), "partners": ["é", 'say "b"']}


def test_windows_lines_stay_windows_lines() -> None:
    new = with_list("name = 'a'\r\nrounds = 2\r\n", "partners", ["a"])
    assert new.count("\r\n") == new.count("\n") == 3


def test_a_file_that_is_no_toml_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "study.toml"
    path.write_text("name = \n")
    with pytest.raises(StudyError, match="write it yourself"):
        write_list(path, "partners", ["a"])
    assert path.read_text() == "name = \n"
    assert [p.name for p in tmp_path.iterdir()] == ["study.toml"]

"""A roster and a study's partners name the same sites, or a node does not start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from confrere.core.errors import StudyError
from confrere.node.config import load_study
from tests.conftest import write_study


@pytest.mark.parametrize(
    ("partners", "words"),
    [
        (["site0", "site1"], '"site2" is in the roster and not among'),
        (["site0", "site1", "site2", "site3"], '"site3" is not in the roster and among'),
    ],
)
def test_a_node_refuses_a_roster_that_is_not_the_studys_partners(
    tmp_path: Path, partners: list[str], words: str
) -> None:
    members: dict[str, Any] = dict.fromkeys(["site0", "site1", "site2"])
    path = write_study(tmp_path, f"partners = {partners}".replace("'", '"'))
    with pytest.raises(StudyError, match=words):
        load_study(path, "site0", members)


def test_a_node_takes_a_roster_of_the_partners(tmp_path: Path) -> None:
    members: dict[str, Any] = dict.fromkeys(["site0", "site1", "site2"])
    path = write_study(tmp_path, 'partners = ["site0", "site1", "site2"]')
    assert load_study(path, "site0", members).partners == ["site0", "site1", "site2"]

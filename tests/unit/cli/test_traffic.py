"""`confrere traffic`: what would be sent, as a table, as JSON and as a figure."""

from __future__ import annotations

import pytest

from tests.unit.cli.command import QUICK, Desk


def test_a_study_s_traffic_is_told(desk: Desk) -> None:
    answer = desk.confrere("traffic", desk.study(), "--bandwidth", 10, "--latency", 40, "--sites", "8,1024")
    assert (answer.code, desk.left()) == (0, set())
    said = " ".join(answer.out.split())
    assert "site0" in said
    assert "1,024" in said
    assert "10 Mbit/s and 40 ms" in said
    assert "estimated" in said


def test_machines_get_json_and_people_a_figure(desk: Desk) -> None:
    path = desk.study(QUICK)
    facts = desk.confrere("traffic", path, "--sites", "8,64", "--figure", "f.svg", "--json").json
    assert set(facts["sites"]) == {"site0", "site1", "site2"}
    assert facts["methods"]["proxyfl, exponential"][0]["sites"] == 8
    assert (desk.folder / "f.svg").read_text(encoding="utf-8").lstrip().startswith("<?xml")


@pytest.mark.parametrize(
    ("option", "value"), [("--bandwidth", "0"), ("--sites", "1"), ("--sites", "many"), ("--rounds", "-1")]
)
def test_what_cannot_be_is_said_in_a_line(desk: Desk, option: str, value: str) -> None:
    desk.refused("traffic", desk.study(), option, value)

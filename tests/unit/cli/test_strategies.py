"""`confrere strategies`: every way to collaborate with its options, for people and machines."""

from __future__ import annotations

from confrere.core.registry import strategies
from confrere.strategies import discover
from tests.unit.cli.command import Desk


def test_json_lists_name_summary_source_and_options(desk: Desk) -> None:
    found = desk.confrere("strategies", "--json").json
    assert [s["name"] for s in found] == discover()
    for entry in found:
        assert set(entry) >= {"name", "summary", "source", "options"}
        assert entry["summary"]
    pull = next(s for s in found if s["name"] == "fedprox")["options"][0]
    assert (pull["name"], pull["default"]) == ("pull", 0.01)


def test_every_published_method_names_its_source(desk: Desk) -> None:
    ours = [name for name in strategies.names() if strategies[name].__module__.startswith("confrere.")]
    found = {s["name"]: s["source"] for s in desk.confrere("strategies", "--json").json if s["name"] in ours}
    assert len(found) == len(ours) >= 15
    assert all(found.values())
    assert "McMahan et al. 2017" in found["fedavg"]


def test_people_get_a_table(desk: Desk) -> None:
    answer = desk.confrere("strategies")
    assert answer.code == 0
    assert all(name in answer.out for name in ("fedavg", "proxyfl", "cwt"))


def test_data_sets_are_listed_likewise(desk: Desk) -> None:
    found = desk.confrere("datasets", "--json").json
    assert "thyroid" in [s["name"] for s in found]
    assert all(set(s) >= {"name", "summary", "source"} for s in found)


def test_help_of_every_command_has_an_example(desk: Desk) -> None:
    for command in ("demo", "simulate", "compare", "report", "check", "strategies"):
        answer = desk.confrere(command, "--help")
        assert answer.code == 0
        assert f"Example: confrere {command}" in " ".join(answer.out.split())


def test_the_version_is_said(desk: Desk) -> None:
    import confrere

    assert desk.confrere("--version").out.strip() == f"confrere {confrere.__version__}"

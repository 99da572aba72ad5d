"""`confrere check`: what a study would do, and nothing done."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest

from confrere.node.roster import Roster, save
from confrere.privacy.charges import gaussian
from confrere.privacy.ledger import Ledger
from confrere.study import load
from confrere.transport.grpc.identity import new_identity
from tests.unit.cli.command import PRIVATE, QUICK, Desk

SITES = ("site0", "site1", "site2")


def test_it_says_what_each_site_would_do_and_writes_nothing(desk: Desk) -> None:
    answer = desk.confrere("check", desk.study(QUICK + PRIVATE), "--json")
    found = answer.json
    assert (answer.code, desk.left()) == (0, set())
    assert (found["strategy"], found["rounds"]) == ("fedavg", 2)
    for site in found["sites"].values():
        assert site["proxy_parameters"] == 9  # four columns, each with its flag for «missing», and a bias
        assert site["noise_multiplier"] > 0
        assert site["steps"] == 4


def test_people_read_that_the_study_is_in_order(desk: Desk) -> None:
    answer = desk.confrere("check", desk.study(QUICK + PRIVATE))
    assert "3 sites, 2 rounds of fedavg over a complete graph" in " ".join(answer.out.split())


def test_a_note_shows_the_name_of_a_section_in_brackets(desk: Desk) -> None:
    answer = desk.confrere("check", desk.study(QUICK))
    assert "the study has no [privacy]" in " ".join(answer.out.split())


def test_what_has_no_guarantee_is_said_to_have_none(desk: Desk) -> None:
    found = desk.confrere("check", desk.study(QUICK), "--json").json
    assert any("no proven guarantee" in w for w in found["warnings"])
    body = 'rounds = 2\nstrategy = { name = "fml", teacher = "private" }\n' + PRIVATE
    found = desk.confrere("check", desk.study(body), "--json").json
    assert any("the proxy learns from the private model" in w for w in found["warnings"])


def test_a_variant_that_cannot_run_is_noticed_here(desk: Desk) -> None:
    body = QUICK + "[variants.odd]\nrouds = 3\n"
    assert 'variants.odd: unknown key "rouds"' in desk.refused("check", desk.study(body))


def test_what_simulate_would_refuse_check_refuses(desk: Desk) -> None:
    assert "at least two" in desk.refused("check", desk.study(sites=1))
    assert "--set takes a.b=value" in desk.refused("check", desk.study(), "--set", "x")


def test_two_sites_behind_firewalls_are_said_to_need_a_relay(desk: Desk) -> None:
    members = {name: new_identity(name, None if name != "site2" else "host:7443").member for name in SITES}
    save(Roster(members), desk.folder / "roster.toml")
    said = desk.confrere("check", desk.study(QUICK + PRIVATE), "--json").json["warnings"]
    relays = [w for w in said if "need a relay, which comes later" in w]
    assert len(relays) == 1
    assert '"site0" and "site1"' in relays[0]
    star = QUICK + 'topology = { name = "star", leader = "site2" }\n' + PRIVATE
    said = desk.confrere("check", desk.study(star), "--json").json["warnings"]
    assert not [w for w in said if "relay" in w]  # these two never talk to each other


@pytest.mark.parametrize("spent", [False, True])
def test_a_ledger_that_has_spent_the_budget_is_noticed_before_a_node_starts(desk: Desk, spent: bool) -> None:
    study = desk.study(QUICK + PRIVATE)
    body = study.read_text()
    for name in SITES:
        place = desk.folder / name
        place.mkdir()
        (place / "site.toml").write_text(f'data = "../{name}.csv"\n')
        body = body.replace(
            f'[sites.{name}]\ndata = "{name}.csv"', f'[sites.{name}]\nconfig = "{name}/site.toml"'
        )
    assert body.count("config = ") == 3
    study.write_text(body)
    before = desk.folder / "site1" / "ledger.sqlite"
    if spent:
        with Ledger(before) as ledger:
            ledger.spend([gaussian(0.6, Fraction(1), 1)], key="another study", budget=None)
    files = {p: p.read_bytes() for p in desk.folder.rglob("*") if p.is_file()}
    said = desk.confrere("check", study, "--json").json["warnings"]
    assert {p: p.read_bytes() for p in files} == files
    assert Path(before).exists() == spent
    told = [w for w in said if "has spent ε" in w]
    assert len(told) == spent
    if spent:
        assert '"site1"' in told[0]
        assert "would train its proxy in 0 of 2 rounds" in told[0]

    (desk.folder / "site2" / "ledger.sqlite").touch()  # a node that was killed before it wrote anything
    own = f"study-{load(study).hash()}-0/0/proxy"
    with Ledger(desk.folder / "site0" / "ledger.sqlite") as ledger:
        ledger.spend([gaussian(0.6, Fraction(1), 1)], key=own, budget=None)
    answer = desk.confrere("check", study, "--json")  # the study's own rounds are no surprise
    assert (answer.code, [w for w in answer.json["warnings"] if "has spent ε" in w]) == (0, told)
    (desk.folder / "site2" / "ledger.sqlite").write_bytes(b"no database" * 100)
    answer = desk.confrere("check", study, "--json")
    assert answer.code == 0
    assert any('what site "site2" has spent before is not known' in w for w in answer.json["warnings"])


def test_a_budget_that_does_not_last_for_one_round_is_said_to_and_no_epsilon_is_shown(desk: Desk) -> None:
    study = desk.study(
        QUICK + '[privacy]\nepsilon = 3.0\nnoise_multiplier = 0.001\ndelta = 1e-4\nsampling = "poisson"\n'
    )
    answer = desk.confrere("check", study, "--json").json
    assert {(s["rounds_left"], s["guarantee"]) for s in answer["sites"].values()} == {(0, None)}
    assert answer["privacy"] is None
    assert "does not last for a single round" in answer["sentence"]
    assert "in order" not in answer["sentence"]
    assert sum("does not last for a single round" in w for w in answer["warnings"]) == len(answer["sites"])
    assert "no round fits" in desk.confrere("check", study).out


def test_a_plan_above_the_ceiling_is_noticed_before_anything_starts(desk: Desk) -> None:
    study = desk.study(QUICK + "[privacy]\nnoise_multiplier = 0.001\ndelta = 1e-4\n")
    answer = desk.confrere("check", study, "--json").json
    for site in answer["sites"].values():
        assert (site["ceiling"], site["above_ceiling"]) == (10, True)
        assert "above the ceiling of 10" in site["guarantee"]
    told = [w for w in answer["warnings"] if "above the ceiling" in w]
    assert len(told) == 1
    assert "accept_unproven_privacy" in told[0]
    within = desk.confrere("check", desk.study(QUICK + PRIVATE), "--json").json
    assert not [w for w in within["warnings"] if "ceiling" in w]


def test_a_ledger_that_ends_above_the_ceiling_is_noticed_before_a_node_starts(desk: Desk) -> None:
    study = desk.study(QUICK + "[privacy]\nnoise_multiplier = 20.0\ndelta = 1e-4\n")
    (desk.folder / "own").mkdir()
    (desk.folder / "own" / "site.toml").write_text('data = "../site1.csv"\n')
    body = study.read_text().replace('data = "site1.csv"', 'config = "own/site.toml"')
    study.write_text(body)
    with Ledger(desk.folder / "own" / "ledger.sqlite", dataset="site1") as ledger:
        ledger.spend([gaussian(0.3)], key="another study", budget=None)
    sites = desk.confrere("check", study, "--json").json["sites"]
    assert {name: site["above_ceiling"] for name, site in sites.items()} == {
        "site0": False, "site1": True, "site2": False,
    }  # fmt: skip


def test_what_a_plan_means_is_said_beside_its_epsilon(desk: Desk) -> None:
    study = desk.study(QUICK + PRIVATE)
    stratified = ("--set", "data.split.method=stratified")
    by_rank = desk.confrere("check", study, *stratified, "--json").json["privacy"]
    assert by_rank["readings"]["record"] < by_rank["readings"]["file"]
    assert by_rank["file_group"] == 3
    found = desk.confrere("check", study, "--json").json["privacy"]
    assert found["readings"]["record"] == found["readings"]["file"]
    assert found["readings"]["patient"] is None
    assert found["file_group"] == 1
    assert found["trade_off"]["mu"] > 0
    said = " ".join(desk.confrere("check", study).out.split())
    assert found["sentence"] in said
    assert "Trade-off: any test misses at least" in said


def test_a_size_that_was_computed_from_records_is_labelled(desk: Desk) -> None:
    study = desk.study(QUICK + PRIVATE)
    said = desk.confrere("check", study, "--json").json["warnings"]
    assert [w for w in said if "every site was computed from its records" in w]
    body = study.read_text()
    for name in SITES:
        body = body.replace(f'data = "{name}.csv"', f'data = "{name}.csv"\ndeclared = 150')
    study.write_text(body)
    found = desk.confrere("check", study, "--json").json
    assert not [w for w in found["warnings"] if "computed" in w]
    assert {site["records"] for site in found["sites"].values()} == {90}

"""What a node is started with: read strictly, refused where a promise could not be kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from confrere.core.errors import PrivacyError, StudyError
from confrere.node import roster
from confrere.node.service import read_setting
from confrere.node.setting import listening_address, load_node_site, within
from confrere.study import load
from confrere.transport.identity import Identity, enroll
from tests.conftest import write_study

PRIVATE = "rounds = 2\n[privacy]\nepsilon = 8.0\ndelta = 1e-4\n"


def hospital(folder: Path, site: str = 'data = "site0.csv"\n', signed: bool = True) -> tuple[Path, Path]:
    """Study and site.toml of one of two sites, keys and roster in place."""
    study = write_study(folder, PRIVATE, sites=2, records=40)
    identities: list[Identity] = [
        enroll(n, f"127.0.0.1:{7441 + k}", folder / ("keys" if k == 0 else f"keys-{n}"))
        for k, n in enumerate(("site0", "site1"))
    ]
    members = roster.Roster({i.name: i.member for i in identities})
    roster.save(members, folder / "roster.toml")
    for identity in identities[: 2 if signed else 1]:
        roster.keep_signature(roster.sign(members, load(study).digest(), identity), folder / "roster.toml")
    (folder / "site.toml").write_text(site, encoding="utf-8")
    return study, folder / "site.toml"


def test_a_node_opens_its_own_records_and_nobody_elses(tmp_path: Path) -> None:
    study, site = hospital(tmp_path)
    (tmp_path / "site1.csv").unlink()
    found = read_setting(study, site)
    assert (found.me, sorted(found.members), sorted(found.peers)) == ("site0", ["site0", "site1"], ["site1"])
    assert found.home == tmp_path / "node"
    assert found.listen == "127.0.0.1:7441"
    assert not found.rehearsal
    assert list(found.study.sites) == ["site0"]
    assert found.digest == load(study).digest()


def test_the_split_of_a_node_is_that_of_the_simulation(tmp_path: Path) -> None:
    from confrere.runtime.records import open_sites

    study, site = hospital(tmp_path)
    mine = read_setting(study, site).data
    simulated = open_sites(load(study)).sites["site0"]
    assert mine.train.inputs.equal(simulated.train.inputs)
    assert mine.test.inputs.equal(simulated.test.inputs)


def test_nothing_unproven_leaves_unless_the_file_says_so(tmp_path: Path) -> None:
    _, site = hospital(tmp_path)
    assert load_node_site(site).accept_unproven_privacy is False
    site.write_text('data = "site0.csv"\naccept_unproven_privacy = true\n')
    assert load_node_site(site).accept_unproven_privacy is True


def test_a_wrong_key_is_named_with_the_nearest_right_one(tmp_path: Path) -> None:
    _, site = hospital(tmp_path, 'data = "site0.csv"\n[caps]\nepsilonn = 1.0\n')
    with pytest.raises(StudyError, match="epsilon"):
        load_node_site(site)


@pytest.mark.parametrize(
    ("caps", "said"), [("hours = [25, 3]", "hours"), ("rounds = 0", "rounds"), ("bytes = 0", "bytes")]
)
def test_caps_that_cannot_be_are_refused(tmp_path: Path, caps: str, said: str) -> None:
    _, site = hospital(tmp_path, f'data = "site0.csv"\n[caps]\n{caps}\n')
    with pytest.raises(StudyError, match=f"caps.{said}"):
        load_node_site(site)


def test_a_partner_that_the_site_does_not_allow_is_refused(tmp_path: Path) -> None:
    files = hospital(tmp_path, 'data = "site0.csv"\n[caps]\npartners = ["another"]\n')
    with pytest.raises(PrivacyError, match="site1"):
        read_setting(*files)


def test_a_roster_that_not_all_have_signed_does_not_count(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match="has not signed"):
        read_setting(*hospital(tmp_path, signed=False))


def test_a_study_that_was_changed_after_signing_does_not_count(tmp_path: Path) -> None:
    study, site = hospital(tmp_path)
    study.write_text(study.read_text().replace("epsilon = 8.0", "epsilon = 9.0"))
    with pytest.raises(StudyError, match="signed another study"):
        read_setting(study, site)


def test_a_node_needs_a_schema_that_all_agreed_on(tmp_path: Path) -> None:
    from confrere.node.setting import open_own

    study, site = hospital(tmp_path)
    with pytest.raises(StudyError, match="needs a schema"):
        open_own(load(study).with_(schema=None), "site0", load_node_site(site))


def test_hours_may_go_over_midnight() -> None:
    assert [h for h in range(24) if within([22, 6], h)] == [0, 1, 2, 3, 4, 5, 22, 23]


def test_a_site_listens_where_peers_dial_or_where_it_says() -> None:
    assert listening_address("", "10.0.0.5:7443") == "10.0.0.5:7443"
    assert listening_address("", "node.example:7443") == "0.0.0.0:7443"
    assert listening_address("192.168.1.2:9000", "node.example:7443") == "192.168.1.2:9000"
    assert listening_address("", None) is None

"""What a node is started with: read strictly, refused where a promise could not be kept."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from confrere.core.errors import DataError, PrivacyError, StudyError
from confrere.node import roster
from confrere.node.config import listening_address, load_node_site, load_study, open_own, within
from confrere.node.service import read_node_config
from confrere.study import Models, load
from confrere.transport.grpc.identity import Identity, enroll, renew
from tests.conftest import write_study
from tests.nodes import nodes_in_process

PRIVATE = "rounds = 2\n[privacy]\nepsilon = 8.0\ndelta = 1e-4\n"


def hospital(folder: Path, site: str = 'data = "site0.csv"\n', signed: bool = True) -> tuple[Path, Path]:
    """Study and site.toml of one of two sites, keys and roster in place."""
    study = write_study(folder, PRIVATE, sites=2, records=40)
    identities: list[Identity] = [
        enroll(n, f"127.0.0.1:{7441 + k}", folder / ("keys" if k == 0 else f"keys-{n}"), declared=100)
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
    found = read_node_config(study, site)
    assert (found.me, sorted(found.members), sorted(found.peers)) == ("site0", ["site0", "site1"], ["site1"])
    assert found.home == tmp_path / "node"
    assert found.listen == "127.0.0.1:7441"
    assert not found.rehearsal
    assert list(found.study.sites) == ["site0"]
    assert found.digest == load(study).digest()


def test_the_size_of_a_node_is_what_the_signed_roster_declares_whatever_its_file_holds(
    tmp_path: Path,
) -> None:
    study, site = hospital(tmp_path)
    config = read_node_config(study, site)
    assert (config.data.declared, config.data.size, config.data.computed) == (100, 60, False)
    assert config.sizes == {"site0": 60, "site1": 60}
    text = (tmp_path / "site0.csv").read_text("utf-8").splitlines(keepends=True)
    (tmp_path / "site0.csv").write_text("".join(text[:20]), "utf-8")
    assert read_node_config(study, site).data.size == 60


def test_site_toml_may_not_declare_another_size_than_the_roster(tmp_path: Path) -> None:
    files = hospital(tmp_path, 'data = "site0.csv"\ndeclared = 90\n')
    with pytest.raises(StudyError, match=r"site\.toml declares 90, and the signed roster 100"):
        read_node_config(*files)


def test_the_split_of_a_node_is_by_a_key_that_only_the_site_has(tmp_path: Path) -> None:
    from confrere.site.open_sites import open_sites

    study, site = hospital(tmp_path)
    config = read_node_config(study, site)
    assert config.data.train.inputs.equal(read_node_config(study, site).data.train.inputs)
    simulated = open_sites(load(study)).sites["site0"]
    assert not config.data.train.inputs.equal(simulated.train.inputs)
    key = config.identity.secret("split")
    known = open_sites(load(study), key=key).sites["site0"]
    assert config.data.train.inputs.equal(known.train.inputs)
    assert key != config.identity.secret("another purpose")
    assert key not in (tmp_path / "keys" / "peer.toml").read_bytes()


def test_the_key_of_the_split_is_for_life(tmp_path: Path) -> None:
    enrolled = enroll("a", None, tmp_path / "a", declared=100)
    assert renew(tmp_path / "a").secret("split") == enrolled.secret("split")
    assert enroll("a", None, tmp_path / "b", declared=100).secret("split") != enrolled.secret("split")


def test_another_study_and_another_seed_leave_the_split_of_a_node_as_it_is(tmp_path: Path) -> None:
    study, site = hospital(tmp_path)
    key, config = b"k" * 32, load_node_site(site)
    one = open_own(load(study), "site0", config, 100, key)[0]
    other = open_own(load(study).with_(seed=5, name="another"), "site0", config, 100, key)[0]
    assert one.train.inputs.equal(other.train.inputs)


def test_a_node_refuses_a_stratified_split(tmp_path: Path) -> None:
    study, _ = hospital(tmp_path)
    study.write_text(study.read_text() + '\n[data.split]\nmethod = "stratified"\n')
    with pytest.raises(StudyError, match=r"stratified.* is for rehearsals"):
        load_study(study, "site0", {"site0": None, "site1": None})  # type: ignore[dict-item]


def test_one_record_does_not_decide_how_a_node_reads_all_others(tmp_path: Path) -> None:
    """A byte that is not UTF-8 would have the whole file read in another encoding."""
    study, site = hospital(tmp_path)

    def opened() -> tuple[int, float]:
        data = open_own(load(study), "site0", load_node_site(site), 100, b"k" * 32)[0]
        return len(data.all), float(data.all.inputs.double().sum())

    before = opened()
    (tmp_path / "site0.csv").write_bytes((tmp_path / "site0.csv").read_bytes() + b"\xe9,1,1,1,1\n")
    assert opened() == before


def test_a_node_does_not_guess_the_delimiter(tmp_path: Path) -> None:
    study, site = hospital(tmp_path)
    path = tmp_path / "site0.csv"
    path.write_text(path.read_text().replace(",", ";"))
    with pytest.raises(DataError, match="the file seems to use ';'"):
        open_own(load(study), "site0", load_node_site(site), 100, b"k" * 32)
    site.write_text(site.read_text() + 'delimiter = ";"\n')
    open_own(load(study), "site0", load_node_site(site), 100, b"k" * 32)


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
        read_node_config(*files)


def test_a_roster_that_not_all_have_signed_does_not_count(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match="has not signed"):
        read_node_config(*hospital(tmp_path, signed=False))


def test_a_study_that_was_changed_after_signing_does_not_count(tmp_path: Path) -> None:
    study, site = hospital(tmp_path)
    study.write_text(study.read_text().replace("epsilon = 8.0", "epsilon = 9.0"))
    with pytest.raises(StudyError, match="signed another study"):
        read_node_config(study, site)


def test_a_node_needs_a_schema_that_all_agreed_on(tmp_path: Path) -> None:
    study, site = hospital(tmp_path)
    with pytest.raises(StudyError, match="needs a schema"):
        open_own(load(study).with_(schema=None), "site0", load_node_site(site), 100, b"k" * 32)


def test_hours_may_go_over_midnight() -> None:
    assert [h for h in range(24) if within([22, 6], h)] == [0, 1, 2, 3, 4, 5, 22, 23]


def test_a_site_listens_where_peers_dial_or_where_it_says() -> None:
    assert listening_address("", "10.0.0.5:7443") == "10.0.0.5:7443"
    assert listening_address("", "node.example:7443") == "0.0.0.0:7443"
    assert listening_address("192.168.1.2:9000", "node.example:7443") == "192.168.1.2:9000"
    assert listening_address("", None) is None


def test_networks_with_options_are_rehearsed_and_functions_are_refused(tmp_path: Path) -> None:
    body = 'strategy = "fedavg"\nrounds = 1\n[training]\ntune = false\ntune_priors = [1.0]\n'
    study = load(write_study(tmp_path, body, 2, 40))
    own = study.with_(models=Models(private={"name": "mlp", "hidden": [3]}))
    assert nodes_in_process(own, tmp_path / "run").sites.keys() == {"site0", "site1"}
    with pytest.raises(StudyError, match="by name"):
        nodes_in_process(study.with_(models=Models(proxy=lambda: torch.nn.Linear(4, 1))), tmp_path / "own")

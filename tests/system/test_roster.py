"""Who takes part, and what makes it count: every member's signature, epoch by epoch."""

from __future__ import annotations

import dataclasses
from itertools import permutations
from pathlib import Path

import pytest

from confrere.core.errors import StudyError
from confrere.node import roster as rosters
from confrere.node.roster import Roster, after_leaving, leave, load_roster, load_signed, missing, sign
from confrere.transport.grpc.identity import Identity, enroll, new_identity
from tests.conftest import write_study
from tests.unit.cli.command import QUICK, Desk

STUDY, OTHER = "1" * 64, "2" * 64


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Desk:
    return Desk(tmp_path, monkeypatch, capsys)


def sites(*names: str) -> dict[str, Identity]:
    return {name: new_identity(name, f"{name}.example:7443") for name in names}


def roster_of(found: dict[str, Identity]) -> Roster:
    roster = Roster()
    for identity in found.values():
        roster = roster.with_member(identity.member, signed=False)
    return roster


def test_everybody_comes_to_the_same_hash_in_whatever_order_they_add() -> None:
    found = sites("a", "b", "c")
    hashes = {roster_of({n: found[n] for n in order}).hash for order in permutations(found)}
    assert len(hashes) == 1


def test_where_a_site_is_reached_may_change_and_who_it_is_may_not() -> None:
    found = sites("a", "b")
    roster = roster_of(found)
    moved = roster.with_member(dataclasses.replace(found["a"].member, address="new:1"), signed=True)
    assert moved.hash == roster.hash
    assert moved.members["a"].address == "new:1"
    with pytest.raises(StudyError, match="another key"):
        roster.with_member(new_identity("a").member, signed=False)


def test_a_declared_size_is_signed_and_changes_only_with_a_new_epoch() -> None:
    found = sites("a", "b")
    roster = roster_of(found)
    larger = dataclasses.replace(found["a"].member, declared=500)
    second = roster.with_member(larger, signed=True)
    assert (second.epoch, second.previous, second.members["a"].declared) == (1, roster.hash, 500)
    assert roster.with_member(larger, signed=False).hash != roster.hash
    assert missing(second, STUDY, [sign(roster, STUDY, i) for i in found.values()]).keys() == {"a", "b"}


def test_a_site_signs_no_roster_with_another_size_than_it_declares() -> None:
    found = sites("a", "b")
    roster = roster_of(found).with_member(dataclasses.replace(found["a"].member, declared=500), signed=False)
    with pytest.raises(StudyError, match=r'"a" declares 500, and its own peer\.toml states 1;'):
        sign(roster, STUDY, found["a"])


@pytest.mark.parametrize("name", ["A", "ａ", "a"])
def test_names_that_look_the_same_are_refused(name: str) -> None:
    with pytest.raises(StudyError, match="another key"):
        roster_of(sites("a", "b")).with_member(new_identity(name).member, signed=False)


def test_a_roster_counts_when_every_member_has_signed_it_with_the_study() -> None:
    found = sites("a", "b", "c")
    roster = roster_of(found)
    signatures = [sign(roster, STUDY, found[name]) for name in ("a", "b")]
    assert missing(roster, STUDY, signatures) == {"c": "has not signed"}
    assert missing(roster, STUDY, [*signatures, sign(roster, OTHER, found["c"])]) == {
        "c": "signed another study"
    }
    assert not missing(roster, STUDY, [*signatures, sign(roster, STUDY, found["c"])])
    assert missing(roster, OTHER, signatures).keys() == {"a", "b", "c"}


def test_a_signature_by_somebody_else_does_not_count() -> None:
    found = sites("a", "b")
    roster = roster_of(found)
    for forged in (
        dataclasses.replace(sign(roster, STUDY, found["a"]), site="b"),
        dataclasses.replace(sign(roster, OTHER, found["b"]), study=STUDY),
        dataclasses.replace(sign(roster, STUDY, found["b"]), roster="0" * 64),
        dataclasses.replace(sign(roster, STUDY, found["b"]), signature="zz"),
        dataclasses.replace(leave(roster, found["b"]), kind="member", study=STUDY),
    ):
        assert "b" in missing(roster, STUDY, [sign(roster, STUDY, found["a"]), forged])
    with pytest.raises(StudyError, match="not in the roster with this key"):
        sign(roster, STUDY, new_identity("a"))


def test_a_change_after_signing_starts_a_new_epoch_that_all_sign_again() -> None:
    found = sites("a", "b")
    first = roster_of(found)
    old = [sign(first, STUDY, i) for i in found.values()]
    newcomer = new_identity("c")
    second = first.with_member(newcomer.member, signed=True)
    assert (second.epoch, second.previous) == (1, first.hash)
    assert missing(second, STUDY, old) == {
        "a": "signed another roster", "b": "signed another roster", "c": "has not signed"
    }  # fmt: skip


def test_leaving_is_signed_by_who_leaves_and_is_final() -> None:
    found = sites("a", "b", "c")
    roster = roster_of(found)
    word = leave(roster, found["c"])
    after = after_leaving(roster, word)
    assert (after.epoch, sorted(after.members)) == (1, ["a", "b"])
    with pytest.raises(StudyError, match="leaving is final"):
        after.with_member(found["c"].member, signed=False)
    after.with_member(new_identity("c").member, signed=False)


def test_nobody_can_make_another_site_leave() -> None:
    found = sites("a", "b", "c")
    roster = roster_of(found)
    word = leave(roster, found["c"])
    for forged in (dataclasses.replace(word, site="b"), sign(roster, "", found["c"])):
        with pytest.raises(StudyError, match="no valid notice"):
            after_leaving(roster, forged)
    elsewhere = roster_of({**sites("d"), "c": found["c"]})
    with pytest.raises(StudyError, match="another roster"):
        after_leaving(elsewhere, word)


def test_two_sites_that_both_only_dial_out_are_named() -> None:
    hidden = [new_identity(name).member for name in ("x", "y")]
    roster = Roster({m.name: m for m in [*hidden, new_identity("z", "z.example:1").member]})
    assert roster.unreachable() == [("x", "y")]


def test_a_roster_reads_back_as_it_was_written(tmp_path: Path) -> None:
    found = sites("a", "b", "c")
    roster = after_leaving(roster_of(found), leave(roster_of(found), found["c"]))
    rosters.save(roster, tmp_path / "roster.toml")
    again = load_roster(tmp_path / "roster.toml")
    assert again == roster
    assert again.hash == roster.hash


def test_a_node_starts_only_with_a_roster_that_counts(tmp_path: Path) -> None:
    found = sites("a", "b")
    roster, path = roster_of(found), tmp_path / "roster.toml"
    rosters.save(roster, path)
    rosters.keep_signature(sign(roster, STUDY, found["a"]), path)
    with pytest.raises(StudyError, match='"b" has not signed'):
        load_signed(path, STUDY)
    rosters.keep_signature(sign(roster, STUDY, found["b"]), path)
    assert load_signed(path, STUDY) == roster
    with pytest.raises(StudyError, match="signed another study"):
        load_signed(path, OTHER)


@pytest.mark.parametrize(
    "text", ["members = 3", "epoch = -1", 'what = "x"', "[[members]]\nname = 'a'", "departed = []", "\x00"]
)
def test_a_broken_roster_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "roster.toml").write_text(text, encoding="utf-8")
    with pytest.raises(StudyError):
        load_roster(tmp_path / "roster.toml")


def test_from_keys_to_a_signed_roster_on_the_command_line(desk: Desk) -> None:
    study = write_study(desk.folder, QUICK, 2, 40)
    for name in ("a", "b"):
        made = desk.confrere(
            "enroll", "--site", name, "--address", f"{name}.example:7443", "--declared", "90",
            "-o", f"keys-{name}", "--json",
        )  # fmt: skip
        told = made.json["fingerprint"]
        assert desk.confrere("roster", "add", f"keys-{name}/peer.toml", "--fingerprint", told).code == 0
    assert "has not signed" in desk.refused("roster", "verify", study)
    for name in ("a", "b"):
        assert desk.confrere("roster", "sign", study, "--keys", f"keys-{name}").code == 0
    assert desk.confrere("roster", "verify", study, "--json").json["members"] == ["a", "b"]
    shown = desk.confrere("roster", "show", "--json").json
    assert [len(m["signed"]) for m in shown["members"].values()] == [1, 1]
    assert desk.confrere("enroll", "--renew", "keys-a").code == 0
    assert desk.confrere("roster", "verify", study).code == 0, "a new certificate needs no new signature"
    assert desk.confrere("roster", "leave", "--keys", "keys-b").code == 0
    (word,) = [p for p in (desk.folder / "signatures").iterdir() if "leaves" in p.read_text("utf-8")]
    assert desk.confrere("roster", "add", word).code == 0
    assert "signed another roster" in desk.refused("roster", "verify", study)
    assert "leaving is final" in desk.refused("roster", "add", "keys-b/peer.toml")


def test_keys_and_rosters_without_a_declared_size_name_the_command_that_states_it(desk: Desk) -> None:
    study = write_study(desk.folder, QUICK, 2, 40)
    assert (
        desk.confrere("enroll", "--site", "a", "--outgoing-only", "--declared", "90", "-o", "keys").code == 0
    )
    assert desk.confrere("roster", "add", "keys/peer.toml").code == 0
    for path in (Path("keys/peer.toml"), Path("roster.toml")):
        lines = path.read_text("utf-8").splitlines(keepends=True)
        path.write_text("".join(line for line in lines if "declared" not in line), "utf-8")
    remedy = "confrere roster upgrade --keys KEYS --declared N"
    assert remedy in desk.refused("roster", "verify", study)
    assert remedy in desk.refused("roster", "add", "keys/peer.toml", "--roster", "new.toml")
    assert remedy in desk.refused("enroll", "--renew", "keys")
    assert desk.confrere("enroll", "--renew", "keys", "--declared", "120", "--json").json["declared"] == 120
    assert desk.confrere("roster", "add", "keys/peer.toml", "--roster", "new.toml").code == 0
    assert desk.confrere("roster", "sign", study, "--keys", "keys", "--roster", "new.toml").code == 0
    shown = desk.confrere("roster", "show", "--roster", "new.toml", "--json").json
    assert shown["members"]["a"]["declared"] == 120


def test_a_fingerprint_that_was_told_otherwise_is_refused(desk: Desk) -> None:
    enroll("a", None, desk.folder / "keys", declared=100)
    told = "0000 " * 8
    assert "do not add" in desk.refused("roster", "add", "keys/peer.toml", "--fingerprint", told)
    assert not Path("roster.toml").exists()


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["enroll"], "needs --site NAME"),
        (["enroll", "--site", "a", "-o", "k"], "--outgoing-only"),
        (["enroll", "--site", "a", "-o", "k", "--outgoing-only"], "--declared N"),
        (["enroll", "--site", "a", "-o", "k", "--outgoing-only", "--declared", "0"], "from 1 to"),
        (["enroll", "--site", "a", "-o", "k", "--address", "x", "--declared", "9"], "host:port"),
        (["enroll", "--site", "a", "-o", "k", "--address", "x:1", "--outgoing-only"], "--outgoing-only"),
        (["enroll", "--site", " ", "-o", "k", "--outgoing-only", "--declared", "9"], "not a valid site name"),
        (["enroll", "--renew", "nowhere"], "is missing"),
        (["enroll", "--renew", "nowhere", "--site", "a"], "--declared and --days only"),
        (["enroll", "--site", "a", "-o", "k", "--outgoing-only", "--days", "0"], "1 to 3650"),
        (["roster", "add", "nowhere.toml"], "no such file"),
        (["roster", "show"], "roster add"),
        (["roster", "remove", "x"], "no such file"),
    ],
)
def test_a_wrong_command_is_refused_in_a_line(desk: Desk, words: list[str], complaint: str) -> None:
    assert complaint in desk.refused(*words)

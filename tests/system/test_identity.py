"""A site's keys: endorsed, closed to others, renewed without anybody else doing anything."""

from __future__ import annotations

import dataclasses
import datetime as dt
import os
import stat
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from confrere.core.errors import IdentityError, StudyError
from confrere.transport.grpc import identity as identities
from confrere.transport.grpc.identity import CertificateKeeper, enroll, load_identity, new_identity, renew
from confrere.transport.grpc.member import check_address, endorser, read_member

NOW = dt.datetime(2030, 1, 1, 12, tzinfo=dt.UTC)
DAY = dt.timedelta(days=1)


def test_private_keys_are_readable_by_their_owner_only(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        enroll("a", None, tmp_path / "keys", declared=100)
    finally:
        os.umask(before)
    for name in ("identity.key", "tls.pem"):
        assert stat.S_IMODE((tmp_path / "keys" / name).stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "keys").stat().st_mode) == 0o700


@pytest.mark.parametrize("name", ["identity.key", "tls.pem"])
@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o644])
def test_a_key_that_others_can_read_is_refused(tmp_path: Path, name: str, mode: int) -> None:
    enroll("a", None, tmp_path, declared=100)
    (tmp_path / name).chmod(mode)
    with pytest.raises(IdentityError, match=r"others than its owner; close it with `chmod 600"):
        load_identity(tmp_path)


@pytest.mark.parametrize("name", ["identity.key", "tls.pem", "peer.toml"])
def test_a_missing_file_is_said_by_its_name(tmp_path: Path, name: str) -> None:
    enroll("a", None, tmp_path, declared=100)
    (tmp_path / name).unlink()
    with pytest.raises((IdentityError, StudyError), match=name):
        load_identity(tmp_path)


def test_a_lost_certificate_can_be_made_again_and_a_lost_key_cannot(tmp_path: Path) -> None:
    known = enroll("a", None, tmp_path, declared=100)
    (tmp_path / "tls.pem").unlink()
    with pytest.raises(IdentityError, match=r"missing; `confrere enroll --renew"):
        load_identity(tmp_path)
    renew(tmp_path)
    assert load_identity(tmp_path).member.identity == known.member.identity
    (tmp_path / "identity.key").unlink()
    with pytest.raises(IdentityError, match=r"missing; `confrere enroll` makes"):
        load_identity(tmp_path)


@pytest.mark.parametrize("name", ["identity.key", "tls.pem", "peer.toml"])
def test_a_damaged_file_is_refused(tmp_path: Path, name: str) -> None:
    enroll("a", None, tmp_path, declared=100)
    data = (tmp_path / name).read_bytes()
    for broken in (b"", data[: len(data) // 2], data[:60] + bytes(4) + data[64:]):
        (tmp_path / name).write_bytes(broken)
        with pytest.raises((IdentityError, StudyError)):
            load_identity(tmp_path)


def test_an_identity_is_never_overwritten(tmp_path: Path) -> None:
    first = enroll("a", None, tmp_path, declared=100)
    with pytest.raises(IdentityError, match="peers know it"):
        enroll("a", None, tmp_path, declared=100)
    assert load_identity(tmp_path).member == first.member


def test_a_renewed_certificate_has_another_key_and_the_same_identity(tmp_path: Path) -> None:
    before = enroll("a", "host:7443", tmp_path, declared=100)
    after = renew(tmp_path)
    assert after.member == before.member == load_identity(tmp_path).member
    assert after.certificate.public_key() != before.certificate.public_key()
    assert endorser(after.certificate, [before.member]) == before.member


def test_an_expired_certificate_says_when_and_what_to_do(tmp_path: Path) -> None:
    made = enroll("a", None, tmp_path, now=NOW, valid=90 * DAY, declared=100)
    made.check(NOW + 89 * DAY)
    with pytest.raises(
        IdentityError, match=r"expired on 2030-04-01 12:00 UTC; renew it with `confrere enroll"
    ):
        made.check(NOW + 91 * DAY)


def test_a_clock_that_is_a_day_behind_is_tolerated_and_one_of_a_week_is_named(tmp_path: Path) -> None:
    made = new_identity("a", now=NOW)
    made.check(NOW - 0.9 * DAY)
    with pytest.raises(IdentityError, match="set the clock"):
        made.check(NOW - 7 * DAY)


def test_a_certificate_of_another_identity_is_nobodys(tmp_path: Path) -> None:
    a, b, stranger = (new_identity(name) for name in ("a", "b", "b"))
    assert endorser(a.certificate, [a.member, b.member]) == a.member
    assert endorser(stranger.certificate, [a.member, b.member]) is None


def test_one_site_cannot_endorse_a_certificate_for_another(tmp_path: Path) -> None:
    a, b = new_identity("a"), new_identity("b")
    forged = identities._endorse(b.member, a.key, None, NOW, 90 * DAY).certificate
    assert endorser(forged, [a.member, b.member]) is None


def test_a_tls_file_of_another_site_is_refused(tmp_path: Path) -> None:
    enroll("a", None, tmp_path / "a", declared=100)
    enroll("b", None, tmp_path / "b", declared=100)
    (tmp_path / "a" / "tls.pem").write_bytes((tmp_path / "b" / "tls.pem").read_bytes())
    with pytest.raises(IdentityError, match="did not endorse"):
        load_identity(tmp_path / "a")


def test_tls_uses_p256_and_the_identity_ed25519() -> None:
    made = new_identity("a")
    key = made.certificate.public_key()
    assert isinstance(key, ec.EllipticCurvePublicKey)
    assert key.curve.name == "secp256r1"
    assert x509.load_der_x509_certificate(made.member.certificate).signature_algorithm_oid == (
        x509.SignatureAlgorithmOID.ED25519
    )


def test_secrets_are_not_printed() -> None:
    made = new_identity("a")
    assert "PRIVATE" not in repr(made)
    assert made.tls_key.decode()[40:80] not in repr(made)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("name", "b"),
        ("fingerprint", "0000"),
        ("identity", "00" * 32),
        ("certificate", "AAAA"),
        ("extra", "x"),
    ],
)
def test_an_altered_peer_file_is_refused(tmp_path: Path, key: str, value: str) -> None:
    made = new_identity("a", "host:7443")
    table = {**made.member.as_table(), key: value}
    path = tmp_path / "peer.toml"
    path.write_text("\n".join(f"{k} = {v!r}" for k, v in table.items()), encoding="utf-8")
    with pytest.raises(StudyError):
        read_member(path)


def test_a_peer_file_says_the_same_when_it_is_read(tmp_path: Path) -> None:
    for name, address in (("Hôpital St-Luc / Est", "[::1]:7443"), ("x" * 128, None)):
        member = new_identity(name, address).member
        (tmp_path / "peer.toml").write_text(member.to_toml(), encoding="utf-8")
        assert read_member(tmp_path / "peer.toml") == member


@pytest.mark.parametrize(
    "text", ["host", "host:", "host:0", "host:70000", "a b:1", "http://x:1", "", ":7443"]
)
def test_an_address_is_host_and_port(text: str) -> None:
    with pytest.raises(StudyError, match="host:port"):
        check_address(text)


def test_a_node_takes_up_a_renewed_certificate_and_renews_it_in_time(tmp_path: Path) -> None:
    first = enroll("a", None, tmp_path, declared=100)
    changes: list[str] = []
    said: list[str] = []
    keeper = CertificateKeeper(first, lambda: changes.append("changed"), said.append)
    keeper.look()
    assert not changes
    second = renew(tmp_path)
    keeper.look()
    assert keeper.identity.certificate == second.certificate
    keeper.look(now=second.expires - 10 * DAY)
    assert keeper.identity.expires > second.expires
    assert len(changes) == 2
    assert "renewed" in said[0]
    (tmp_path / "tls.pem").write_text("damaged")
    keeper.look()
    keeper.look()
    assert len(changes) == 2
    assert len(said) == 2
    assert "stays" in said[1]


def test_an_identity_cannot_be_exchanged_while_a_node_runs() -> None:
    keeper = CertificateKeeper(new_identity("a"), lambda: None, lambda text: None)
    with pytest.raises(ValueError, match="cannot be exchanged"):
        keeper.use(new_identity("a"))


def test_members_are_told_apart_by_their_keys() -> None:
    one, other = new_identity("a").member, new_identity("a").member
    assert one != other
    assert dataclasses.replace(one, address="elsewhere:1").identity == one.identity

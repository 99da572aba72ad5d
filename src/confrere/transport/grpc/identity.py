"""The private half of a site: its identity key and the TLS certificate that the key endorses.

    DIR/identity.key   Ed25519: signs parcels, ledger marks, rosters and TLS certificates; the site's other secrets,
                       such as the key of its split, are derived from it. Never replaced
    DIR/tls.pem        P-256 key and certificate for the connections, endorsed by the identity; renewed freely
    DIR/peer.toml      what peers may know (member.py)

gRPC does not complete a handshake with an Ed25519 certificate, but it follows an Ed25519 signature on a P-256 one.
So the identity certificate is a root of its own, with one site below it, and the endorsement (key and validity)
is an ordinary X.509 signature that TLS itself verifies. tls.pem is one file so that a renewal is one rename: a node
that reads it meanwhile sees the old pair or the new one. Only the owner may read the keys, or they are refused.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from confrere.core.errors import ConfrereError, IdentityError
from confrere.core.owner_only import make_private_folder, require_owner_only
from confrere.transport.grpc.member import (
    Member,
    check_address,
    check_declared,
    check_name,
    host_name,
    read_member,
    site_uri,
)

IDENTITY, TLS, PEER = "identity.key", "tls.pem", "peer.toml"
VALID = dt.timedelta(days=365)
EARLIER = dt.timedelta(days=1)
"""Certificates count from a day before they were made, for peers whose clocks are behind."""
RENEW_BEFORE = dt.timedelta(days=30)
LONG_AGO, FAR_AHEAD = dt.datetime(2000, 1, 1, tzinfo=dt.UTC), dt.datetime(2999, 1, 1, tzinfo=dt.UTC)


@dataclass(frozen=True)
class Identity:
    """What a site needs to sign and to connect. Nothing of it is printed by accident."""

    member: Member
    key: Ed25519PrivateKey
    """Signs parcels (`wire.sign`), ledger marks, rosters."""
    certificate: x509.Certificate
    tls_key: bytes
    """PEM."""
    folder: Path | None = None

    @property
    def name(self) -> str:
        return self.member.name

    @property
    def chain(self) -> bytes:
        """The TLS certificate as PEM."""
        return self.certificate.public_bytes(Encoding.PEM)

    @property
    def expires(self) -> dt.datetime:
        return self.certificate.not_valid_after_utc

    def secret(self, purpose: str) -> bytes:
        """32 bytes for one purpose, derived from the identity key: the same for the site's life, and never sent."""
        derived = HKDF(hashes.SHA256(), 32, salt=None, info=f"confrere {purpose}".encode())
        return derived.derive(self.key.private_bytes_raw())

    def __repr__(self) -> str:
        return f"Identity({self.name!r}, {self.member.fingerprint!r})"

    def check(self, now: dt.datetime | None = None) -> None:
        """Refuses a certificate that is expired or not yet valid, and says what to do."""
        now = now or dt.datetime.now(dt.UTC)
        where = self.folder or "DIR"
        if now > self.expires:
            raise IdentityError(
                f'the certificate of "{self.name}" expired on {self.expires:%Y-%m-%d %H:%M} UTC; '
                f"renew it with `confrere enroll --renew {where}` (peers need not do anything)"
            )
        if now < self.certificate.not_valid_before_utc:
            raise IdentityError(
                f'the certificate of "{self.name}" is valid from {self.certificate.not_valid_before_utc:%Y-%m-%d %H:%M} '
                f"UTC on, and this clock says {now:%Y-%m-%d %H:%M} UTC; set the clock, or renew the certificate"
            )


def new_identity(
    name: str,
    address: str | None = None,
    *,
    declared: int = 1,
    now: dt.datetime | None = None,
    valid: dt.timedelta = VALID,
) -> Identity:
    """A fresh identity with a TLS certificate; in memory only. A site that enrolls states its size: see `enroll`."""
    check_name(name)
    key = Ed25519PrivateKey.generate()
    member = Member(
        name, key.public_key().public_bytes_raw(), _identity_certificate(key, name), check_address(address),
        declared=check_declared(declared),
    )  # fmt: skip
    return _endorse(member, key, None, now or dt.datetime.now(dt.UTC), valid)


def enroll(
    name: str,
    address: str | None,
    folder: Path,
    *,
    declared: int,
    now: dt.datetime | None = None,
    valid: dt.timedelta = VALID,
) -> Identity:
    """Make a site's identity in a folder. An identity that is there already is never overwritten."""
    if (folder / IDENTITY).exists():
        raise IdentityError(
            f"{folder / IDENTITY} exists: this folder has an identity, and peers know it. "
            f"For a new certificate, `confrere enroll --renew {folder}`"
        )
    made = new_identity(name, address, declared=declared, now=now, valid=valid)
    make_private_folder(folder)
    _write(folder / TLS, made.tls_key + made.chain, 0o600)
    _write(folder / PEER, made.member.to_toml().encode(), 0o644)
    _write(folder / IDENTITY, _pem(made.key), 0o600)
    return load_identity(folder)


def renew(
    folder: Path,
    *,
    declared: int | None = None,
    now: dt.datetime | None = None,
    valid: dt.timedelta = VALID,
) -> Identity:
    """Put a new TLS key and certificate in place, endorsed by the same identity; `declared` states another size."""
    member, key = _load_key(folder, declared)
    made = _endorse(member, key, folder, now or dt.datetime.now(dt.UTC), valid)
    _write(folder / TLS, made.tls_key + made.chain, 0o600)
    if declared is not None:
        _write(folder / PEER, member.to_toml().encode(), 0o644)
    return made


def load_identity(folder: Path) -> Identity:
    """The identity in a folder. Checks files, permissions and endorsement, not the dates: see `Identity.check`."""
    member, key = _load_key(folder)
    data = _read_secret(folder / TLS)
    try:
        tls_key = load_pem_private_key(data, None)
        certificate = x509.load_pem_x509_certificate(data)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise IdentityError(
            f"{folder / TLS} is damaged; make another with `confrere enroll --renew {folder}`"
        ) from None
    if tls_key.public_key() != certificate.public_key() or not member.endorsed(certificate):
        raise IdentityError(
            f"{folder / TLS} holds a certificate that this identity did not endorse; make another with "
            f"`confrere enroll --renew {folder}`"
        )
    return Identity(member, key, certificate, _pem(tls_key), folder)  # type: ignore[arg-type]


def _load_key(folder: Path, declared: int | None = None) -> tuple[Member, Ed25519PrivateKey]:
    data = _read_secret(folder / IDENTITY)
    try:
        key = load_pem_private_key(data, None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Ed25519PrivateKey):
        raise IdentityError(f"{folder / IDENTITY} is damaged; put a copy of it back: peers know no other key")
    member = read_member(folder / PEER, declared)
    if member.identity != key.public_key().public_bytes_raw():
        raise IdentityError(f"{folder / PEER} is of another identity than {folder / IDENTITY}")
    return member, key


def _identity_certificate(key: Ed25519PrivateKey, name: str) -> bytes:
    """A root for one site. An identity does not expire: it leaves."""
    public = key.public_key()
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host_name(public.public_bytes_raw()))])
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(public)
        .serial_number(1)
        .not_valid_before(LONG_AGO)
        .not_valid_after(FAR_AHEAD)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(
            x509.SubjectAlternativeName([x509.UniformResourceIdentifier(site_uri(name))]), critical=False
        )
    )
    return builder.sign(key, None).public_bytes(Encoding.DER)


def _endorse(
    member: Member, key: Ed25519PrivateKey, folder: Path | None, now: dt.datetime, valid: dt.timedelta
) -> Identity:
    tls_key = ec.generate_private_key(ec.SECP256R1())
    certificate = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, member.host_name[:60])]))
        .issuer_name(x509.load_der_x509_certificate(member.certificate).subject)
        .public_key(tls_key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - EARLIER)
        .not_valid_after(now + valid)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]),
            critical=False,
        )
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(member.host_name)]), critical=False)
        .sign(key, None)
    )
    return Identity(member, key, certificate, _pem(tls_key), folder)


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates, content_commitment=False, key_encipherment=False,
        data_encipherment=False, key_agreement=False, key_cert_sign=signs_certificates, crl_sign=False,
        encipher_only=False, decipher_only=False,
    )  # fmt: skip


def _pem(key: Ed25519PrivateKey | ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _read_secret(path: Path) -> bytes:
    """A file that only its owner may read."""
    try:
        with open(path, "rb") as file:
            advice = ", and consider whether the key is still a secret"
            require_owner_only(path, IdentityError, advice, os.fstat(file.fileno()))
            return file.read()
    except FileNotFoundError:
        lost = path.name == TLS and (path.parent / IDENTITY).exists()
        remedy = (
            f"`confrere enroll --renew {path.parent}` makes another"
            if lost
            else "`confrere enroll` makes a site's keys"
        )
        raise IdentityError(f"{path} is missing; {remedy}") from None
    except PermissionError:
        raise IdentityError(f"{path} belongs to another user; run this as the user that enrolled") from None


def _write(path: Path, data: bytes, mode: int) -> None:
    """Whole or not at all, and never readable by others in between."""
    draft = path.with_name(path.name + ".new")
    draft.unlink(missing_ok=True)
    file = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        os.write(file, data)
        os.fsync(file)
    finally:
        os.close(file)
    os.replace(draft, path)


LOOK_EVERY = 30.0
"""Seconds between checks for a renewed certificate."""


class CertificateKeeper:
    """Keeps the certificate of a running node fresh: takes a renewed one from its folder, and renews it in time."""

    def __init__(
        self, identity: Identity, changed: Callable[[], None], notice: Callable[[str], None]
    ) -> None:
        self.identity = identity
        self._changed, self._notice = changed, notice
        self._complaint = ""

    def use(self, identity: Identity) -> None:
        """Another certificate of the same site; it counts for every handshake from now on."""
        if identity.member.identity != self.identity.member.identity:
            raise ValueError("an identity cannot be exchanged while a node runs")
        if identity.certificate != self.identity.certificate:
            self.identity = identity
            self._changed()

    async def run(self) -> None:
        while True:
            await asyncio.sleep(LOOK_EVERY)
            self.look()

    def look(self, now: dt.datetime | None = None) -> None:
        """Once: see whether there is a newer certificate, or a need for one."""
        folder = self.identity.folder
        if folder is None:
            return
        try:
            found = load_identity(folder)
            if found.expires - (now or dt.datetime.now(dt.UTC)) < RENEW_BEFORE:
                found = renew(folder, now=now)
                self._notice(f"the certificate was renewed and is valid until {found.expires:%Y-%m-%d}")
            self.use(found)
            self._complaint = ""
        except (ConfrereError, OSError) as error:
            if str(error) != self._complaint:
                self._complaint = str(error)
                self._notice(f"the certificate in use stays: {error}")

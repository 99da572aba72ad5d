"""The public half of a site: its name, its identity key, where it can be dialled. This is what peers pin.

A site's identity is an Ed25519 key. Its identity certificate binds the key to the site's name and is the one
thing that peers trust about it: a TLS certificate counts if, and only if, this identity endorsed it. So a site
renews its TLS certificate by itself, and no roster changes.

    peer.toml
    name = "st-mary"
    address = "node.st-mary.example:7443"     # left out where a site can only dial out
    declared = 2300                            # records or patients of its whole file, as its owner states them
    fingerprint = "4f1c 09aa …"                # to be compared by telephone before the site is added to a roster
    identity = "…"                             # the Ed25519 public key, 64 hexadecimal digits
    certificate = "…"                          # the identity certificate, base64
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import tomli_w
from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding

from confrere.core.errors import StudyError
from confrere.core.strict_reader import read_toml_file

LONGEST_NAME = 128
LARGEST_FILE = 64 * 1024
MOST_DECLARED = 10**9
_FIELDS = {"name", "address", "declared", "fingerprint", "identity", "certificate"}


@dataclass(frozen=True)
class Member:
    """A site as its peers know it. Two members are the same site if their keys are the same."""

    name: str
    identity: bytes
    """The raw Ed25519 public key."""
    certificate: bytes
    """The identity certificate, DER; the root that gRPC checks TLS certificates of this site against."""
    address: str | None = None
    """host:port, or None for a site that only dials out and is served over the streams that it opened."""
    declared: int = field(kw_only=True)
    """Privacy units (records or patients) of the site's whole file, stated by its owner. PUBLIC."""

    @property
    def key(self) -> Ed25519PublicKey:
        """What verifies this site's signatures."""
        return Ed25519PublicKey.from_public_bytes(self.identity)

    @property
    def fingerprint(self) -> str:
        return fingerprint(self.identity)

    @property
    def host_name(self) -> str:
        """The name in this site's TLS certificates: of its key, so it needs no domain and fits any site name."""
        return host_name(self.identity)

    @property
    def root(self) -> bytes:
        """The identity certificate as PEM."""
        return x509.load_der_x509_certificate(self.certificate).public_bytes(Encoding.PEM)

    def endorsed(self, certificate: x509.Certificate) -> bool:
        """Whether this site's identity endorsed a TLS certificate, with this site's own name in it."""
        try:
            self.key.verify(certificate.signature, certificate.tbs_certificate_bytes)
        except InvalidSignature:
            return False
        return _is_for(certificate, self.host_name)

    def as_table(self) -> dict[str, Any]:
        table: dict[str, Any] = {
            "name": self.name,
            "declared": self.declared,
            "fingerprint": self.fingerprint,
            "identity": self.identity.hex(),
            "certificate": base64.b64encode(self.certificate).decode(),
        }
        return table if self.address is None else {**table, "address": self.address}

    def to_toml(self) -> str:
        return tomli_w.dumps(self.as_table())


def fingerprint(identity: bytes) -> str:
    """128 bits of the key's SHA-256, in groups that can be read out over the telephone."""
    digest = hashlib.sha256(identity).hexdigest()[:32]
    return " ".join(digest[i : i + 4] for i in range(0, 32, 4))


def host_name(identity: bytes) -> str:
    return f"{hashlib.sha256(identity).hexdigest()[:32]}.confrere.invalid"


def read_member(path: Path, declared: int | None = None) -> Member:
    """The member that a peer.toml describes; `declared` takes the place of the size that the file states."""
    hint = "`confrere enroll` writes peer.toml for a site to give to its peers"
    table = read_toml_file(path, hint, largest=LARGEST_FILE)
    if declared is not None:
        table["declared"] = declared
    return parse_member(table, str(path))


def parse_member(table: dict[str, Any], where: str) -> Member:
    """A member from the keys of a peer.toml; inconsistent keys are an error."""
    if "declared" not in table and set(table) >= _FIELDS - {"address", "declared"}:
        raise StudyError(
            f"{where} states no declared size (it was made by version 0.1): every site runs"
            " `confrere roster upgrade --keys KEYS --declared N` and sends its new peer.toml to the others"
        )
    odd = sorted(set(table) - _FIELDS) or sorted(_FIELDS - {"address"} - set(table))
    if odd or not all(isinstance(value, str) for key, value in table.items() if key != "declared"):
        what = (
            f'"{odd[0]}" is {"unknown" if odd[0] in table else "missing"}' if odd else "all values are text"
        )
        raise StudyError(f"{where}: not a peer.toml: {what}")
    try:
        identity = bytes.fromhex(table["identity"])
        certificate = base64.b64decode(table["certificate"], validate=True)
        member = Member(
            check_name(table["name"]), identity, certificate, check_address(table.get("address")),
            declared=check_declared(table["declared"], where),
        )  # fmt: skip
        _check_identity_certificate(member)
    except (ValueError, UnsupportedAlgorithm, InvalidSignature) as error:
        raise StudyError(f"{where}: its key or certificate is damaged ({error or 'signature'})") from None
    if member.fingerprint != table["fingerprint"]:
        raise StudyError(f"{where}: the fingerprint is not that of the key; the file was altered or damaged")
    return member


def check_name(name: str) -> str:
    """The name of a site, if it can be printed."""
    if not name.strip() or name != name.strip() or len(name) > LONGEST_NAME or not name.isprintable():
        raise StudyError(
            f"{name[:40]!r} is not a valid site name; use up to {LONGEST_NAME} printable characters"
        )
    return name


def check_declared(declared: object, where: str = "--declared") -> int:
    """A declared size, if it is one."""
    if type(declared) is not int or not 1 <= declared <= MOST_DECLARED:
        raise StudyError(
            f"{where}: the declared size is {str(declared)[:40]}; it is the number of records (or patients) in the"
            f" site's whole file, from 1 to {MOST_DECLARED:,}"
        )
    return declared


def check_address(address: str | None) -> str | None:
    """host:port, checked for its form only."""
    if address is None:
        return None
    match = re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):(\d{1,5})", address)
    if match is None or not 1 <= int(match[2]) <= 65535:
        raise StudyError(f'"{address[:80]}" is not an address; write host:port, as in node.example.org:7443')
    return address


def endorser(certificate: x509.Certificate, members: Iterable[Member]) -> Member | None:
    """Whose certificate this is, if it is one of the members'."""
    return next((member for member in members if member.endorsed(certificate)), None)


def _check_identity_certificate(member: Member) -> None:
    certificate = x509.load_der_x509_certificate(member.certificate)
    key = certificate.public_key()
    if not isinstance(key, Ed25519PublicKey) or key.public_bytes_raw() != member.identity:
        raise ValueError("the certificate is of another key")
    key.verify(certificate.signature, certificate.tbs_certificate_bytes)
    names = _alternative_names(certificate)
    if names is None or names.get_values_for_type(x509.UniformResourceIdentifier) != [site_uri(member.name)]:
        raise ValueError("the certificate is of a site with another name")


def site_uri(name: str) -> str:
    """How an identity certificate spells the name of its site."""
    return "confrere:" + quote(name, safe="")


def _alternative_names(certificate: x509.Certificate) -> x509.SubjectAlternativeName | None:
    try:
        return certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return None


def _is_for(certificate: x509.Certificate, host: str) -> bool:
    names, key = _alternative_names(certificate), certificate.public_key()
    return (
        names is not None
        and names.get_values_for_type(x509.DNSName) == [host]
        and isinstance(key, EllipticCurvePublicKey)
        and isinstance(key.curve, SECP256R1)
    )

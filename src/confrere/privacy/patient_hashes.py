"""Keyed hashes of the patients a ledger was charged for; the key is kept next to the ledger.

A hash of a patient id without a key could be guessed by anyone who reads the file. The secret is one for the ledger's
file, so that all sites and studies of an institution recognise the same patients.
"""

from __future__ import annotations

import hmac
import os
import secrets
from collections.abc import Iterable
from pathlib import Path

from confrere.core.errors import PrivacyError
from confrere.core.owner_only import require_irreplaceable

SIZE = 32


def secret_beside(ledger: Path) -> bytes:
    """The secret of a ledger's file; made when it is first asked for, whole or not at all.

    A ledger that has patients already refuses a new one (`Ledger.register`), since it would recognise no patient.
    """
    path = ledger.with_suffix(".key")
    if not path.exists():
        draft = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
        file = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.write(file, secrets.token_bytes(SIZE))
            os.fsync(file)
        finally:
            os.close(file)
        try:
            os.link(draft, path)  # of two processes that make one at the same time, the first wins
        except FileExistsError:
            pass
        finally:
            draft.unlink()
    require_irreplaceable(path, PrivacyError)
    found = path.read_bytes()
    if len(found) != SIZE:
        raise PrivacyError(f"{path} is damaged; restore it from a backup: {ledger} recognises patients by it")
    return found


def keyed(secret: bytes, purpose: str, value: bytes) -> bytes:
    """HMAC-SHA256 of a value, for one purpose."""
    return hmac.digest(secret, purpose.encode() + b"\0" + value, "sha256")


def hashes(secret: bytes, patients: Iterable[int]) -> frozenset[bytes]:
    """A keyed hash of each patient, from the 64-bit number that stands for the patient's id."""
    return frozenset(keyed(secret, "patient", p.to_bytes(8, "little", signed=True)) for p in patients)


def former_hashes(secret: bytes, pairs: Iterable[tuple[int, int]]) -> dict[bytes, frozenset[bytes]]:
    """The keyed hashes under which ledgers may know patients from before, by the present ones (`data.digests.former_ids`)."""
    found: dict[bytes, frozenset[bytes]] = {}
    for patient, former in pairs:
        (own,), known = hashes(secret, [patient]), hashes(secret, [former])
        found[own] = found.get(own, frozenset()) | known
    return found


def check_of(secret: bytes) -> str:
    """What a ledger keeps to know its own secret by."""
    return keyed(secret, "ledger", b"").hex()


def fingerprint(secret: bytes, records: str) -> str:
    """A keyed hash of a site's records as a whole, from a hash of their content."""
    return keyed(secret, "records", records.encode()).hex()

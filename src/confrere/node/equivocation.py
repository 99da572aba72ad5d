"""Equivocation: a peer that signs two different statements under one number, and the proof that it did."""

from __future__ import annotations

import json
from sqlite3 import Connection
from typing import Any

from confrere.core.errors import BadParcel
from confrere.core.parcel import Parcel

LEAVING = 255
"""The phase of a leave message; no exchange reaches this number."""
PROOFS = 8
"""At most this many proofs of equivocation are kept of one sender; one is enough, and more would fill the disk."""


class Equivocation(BadParcel):
    """Its sender has signed another parcel under the same number, or for the same phase of a round.

    `proof` has the two signed headers; it is None if as many were kept of this sender before.
    """

    def __init__(self, text: str, proof: tuple[str, str] | None) -> None:
        super().__init__(text)
        self.proof = proof


def conflict(database: Connection, parcel: Parcel, header: str) -> tuple[str, bool] | None:
    """The header that the sender signed before in this parcel's place, and whether the proof is new; None for a copy.

    Farewells and other control parcels are no evidence about parcels.
    """
    row = database.execute(
        "SELECT inbox.sequence, signed.header FROM inbox LEFT JOIN signed USING (sender, sequence) WHERE sender = ?"
        " AND (sequence = ? OR (epoch = ? AND round = ? AND phase = ?)) ORDER BY sequence = ? DESC LIMIT 1",
        (parcel.sender, parcel.sequence, parcel.epoch, parcel.round, parcel.phase, parcel.sequence),
    ).fetchone()
    sequence, first = row
    if parcel.phase < LEAVING and first is not None and _statement(first) != _statement(header):
        return first, keep_proof(database, parcel.sender, parcel.sequence, first, header)
    if sequence != parcel.sequence:
        raise BadParcel(f"a second parcel for phase {parcel.phase} of round {parcel.round + 1}")
    return None


def keep_proof(database: Connection, sender: str, sequence: int, first: str, second: str) -> bool:
    """Keep two contradictory signed headers; False if this proof is known, or enough of this sender are kept."""
    query = "SELECT count(*) FROM equivocations WHERE sender = ?"
    if database.execute(query, (sender,)).fetchone()[0] >= PROOFS:
        return False
    kept = database.execute(
        "INSERT OR IGNORE INTO equivocations VALUES (?, ?, ?, ?)", (sender, sequence, first, second)
    )
    return kept.rowcount == 1


def _statement(header: str) -> dict[str, Any]:
    """The content of a header without its signature."""
    return {key: value for key, value in json.loads(header).items() if key != "signature"}

"""The common seed of a mask graph: it depends on the part of every member, and none of them sees another's part too early."""

from __future__ import annotations

from dataclasses import replace

import pytest

from confrere.core.errors import BadParcel, PeerError, PrivacyError
from confrere.exchange.secure.graph_seed import SeedMember
from tests.masked_world import AGREED

MEMBERS, KEYS = AGREED[4]
NAMES = [member.name for member in MEMBERS]


def members() -> dict[str, SeedMember]:
    return {name: SeedMember(MEMBERS, 0, name, KEYS[name]) for name in NAMES}


def test_all_members_make_the_same_seed_and_another_one_each_time() -> None:
    seeds = set()
    for _ in range(2):
        found = members()
        commitments = {name: member.commitment() for name, member in found.items()}
        confirmations = {name: member.confirm(commitments) for name, member in found.items()}
        parts = {name: member.reveal(confirmations) for name, member in found.items()}
        made = {member.seed(parts) for member in found.values()}
        assert len(made) == 1
        seeds |= made
        for name in NAMES:
            with pytest.raises(PeerError, match=f'"{name}" revealed another'):
                found[NAMES[0]].seed({**parts, name: bytes(32)})
            with pytest.raises(PeerError, match="3 of 4 members have revealed"):
                found[NAMES[0]].seed({k: v for k, v in parts.items() if k != name})
    assert len(seeds) == 2


def test_a_seed_needs_the_signed_commitment_of_every_member_and_of_no_other() -> None:
    found = members()
    commitments = {name: member.commitment() for name, member in found.items()}
    first, last = NAMES[0], NAMES[-1]
    for wrong in (
        {last: commitments[last]},
        {k: v for k, v in commitments.items() if k != last},
        {**commitments, "elsewhere": commitments[last]},
    ):
        with pytest.raises(PeerError, match="all of them must"):
            found[first].confirm(wrong)
    for forged in (replace(commitments[last], hash=bytes(32)), commitments[first]):
        with pytest.raises(BadParcel, match="is not signed by it"):
            found[first].confirm({**commitments, last: forged})
    with pytest.raises(BadParcel, match="another one of this member"):
        members()[first].confirm(commitments)


def test_no_part_is_revealed_before_all_members_have_confirmed_the_same_commitments() -> None:
    """Without this the last member would choose its part after it has seen the others'."""
    found = members()
    commitments = {name: member.commitment() for name, member in found.items()}
    first, last = NAMES[0], NAMES[-1]
    other = SeedMember(MEMBERS, 0, last, KEYS[last])  # the last member commits twice
    confirmations = {name: found[name].confirm(commitments) for name in NAMES[:-1]}
    with pytest.raises(PeerError, match="3 of 4 members have confirmed"):
        found[first].reveal(confirmations)
    another = other.confirm({**commitments, last: other.commitment()})
    for signature in (another, confirmations[first], b""):
        with pytest.raises(BadParcel, match=f'"{last}" has not confirmed the same'):
            found[first].reveal({**confirmations, last: signature})
    with pytest.raises(PrivacyError, match="other commitments were confirmed before"):
        found[first].confirm({**commitments, last: other.commitment()})
    with pytest.raises(PrivacyError, match="after all commitments were confirmed"):
        found[first].seed(dict.fromkeys(NAMES, bytes(32)))

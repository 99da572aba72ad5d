"""What each rule of masked sums prevents: the break with the rule switched off, and nothing of it with the rule.

A rule is switched off by a subclass or by a call in this file; no study can reach it. Traps of the noise are in
`test_secure_noise_traps.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from numpy.typing import NDArray

from confrere.core.errors import BadParcel, ConfrereError, PrivacyError
from confrere.exchange.secure import attempt as attempt_module
from confrere.exchange.secure import masking, sharing
from confrere.exchange.secure.attempt import AttemptMember
from confrere.exchange.secure.in_process import GivenVector
from confrere.exchange.secure.member_secrets import MemberSecrets
from confrere.exchange.secure.member_site import LedgerFacts, MemberSite, MemoryFacts
from confrere.exchange.secure.messages import (
    AttemptId,
    Certificate,
    KeyAnnouncement,
    KeyList,
    MaskedVector,
    Message,
    OpenedShares,
    Proposal,
    SealedShares,
    ShareDelivery,
    Vote,
)  # fmt: skip
from confrere.privacy.charges import masked
from confrere.privacy.ledger import Ledger
from tests.masked_world import AGREED, SIZE, agreement_of

Members = dict[str, AttemptMember]


class Hostile:
    """A summing site that asks members what it likes, with what it has collected; and all that it was ever sent."""

    def __init__(
        self,
        n: int = 4,
        t: int = 1,
        d: int = 1,
        kind: type[AttemptMember] = AttemptMember,
        round: int = 0,
    ) -> None:
        self.agreement = agreement_of(n, t, d)
        self.id = AttemptId("run", round, "proxy", 0, 0)
        self.context = self.id.context(self.agreement)
        self.names = self.agreement.names
        self.facts: dict[str, LedgerFacts] = {name: MemoryFacts() for name in self.names}
        self.vectors = {name: np.arange(SIZE, dtype=np.int64) + 1000 * k for k, name in enumerate(self.names)}
        self.kind = kind
        self.members: Members = {name: self.member(name) for name in self.names}
        self.sent: dict[str, MaskedVector] = {}
        self.opened: list[OpenedShares] = []
        self.announced: dict[str, KeyAnnouncement] = {}

    def member(self, name: str) -> AttemptMember:
        """A member as its process begins: what it knows is in the ledger."""
        source = GivenVector(self.vectors[name])
        site = MemberSite(name, AGREED[len(self.names)][1][name], self.facts[name])
        return self.kind(self.agreement, self.id, site, source)

    def ask(self, name: str, message: Message) -> list[Message]:
        try:
            replies = self.members[name].receive(self.names[0], message)
        except ConfrereError:
            return []
        for reply in replies:
            if isinstance(reply, MaskedVector):
                self.sent[name] = reply
            elif isinstance(reply, OpenedShares):
                self.opened.append(reply)
        return replies

    def keys(self) -> None:
        for name, member in self.members.items():
            (found,) = member.start()
            assert isinstance(found, KeyAnnouncement)
            self.announced[name] = found

    def vector_phase(self, told: Callable[[str], tuple[str, ...]] | None = None) -> None:
        """Keys, shares and vectors; `told` is who has shared out secrets, as each member is told."""
        self.keys()
        sealed: dict[str, SealedShares] = {}
        told = told or (lambda name: self.names)
        listed = KeyList(self.context, tuple(self.announced[name] for name in self.names))
        for name in self.names:
            for reply in self.ask(name, listed):
                assert isinstance(reply, SealedShares)
                sealed[name] = reply
        for name in self.names:
            found = {other: sealed[other].sealed[name] for other in told(name)}
            self.ask(name, ShareDelivery(self.context, told(name), found))

    def votes(self, survivors: tuple[str, ...], voters: tuple[str, ...]) -> dict[str, bytes]:
        proposal = Proposal(self.context, tuple(self.sent[name].header for name in survivors))
        found = {}
        for name in voters:
            for reply in self.ask(name, proposal):
                if isinstance(reply, Vote) and reply.survivors == survivors:
                    found[name] = reply.signature
        return found

    def open(self, survivors: tuple[str, ...], signatures: dict[str, bytes]) -> None:
        partners = self.sent[survivors[0]].header.partners
        for name in self.names:
            self.ask(name, Certificate(self.context, partners, survivors, signatures))

    def restored(self, site: str, half: str) -> bytes | None:
        """The seed or the key of a member from what holders have opened; None if they are too few."""
        shares = {}
        for opening in self.opened:
            given = opening.seed_shares if half == "seed" else opening.key_shares
            if site in given:
                shares[self.agreement.position(opening.site)] = given[site]
        needed = self.agreement.graph.threshold
        return sharing.restore(shares, needed) if len(shares) >= needed else None

    def bare(self, site: str, seed: bytes, key: bytes) -> NDArray[np.int64]:
        """A member's vector from its two secrets."""
        sent = self.sent[site]
        vector = masking.unpacked(sent.vector, SIZE, self.agreement.terms.bits)
        masking.add_stream(
            vector, masking.self_key(seed, self.context, site), self.agreement.terms.bits, subtract=True
        )
        mask = X25519PrivateKey.from_private_bytes(key)
        for partner in sent.sharers:
            if partner != site:
                secret = masking.common_secret(mask, self.announced[partner].mask_key)
                stream = masking.pair_key(secret, self.context, site, partner)
                masking.add_pair_stream(vector, stream, self.agreement.terms.bits, site, partner, undo=True)
        return masking.from_ring(vector, self.agreement.terms.bits)


# -- two lists -----------------------------------------------------------------------------------------


class SignsEverything(AttemptMember):
    """Signs and opens whatever it is asked: the rule of one list is off."""

    def receive(self, sender: str, message: Message) -> list[Message]:
        if isinstance(message, Proposal | Certificate):
            self._sent.pop(Vote, None)
            self._facts = MemoryFacts()
        return super().receive(sender, message)


def both_lists(kind: type[AttemptMember]) -> Hostile:
    """A summing site that names different survivors, with and without the last member, to all of them."""
    hostile = Hostile(kind=kind)
    hostile.vector_phase()
    whole, without = hostile.names, hostile.names[:-1]
    for survivors in (whole, without):
        signatures = hostile.votes(survivors, hostile.names)
        hostile.open(survivors, signatures)
    return hostile


def test_two_lists_in_one_attempt_would_expose_a_vector() -> None:
    hostile = both_lists(SignsEverything)
    victim = hostile.names[-1]
    seed, key = hostile.restored(victim, "seed"), hostile.restored(victim, "key")
    assert seed is not None
    assert key is not None
    assert (hostile.bare(victim, seed, key) == hostile.vectors[victim]).all()


def test_a_member_signs_one_list_and_opens_no_other() -> None:
    hostile = both_lists(AttemptMember)
    for site in hostile.names:
        assert hostile.restored(site, "seed") is not None
        assert not [opening for opening in hostile.opened if site in opening.key_shares]


@pytest.mark.parametrize(("n", "t", "d"), [(3, 1, 0), (4, 1, 1), (5, 2, 1), (8, 2, 2)])
def test_a_summing_site_that_names_different_survivors_to_different_members_learns_nothing(
    n: int, t: int, d: int
) -> None:
    """The first t members collude: they sign both lists. However the others are divided, no member's halves are both opened."""
    for cut in range(n - t + 1):
        hostile = Hostile(n, t, d)
        hostile.vector_phase()
        colluding, honest = hostile.names[:t], hostile.names[t:]
        one, other = hostile.names, hostile.names[: n - d] if d else hostile.names
        groups = [(one, honest[:cut]), (other, honest[cut:])]
        signed = [(survivors, hostile.votes(survivors, voters)) for survivors, voters in groups]
        partners = hostile.sent[hostile.names[0]].header.partners
        for survivors, signatures in signed:
            for name in colluding:
                vote = Vote(hostile.context, name, partners, survivors)
                signatures[name] = attempt_module.sign(AGREED[n][1][name], vote.signed_part())
            hostile.open(survivors, signatures)
        for site in honest:
            # colluding members give away both shares that they hold
            counts = [
                t + sum(1 for o in hostile.opened if o.site not in colluding and site in getattr(o, half))
                for half in ("seed_shares", "key_shares")
            ]
            assert min(counts) < hostile.agreement.graph.threshold
        if d and 0 < cut < n - t:
            assert not hostile.opened or len({o.statement for o in hostile.opened}) == 1


def test_too_few_signatures_open_nothing() -> None:
    hostile = Hostile()
    hostile.vector_phase()
    signatures = hostile.votes(hostile.names, hostile.names)
    forged = {**dict(list(signatures.items())[:2]), hostile.names[3]: bytes(64)}
    hostile.open(hostile.names, forged)
    assert not hostile.opened
    hostile.open(hostile.names, signatures)
    assert hostile.opened


def test_a_list_that_is_too_short_is_not_signed() -> None:
    hostile = Hostile()
    hostile.vector_phase()
    assert not hostile.votes(hostile.names[:2], hostile.names)


# -- other partners for one member ----------------------------------------------------------------------


class SignsAnyPartners(AttemptMember):
    """Does not ask with whom the others' vectors are masked."""

    def receive(self, sender: str, message: Message) -> list[Message]:
        if isinstance(message, Proposal):
            own = self._partners_digest()
            headers = tuple(replace(h, partners=own) for h in message.headers)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(attempt_module, "check_proposal", lambda *_: None)
                patch.setattr(
                    self, "_own_header", lambda: next((h for h in headers if h.site == self.name), None)
                )
                return super().receive(sender, replace(message, headers=headers))
        return super().receive(sender, message)


def other_partners(kind: type[AttemptMember]) -> tuple[Hostile, str]:
    """The victim is told that only the colluding member and one that will be dropped are its partners."""
    hostile = Hostile(4, 1, 1, kind=kind)
    colluding, gone, victim, other = hostile.names
    few = tuple(sorted((colluding, gone, victim)))
    hostile.vector_phase(lambda name: few if name == victim else hostile.names)
    survivors = tuple(sorted((colluding, victim, other)))
    voters = (colluding, gone, other)
    signatures = hostile.votes(survivors, voters)
    partners = hostile.sent[other].header.partners
    for name in voters:
        hostile.ask(name, Certificate(hostile.context, partners, survivors, signatures))
    return hostile, victim


def test_other_partners_for_one_member_would_expose_its_vector() -> None:
    """With all partners of a member colluding or dropped, its vector has no mask that is not opened."""
    hostile, victim = other_partners(SignsAnyPartners)
    colluding, gone, *_ = hostile.names
    seed, key = hostile.restored(victim, "seed"), hostile.restored(gone, "key")
    assert seed is not None
    assert key is not None
    secrets = hostile.members[colluding]._secrets
    assert secrets is not None
    bits = hostile.agreement.terms.bits
    vector = masking.unpacked(hostile.sent[victim].vector, SIZE, bits)
    masking.add_stream(vector, masking.self_key(seed, hostile.context, victim), bits, subtract=True)
    for partner, own in (
        (gone, X25519PrivateKey.from_private_bytes(key)),
        (colluding, secrets.mask),
    ):
        secret = masking.common_secret(own, hostile.announced[victim].mask_key)
        stream = masking.pair_key(secret, hostile.context, victim, partner)
        masking.add_pair_stream(vector, stream, bits, victim, partner, undo=True)
    assert (masking.from_ring(vector, bits) == hostile.vectors[victim]).all()


def test_no_list_is_signed_whose_members_have_other_partners() -> None:
    hostile, _ = other_partners(AttemptMember)
    assert not hostile.opened


# -- keys that serve two rounds -------------------------------------------------------------------------


class KeepsItsKeys(AttemptMember):
    """Uses the same secrets in every attempt."""

    def _fresh(self) -> MemberSecrets:
        kept = (self.name.encode() * 96)[:96]
        return MemberSecrets(self.context, self.name, kept)


def survive_and_drop(kind: type[AttemptMember]) -> tuple[Hostile, bytes, bytes]:
    """The last member survives round 4 and drops out in round 5: its seed of the one and its key of the other are opened."""
    fourth, fifth = Hostile(kind=kind, round=4), Hostile(kind=kind, round=5)
    for hostile, survivors in ((fourth, fourth.names), (fifth, fifth.names[:-1])):
        hostile.vector_phase()
        hostile.open(survivors, hostile.votes(survivors, hostile.names))
    victim = fourth.names[-1]
    seed, key = fourth.restored(victim, "seed"), fifth.restored(victim, "key")
    assert seed is not None
    assert key is not None
    return fourth, seed, key


def test_a_key_that_serves_two_rounds_would_expose_the_first() -> None:
    hostile, seed, key = survive_and_drop(KeepsItsKeys)
    victim = hostile.names[-1]
    assert (hostile.bare(victim, seed, key) == hostile.vectors[victim]).all()


def test_fresh_keys_expose_nothing_of_another_round() -> None:
    hostile, seed, key = survive_and_drop(AttemptMember)
    victim = hostile.names[-1]
    assert not (hostile.bare(victim, seed, key) == hostile.vectors[victim]).any()


def test_secrets_are_dropped_when_an_attempt_closes() -> None:
    hostile = Hostile()
    hostile.vector_phase()
    signatures = hostile.votes(hostile.names, hostile.names)
    for member in hostile.members.values():
        assert member._held
        member.close()
        assert (member._secrets, member._held, member.resend()) == (None, {}, [])
    hostile.open(hostile.names, signatures)
    assert not hostile.opened
    assert all(not hostile.member(name).start() for name in hostile.names)  # it is not begun again


def test_within_an_attempt_only_the_same_bytes_are_sent_again() -> None:
    hostile = Hostile()
    hostile.vector_phase()
    name = hostile.names[0]
    first, member = hostile.sent[name], hostile.members[name]
    assert [m for m in member.resend() if isinstance(m, MaskedVector)] == [first]
    assert hostile.ask(name, ShareDelivery(hostile.context, hostile.names, {})) == [first]
    keys = KeyList(hostile.context, tuple(hostile.announced.values()))
    assert hostile.ask(name, keys) == [m for m in member.resend() if isinstance(m, SealedShares)]


# -- a process that is started again, a machine that is restored -----------------------------------------


def test_a_process_that_is_started_again_takes_no_part_in_an_attempt_that_it_has_acted_in() -> None:
    for acted in ("vector", "vote"):
        hostile = Hostile()
        hostile.vector_phase()
        if acted == "vote":
            hostile.votes(hostile.names, hostile.names)
        again = hostile.member(hostile.names[1])
        assert again.ended == "this site was started again during the attempt"
        assert (again.start(), again.resend(), again.succeed(hostile.names[3])) == ([], [], [])


def copied(member: AttemptMember) -> AttemptMember:
    """A member as a folder with its secrets would bring it back."""
    found = copy(member)
    found._sent, found._held = dict(member._sent), dict(member._held)
    return found


def restored_machine(*, with_secrets: bool) -> tuple[Hostile, str]:
    """Between its vector and its vote one honest machine is saved as a whole, ledger included, and put back after it has
    opened shares for a first list. The summing site asks it for those of a second list, which leaves out another member."""
    hostile = Hostile()
    hostile.vector_phase()
    colluding, machine, victim, other = hostile.names
    facts = hostile.facts[machine]
    assert isinstance(facts, MemoryFacts)
    folder, ledger = copied(hostile.members[machine]), dict(facts.facts)
    partners = hostile.sent[machine].header.partners
    for survivors, honest in ((hostile.names, victim), ((colluding, machine, other), other)):
        signatures = hostile.votes(survivors, (machine, honest))
        vote = Vote(hostile.context, colluding, partners, survivors)
        signatures[colluding] = attempt_module.sign(AGREED[4][1][colluding], vote.signed_part())
        for name in (machine, honest):
            hostile.ask(name, Certificate(hostile.context, partners, survivors, signatures))
        facts.facts = dict(ledger)
        folder._facts = facts
        hostile.members[machine] = folder if with_secrets else hostile.member(machine)
    key, seed = hostile.members[colluding]._held[victim]  # the colluding member opens both
    hostile.opened.append(OpenedShares(hostile.context, colluding, b"", {victim: seed}, {victim: key}))
    return hostile, victim


def test_a_restored_machine_with_stored_secrets_would_expose_another_member() -> None:
    hostile, victim = restored_machine(with_secrets=True)
    seed, key = hostile.restored(victim, "seed"), hostile.restored(victim, "key")
    assert seed is not None
    assert key is not None
    assert (hostile.bare(victim, seed, key) == hostile.vectors[victim]).all()


def test_a_restored_machine_has_no_secrets_and_opens_nothing() -> None:
    hostile, victim = restored_machine(with_secrets=False)
    assert hostile.restored(victim, "seed") is not None
    assert hostile.restored(victim, "key") is None


def test_a_machine_that_was_restored_from_before_its_vector_cannot_join_the_others() -> None:
    """With fresh keys it cannot read the shares that the others made for its old ones: nothing is charged or sent."""
    hostile = Hostile()
    hostile.vector_phase()
    machine, other = hostile.names[1:3]
    sealed = {name: hostile.members[name]._sent[SealedShares] for name in hostile.names}
    hostile.facts[machine] = MemoryFacts()
    again = hostile.members[machine] = hostile.member(machine)
    (hostile.announced[machine],) = again.start()  # type: ignore[assignment]
    (own,) = hostile.ask(machine, KeyList(hostile.context, tuple(hostile.announced.values())))
    sealed[machine] = own
    found = {name: s.sealed[machine] for name, s in sealed.items() if isinstance(s, SealedShares)}
    with pytest.raises(BadParcel, match="cannot be decrypted"):
        again.receive(hostile.names[0], ShareDelivery(hostile.context, hostile.names, found))
    assert not hostile.votes(hostile.names, (machine,))
    assert hostile.votes(hostile.names, (other,))


class Failing(MemoryFacts):
    """A ledger that cannot be written for some time."""

    works = False

    def write_once(self, subject: str, fact: str, value: str, /) -> str:
        if not self.works:
            raise PrivacyError("the ledger could not be written")
        return super().write_once(subject, fact, value)


@pytest.mark.parametrize("fact", ["vector", "vote"])
def test_nothing_leaves_that_could_not_be_written_to_the_ledger(fact: str) -> None:
    hostile = Hostile()
    name = hostile.names[2]
    facts = hostile.facts[name] = Failing()
    facts.works = fact == "vote"
    hostile.members[name] = member = hostile.member(name)
    hostile.vector_phase()
    facts.works = False
    sent = hostile.sent if fact == "vector" else hostile.votes(hostile.names, hostile.names)
    assert name not in sent
    assert (member.resend(), member.succeed(name)) == ([], [])
    facts.works = True
    assert member.ended is not None
    assert not hostile.votes(tuple(sorted(hostile.sent)), (name,))


def test_any_threshold_of_holders_opens_the_same_sum() -> None:
    hostile = Hostile(5, 2, 1)
    hostile.vector_phase()
    hostile.open(hostile.names, hostile.votes(hostile.names, hostile.names))
    needed = hostile.agreement.graph.threshold
    for chosen in combinations(hostile.opened, needed):
        shares = {hostile.agreement.position(o.site): o.seed_shares["site-00"] for o in chosen}
        assert sharing.restore(shares, needed) == hostile.restored("site-00", "seed")


def test_the_ledger_of_a_site_keeps_what_was_sent_and_signed(tmp_path: Path) -> None:
    """With a ledger file, in which a charge is never used again for another vector."""
    hostile = Hostile()
    charge = masked(hostile.agreement.terms)
    name = hostile.names[2]
    ledger = Ledger(tmp_path / "ledger.sqlite")

    class Charged(GivenVector):
        def charge(self) -> None:
            ledger.spend([charge], key=str(hostile.id), budget=None, records="r", reuse=True)

    def member() -> AttemptMember:
        site = MemberSite(name, AGREED[4][1][name], ledger)
        return AttemptMember(hostile.agreement, hostile.id, site, Charged(hostile.vectors[name]))

    hostile.members[name] = member()
    hostile.vector_phase()
    hostile.open(hostile.names, hostile.votes(hostile.names, hostile.names))
    assert len(hostile.opened) == 4
    assert ledger.counter == 3  # a charge, a vector, a list
    assert [e["charges"] != [] for e in ledger.entries()] == [True, False, False]
    ledger.close()
    ledger = Ledger(tmp_path / "ledger.sqlite")  # the process was started again
    assert member().start() == []
    Charged(hostile.vectors[name]).charge()  # another attempt, even under the same key
    assert sum(c.count for c in ledger.charges()) == 2
    ledger.close()

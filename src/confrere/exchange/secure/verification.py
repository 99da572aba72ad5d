"""What members and the summing site check before they believe a message of a masked sum."""

from __future__ import annotations

from collections.abc import Collection

from confrere.core.errors import BadParcel, PeerError
from confrere.exchange.secure.agreement import Agreement
from confrere.exchange.secure.masking import unpacked, usable
from confrere.exchange.secure.messages import (
    Certificate,
    KeyAnnouncement,
    KeyList,
    MaskedVector,
    Proposal,
    ShareDelivery,
    SumResult,
    VectorHeader,
    Vote,
    digest,
    partners_digest,
    statement,
    verified,
)  # fmt: skip

Announcements = dict[str, KeyAnnouncement]


def seed_commitment(context: bytes, seed: bytes) -> bytes:
    """Fixes the seed of a self-mask without showing it, so that a restored seed can be checked."""
    return digest("seed", context, seed)


def check_announcement(agreement: Agreement, context: bytes, message: KeyAnnouncement) -> None:
    """Refuse keys that their member has not signed for this attempt."""
    member = agreement.member(message.site)
    if message.context != context:
        raise BadParcel(f'the keys of "{message.site}" are not for this attempt')
    if not (usable(message.mask_key) and usable(message.channel_key)):
        raise BadParcel(f'the keys of "{message.site}" are not valid')
    if not verified(member.key, message.signature, message.signed_part()):
        raise BadParcel(f'the keys of "{message.site}" are not signed by it')


def checked_keys(agreement: Agreement, message: KeyList) -> Announcements:
    """The keys of a list by their member, all of them checked."""
    found: Announcements = {}
    for announcement in message.announcements:
        check_announcement(agreement, message.context, announcement)
        found[announcement.site] = announcement
    if len(found) < len(message.announcements):
        raise BadParcel("a list of keys has two of one member")
    require_quorum(agreement, len(found), "answered with keys")
    return found


def check_delivery(agreement: Agreement, name: str, known: Collection[str], message: ShareDelivery) -> None:
    """Refuse shares for `name` unless those of all its neighbours that have shared out secrets are there."""
    sharers = set(message.sharers)
    if list(message.sharers) != sorted(sharers) or not {name} <= sharers <= set(known):
        raise BadParcel("the members that shared out secrets are not among those that sent keys")
    require_quorum(agreement, len(sharers), "shared out secrets")
    agreement.graph.check(sharers)
    if message.sealed.keys() != sharers & set(agreement.graph.holders(name)):
        raise BadParcel("the shares of some members were not delivered")


def check_header(agreement: Agreement, context: bytes, header: VectorHeader) -> None:
    member = agreement.member(header.site)
    if header.context != context or not verified(member.key, header.signature, header.signed_part()):
        raise BadParcel(f'the vector of "{header.site}" is not signed by it for this attempt')


def check_vector(agreement: Agreement, known: Announcements, message: MaskedVector) -> None:
    """Refuse a vector that is not what its member signed."""
    check_header(agreement, message.context, message.header)
    sharers = set(message.sharers)
    if list(message.sharers) != sorted(sharers) or not {message.site} <= sharers <= known.keys():
        raise BadParcel(f'the vector of "{message.site}" is masked with members that sent no keys')
    if partners_digest(message.context, known, message.sharers) != message.header.partners:
        raise BadParcel(f'the vector of "{message.site}" is masked with other keys')


def check_survivors(agreement: Agreement, sharers: Collection[str], survivors: tuple[str, ...]) -> None:
    """Refuse a list that is too short, or that has members without shares."""
    if list(survivors) != sorted(set(survivors)) or not set(survivors) <= set(sharers):
        raise BadParcel("the survivors are not among the members that shared out secrets")
    require_quorum(agreement, len(survivors), "survived")
    agreement.graph.check(survivors)


def check_proposal(agreement: Agreement, partners: bytes, message: Proposal) -> None:
    """Refuse a list with a member that has not signed that its vector is masked with the same partners.

    Without this a summing site could give one member other partners than the rest, drop all of these, and see its vector.
    """
    for header in message.headers:
        check_header(agreement, message.context, header)
        if header.partners != partners:
            raise BadParcel(f'the vector of "{header.site}" is masked with other members')


def check_vote(agreement: Agreement, message: Vote) -> None:
    member = agreement.member(message.site)
    if not verified(member.key, message.signature, message.signed_part()):
        raise BadParcel(f'the list of survivors is not signed by "{message.site}"')


def check_certificate(agreement: Agreement, message: Certificate) -> None:
    """Refuse a list of survivors unless at least T members have signed it."""
    listed = statement(message.context, message.partners, message.survivors)
    signed = [
        name
        for name, signature in message.signatures.items()
        if verified(agreement.member(name).key, signature, listed)
    ]
    if len(signed) < agreement.terms.threshold:
        raise PeerError(
            f"{len(signed)} members have signed the list of survivors, and {agreement.terms.threshold} are needed"
        )


def check_result(agreement: Agreement, message: SumResult) -> None:
    """Refuse a sum without a signed list, or that its summing site has not signed."""
    if message.certificate.context != message.context:
        raise BadParcel("an opened sum has the list of another attempt")
    check_certificate(agreement, message.certificate)
    if not verified(agreement.member(message.site).key, message.signature, message.signed_part()):
        raise BadParcel(f'the opened sum is not signed by "{message.site}"')
    unpacked(message.vector, agreement.terms.size, agreement.terms.bits)


def require_quorum(agreement: Agreement, count: int, what: str) -> None:
    if count < agreement.terms.quorum:
        raise PeerError(f"only {count} members {what}, and {agreement.terms.quorum} are needed")

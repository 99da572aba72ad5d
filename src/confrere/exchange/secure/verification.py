"""What members and the summing site check before they believe a message of a masked sum."""

from __future__ import annotations

import hashlib
from collections.abc import Collection

from confrere.core.errors import BadParcel, PeerError, PrivacyError
from confrere.exchange.secure import sharing
from confrere.exchange.secure.agreement import Agreement
from confrere.exchange.secure.masking import packed_bytes, unpacked, usable
from confrere.exchange.secure.messages import (
    Certificate,
    GivenUp,
    KeyAnnouncement,
    KeyList,
    MaskedVector,
    Message,
    Proposal,
    SealedShares,
    ShareDelivery,
    SumResult,
    VectorHeader,
    Vote,
    digest,
    partners_digest,
    signed_list,
    statement,
    verified,
)  # fmt: skip

Announcements = dict[str, KeyAnnouncement]


def seed_commitment(context: bytes, seed: bytes) -> bytes:
    """Fixes the seed of a self-mask without showing it, so that a restored seed can be checked."""
    return digest("seed", context, seed)


def check_lengths(agreement: Agreement, message: Message) -> None:
    """Refuse a message that lists more members than there are."""
    for value in vars(message).values():
        if isinstance(value, tuple | dict) and len(value) > agreement.n:
            raise BadParcel(f"a message of a masked sum lists {len(value)} of {agreement.n} members")
        if isinstance(value, Message):
            check_lengths(agreement, value)


def check_signed(agreement: Agreement, site: str, signature: bytes, data: bytes, what: str) -> None:
    """Refuse what a member has not signed, or that is signed by a site outside the agreement."""
    if site not in agreement:
        raise BadParcel(f'"{site}" is not part of this masked sum')
    if not verified(agreement.member(site).key, signature, data):
        raise BadParcel(f'{what} is not signed by "{site}"')


def check_announcement(agreement: Agreement, context: bytes, message: KeyAnnouncement) -> None:
    """Refuse keys that their member has not signed for this attempt."""
    if message.context != context:
        raise BadParcel(f'the keys of "{message.site}" are not for this attempt')
    if not (usable(message.mask_key) and usable(message.channel_key)):
        raise BadParcel(f'the keys of "{message.site}" are not valid')
    check_signed(agreement, message.site, message.signature, message.signed_part(), "a public key")


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


def check_sealed(agreement: Agreement, message: SealedShares) -> None:
    """Refuse shares that their member has not signed, that are for others than its holders, or have a wrong length."""
    check_signed(agreement, message.site, message.signature, message.signed_part(), "a share")
    if not message.sealed.keys() <= set(agreement.graph.holders(message.site)):
        raise BadParcel(f'"{message.site}" has shares for members that do not hold any of it')
    if len(message.sealed) < agreement.graph.threshold:
        raise BadParcel(f'"{message.site}" has shared out its secrets to {len(message.sealed)} members only')
    if any(len(sealed) != sharing.SEALED_BYTES for sealed in message.sealed.values()):
        raise BadParcel(f'"{message.site}" has sent a share of a wrong length')


def check_delivery(agreement: Agreement, name: str, known: Collection[str], message: ShareDelivery) -> None:
    """Refuse shares for `name` unless those of all its neighbours that have shared out secrets are there."""
    check_sharers(agreement, name, known, message.sharers)
    if message.sealed.keys() != set(message.sharers) & set(agreement.graph.holders(name)):
        raise BadParcel("the shares of some members were not delivered")


def check_sharers(agreement: Agreement, name: str, known: Collection[str], sharers: tuple[str, ...]) -> None:
    """Refuse a list of members that have shared out secrets if it is too short, or has members without keys."""
    found = set(sharers)
    if list(sharers) != sorted(found) or not {name} <= found <= set(known):
        raise BadParcel("the members that shared out secrets are not among those that sent keys")
    require_quorum(agreement, len(found), "shared out secrets")
    _check_graph(agreement, found)


def check_header(agreement: Agreement, context: bytes, header: VectorHeader) -> None:
    if header.context != context:
        raise BadParcel(f'the vector of "{header.site}" is not for this attempt')
    check_signed(agreement, header.site, header.signature, header.signed_part(), "a vector")


def check_vector(agreement: Agreement, known: Announcements, message: MaskedVector) -> None:
    """Refuse a vector that is not what its member signed."""
    check_header(agreement, message.context, message.header)
    check_sharers(agreement, message.site, known, message.sharers)
    if partners_digest(message.context, known, message.sharers) != message.header.partners:
        raise BadParcel(f'the vector of "{message.site}" is masked with other keys')
    if len(message.vector) != packed_bytes(agreement.terms.size, agreement.terms.bits):
        raise BadParcel(f'the vector of "{message.site}" has a wrong length')
    if hashlib.sha256(message.vector).digest() != message.header.vector_digest:
        raise BadParcel(f'the vector of "{message.site}" is not the one that it has signed')


def check_survivors(agreement: Agreement, sharers: Collection[str], survivors: tuple[str, ...]) -> None:
    """Refuse a list that is too short, or that has members without shares."""
    if list(survivors) != sorted(set(survivors)) or not set(survivors) <= set(sharers):
        raise BadParcel("the survivors are not among the members that shared out secrets")
    require_quorum(agreement, len(survivors), "survived")
    _check_graph(agreement, survivors)


def check_proposal(agreement: Agreement, partners: bytes, message: Proposal) -> None:
    """Refuse a list with a member that has not signed that its vector is masked with the same partners.

    Without this a summing site could give one member other partners than the rest, drop all of these, and see its vector.
    """
    for header in message.headers:
        check_header(agreement, message.context, header)
        if header.partners != partners:
            raise BadParcel(f'the vector of "{header.site}" is masked with other members')


def check_vote(agreement: Agreement, message: Vote) -> None:
    check_signed(agreement, message.site, message.signature, message.signed_part(), "the list of survivors")


def check_certificate(agreement: Agreement, message: Certificate) -> None:
    """Refuse a list of survivors unless at least T members have signed it, each in its own name."""
    stated = statement(message.context, message.partners, message.survivors)
    signed = [
        name
        for name, signature in message.signatures.items()
        if name in agreement and verified(agreement.member(name).key, signature, signed_list(stated, name))
    ]
    if len(signed) < agreement.terms.threshold:
        raise PeerError(
            f"{len(signed)} members have signed the list of survivors, and {agreement.terms.threshold} are needed"
        )


def check_result(agreement: Agreement, message: SumResult, summing: Collection[str]) -> None:
    """Refuse a sum without a signed list, or that none of these summing sites has signed."""
    if message.site not in summing:
        raise BadParcel(f'"{message.site}" states a sum, and was not the summing site')
    if message.certificate.context != message.context:
        raise BadParcel("an opened sum has the list of another attempt")
    check_certificate(agreement, message.certificate)
    check_signed(agreement, message.site, message.signature, message.signed_part(), "the opened sum")
    unpacked(message.vector, agreement.terms.size, agreement.terms.bits)


def check_given_up(agreement: Agreement, summing: str, message: GivenUp) -> None:
    """Refuse the end of an attempt that its summing site has not signed."""
    if message.site != summing:
        raise BadParcel(f'"{message.site}" gives up, and is not the summing site')
    check_signed(agreement, message.site, message.signature, message.signed_part(), "the end of the attempt")


def require_quorum(agreement: Agreement, count: int, what: str) -> None:
    if count < agreement.terms.quorum:
        raise PeerError(f"only {count} members {what}, and {agreement.terms.quorum} are needed")


def _check_graph(agreement: Agreement, members: Collection[str]) -> None:
    try:
        agreement.graph.check(members)
    except PrivacyError as error:
        raise PeerError(str(error)) from None

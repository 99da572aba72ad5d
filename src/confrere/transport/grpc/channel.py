"""gRPC as this project uses it: mutual TLS 1.3, one method, bytes both ways, and reasons in plain words.

Whom to trust is settled by TLS itself. A dialler gives gRPC one root, the identity certificate of the peer that it
means: a machine that answers with another certificate does not complete the handshake. A listener gives the
identities of all other members, and afterwards asks whose identity endorsed the certificate that was shown.
A renewed certificate counts from the next handshake on. There is no other kind of credentials in here.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

# gRPC reads these once. TLS 1.2 is shut out by leaving it only ciphers for RSA keys, and no site has one; the
# ciphers of TLS 1.3 are not subject to this list. Its own log would repeat each failed attempt on the terminal.
os.environ["GRPC_SSL_CIPHER_SUITES"] = "ECDHE-RSA-AES256-GCM-SHA384"
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

import grpc
import grpc.aio
from cryptography import x509

from confrere.core.errors import PeerRefused, StudyError
from confrere.core.terminal import printable
from confrere.transport.grpc.frames import LARGEST_FRAME
from confrere.transport.grpc.identity import Identity
from confrere.transport.grpc.link import Broken
from confrere.transport.grpc.member import Member, endorser

SERVICE, METHOD = "confrere.Node", "Exchange"

WINDOW = 2**20
"""Bytes under way to one reader: memory on the one hand, on the other 20 MB/s where an answer takes 50 ms. Left to
itself gRPC measures the line and allows several times as much."""

_OPTIONS = [
    ("grpc.max_receive_message_length", LARGEST_FRAME),
    ("grpc.max_send_message_length", LARGEST_FRAME),
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", WINDOW),
]
_SERVER_OPTIONS = [
    *_OPTIONS,
    ("grpc.so_reuseport", 0),  # otherwise a second node could listen at the same place without being noticed
    ("grpc.max_concurrent_streams", 4),
    # Each connection takes a file descriptor, also that of a stranger who never sends a certificate.
    ("grpc.server_handshake_timeout_ms", 10_000),
    ("grpc.max_connection_idle_ms", 20_000),  # without a stream, such as after a refusal
]

MOST_VISITORS = 256
"""Connections that a server accepts at one time, or four of each member if that is more; further ones are closed."""

PAUSE_BEFORE_CHANGE = 0.05

BROKEN = (grpc.aio.AioRpcError, grpc.aio.BaseError, asyncio.InvalidStateError)
"""What gRPC raises, now this and now that, when a stream is over."""

Handler = Callable[[Any, Any], Awaitable[None]]


def open_server(
    listen: str, identity: Callable[[], Identity], members: Callable[[], Iterable[Member]], handler: Handler
) -> tuple[Any, int]:
    """A server, not yet started, and the port that it will listen on."""

    def configuration(own: Identity) -> Any:
        roots = b"".join(member.root for member in members())
        return grpc.ssl_server_certificate_configuration([(own.tls_key, own.chain)], roots)

    in_use = identity()

    def change() -> Any:
        """Asked by gRPC before each handshake, under a lock. It frees what it used so far as soon as there is
        an answer, also under the hands of a handshake that has just passed here (grpcio 1.85 then aborts); so
        the others, which need microseconds, are given time to get out of the way."""
        nonlocal in_use
        current = identity()
        if current is in_use:
            return None
        in_use = current
        time.sleep(PAUSE_BEFORE_CHANGE)
        return configuration(current)

    most = max(MOST_VISITORS, 4 * len(list(members())))
    server = grpc.aio.server(options=[*_SERVER_OPTIONS, ("grpc.max_allowed_incoming_connections", most)])
    method = grpc.stream_stream_rpc_method_handler(handler)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {METHOD: method}),))
    credentials = grpc.dynamic_ssl_server_credentials(
        configuration(in_use), change, require_client_authentication=True
    )
    try:
        port = server.add_secure_port(listen, credentials)
    except RuntimeError:
        port = 0
    if not port:
        raise StudyError(
            f"cannot listen on {listen}: another program does already, or it is not of this machine"
        )
    return server, port


def open_channel(identity: Identity, member: Member) -> Any:
    """A channel to one peer, which no other machine can answer."""
    credentials = grpc.ssl_channel_credentials(member.root, identity.tls_key, identity.chain)
    options = [
        *_OPTIONS,
        ("grpc.ssl_target_name_override", member.host_name),
        ("grpc.use_local_subchannel_pool", 1),  # a new channel is a new connection, with today's certificate
        ("grpc.enable_retries", 0),
    ]
    return grpc.aio.secure_channel(member.address, credentials, options=options)


def open_stream(channel: Any) -> Any:
    return channel.stream_stream(f"/{SERVICE}/{METHOD}")()


def visitor(context: Any, members: Iterable[Member]) -> tuple[Member, x509.Certificate]:
    """Whose certificate a caller showed. TLS has verified it; this finds the member that it belongs to."""
    facts = context.auth_context()
    if facts.get("ssl_tls_version") != [b"TLSv1.3"]:
        raise PeerRefused("a connection that is not TLS 1.3")
    certificate = x509.load_pem_x509_certificate(facts["x509_pem_cert"][0])
    member = endorser(certificate, members)
    if member is None:
        raise PeerRefused("a certificate that no member of the roster endorsed")
    return member, certificate


class Stream:
    """Either end of a gRPC stream: bytes, None at the end, Broken with a plain reason when it breaks."""

    def __init__(self, call: Any, member: Member) -> None:
        self._call, self._member = call, member

    async def read(self) -> bytes | None:
        try:
            message = await self._call.read()
        except BROKEN as error:
            raise Broken(self._plain(error)) from None
        return None if message is grpc.aio.EOF else bytes(message)

    async def write(self, message: bytes) -> None:
        try:
            await self._call.write(message)
        except BROKEN as error:
            raise Broken(self._plain(error)) from None

    def _plain(self, error: Exception) -> str:
        details = error.details() if isinstance(error, grpc.aio.AioRpcError) else ""
        return plain_reason(details or "", self._member)


def plain_reason(details: str, member: Member) -> str:
    """What gRPC's complaint means for the person who runs this site."""
    here, stranger = (
        member.address,
        f'the machine that answers at {member.address} is not "{member.name}" of the roster',
    )
    closed = "it closed the connection: it may not have this site in its roster, or see another time"
    for sign, meaning in (
        (
            "certificate has expired",
            "its certificate has expired; its owner renews it: `confrere enroll --renew`",
        ),
        (
            "certificate is not yet valid",
            "its certificate is not valid yet: its clock or the one here is wrong",
        ),
        ("CERTIFICATE_VERIFY_FAILED", stranger),
        ("Hostname Verification", stranger),
        ("Connection refused", f"nothing listens at {here}; is its node running?"),
        ("DNS resolution", f"there is no host of the name in {here}"),
        ("WRONG_VERSION_NUMBER", f"what answers at {here} does not speak TLS"),
        ("No route to host", f"there is no way to {here}; see the firewall"),
        ("Network is unreachable", f"there is no way to {here}; see the network"),
        ("Socket closed", closed),
        ("Connection reset", closed),
        ("Broken pipe", closed),
        ("read failed", closed),
        ("write failed", closed),
    ):
        if sign in details:
            return meaning
    return printable(details, 200) or "the stream broke"

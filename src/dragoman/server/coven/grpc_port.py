"""The gRPC port below coven: limits, metadata, TLS, health and reflection, how a call ends. It reads no message.

    a peer that…                                      meets
    ------------------------------------------------  --------------------------------------------------------
    does not finish its handshake, or never           a closed connection, after `handshake_seconds`
    acknowledges what is allowed to it
    opens a stream and does not register              DEADLINE_EXCEEDED, after `register_seconds` (D3)
    opens too many streams                            RESOURCE_EXHAUSTED (`streams`, `unregistered`,
                                                      `unregistered_each`), or waits (`streams_per_connection`)
    sends a message above `message_bytes`             the end of its stream (D9)
    sends metadata above `metadata_bytes`             RESOURCE_EXHAUSTED (`MetadataLimit`)
    is gone without closing its stream                an HTTP/2 ping every `keepalive_seconds`, and the end after
                                                      `keepalive_timeout` more without an answer
    sends faster than the disk takes it               a hub that reads no more, beyond `unanswered` or `pending_bytes`
    goes on with a request that was given up          the end of its stream, `cancel_seconds` after other work came
    does not leave when it is asked to                UNAVAILABLE, after `shutdown_seconds` (D10)

TLS is 1.3 only where `security.tls.grpc_cipher_suites` was in the environment before gRPC was loaded: there is no other
way to configure it. Connections that begin after a certificate was renewed get the new one.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterable
from typing import Any
from urllib.parse import unquote

import grpc
import msgspec
import structlog
from grpc_health.v1 import health, health_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2

from dragoman.messages.faults import Fault
from dragoman.protocols.coven import codec, types
from dragoman.security import tls as secure
from dragoman.server.coven import outbound

log = structlog.get_logger("dragoman.server")

MIB = 1024 * 1024
REFLECTION = (reflection.SERVICE_NAME, "grpc.reflection.v1.ServerReflection")
"""One service under its old name and its new one: newer clients ask for the new one first, and not all ask again."""
SERVICES = (types.CONTROL, types.CLIENT, health.SERVICE_NAME, reflection.SERVICE_NAME)
HEALTHY = ("", types.CONTROL, types.CLIENT)
"""The services whose health is reported; the first is the whole server."""
FIELD_BYTES = 32
"""HTTP/2 counts so many bytes for a field beside its name and its value."""
LONGEST_MESSAGE = 2048
"""Bytes of a fault's sentence in the trailing metadata."""


class CovenLimits(msgspec.Struct, frozen=True, kw_only=True):
    message_bytes: int = 16 * MIB
    attachments: int = 100
    """As many files as a task may have in any protocol."""
    metadata_bytes: int = 16 * 1024
    register_seconds: float = 10.0
    handshake_seconds: float = 10.0
    keepalive_seconds: float = 30.0
    keepalive_timeout: float = 10.0
    shutdown_seconds: float = 30.0
    cancel_seconds: float = 30.0
    streams: int = 10_000
    unregistered: int = 1_000
    unregistered_each: int = 8
    """Of these, those with one agent's token: it needs one, and another while the old one is asked."""
    streams_per_connection: int = 1_000
    unanswered: int = 256
    """Events of one stream that may wait for their commit; beyond, we stop reading."""
    pending_bytes: int = MIB
    """Text of one stream that may wait to be put together; beyond, we stop reading."""
    idle_seconds: float = 300.0
    """A connection without a stream is closed after this."""

    @property
    def codec(self) -> codec.Limits:
        return codec.Limits(message_bytes=self.message_bytes, attachments=self.attachments)

    def options(self) -> list[tuple[str, Any]]:
        """What gRPC itself must know."""
        # A message above the limit is refused by our codec, in sentence; only far above does gRPC end it by itself.
        return [
            ("grpc.max_receive_message_length", self.message_bytes + MIB),
            ("grpc.max_send_message_length", -1),
            ("grpc.max_concurrent_streams", self.streams_per_connection),
            ("grpc.keepalive_time_ms", int(self.keepalive_seconds * 1000)),
            ("grpc.keepalive_timeout_ms", int(self.keepalive_timeout * 1000)),
            ("grpc.http2.ping_timeout_ms", int(self.keepalive_timeout * 1000)),  # else a frozen peer has a minute
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.http2.max_pings_without_data", 0),
            ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
            ("grpc.server_handshake_timeout_ms", int(self.handshake_seconds * 1000)),
            ("grpc.max_connection_idle_ms", int(self.idle_seconds * 1000)),
            # Beyond these gRPC itself cancels new streams, which an agent would take for its own doing: let a flood
            # come to us first, to be refused by a sentence.
            ("grpc.server.max_pending_requests", max(self.streams, 10_000)),
            ("grpc.server.max_pending_requests_hard_limit", 2 * max(self.streams, 10_000)),
            ("grpc.max_metadata_size", self.metadata_bytes),
            ("grpc.http2.settings_timeout", int(self.handshake_seconds * 1000)),
            ("grpc.so_reuseport", 0),  # a second hub on the same port is refused, not given half of the agents
        ]


# --- gRPC's own services ---


class MetadataLimit(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Ends calls with too much metadata before anything is done for them.

    gRPC refuses them by itself once a peer has acknowledged the limit (SETTINGS of HTTP/2). Until then it takes 16 MiB
    with each call, and keeps them as long as the call lives: a few peers that never acknowledge would fill the memory.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._refusal = grpc.stream_stream_rpc_method_handler(self._refuse)

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], details: Any) -> Any:
        size = sum(len(key) + len(value) + FIELD_BYTES for key, value in details.invocation_metadata)
        return self._refusal if size > self._most else await continuation(details)

    async def _refuse(self, _requests: Any, context: Any) -> None:
        sentence = f"the metadata has more than {self._most} bytes; send less of it"
        await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, sentence)


class Health(health.aio.HealthServicer):  # type: ignore[misc]
    """Adds `List`, the one call of the service that the package does not have."""

    async def List(self, request: Any, context: Any) -> Any:
        asked = {service: health_pb2.HealthCheckRequest(service=service) for service in HEALTHY}
        statuses = {service: await self.Check(one, context) for service, one in asked.items()}
        return health_pb2.HealthListResponse(statuses=statuses)


def reflection_handlers() -> tuple[Any, ...]:
    handler = grpc.stream_stream_rpc_method_handler(
        reflection.aio.ReflectionServicer(service_names=SERVICES).ServerReflectionInfo,
        request_deserializer=reflection_pb2.ServerReflectionRequest.FromString,
        response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    return tuple(
        grpc.method_handlers_generic_handler(service, {"ServerReflectionInfo": handler}) for service in REFLECTION
    )


def credentials(tls: secure.Renewal) -> Any:
    """gRPC asks for the newest certificate before every handshake, in a thread of its own."""
    shown = tls.pair
    suites = secure.grpc_cipher_suites(shown)
    if os.environ.get(secure.GRPC_SUITES) != suites:
        log.warning("gRPC was loaded before its TLS 1.2 suites were disabled")
    required = tls.files.clients == "required" and tls.files.client_ca is not None

    def configuration(pair: secure.Pair) -> Any:
        roots = tls.files.client_ca.read_bytes() if required and tls.files.client_ca is not None else None
        return grpc.ssl_server_certificate_configuration([(pair.key, pair.chain)], roots)

    def newest() -> Any:
        nonlocal shown
        pair = tls.pair
        if pair is shown:
            return None
        shown = pair
        if secure.grpc_cipher_suites(pair) != suites:
            log.warning("coven keeps its old certificate: the new key is of another kind. Restart the hub.")
            return None
        try:
            return configuration(pair)
        except OSError as error:
            log.warning("coven keeps its old certificate", why=error.strerror)
            return None

    return grpc.dynamic_ssl_server_credentials(configuration(shown), newest, required)


# --- one call ---


def metadata_of(pairs: Iterable[Any] | None) -> dict[str, str]:
    """The textual metadata of a call; the first value of a key counts."""
    found: dict[str, str] = {}
    for key, value in pairs or ():
        if isinstance(value, str):
            found.setdefault(key, value)
    return found


def address_of(context: Any) -> str | None:
    """Where a call comes from: gRPC says `ipv4:ADDRESS:PORT`, or `ipv6:[ADDRESS]:PORT`, some of it escaped."""
    kind, _, rest = unquote(context.peer() or "").partition(":")
    return rest.rpartition(":")[0].strip("[]") if kind in ("ipv4", "ipv6") else None


async def turn_away(context: Any, fault: Fault) -> None:
    """End a call with what a fault means in gRPC, and with the fault's own name for programs."""
    code, sentence = outbound.status_of(fault)
    trailing = (
        (types.FAULT_KEY, fault.kind.value),
        (types.RETRYABLE_KEY, "1" if fault.retryable else "0"),
        (types.MESSAGE_KEY, fault.message.encode()[:LONGEST_MESSAGE]),
    )
    await end_call(context, grpc.StatusCode[code], sentence, (*(context.trailing_metadata() or ()), *trailing))


async def end_call(context: Any, code: Any, sentence: str, trailing: tuple[tuple[str, str | bytes], ...] = ()) -> None:
    """End a call. The peer may be gone already: that is no failure of the hub, and not worth a line of the log."""
    try:
        await context.abort(code, sentence, trailing)
    except grpc.aio.InternalError:
        raise asyncio.CancelledError from None

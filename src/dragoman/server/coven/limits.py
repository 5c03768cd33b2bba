"""How patient and how generous coven's endpoint is.

a peer that…                                      meets
------------------------------------------------  --------------------------------------------------------
does not finish its handshake, or never           a closed connection, after `handshake_seconds`
acknowledges what is allowed to it
opens a stream and does not register              DEADLINE_EXCEEDED, after `register_seconds` (D3)
opens too many streams                            RESOURCE_EXHAUSTED (`streams`, `unregistered`,
                                                  `unregistered_each`), or waits (`streams_per_connection`)
sends a message above `message_bytes`             the end of its stream (D9)
sends metadata above `metadata_bytes`             RESOURCE_EXHAUSTED (`MetadataLimit`)
is gone without a word                            an HTTP/2 ping every `keepalive_seconds`, and the end after
                                                  `keepalive_timeout` more without an answer
sends faster than the disk takes it               nobody who reads, beyond `unanswered` or `pending_bytes`
goes on with a request that was given up          the end of its stream, `cancel_seconds` after other work came
does not leave when it is asked to                UNAVAILABLE, after `shutdown_seconds` (D10)
"""

from __future__ import annotations

from typing import Any

import msgspec

MIB = 1024 * 1024


class CovenLimits(msgspec.Struct, frozen=True, kw_only=True):
    message_bytes: int = 16 * MIB
    attachments: int = 100
    """As many files as a task may have, whoever brings them."""
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

    def options(self) -> list[tuple[str, Any]]:
        """What gRPC itself must know."""
        # A message above the limit is refused by our codec, in words; only far above does gRPC end it by itself.
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
            # come to us first, to be refused in words.
            ("grpc.server.max_pending_requests", max(self.streams, 10_000)),
            ("grpc.server.max_pending_requests_hard_limit", 2 * max(self.streams, 10_000)),
            ("grpc.max_metadata_size", self.metadata_bytes),
            ("grpc.http2.settings_timeout", int(self.handshake_seconds * 1000)),
            ("grpc.so_reuseport", 0),  # a second hub on the same port is refused, not given half of the agents
        ]

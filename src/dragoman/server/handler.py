"""A protocol's handler: what its endpoints on all transports share. Who sends, how a refusal is encoded, and what an
outgoing message is on the wire.

So the same message is decoded, refused and recorded in the same way over HTTP, a WebSocket and a child's pipes. There
is one handler for each protocol; `endpoints` of its package makes the endpoints around it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

from dragoman.core.ids import Instant
from dragoman.core.model.agents import Agent
from dragoman.core.model.deliveries import Outgoing
from dragoman.core.ports import Files, Intake, Store
from dragoman.messages.faults import Fault, Kind
from dragoman.server import authentication
from dragoman.server.asgi import Scope
from dragoman.server.limits import Limits
from dragoman.server.refusals import RefusalLog
from dragoman.wire import guard
from dragoman.wire.errors import RemoteProtocolError


class Handler(ABC):
    protocol: ClassVar[str]

    def __init__(
        self,
        hub: Intake,
        store: Store,
        *,
        limits: Limits,
        refusals: RefusalLog | None = None,
        admin_hash: str | None = None,
        files: Files | None = None,
    ) -> None:
        self.hub = hub
        self.store = store
        self.limits = limits
        self.refusals = refusals or RefusalLog(hub)
        self.files = files
        self._admin_hash = admin_hash
        self.guard = guard.Limits(bytes=limits.message_bytes, depth=limits.message_depth)

    def agent(self, scope: Scope) -> Agent:
        """The agent of this protocol whose credential came with a request or a handshake; raises `Refused`."""
        return authentication.speaker(self.hub, scope, self.protocol)

    @abstractmethod
    def encode_refusal(self, fault: Fault, *, agent: Agent | None = None, context: Any = None) -> bytes:
        """The body of a refused request or handshake; `context` is the protocol's own."""

    @abstractmethod
    def status_of(self, fault: Fault) -> int:
        """The HTTP status of a refusal."""


class HttpHandler(Handler):
    """Of a protocol that also has requests and polls."""

    def fault_of(self, error: RemoteProtocolError) -> Fault:
        """Of what was refused before a message was decoded; a protocol adds its own errors."""
        return Fault(kind=Kind.TOO_LARGE, message=error.what)

    @abstractmethod
    def json(self, data: bytes) -> dict[str, Any]:
        """A small body that is no message; raises `Refused`."""

    @abstractmethod
    async def encode(self, outgoing: Outgoing, agent: Agent, now: Instant) -> Sequence[bytes]:
        """An outgoing message as its messages; raises `Refused` where no message of the protocol holds it."""

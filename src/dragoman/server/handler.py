"""What the server asks of every endpoint (`Endpoint`), and what a protocol's endpoints share (`Handler`).

An endpoint is the server side of one protocol on one transport of the HTTP port. Each protocol's package has a function
`endpoints` that makes all of its own. The wiring puts them into one list, and the server (`server.HttpServer`) asks
each for its paths, starts and drains it. It knows no protocol by name.

There is one handler for each protocol: it authenticates the sender, and encodes refusals and outgoing messages. So the
same message is decoded, refused and recorded in the same way over HTTP, a WebSocket and a child's pipes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from dragoman.core.ids import Instant
from dragoman.core.model.agents import Agent
from dragoman.core.model.outgoing import Outgoing
from dragoman.core.ports import Files, Intake, Store
from dragoman.messages.faults import Fault, Kind, Refused, refuse
from dragoman.security import tokens
from dragoman.server.asgi import ASGIApp, Scope, header
from dragoman.server.limits import Limits
from dragoman.server.refusals import RefusalLog
from dragoman.wire import guard
from dragoman.wire.errors import RemoteProtocolError

INSTANCE = b"dragoman-instance"
LONGEST_INSTANCE = 128
UNKNOWN = "unknown"
"""The receiver of an answer when the sender is unknown."""


class Endpoint:
    compressed: ClassVar[bool] = False
    """Whether WebSockets at its paths are compressed where the client offers it: that costs memory and time for each
    connection."""

    def routes(self) -> Mapping[str, ASGIApp]:
        """Handlers by their path."""
        return {}

    def prefixes(self) -> Mapping[str, ASGIApp]:
        """Handlers of everything below a path, which ends with a slash."""
        return {}

    @property
    def trouble(self) -> str | None:
        """What this endpoint lacks of the world, while the hub serves otherwise."""
        return None

    @property
    def counts(self) -> Mapping[str, int]:
        """For the metrics, by name."""
        return {}

    def start(self) -> None:
        """The server calls this when the port is open."""

    async def drain(self, seconds: float) -> None:
        """Answer what was received, and close every connection, within this time."""

    async def abort(self) -> None:
        """Close every connection with the code of a restart, and answer nothing: this node decides no more."""


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
        return self.agent_with(tokens.bearer(header(scope, b"authorization")))

    def agent_with(self, token: str | None) -> Agent:
        """The agent of this protocol with this token; raises `Refused`."""
        agent = self.holder_of(token)
        if agent.protocol != self.protocol:
            raise refuse(
                Kind.FORBIDDEN,
                f"{agent.id} was added to speak {agent.protocol}",
                next="use that protocol's endpoints",
                agent_id=agent.id,
                token_status="valid, but for another protocol",
            )
        return agent

    def holder(self, scope: Scope) -> Agent:
        """The agent of any protocol whose credential came; raises `Refused`."""
        return self.holder_of(tokens.bearer(header(scope, b"authorization")))

    def holder_of(self, token: str | None) -> Agent:
        """The agent of any protocol with this token; raises `Refused`. Agents are in memory: this reads no store."""
        agent = None if token is None else self.hub.agent_of(tokens.token_hash(token))
        if agent is None:
            status = "missing" if token is None else "invalid"
            message = "no bearer token" if token is None else "nobody here has this token"
            facts = {"agent_id": UNKNOWN, "token_status": status}
            raise Refused(Fault(kind=Kind.UNAUTHENTICATED, message=message, facts=facts))
        return agent

    def is_admin(self, scope: Scope) -> bool:
        """Whether the request has the administrator's token. Compares hashes, in constant time."""
        token = tokens.bearer(header(scope, b"authorization"))
        return bool(token and self._admin_hash and tokens.same(tokens.token_hash(token), self._admin_hash))

    @abstractmethod
    def encode_refusal(self, fault: Fault, *, agent: Agent | None = None, context: Any = None) -> bytes:
        """The body of a refused request or handshake; `context` is the protocol's own."""

    @abstractmethod
    def status_of(self, fault: Fault) -> int:
        """The HTTP status of a refusal."""


class HttpHandler(Handler):
    """The handler of a protocol that also has requests and polls."""

    def fault_of(self, error: RemoteProtocolError) -> Fault:
        """The fault of a request that could not be decoded; a protocol adds its own errors."""
        return Fault(kind=Kind.TOO_LARGE, message=error.what)

    @abstractmethod
    def json(self, data: bytes) -> dict[str, Any]:
        """Decode a small body that is not a message of the protocol; raises `Refused`."""

    @abstractmethod
    async def encode(self, outgoing: Outgoing, agent: Agent, now: Instant) -> Sequence[bytes]:
        """The wire messages of an outgoing message; raises `Refused` where the protocol cannot carry it."""

    def receipts(self, outgoing: Outgoing, count: int) -> Sequence[str]:
        """The ids by which a receiver acknowledges each of so many messages."""
        return (outgoing.delivery.id,) * count


def instance_in(scope: Scope) -> str | None:
    """Which process of the agent connects or polls, where its header names one; raises `Refused`."""
    name = header(scope, INSTANCE)
    if name is None:
        return None
    if not 1 <= len(name) <= LONGEST_INSTANCE or not all(0x21 <= byte <= 0x7E for byte in name):
        what = f"expected 1 to {LONGEST_INSTANCE} visible ASCII characters, other ones for each start of the agent"
        raise refuse(Kind.INVALID, what, field="Dragoman-Instance", stage="shape")
    return name.decode()

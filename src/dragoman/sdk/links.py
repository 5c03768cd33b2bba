"""The ports between an agent's engine and the network.

    Link   what the engine uses: the types of `messages`, which belong to no protocol. A link maps them to its
           protocol's own messages and moves them
    Pipe   what the link of a message protocol uses: whole frames over any transport

To add a protocol, write a class that keeps the promises of `Link`, and add a row to the table of `services`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol, TypeAlias

from msgspec import Struct

from dragoman.sdk.errors import DragomanError
from dragoman.sdk.messages import Accepted, Assignment, File, Inbound, Outbound


class LinkDown(DragomanError):
    """The link broke or could not be made. The engine tries again, not before `retry_after` seconds."""

    def __init__(self, why: str, *, retry_after: float | None = None) -> None:
        super().__init__(why)
        self.retry_after = retry_after


class ProtocolCapabilities(Struct, frozen=True, kw_only=True):
    """What a link's protocol can and cannot do, as far as the engine must know."""

    name: str
    largest_file: int = 0
    """Bytes of the largest file it carries; 0 if it carries none."""
    has_receipts: bool = True
    """Whether the hub confirms what it has. If not, it asks again for what it lost, and results must be whole."""
    refuses_each: bool = False
    """Whether the hub refuses each message by itself, bare progress included. Then the engine sends a refused one
    again in its place: the hub accepts no message about a task that would overtake it."""
    words_are_receipts: bool = True
    """Whether the first message about work acknowledges it (chiffon-D5)."""
    converses: bool = False
    """Whether agents send each other messages: handoffs, help, status reports."""


class Introduction(Struct, frozen=True, kw_only=True):
    """Who the agent is and what it can do."""

    agent_id: str
    kind: str | None = None
    version: str | None = None
    work_types: tuple[str, ...] = ()
    domain: str | None = None
    concurrency: int = 8
    memory_mb: int | None = None
    gpu_vram_mb: int | None = None
    capabilities: tuple[dict[str, Any], ...] = ()
    skills: tuple[str, ...] = ()


class Link(Protocol):
    """One connection to the hub, opened once and closed once.

    Order: messages about one task arrive in the order in which they were sent, or the link is down. Delivery: `send`
    promises nothing; only `Accepted` confirms that the hub has a message. Until then its sender sends it again over the
    next link. Everything is called on one event loop.
    """

    @property
    def protocol_capabilities(self) -> ProtocolCapabilities: ...

    async def open(self, who: Introduction) -> None:
        """Connect and introduce the agent. Raises `LinkDown`, or `NotAllowed` where a retry cannot help."""
        ...

    async def receive(self) -> Sequence[Inbound]:
        """The hub's next messages, at least one. Raises `LinkDown` when the link is over."""
        ...

    def acknowledge(self, receipt: str) -> None:
        """The agent has the message with this receipt. Never blocks; several go out together."""
        ...

    def send(self, message: Outbound) -> None:
        """Send a message. Never blocks; a broken link shows in `receive`."""
        ...

    async def drain(self) -> None:
        """Wait while the way out is congested."""
        ...

    def quiesce(self) -> None:
        """The agent takes no more work: fetch none, where the link fetches."""
        ...

    async def close(self) -> None:
        """Send what still waits, if that is possible, and close the connection. Never raises."""
        ...


Fetch: TypeAlias = Callable[[Assignment], Awaitable[Sequence[File]]]
"""The files that came with work, where the link brings only their names."""
Bring: TypeAlias = Callable[[File], Awaitable[str]]
"""Gives the id under which the hub has the file. Raises `LinkDown`, or ValueError if the hub will not have it."""


class Frame(Struct, frozen=True):
    """One message of the hub; `receipt` where the transport names the delivery beside the message."""

    data: bytes
    receipt: str | None = None


class Pipe(Protocol):
    """Frames in and out, with the transport's own confirmations, for agents and clients alike."""

    async def open(self, registration: bytes | None) -> bytes:
        """Register if there is a registration, connect, and return the hub's answer to it."""
        ...

    async def receive(self) -> Sequence[Frame | Accepted]: ...

    def acknowledge(self, receipt: str) -> None: ...

    def send(self, frame: bytes, message_id: str, lane: str) -> None:
        """Frames of one lane stay in order."""
        ...

    async def drain(self) -> None: ...

    def quiesce(self) -> None: ...

    async def close(self) -> None: ...

"""The way to an a2acp broker and back: every message out is a POST, whose answer is its receipt; what comes, comes by
long poll or over a WebSocket.

The document has no acknowledgments, so a message that is written to a socket may be lost with it. The answer to a POST
cannot: so it is used by both transports. Messages of one lane go one after the other, lanes side by side. A message is
written when its turn comes, with a fresh time and a token that is good then.

    came                what was it
    ------------------  -----------------------------------------------------------------
    Frame               a message of the broker, or of another agent by the broker
    Accepted            the broker has a message of ours
    Answered            the broker answered a message of ours with another one
    Unsaid              a message of ours could not be written
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

from msgspec import Struct

from dragoman.protocols.a2acp.claims import TokenGrant, TokenRequest
from dragoman.sdk.errors import DragomanError, NotAllowed
from dragoman.sdk.links import Accepted, Frame, LinkDown
from dragoman.wire.errors import LocalProtocolError

LANES = 8

Write = Callable[[], Awaitable[bytes]]


class Answered(Struct, frozen=True):
    """`is_refusal`: it was not taken."""

    id: str
    data: bytes
    is_refusal: bool


class Unsaid(Struct, frozen=True):
    id: str
    error: Exception


Heard = Frame | Accepted | Answered | Unsaid


class Post(Protocol):
    """The broker's side of HTTP. Raises `LinkDown` where trying again can help, `NotAllowed` where it cannot."""

    async def token(self, request: TokenRequest) -> TokenGrant:
        """Raises `failures.CallFailed` where the broker says no."""
        ...

    async def register(self, registration: bytes) -> None: ...

    async def send(self, frame: bytes) -> tuple[bool, bytes]:
        """Whether it was taken, and the message that answers it, if one does."""
        ...

    async def close(self) -> None: ...


class Ear(Protocol):
    """What comes."""

    async def open(self) -> None: ...

    async def receive(self) -> Sequence[Frame]: ...

    async def acknowledge(self, receipts: Sequence[str]) -> None: ...

    async def close(self) -> None: ...


class Channel:
    """One link: opened, used, closed."""

    def __init__(self, post: Post, ear: Ear) -> None:
        self._post = post
        self._ear = ear
        self._arrived: asyncio.Queue[Sequence[Heard] | None] = asyncio.Queue()
        self._lanes: list[asyncio.Queue[tuple[str, Write]]] = []
        self._acks: list[str] = []
        self._acking: asyncio.Task[None] | None = None
        self._errands: list[asyncio.Task[None]] = []
        self._listening: asyncio.Task[None] | None = None
        self._down: Exception | None = None

    async def open(self) -> None:
        await self._ear.open()
        self._listening = self._start(self._listen)

    async def receive(self) -> Sequence[Heard]:
        """At least one; raises when the link is over."""
        arrived = await self._arrived.get()
        if arrived is None:
            self._arrived.put_nowait(None)
            raise self._down or LinkDown("the link is closed")
        return arrived

    def say(self, id: str, lane: str, write: Write) -> None:
        """Never blocks. What becomes of it is heard under this id."""
        if not self._lanes:
            self._lanes = [asyncio.Queue() for _ in range(LANES)]
            self._errands = [self._start(self._serve, lane) for lane in self._lanes]
        self._lanes[hash(lane) % LANES].put_nowait((id, write))

    def acknowledge(self, receipt: str) -> None:
        self._acks.append(receipt)
        if self._acking is None:
            self._acking = self._start(self._acknowledge)

    def quiesce(self) -> None:
        """Fetch nothing more."""
        if self._listening is not None:
            self._listening.cancel()

    async def close(self) -> None:
        tasks = [task for task in (self._listening, self._acking, *self._errands) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._ear.close()
        self._arrived.put_nowait(None)

    # --- the errands ---

    def _start(self, errand: Callable[..., Awaitable[None]], *given: Any) -> asyncio.Task[None]:
        return asyncio.get_running_loop().create_task(self._guard(errand, *given))

    async def _guard(self, errand: Callable[..., Awaitable[None]], *given: Any) -> None:
        """Whatever fails takes the link down, with the reason."""
        try:
            await errand(*given)
        except Exception as error:
            if self._down is None:
                known = isinstance(error, DragomanError)
                self._down = error if known else LinkDown(str(error) or type(error).__name__)
                self._arrived.put_nowait(None)

    async def _listen(self) -> None:
        while True:
            frames = await self._ear.receive()
            if frames:
                self._arrived.put_nowait(frames)

    async def _serve(self, lane: asyncio.Queue[tuple[str, Write]]) -> None:
        while True:
            id, write = await lane.get()
            try:
                frame = await write()
            except (LinkDown, NotAllowed):
                raise
            except (DragomanError, LocalProtocolError) as error:
                self._arrived.put_nowait((Unsaid(id, error),))
                continue
            taken, answer = await self._post.send(frame)
            heard: list[Heard] = [Accepted((id,))] if taken else []
            if answer:
                heard.append(Answered(id, answer, not taken))
            self._arrived.put_nowait(heard)

    async def _acknowledge(self) -> None:
        try:
            while self._acks:
                acks, self._acks = self._acks, []
                await self._ear.acknowledge(acks)
        finally:
            self._acking = None

"""The way to an a2acp broker and back: every message out is a POST, whose answer is its receipt; what comes, comes by
long poll or over a WebSocket.

The document has no acknowledgments, so a message that is written to a socket may be lost with it. The answer to a POST
cannot: so it is used by both transports. A message is written when its turn comes, with a fresh time and a token that
is good then.

    came                what was it
    ------------------  -----------------------------------------------------------------
    Frame               a message of the broker, or of another agent by the broker
    Accepted            the broker has a message of ours
    Answered            the broker answered a message of ours with another one
    Unsaid              a message of ours could not be written
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from msgspec import Struct

from dragoman.protocols.a2acp.types import TokenGrant, TokenRequest
from dragoman.sdk.errors import DragomanError, NotAllowed
from dragoman.sdk.links import LinkDown
from dragoman.sdk.messages import Accepted
from dragoman.sdk.network.pipe import Frame
from dragoman.sdk.network.polling import HttpLink
from dragoman.wire.errors import LocalProtocolError

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


class Receiver(Protocol):
    """What comes."""

    async def open(self) -> None: ...

    async def receive(self) -> Sequence[Frame]: ...

    async def acknowledge(self, receipts: Sequence[str]) -> None: ...

    async def close(self) -> None: ...


class Channel(HttpLink[Heard, tuple[str, Write]]):
    """One link: opened, used, closed."""

    def __init__(self, post: Post, receiver: Receiver) -> None:
        super().__init__()
        self._post = post
        self._receiver = receiver

    async def open(self) -> None:
        await self._receiver.open()
        self._begin()

    def say(self, id: str, lane: str, write: Write) -> None:
        """Never blocks. What becomes of it is heard under this id."""
        self._put(lane, (id, write))

    async def close(self) -> None:
        await self._end()
        await self._receiver.close()
        self._arrived.put_nowait(None)

    async def _fetch(self) -> None:
        while True:
            frames = await self._receiver.receive()
            if frames:
                self._arrived.put_nowait(frames)

    async def _say(self, item: tuple[str, Write]) -> None:
        id, write = item
        try:
            frame = await write()
        except (LinkDown, NotAllowed):
            raise
        except (DragomanError, LocalProtocolError) as error:
            self._arrived.put_nowait((Unsaid(id, error),))
            return
        taken, answer = await self._post.send(frame)
        heard: list[Heard] = [Accepted((id,))] if taken else []
        if answer:
            heard.append(Answered(id, answer, not taken))
        self._arrived.put_nowait(heard)

    async def _confirm(self, receipts: Sequence[str]) -> None:
        await self._receiver.acknowledge(receipts)

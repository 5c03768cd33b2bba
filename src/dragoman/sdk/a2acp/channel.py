"""The way to an a2acp broker and back. Every message out is a POST, whose answer is its receipt; messages come in by
long poll or over a WebSocket.

The document has no acknowledgments, so a message that is written to a socket may be lost with it. The answer to a POST
cannot, so both transports use it. A message is written when its turn comes, with a fresh time and a valid token.

    received            what it is
    ------------------  -----------------------------------------------------------------
    Frame               a message of the broker, or of another agent by the broker
    Accepted            the broker has a message of this agent
    Answered            the broker answered a message of this agent with another one
    Unwritten           a message of this agent could not be written
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

import httpx2
import msgspec
from msgspec import Struct

from dragoman.protocols.a2acp import codec
from dragoman.protocols.a2acp.errors import A2acpError, ErrorBody
from dragoman.protocols.a2acp.types import MESSAGE_BYTES, SUBPROTOCOL, TokenGrant, TokenRequest
from dragoman.sdk.address import Address
from dragoman.sdk.errors import DragomanError, NotAllowed
from dragoman.sdk.failures import failure
from dragoman.sdk.links import Frame, LinkDown
from dragoman.sdk.messages import Accepted
from dragoman.sdk.network.connect_errors import not_made
from dragoman.sdk.network.http import JSON, http_client, pause
from dragoman.sdk.network.polling import POLL, HttpLink, acknowledgment, delivered
from dragoman.sdk.network.websocket import WebSocket
from dragoman.wire.errors import LocalProtocolError

MESSAGES = "/a2acp/messages"
LATER = {**JSON, "prefer": "respond-async"}
"""The hub keeps the answer until it is acknowledged, so no connection has to last as long as the work."""

Write = Callable[[], Awaitable[bytes]]


class Answered(Struct, frozen=True):
    """`is_refusal`: the broker did not take the message."""

    id: str
    data: bytes
    is_refusal: bool


class Unwritten(Struct, frozen=True):
    id: str
    error: Exception


Received = Frame | Accepted | Answered | Unwritten


class Post(Protocol):
    """The broker's side of HTTP. Raises `LinkDown` where trying again can help, `NotAllowed` where it cannot."""

    async def token(self, request: TokenRequest) -> TokenGrant:
        """Raises `failures.CallFailed` where the broker refuses."""
        ...

    async def register(self, registration: bytes) -> None: ...

    async def send(self, frame: bytes) -> tuple[bool, bytes]:
        """Whether the broker took it, and the message that answers it, if one does."""
        ...

    async def close(self) -> None: ...


class Receiver(Protocol):
    """How messages come in."""

    async def open(self) -> None: ...

    async def receive(self) -> Sequence[Frame]: ...

    async def acknowledge(self, receipts: Sequence[str]) -> None: ...

    async def close(self) -> None: ...


class Channel(HttpLink[Received, tuple[str, Write]]):
    """One link: opened, used, closed."""

    def __init__(self, post: Post, receiver: Receiver) -> None:
        super().__init__()
        self._post = post
        self._receiver = receiver

    async def open(self) -> None:
        await self._receiver.open()
        self._begin()

    def send(self, id: str, lane: str, write: Write) -> None:
        """Never blocks. The outcome is received under this id."""
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
            self._arrived.put_nowait((Unwritten(id, error),))
            return
        taken, answer = await self._post.send(frame)
        received: list[Received] = [Accepted((id,))] if taken else []
        if answer:
            received.append(Answered(id, answer, not taken))
        self._arrived.put_nowait(received)

    async def _confirm(self, receipts: Sequence[str]) -> None:
        await self._receiver.acknowledge(receipts)


# --- over HTTP and WebSocket ---


class _Refused(Struct, frozen=True):
    class Payload(Struct, frozen=True):
        error: ErrorBody

    payload: Payload


class _Named(Struct, frozen=True):
    message_id: str


_named = msgspec.json.Decoder(_Named).decode
_refused = msgspec.json.Decoder(_Refused).decode
_grant = msgspec.json.Decoder(TokenGrant).decode
_encode = msgspec.json.Encoder().encode


class HttpPost:
    """`Post` over HTTP. It outlives its channels."""

    def __init__(self, address: Address, *, transport: httpx2.AsyncBaseTransport | None = None) -> None:
        self._address = address
        self.client = http_client(address, transport=transport)

    async def token(self, request: TokenRequest) -> TokenGrant:
        response = await self._do("POST", "/auth/token", content=_encode(request), headers=JSON)
        if response.is_success:
            try:
                return _grant(response.content)
            except msgspec.DecodeError as error:
                raise LinkDown(f"the auth service answered in a way we do not understand: {error}") from None
        refused = error_in(response.content)
        if response.status_code in (401, 403) and (refused is None or refused.details.get("rule") != "capability"):
            raise _not_known(refused)
        if refused is not None:
            raise failure(refused)
        raise _down(response)

    async def register(self, registration: bytes) -> None:
        response = await self._do("POST", "/a2acp/agents", content=registration, headers=JSON)
        if response.is_success:
            return
        if response.status_code not in (400, 401, 403, 404, 409, 413, 422):
            raise _down(response)
        error = error_in(response.content)
        if error is None:
            raise NotAllowed(f"the hub refused the registration: {response.status_code}")
        field = error.details.get("field")
        raise NotAllowed(f"{error.message} ({field})" if field else error.message)

    async def send(self, frame: bytes) -> tuple[bool, bytes]:
        response = await self._do("POST", MESSAGES, content=frame, headers=LATER)
        if (record := self._address.record) is not None:
            record(True, frame)
            record(False, response.content)
        if response.is_success:
            return True, response.content if _is_message(response.content) else b""
        if error_in(response.content) is None:
            raise _down(response)
        return False, response.content

    async def poll(self) -> Sequence[Frame]:
        response = await self._do("GET", MESSAGES, params=POLL)
        self._check(response)
        return delivered(response.content)

    async def acknowledge(self, deliveries: Sequence[str]) -> None:
        self._check(await self._do("POST", "/a2acp/ack", content=acknowledgment(deliveries), headers=JSON))

    async def close(self) -> None:
        await self.client.aclose()

    async def _do(self, method: str, path: str, **given: Any) -> httpx2.Response:
        try:
            return await self.client.request(method, path, **given)
        except httpx2.TransportError as error:
            raise not_made(self._address, error) from None

    def _check(self, response: httpx2.Response) -> None:
        if response.status_code in (401, 403):
            raise _not_known(error_in(response.content))
        if not response.is_success:
            raise _down(response)


class PollReceiver:
    """Messages by long poll. The first poll shows whether a hub is there; the post stays open."""

    def __init__(self, post: HttpPost) -> None:
        self.receive = post.poll
        self.acknowledge = post.acknowledge

    async def open(self) -> None: ...

    async def close(self) -> None: ...


class WebSocketReceiver:
    """Messages over a WebSocket: each frame is one, and its id is the receipt."""

    def __init__(self, address: Address) -> None:
        self._socket = WebSocket(address, "/a2acp/ws", [SUBPROTOCOL], largest=MESSAGE_BYTES, refusal=refusal)

    async def open(self) -> None:
        await self._socket.open()

    async def close(self) -> None:
        await self._socket.close()

    async def receive(self) -> Sequence[Frame]:
        data = await self._socket.receive()
        try:
            return (Frame(data, _named(data).message_id),)
        except msgspec.DecodeError:
            return (Frame(data),)

    async def acknowledge(self, receipts: Sequence[str]) -> None:
        self._socket.send(_encode({"ack": receipts}))


def channels(address: Address, post: HttpPost) -> Callable[[], Channel]:
    """A function that makes channels to the address."""
    if address.transport == "ws":
        return lambda: Channel(post, WebSocketReceiver(address))
    return lambda: Channel(post, PollReceiver(post))


def error_in(content: bytes) -> ErrorBody | None:
    """The error of an error message."""
    try:
        return _refused(content).payload.error
    except msgspec.DecodeError:
        return None


def refusal(content: bytes) -> str | None:
    """The text of an error message."""
    error = error_in(content)
    return None if error is None else error.message


def _not_known(error: ErrorBody | None) -> NotAllowed:
    return NotAllowed(error.message if error else "the hub does not know this token")


def _is_message(content: bytes) -> bool:
    try:
        codec.decode(content)
    except A2acpError:
        return False
    return True


def _down(response: httpx2.Response) -> LinkDown:
    return LinkDown(f"the hub answered with {response.status_code}", retry_after=pause(response))

"""A2acp's bytes over HTTP and over a WebSocket; see `channel` for which goes where."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import httpx2
import msgspec

from dragoman.protocols.a2acp import codec
from dragoman.protocols.a2acp.errors import A2acpError, ErrorBody
from dragoman.protocols.a2acp.types import MESSAGE_BYTES, SUBPROTOCOL, TokenGrant, TokenRequest
from dragoman.sdk.a2acp.channel import Channel
from dragoman.sdk.address import Address
from dragoman.sdk.errors import NotAllowed
from dragoman.sdk.failures import failure
from dragoman.sdk.links import LinkDown
from dragoman.sdk.network.connect_errors import not_made
from dragoman.sdk.network.http import JSON, http_client, pause
from dragoman.sdk.network.pipe import Frame
from dragoman.sdk.network.polling import POLL, acknowledgment, delivered
from dragoman.sdk.network.websocket import WebSocket

MESSAGES = "/a2acp/messages"
LATER = {**JSON, "prefer": "respond-async"}
"""The answer comes when it comes, and is kept until it is acknowledged: no connection has to last as long."""


class _Refused(msgspec.Struct, frozen=True):
    class Payload(msgspec.Struct, frozen=True):
        error: ErrorBody

    payload: Payload


class _Named(msgspec.Struct, frozen=True):
    message_id: str


_named = msgspec.json.Decoder(_Named).decode
_refused = msgspec.json.Decoder(_Refused).decode
_grant = msgspec.json.Decoder(TokenGrant).decode
_encode = msgspec.json.Encoder().encode


class HttpPost:
    """`channel.Post`; outlives the links."""

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
        said = error_in(response.content)
        if response.status_code in (401, 403) and (said is None or said.details.get("rule") != "capability"):
            raise NotAllowed(said.message if said else "the hub does not know this token")
        if said is not None:
            raise failure(said)
        raise _down(response)

    async def register(self, registration: bytes) -> None:
        response = await self._do("POST", "/a2acp/agents", content=registration, headers=JSON)
        if response.is_success:
            return
        if response.status_code in (400, 401, 403, 404, 409, 413, 422):
            said = error_in(response.content)
            raise NotAllowed(_words(said) if said else f"the hub refused the registration: {response.status_code}")
        raise _down(response)

    async def send(self, frame: bytes) -> tuple[bool, bytes]:
        response = await self._do("POST", MESSAGES, content=frame, headers=LATER)
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
            said = error_in(response.content)
            raise NotAllowed(said.message if said else "the hub does not know this token")
        if not response.is_success:
            raise _down(response)


class PollReceiver:
    """What comes by long poll."""

    def __init__(self, post: HttpPost) -> None:
        self._post = post

    async def open(self) -> None:
        """The first poll shows whether somebody is there."""

    async def receive(self) -> Sequence[Frame]:
        return await self._post.poll()

    async def acknowledge(self, receipts: Sequence[str]) -> None:
        await self._post.acknowledge(receipts)

    async def close(self) -> None:
        """The post stays open."""


class WebSocketReceiver:
    """What comes over a WebSocket: each frame is a message, and its id is the receipt."""

    def __init__(self, address: Address) -> None:
        self._socket = WebSocket(address, "/a2acp/ws", [SUBPROTOCOL], largest=MESSAGE_BYTES, refusal=refusal)

    async def open(self) -> None:
        await self._socket.open()

    async def receive(self) -> Sequence[Frame]:
        data = await self._socket.receive()
        try:
            return (Frame(data, _named(data).message_id),)
        except msgspec.DecodeError:
            return (Frame(data),)

    async def acknowledge(self, receipts: Sequence[str]) -> None:
        self._socket.send(_encode({"ack": receipts}))

    async def close(self) -> None:
        await self._socket.close()


def channels(address: Address, post: HttpPost) -> Callable[[], Channel]:
    """What makes a channel to the address, each time a new one."""
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
    """The words of an error message."""
    said = error_in(content)
    return None if said is None else said.message


def _words(said: ErrorBody) -> str:
    field = said.details.get("field")
    return f"{said.message} ({field})" if field else said.message


def _is_message(content: bytes) -> bool:
    try:
        codec.decode(content)
    except A2acpError:
        return False
    return True


def _down(response: httpx2.Response) -> LinkDown:
    return LinkDown(f"the hub answered with {response.status_code}", retry_after=pause(response))

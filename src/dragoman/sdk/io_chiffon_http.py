"""Chiffon's frames over HTTP: a long poll in, a POST for each frame out.

The 202 of a POST is the hub's receipt. Frames of one lane go one after the other, lanes side by side over a few
connections. A refusal in chiffon's own words comes in like any other frame; anything else that is not a success (a
proxy's page, an overloaded hub, a broken connection) brings the whole link down, and the next one says again what
was not accepted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import httpx2
import msgspec

from dragoman.sdk.address import Address
from dragoman.sdk.errors import NotAllowed
from dragoman.sdk.http_client import http_client
from dragoman.sdk.links import Accepted, Frame, Link, LinkDown, not_made
from dragoman.sdk.words_chiffon import ChiffonLink
from dragoman.sdk.world import World

WAIT = 30
"""Seconds a poll may be kept open by the hub."""
LANES = 8
MOST = 64
"""Messages taken by one poll."""


class _Delivered(msgspec.Struct, frozen=True):
    delivery_id: str
    message: msgspec.Raw


class _Inbox(msgspec.Struct, frozen=True):
    messages: tuple[_Delivered, ...]


_inbox = msgspec.json.Decoder(_Inbox).decode
_encode = msgspec.json.Encoder().encode


def agent_link(address: Address, world: World) -> Link:
    """An agent's link over HTTP."""
    return ChiffonLink(HttpPipe(address), world)


async def register(client: httpx2.AsyncClient, registration: bytes) -> bytes:
    """Introduce the agent. A refusal is final; anything else that fails may pass."""
    try:
        response = await client.post("/api/agent/register", content=registration, headers=JSON)
    except httpx2.TransportError as error:
        raise LinkDown(f"{str(client.base_url).rstrip('/')}: {_sentence(error)}") from None
    if response.status_code in (200, 201, 202):
        return response.content
    if response.status_code in (400, 401, 403, 404, 409, 422):
        place = f"{client.base_url} refuses us ({response.status_code})"
        unknown = f"{place}: check the token, and that the address has no path"
        raise NotAllowed(refusal(response.content) or unknown)
    raise LinkDown(f"the hub answered the registration with {response.status_code}", retry_after=_pause(response))


JSON = {"content-type": "application/json"}


def refusal(content: bytes) -> str | None:
    """The words of an `error` envelope."""
    try:
        payload = msgspec.json.decode(content)["payload"]
        return f"{payload['error_message']} ({payload['error_code']})"
    except (msgspec.DecodeError, KeyError, TypeError, IndexError):
        return None


class HttpPipe:
    """`links.Pipe` over HTTP. Another protocol has other places, and other words for a refusal."""

    INBOX = "/api/agent/messages"
    POST = "/api/agent/message"
    ACK = "/api/agent/ack"
    REFUSED = frozenset({400, 403, 404, 409, 413, 422})
    """Statuses of a refusal that is about one message, and no reason to give up the link."""

    def __init__(self, address: Address, *, transport: httpx2.AsyncBaseTransport | None = None) -> None:
        self._address = address
        self._client = http_client(address, transport=transport)
        self._arrived: asyncio.Queue[Sequence[Frame | Accepted] | None] = asyncio.Queue()
        self._lanes: list[asyncio.Queue[tuple[bytes, str]]] = []
        self._acks: list[str] = []
        self._acking: asyncio.Task[None] | None = None
        self._workers: list[asyncio.Task[None]] = []
        self._poller: asyncio.Task[None] | None = None
        self._down: Exception | None = None

    async def open(self, registration: bytes | None) -> bytes:
        answer = await self._greet() if registration is None else await register(self._client, registration)
        self._poller = asyncio.get_running_loop().create_task(self._guard(self._poll))
        return answer

    async def _greet(self) -> bytes:
        """Who has nothing to say yet looks whether somebody is there: a poll would only wait."""
        try:
            await self._client.get("/livez")
        except httpx2.TransportError as error:
            raise not_made(self._address, error) from None
        return b""

    async def receive(self) -> Sequence[Frame | Accepted]:
        arrived = await self._arrived.get()
        if arrived is None:
            self._arrived.put_nowait(None)
            raise self._down or LinkDown("the link is closed")
        return arrived

    def send(self, frame: bytes, message_id: str, lane: str) -> None:
        if not self._lanes:
            loop = asyncio.get_running_loop()
            self._lanes = [asyncio.Queue() for _ in range(LANES)]
            self._workers = [loop.create_task(self._guard(self._serve, queue)) for queue in self._lanes]
        self._lanes[hash(lane) % LANES].put_nowait((frame, message_id))

    def acknowledge(self, receipt: str) -> None:
        self._acks.append(receipt)
        if self._acking is None:
            self._acking = asyncio.get_running_loop().create_task(self._guard(self._acknowledge))

    async def drain(self) -> None:
        """The engine itself bounds what it has under way."""

    def quiesce(self) -> None:
        if self._poller is not None:
            self._poller.cancel()

    async def close(self) -> None:
        tasks = [task for task in (self._poller, self._acking, *self._workers) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._client.aclose()

    # --- the errands ---

    async def _guard(self, errand: Callable[..., Awaitable[None]], *given: Any) -> None:
        """Whatever fails takes the link down, with the reason."""
        try:
            await errand(*given)
        except Exception as error:
            if self._down is None:
                known = isinstance(error, LinkDown | NotAllowed)
                self._down = error if known else LinkDown(_sentence(error))
                self._arrived.put_nowait(None)

    async def _poll(self) -> None:
        while True:
            response = await self._client.get(self.INBOX, params={"wait": WAIT, "max": MOST})
            self._check(response)
            if response.status_code != 200:
                raise LinkDown(f"the hub answered a poll with {response.status_code}")
            delivered = _inbox(response.content).messages
            if delivered:
                self._arrived.put_nowait([Frame(bytes(one.message), one.delivery_id) for one in delivered])

    async def _serve(self, queue: asyncio.Queue[tuple[bytes, str]]) -> None:
        while True:
            frame, message_id = await queue.get()
            response = await self._client.post(self.POST, content=frame, headers=JSON)
            self._check(response)
            self._arrived.put_nowait(self._answered(response, message_id))

    def _answered(self, response: httpx2.Response, message_id: str) -> Sequence[Frame | Accepted]:
        """What the answer to a POST is to us."""
        return (Accepted((message_id,)),) if response.status_code == 202 else (Frame(response.content),)

    def _refusal(self, content: bytes) -> str | None:
        return refusal(content)

    async def _acknowledge(self) -> None:
        try:
            while self._acks:
                acks, self._acks = self._acks, []
                body = _encode({"delivery_ids": acks})
                self._check(await self._client.post(self.ACK, content=body, headers=JSON))
        finally:
            self._acking = None

    def _check(self, response: httpx2.Response) -> None:
        status = response.status_code
        if status == 401:
            raise NotAllowed(self._refusal(response.content) or "the hub does not know this token")
        if status in (200, 202, 204):
            return
        if status in self.REFUSED and self._refusal(response.content) is not None:
            return
        raise LinkDown(f"the hub answered with {status}", retry_after=_pause(response))


def _pause(response: httpx2.Response) -> float | None:
    said = response.headers.get("retry-after", "")
    return float(said) if said.isascii() and said.isdigit() and len(said) < 5 else None


def _sentence(error: BaseException) -> str:
    return str(error) or type(error).__name__

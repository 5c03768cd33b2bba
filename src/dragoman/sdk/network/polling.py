"""Frames over HTTP: a long poll in, a POST for each frame out, acknowledgments by the ids of deliveries.

A refusal in the protocol's own form comes in like any other frame; anything else that is not a success (a proxy's
page, an overloaded hub, a broken connection) ends the whole link, and the next one sends again what the hub did not
accept.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, ClassVar, Generic, TypeVar

import httpx2
import msgspec

from dragoman.sdk.address import Address
from dragoman.sdk.errors import DragomanError, NotAllowed
from dragoman.sdk.links import Frame, LinkDown
from dragoman.sdk.messages import Accepted
from dragoman.sdk.network.connect_errors import not_made, sentence
from dragoman.sdk.network.http import JSON, http_client, pause

LANES = 8
Received = TypeVar("Received")
Item = TypeVar("Item")

POLL = {"wait": 30, "max": 64}
"""Seconds a poll may be kept open by the hub, and messages taken by one."""


class _Delivered(msgspec.Struct, frozen=True):
    delivery_id: str
    message: msgspec.Raw


class _Inbox(msgspec.Struct, frozen=True):
    messages: tuple[_Delivered, ...]


_inbox = msgspec.json.Decoder(_Inbox).decode
_encode = msgspec.json.Encoder().encode


def delivered(content: bytes) -> list[Frame]:
    """The frames in the answer to a poll."""
    return [Frame(bytes(one.message), one.delivery_id) for one in _inbox(content).messages]


def acknowledgment(receipts: Sequence[str]) -> bytes:
    return _encode({"delivery_ids": receipts})


class HttpLink(ABC, Generic[Received, Item]):
    """What a link over HTTP does side by side: fetch, send, acknowledge. If one of them fails, the link ends with that
    reason. Messages of one lane go one after the other; lanes go side by side over a few connections. `Received` is
    what the link receives, `Item` what it sends."""

    def __init__(self) -> None:
        self._arrived: asyncio.Queue[Sequence[Received] | None] = asyncio.Queue()
        self._lanes: list[asyncio.Queue[Item]] = []
        self._acks: list[str] = []
        self._acking: asyncio.Task[None] | None = None
        self._fetching: asyncio.Task[None] | None = None
        self._serving: list[asyncio.Task[None]] = []
        self._down: Exception | None = None

    async def receive(self) -> Sequence[Received]:
        """At least one; raises when the link is over."""
        arrived = await self._arrived.get()
        if arrived is None:
            self._arrived.put_nowait(None)
            raise self._down or LinkDown("the link is closed")
        return arrived

    def acknowledge(self, receipt: str) -> None:
        self._acks.append(receipt)
        if self._acking is None:
            self._acking = self._start(self._acknowledge)

    def quiesce(self) -> None:
        """Fetch nothing more."""
        if self._fetching is not None:
            self._fetching.cancel()

    async def _end(self) -> None:
        tasks = [task for task in (self._fetching, self._acking, *self._serving) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- how each is done ---

    @abstractmethod
    async def _fetch(self) -> None:
        """Put everything that is received into `_arrived`, until cancelled."""

    @abstractmethod
    async def _say(self, item: Item) -> None: ...

    @abstractmethod
    async def _confirm(self, receipts: Sequence[str]) -> None: ...

    # --- the jobs ---

    def _begin(self) -> None:
        self._fetching = self._start(self._fetch)

    def _put(self, lane: str, item: Item) -> None:
        """Never blocks."""
        if not self._lanes:
            self._lanes = [asyncio.Queue() for _ in range(LANES)]
            self._serving = [self._start(self._serve, queue) for queue in self._lanes]
        self._lanes[hash(lane) % LANES].put_nowait(item)

    def _start(self, job: Callable[..., Awaitable[None]], *given: Any) -> asyncio.Task[None]:
        return asyncio.get_running_loop().create_task(self._guard(job, *given))

    async def _guard(self, job: Callable[..., Awaitable[None]], *given: Any) -> None:
        try:
            await job(*given)
        except Exception as error:
            if self._down is None:
                self._down = error if isinstance(error, DragomanError) else LinkDown(sentence(error))
                self._arrived.put_nowait(None)

    async def _serve(self, lane: asyncio.Queue[Item]) -> None:
        while True:
            await self._say(await lane.get())

    async def _acknowledge(self) -> None:
        try:
            while self._acks:
                acks, self._acks = self._acks, []
                await self._confirm(acks)
        finally:
            self._acking = None


class PolledPipe(HttpLink[Frame | Accepted, tuple[bytes, str]]):
    """`Pipe` over HTTP. Each protocol has its own paths, and its own form of a refusal."""

    INBOX: ClassVar[str]
    POST: ClassVar[str]
    ACK: ClassVar[str]
    REFUSED = frozenset({400, 403, 404, 409, 413, 422})
    """Statuses of a refusal that is about one message, and no reason to give up the link."""

    def __init__(self, address: Address, *, transport: httpx2.AsyncBaseTransport | None = None) -> None:
        super().__init__()
        self._address = address
        self._client = http_client(address, transport=transport)

    async def open(self, registration: bytes | None) -> bytes:
        answer = await self._greet() if registration is None else await self._register(registration)
        self._begin()
        return answer

    async def _greet(self) -> bytes:
        """A client without a registration asks whether the hub answers: a poll would only wait."""
        try:
            await self._client.get("/livez")
        except httpx2.TransportError as error:
            raise not_made(self._address, error) from None
        return b""

    def send(self, frame: bytes, message_id: str, lane: str) -> None:
        self._put(lane, (frame, message_id))

    async def drain(self) -> None:
        """The engine itself bounds what it has under way."""

    async def close(self) -> None:
        await self._end()
        await self._client.aclose()

    # --- what differs between protocols ---

    @abstractmethod
    async def _register(self, registration: bytes) -> bytes: ...

    @abstractmethod
    def _answered(self, response: httpx2.Response, message_id: str) -> Sequence[Frame | Accepted]:
        """What the answer to a POST means."""

    @abstractmethod
    def _refusal(self, content: bytes) -> str | None:
        """The message of a refusal, if it is one."""

    # --- the jobs ---

    async def _fetch(self) -> None:
        while True:
            response = await self._client.get(self.INBOX, params=POLL)
            if response.status_code == 403:  # a poll has no content: the hub refuses the agent itself
                raise NotAllowed(self._refusal(response.content) or "the hub does not let this agent poll")
            self._check(response)
            if response.status_code != 200:
                raise LinkDown(f"the hub answered a poll with {response.status_code}")
            frames = delivered(response.content)
            if frames:
                self._arrived.put_nowait(frames)

    async def _say(self, item: tuple[bytes, str]) -> None:
        frame, message_id = item
        response = await self._client.post(self.POST, content=frame, headers=JSON)
        self._check(response)
        self._arrived.put_nowait(self._answered(response, message_id))

    async def _confirm(self, receipts: Sequence[str]) -> None:
        self._check(await self._client.post(self.ACK, content=acknowledgment(receipts), headers=JSON))

    def _check(self, response: httpx2.Response) -> None:
        status = response.status_code
        if status == 401:
            raise NotAllowed(self._refusal(response.content) or "the hub does not know this token")
        if status in (200, 202, 204):
            return
        if status in self.REFUSED and self._refusal(response.content) is not None:
            return
        raise LinkDown(f"the hub answered with {status}", retry_after=pause(response))

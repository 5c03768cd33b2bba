"""Chiffon's frames over HTTP: a long poll in, a POST for each frame out.

The 202 of a POST is the hub's receipt. A refusal in chiffon's own words comes in like any other frame; anything else
that is not a success (a proxy's page, an overloaded hub, a broken connection) brings the whole link down, and the next
one says again what was not accepted.
"""

from __future__ import annotations

from collections.abc import Sequence

import httpx2
import msgspec

from dragoman.sdk.address import Address
from dragoman.sdk.calling.patience import sentence
from dragoman.sdk.chiffon.words import ChiffonLink
from dragoman.sdk.errors import NotAllowed
from dragoman.sdk.links import Accepted, Frame, Link, LinkDown, not_made
from dragoman.sdk.network.errands import Errands
from dragoman.sdk.network.http import http_client
from dragoman.sdk.world import World

WAIT = 30
"""Seconds a poll may be kept open by the hub."""
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
        raise LinkDown(f"{str(client.base_url).rstrip('/')}: {sentence(error)}") from None
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


class HttpPipe(Errands[Frame | Accepted, tuple[bytes, str]]):
    """`links.Pipe` over HTTP. Another protocol has other places, and other words for a refusal."""

    INBOX = "/api/agent/messages"
    POST = "/api/agent/message"
    ACK = "/api/agent/ack"
    REFUSED = frozenset({400, 403, 404, 409, 413, 422})
    """Statuses of a refusal that is about one message, and no reason to give up the link."""

    def __init__(self, address: Address, *, transport: httpx2.AsyncBaseTransport | None = None) -> None:
        super().__init__()
        self._address = address
        self._client = http_client(address, transport=transport)

    async def open(self, registration: bytes | None) -> bytes:
        answer = await self._greet() if registration is None else await register(self._client, registration)
        self._begin()
        return answer

    async def _greet(self) -> bytes:
        """Who has nothing to say yet looks whether somebody is there: a poll would only wait."""
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

    async def _fetch(self) -> None:
        while True:
            response = await self._client.get(self.INBOX, params={"wait": WAIT, "max": MOST})
            self._check(response)
            if response.status_code != 200:
                raise LinkDown(f"the hub answered a poll with {response.status_code}")
            delivered = _inbox(response.content).messages
            if delivered:
                self._arrived.put_nowait([Frame(bytes(one.message), one.delivery_id) for one in delivered])

    async def _say(self, item: tuple[bytes, str]) -> None:
        frame, message_id = item
        response = await self._client.post(self.POST, content=frame, headers=JSON)
        self._check(response)
        self._arrived.put_nowait(self._answered(response, message_id))

    def _answered(self, response: httpx2.Response, message_id: str) -> Sequence[Frame | Accepted]:
        """What the answer to a POST is to us."""
        return (Accepted((message_id,)),) if response.status_code == 202 else (Frame(response.content),)

    def _refusal(self, content: bytes) -> str | None:
        return refusal(content)

    async def _confirm(self, receipts: Sequence[str]) -> None:
        body = _encode({"delivery_ids": receipts})
        self._check(await self._client.post(self.ACK, content=body, headers=JSON))

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

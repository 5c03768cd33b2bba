"""Chiffon's frames over HTTP: a long poll in, a POST for each frame out. The 202 of a POST is the hub's receipt."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import httpx2
import msgspec

from dragoman.sdk.address import Address
from dragoman.sdk.errors import Conflict, HubUnreachable, NotAllowed, NotFound
from dragoman.sdk.links import Frame, LinkDown
from dragoman.sdk.messages import Accepted
from dragoman.sdk.network.connect_errors import sentence
from dragoman.sdk.network.http import JSON, http_client, pause
from dragoman.sdk.network.polling import PolledPipe


class HttpPipe(PolledPipe):
    INBOX = "/api/agent/messages"
    POST = "/api/agent/message"
    ACK = "/api/agent/ack"

    async def _register(self, registration: bytes) -> bytes:
        return await register(self._client, registration)

    def _answered(self, response: httpx2.Response, message_id: str) -> Sequence[Frame | Accepted]:
        return (Accepted((message_id,)),) if response.status_code == 202 else (Frame(response.content),)

    def _refusal(self, content: bytes) -> str | None:
        return refusal(content)


#: Status of `POST /api/tasks/{id}/cancel` → what is raised.
CANCEL_RAISES: dict[int, type[Exception]] = {401: NotAllowed, 403: NotAllowed, 404: NotFound, 409: Conflict}


def canceller(address: Address) -> Callable[[str, str | None], Awaitable[None]]:
    """What stops a task, over either transport: chiffon has no message for it."""

    async def cancel(task_id: str, reason: str | None) -> None:
        async with http_client(address) as http:
            try:
                response = await http.post(f"/api/tasks/{task_id}/cancel", json={"reason": reason} if reason else {})
            except httpx2.TransportError as error:
                raise HubUnreachable(f"no answer from {address.base}: {error}") from None
        if not response.is_success:
            words = refusal(response.content) or f"the hub answered with {response.status_code}"
            raise CANCEL_RAISES.get(response.status_code, HubUnreachable)(words)

    return cancel


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
    raise LinkDown(f"the hub answered the registration with {response.status_code}", retry_after=pause(response))


def refusal(content: bytes) -> str | None:
    """The words of an `error` envelope."""
    try:
        payload = msgspec.json.decode(content)["payload"]
        return f"{payload['error_message']} ({payload['error_code']})"
    except (msgspec.DecodeError, KeyError, TypeError, IndexError):
        return None

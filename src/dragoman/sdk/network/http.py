"""HTTP to the hub, the same for every protocol; and files over it, where a protocol only names them.

Files that came with work are fetched (chiffon, agentmsg, a2acp). A file that comes out of it is uploaded first, then
named in a report.
"""

from __future__ import annotations

import hashlib
import logging
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any
from urllib.parse import quote

import httpx2
import msgspec

from dragoman.sdk.address import Address
from dragoman.sdk.links import Bring, Fetch, LinkDown
from dragoman.sdk.messages import Assignment, File
from dragoman.sdk.network import tls
from dragoman.sdk.network.connect_errors import not_made

JSON = {"content-type": "application/json"}
MOST_EVENT = 16 * 1024 * 1024


class _Client(httpx2.AsyncClient):
    """Turns two errors that httpx lets pass into failures of the connection: under uvloop the socket of a connection
    that was reset early is None (AttributeError); and in TLS 1.3 a client learns that the hub refuses its certificate
    only when it reads an answer (SSLError)."""

    async def send(self, request: httpx2.Request, **how: Any) -> httpx2.Response:
        try:
            return await super().send(request, **how)
        except AttributeError as error:
            if error.obj is not None:
                raise
            raise httpx2.ConnectError("the connection was reset", request=request) from None
        except ssl.SSLError as error:
            raise httpx2.ReadError(str(error), request=request) from None


def http_client(
    address: Address, *, read: float = 60.0, transport: httpx2.AsyncBaseTransport | None = None
) -> httpx2.AsyncClient:
    """A client with the token that waits `read` seconds for an answer: longer than the hub keeps a poll open. To this
    machine it uses no proxy."""
    return _Client(
        base_url=address.base,
        headers=address.headers,
        timeout=httpx2.Timeout(10.0, read=read),
        trust_env=not address.is_loopback,
        verify=tls.verify(address),
        transport=transport,
    )


def pause(response: httpx2.Response) -> float | None:
    """The seconds that the hub asks the client to wait, if any."""
    seconds = response.headers.get("retry-after", "")
    return float(seconds) if seconds.isascii() and seconds.isdigit() and len(seconds) < 5 else None


@asynccontextmanager
async def listening(
    http: httpx2.AsyncClient,
    path: str,
    *,
    check: Callable[[httpx2.Response], None],
    params: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
) -> AsyncIterator[httpx2.EventSource]:
    """The server-sent events of a path; `check` raises for any other answer."""
    wanted = {"accept": "text/event-stream", **(headers or {})}
    async with http.stream("GET", path, params=params, headers=wanted) as response:
        if response.status_code != 200:
            await response.aread()
            check(response)
        yield httpx2.EventSource(response, MOST_EVENT)


log = logging.getLogger("dragoman.sdk")

PLACE = "/api/agent/files"


def fetcher(address: Address) -> Fetch:
    return partial(_fetch, address)


async def _fetch(address: Address, work: Assignment) -> list[File]:
    """The files that the hub gives: a file that it refuses is left out. Raises `LinkDown` if it does not answer."""
    files = []
    async with http_client(address) as client:
        for one in work.request.attachments or ():
            try:
                place = f"{PLACE}/{quote(one.id, safe='')}"  # it may come from another agent
                answer = await client.get(place, params={"task_id": work.correlation.task_id})
            except httpx2.TransportError as error:
                raise not_made(address, error) from None
            if answer.status_code >= 500:
                raise LinkDown(f"the hub answered with {answer.status_code}")
            if not answer.is_success or hashlib.sha256(answer.content).hexdigest() != one.sha256:
                log.error(
                    "task %s: its file %r cannot be had (%s)", work.correlation.task_id, one.name, answer.status_code
                )
                continue
            files.append(File(one.name, one.mime_type, answer.content))
    return files


def bringer(address: Address) -> Bring:
    return partial(_bring, address)


async def _bring(address: Address, file: File) -> str:
    try:
        async with http_client(address) as client:
            answer = await client.post(
                PLACE, params={"name": file.name}, content=file.data, headers={"content-type": file.mime_type}
            )
    except httpx2.TransportError as error:
        raise not_made(address, error) from None
    if answer.status_code == 201:
        return str(answer.json()["id"])
    if answer.status_code in (401, 429) or answer.status_code >= 500:
        raise LinkDown(f"the hub answered with {answer.status_code}")
    why = _refusal(answer.content) or f"the hub answered with {answer.status_code}"
    raise ValueError(f"{file.name!r} ({len(file.data)} bytes) was not taken: {why}")


def _refusal(content: bytes) -> str | None:
    """The message of the `error` envelope that this place answers with, whatever protocol the agent speaks."""
    try:
        payload = msgspec.json.decode(content)["payload"]
        return f"{payload['error_message']} ({payload['error_code']})"
    except (msgspec.DecodeError, KeyError, TypeError, IndexError):
        return None

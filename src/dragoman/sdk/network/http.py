"""HTTP to the hub, the same for every protocol."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx2

from dragoman.sdk.address import Address
from dragoman.sdk.network import tls

JSON = {"content-type": "application/json"}
MOST_EVENT = 16 * 1024 * 1024


class _Client(httpx2.AsyncClient):
    """What its libraries let through, as the failures of a connection that they are: under uvloop the socket of one
    that was reset before anybody looked at it is None, which they do not expect; and in TLS 1.3 a client reads that
    the hub does not take its certificate where it reads an answer."""

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
    """With our token, and `read` seconds for an answer: more than the hub keeps a poll open. A hub on this machine is
    not looked for behind a proxy."""
    return _Client(
        base_url=address.base,
        headers=address.headers,
        timeout=httpx2.Timeout(10.0, read=read),
        trust_env=not address.is_loopback,
        verify=tls.verify(address),
        transport=transport,
    )


def pause(response: httpx2.Response) -> float | None:
    """How many seconds the hub wants us to wait, if it says."""
    said = response.headers.get("retry-after", "")
    return float(said) if said.isascii() and said.isdigit() and len(said) < 5 else None


@asynccontextmanager
async def listening(
    http: httpx2.AsyncClient,
    path: str,
    *,
    check: Callable[[httpx2.Response], None],
    params: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
) -> AsyncIterator[httpx2.EventSource]:
    """The server-sent events there; `check` raises what an answer means that is none."""
    wanted = {"accept": "text/event-stream", **(headers or {})}
    async with http.stream("GET", path, params=params, headers=wanted) as response:
        if response.status_code != 200:
            await response.aread()
            check(response)
        yield httpx2.EventSource(response, MOST_EVENT)

"""HTTP to the hub, the same for every protocol."""

from __future__ import annotations

import httpx2

from dragoman.sdk import secure
from dragoman.sdk.address import Address


def http_client(
    address: Address, *, read: float = 60.0, transport: httpx2.AsyncBaseTransport | None = None
) -> httpx2.AsyncClient:
    """With our token, and `read` seconds for an answer: more than the hub keeps a poll open. A hub on this machine is
    not looked for behind a proxy."""
    return httpx2.AsyncClient(
        base_url=address.base,
        headers=address.headers,
        timeout=httpx2.Timeout(10.0, read=read),
        trust_env=not address.is_loopback,
        verify=secure.verify(address),
        transport=transport,
    )

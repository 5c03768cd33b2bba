"""Files that came with work, over HTTP: what chiffon, agentmsg and a2acp say of them is only where they are."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TypeAlias
from urllib.parse import quote

from dragoman.sdk.address import Address
from dragoman.sdk.links import File, LinkDown, Work, not_made

log = logging.getLogger("dragoman.sdk")

Fetch: TypeAlias = Callable[[Work], Awaitable[Sequence[File]]]
FETCHED = frozenset({"chiffon", "agentmsg", "a2acp"})
"""Protocols whose agents fetch."""


def fetcher(address: Address) -> Fetch | None:
    return partial(_fetch, address) if address.protocol in FETCHED else None


async def _fetch(address: Address, work: Work) -> list[File]:
    """What can be had. A hub that does not answer is asked again with the work; a file that it does not give is not."""
    import httpx2

    from dragoman.sdk.io_chiffon_http import http_client

    files = []
    async with http_client(address) as client:
        for one in work.attached:
            try:
                place = f"/api/agent/files/{quote(one.id, safe='')}"  # another agent may have said it
                answer = await client.get(place, params={"task_id": work.errand.task_id})
            except httpx2.TransportError as error:
                raise not_made(address, error) from None
            if answer.status_code >= 500:
                raise LinkDown(f"the hub answered with {answer.status_code}")
            if not answer.is_success or hashlib.sha256(answer.content).hexdigest() != one.sha256:
                log.error("task %s: its file %r cannot be had (%s)", work.errand.task_id, one.name, answer.status_code)
                continue
            files.append(File(one.name, one.mime_type, answer.content))
    return files

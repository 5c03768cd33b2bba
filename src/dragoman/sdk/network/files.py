"""Files over HTTP, where a protocol says of them only where they are.

Those that came with work are fetched (chiffon, agentmsg, a2acp); one that comes out of it is brought first and then
named in a report.
"""

from __future__ import annotations

import hashlib
import logging
from functools import partial
from urllib.parse import quote

import httpx2
import msgspec

from dragoman.sdk.address import Address
from dragoman.sdk.links import Bring, Fetch, LinkDown
from dragoman.sdk.messages import Assignment, File
from dragoman.sdk.network.connect_errors import not_made
from dragoman.sdk.network.http import http_client

log = logging.getLogger("dragoman.sdk")

PLACE = "/api/agent/files"


def fetcher(address: Address) -> Fetch:
    return partial(_fetch, address)


async def _fetch(address: Address, work: Assignment) -> list[File]:
    """What can be had. A hub that does not answer is asked again with the work; a file that it does not give is not."""
    files = []
    async with http_client(address) as client:
        for one in work.request.attachments or ():
            try:
                place = f"{PLACE}/{quote(one.id, safe='')}"  # another agent may have said it
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

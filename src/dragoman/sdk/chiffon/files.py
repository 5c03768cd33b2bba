"""A file that comes out of work: brought to the hub over HTTP first, and then named in a message."""

from __future__ import annotations

from functools import partial

import httpx2

from dragoman.sdk.address import Address
from dragoman.sdk.chiffon.http import refusal
from dragoman.sdk.links import Bring, LinkDown
from dragoman.sdk.network.files import PLACE
from dragoman.sdk.network.http import http_client
from dragoman.sdk.network.misdialled import not_made
from dragoman.sdk.words import File


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
    why = refusal(answer.content) or f"the hub answered with {answer.status_code}"
    raise ValueError(f"{file.name!r} ({len(file.data)} bytes) was not taken: {why}")

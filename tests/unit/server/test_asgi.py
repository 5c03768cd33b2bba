"""Bodies with a bound: no more of one is read than may be kept."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

import pytest

from dragoman.server.asgi import read_body
from dragoman.wire.errors import RemoteProtocolError, Stage

LIMIT = 10


class Client:
    """Sends its body in pieces, and counts how many were asked for."""

    def __init__(self, *pieces: bytes) -> None:
        self.pieces = list(pieces)
        self.asked = 0

    async def __call__(self) -> MutableMapping[str, Any]:
        piece = self.pieces[self.asked]
        self.asked += 1
        return {"type": "http.request", "body": piece, "more_body": self.asked < len(self.pieces)}


async def body_of(client: Client, **headers: str) -> bytes:
    named = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return await read_body({"headers": named}, client, LIMIT)


@pytest.mark.parametrize(
    "pieces", [(b"0123456789",), (b"01234", b"56789"), tuple(b"%d" % n for n in range(10)), (b"",)]
)
async def test_a_body_within_the_limit_is_whole_whatever_its_pieces(pieces: tuple[bytes, ...]) -> None:
    assert await body_of(Client(*pieces)) == b"".join(pieces)


async def test_a_length_beyond_the_limit_is_refused_before_a_byte_is_read() -> None:
    client = Client(b"x")
    with pytest.raises(RemoteProtocolError) as refused:
        await body_of(client, content_length="11")
    assert (refused.value.stage, client.asked) == (Stage.SIZE, 0)


@pytest.mark.parametrize(("pieces", "asked"), [((b"x" * 11,), 1), ((b"x" * 6,) * 5, 2), ((b"x" * 11, b"x"), 1)])
async def test_a_body_without_a_length_is_refused_as_soon_as_it_is_too_long(
    pieces: tuple[bytes, ...], asked: int
) -> None:
    client = Client(*pieces)
    with pytest.raises(RemoteProtocolError) as refused:
        await body_of(client)
    assert (refused.value.stage, client.asked) == (Stage.SIZE, asked)

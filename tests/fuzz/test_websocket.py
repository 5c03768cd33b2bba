"""Bytes on a WebSocket, below every protocol: frames that are broken, masked badly, too long, out of order, compressed.

The socket is the hub's own, on a transport that only remembers what was written. Whatever comes, nothing escapes into
the event loop; the listener hears whole messages within the limit; and a peer that breaks the framing is told so by a
close, and heard no more.
"""

from __future__ import annotations

import asyncio
import os
import zlib
from collections.abc import Callable
from typing import Any

import pytest
import uvicorn
from hypothesis import given, settings
from hypothesis import strategies as st
from uvicorn.server import ServerState

from dragoman.core.memory import MemoryBudget
from dragoman.server.websocket import EXTENSION, WebSocketConnection
from dragoman.server.ws_frames import Cutter
from tests.fuzz.hostile import broken_bytes
from tests.fuzz.thoroughness import THOROUGH, UNTIMED, for_a_while

LARGEST = 2000
KEY = b"dGhlIHNhbXBsZSBub25jZQ=="
HELLO = (
    b"GET %b HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: " + KEY + b"\r\n%b\r\n"
)
PLAIN = HELLO % (b"/agentmsg/ws", b"")
DEFLATED = HELLO % (b"/forge/ws", b"Sec-WebSocket-Extensions: permessage-deflate\r\n")


class Wire(asyncio.Transport):
    """The peer's end, as far as we see it."""

    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()
        self.closed = False

    def write(self, data: Any) -> None:
        self.written += data

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default


class Compressing(WebSocketConnection):
    compressed_paths = frozenset({"/forge/ws"})


class Library(Compressing):
    """Reads and writes every frame by the library alone."""

    _cutter = property(lambda _: None, lambda _, cutter: None)  # type: ignore[assignment]


class Receiver:
    def __init__(self) -> None:
        self.messages: list[bytes] = []
        self.marks = 0

    def receive(self, frame: bytes) -> None:
        self.messages.append(frame)

    def ponged(self) -> None:
        self.marks += 1

    def writable(self) -> None: ...


def frame(
    opcode: int, payload: bytes, *, fin: bool = True, bits: int = 0, mask: bytes | None = b"\x01\x02\x03\x04"
) -> bytes:
    head = bytes([(0x80 if fin else 0) | bits << 4 | opcode])
    sign = 0x80 if mask is not None else 0
    if len(payload) < 126:
        head += bytes([sign | len(payload)])
    elif len(payload) < 1 << 16:
        head += bytes([sign | 126]) + len(payload).to_bytes(2, "big")
    else:
        head += bytes([sign | 127]) + len(payload).to_bytes(8, "big")
    if mask is None:
        return head + payload
    return head + mask + bytes(byte ^ mask[place % 4] for place, byte in enumerate(payload))


def deflated(text: bytes) -> bytes:
    squeezer = zlib.compressobj(wbits=-12)
    return (squeezer.compress(text) + squeezer.flush(zlib.Z_SYNC_FLUSH))[:-4]


TEXT = frame(1, b'{"type":"x"}')
FRAMES = [
    TEXT,
    frame(2, b"\x81\xa1a\x01"),
    frame(1, b"be", fin=False) + frame(0, b"gin"),
    frame(1, b"a", fin=False) + frame(9, b"now?") + frame(0, b"b"),
    frame(10, b"dragoman"),
    frame(9, b""),
    frame(1, b"x" * (LARGEST + 1)),
    frame(1, b"x" * LARGEST, fin=False) + frame(0, b"x" * LARGEST),
    frame(1, b"\xff\xfe"),
    frame(1, deflated(b"y" * 100), bits=4),
    frame(1, deflated(b"z" * 1_000_000), bits=4),
    frame(1, b"not deflated at all", bits=4),
    frame(8, (1000).to_bytes(2, "big") + b"bye"),
    frame(8, b"\x00"),
    frame(8, (5).to_bytes(2, "big") + b"\xff"),
    frame(3, b""),
    frame(0, b"of what?"),
    frame(1, b"bare", mask=None),
    b"\x81\xff" + b"\xff" * 8 + b"\x00" * 4,
    b"\x89\xfe\x01\x00" + b"\x00" * 4 + b"p" * 256,
]


async def speak(
    hello: bytes, pieces: list[bytes], kind: type[WebSocketConnection] = Compressing, say: tuple[bytes, ...] = ()
) -> tuple[Wire, Receiver]:
    receiver, opened = Receiver(), asyncio.Event()

    async def application(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        scope["extensions"][EXTENSION].listener = receiver
        await send({"type": "websocket.accept"})
        opened.set()
        while (await receive())["type"] != "websocket.disconnect":
            pass

    config = uvicorn.Config(application, lifespan="off", log_config=None, ws_max_size=LARGEST, ws_ping_interval=None)
    config.load()
    socket, wire = kind(config, ServerState(), {}), Wire()
    socket.connection_made(wire)
    socket.data_received(hello)
    async with asyncio.timeout(60):
        await opened.wait()
    for piece in pieces:
        if wire.closed:
            break
        socket.data_received(piece)
    socket.write(say)
    socket.attach(receiver, "ada", MemoryBudget(), binary=True)
    socket.write(say)
    socket.connection_lost(None)
    async with asyncio.timeout(60):
        await asyncio.gather(*socket.tasks)
    return wire, receiver


def spoken(how: settings) -> Callable[[], None]:
    strange: list[Any] = []
    whole = st.sampled_from(FRAMES)

    @how
    @given(
        st.sampled_from((PLAIN, DEFLATED)),
        st.lists(whole | whole | broken_bytes(FRAMES) | st.binary(max_size=20), max_size=5),
    )
    def attempt(hello: bytes, pieces: list[bytes]) -> None:
        strange.clear()

        async def main() -> tuple[Wire, Receiver]:
            asyncio.get_running_loop().set_exception_handler(lambda _, context: strange.append(context))
            return await speak(hello, pieces)

        wire, receiver = asyncio.run(main())
        assert wire.written.startswith(b"HTTP/1.1 101 ")
        assert not strange
        for message in receiver.messages:
            assert len(message) <= LARGEST

    return attempt


def test_a_good_frame_is_decoded_whole_or_in_pieces() -> None:
    for pieces in ([TEXT], [TEXT[place : place + 1] for place in range(len(TEXT))]):
        _, receiver = asyncio.run(speak(PLAIN, list(pieces)))
        assert receiver.messages == [b'{"type":"x"}']


@pytest.mark.parametrize("text", [b"z" * 1_000_000, os.urandom(8) + b"z" * (LARGEST + 1)])
def test_a_bomb_ends_the_connection_and_is_not_decoded(text: bytes) -> None:
    wire, receiver = asyncio.run(speak(DEFLATED, [frame(2, deflated(text), bits=4), TEXT]))
    assert receiver.messages == []
    assert (1009).to_bytes(2, "big") in wire.written


def test_text_that_is_no_utf_8_ends_the_connection_and_is_not_decoded() -> None:
    for text in (frame(1, b"\xff\xfe"), frame(1, b"a\xc3", fin=False) + frame(0, b"b")):
        wire, receiver = asyncio.run(speak(PLAIN, [TEXT, text + TEXT]))
        assert receiver.messages == [b'{"type":"x"}']
        assert (1007).to_bytes(2, "big") in wire.written


def test_what_is_written_is_what_the_library_would_write() -> None:
    say = tuple(b"x" * size for size in (0, 1, 125, 126, (1 << 16) - 1, 1 << 16))
    (ours, _), (theirs, _) = (asyncio.run(speak(PLAIN, [], kind, say)) for kind in (Compressing, Library))
    assert ours.written == theirs.written


def compared(how: settings) -> Callable[[], None]:
    """However the bytes are cut on their way, the same is heard and answered as if the library read them one by one.

    One by one: of several frames at once, of which one is broken, uvicorn drops the good ones before it. The bytes at
    the end complete the head of any frame: before that the library may know already that it is broken.
    """

    @how
    @given(
        st.lists(st.sampled_from(FRAMES) | broken_bytes(FRAMES), max_size=6), st.lists(st.integers(0, 60), max_size=8)
    )
    def attempt(frames: list[bytes], lengths: list[int]) -> None:
        sent, pieces, at = b"".join((*frames, bytes(16))), [], 0
        for length in (*lengths, len(sent)):
            pieces.append(sent[at : at + length])
            at += length
        ours, heard = asyncio.run(speak(PLAIN, [piece for piece in pieces if piece]))
        theirs, expected = asyncio.run(speak(PLAIN, [bytes([byte]) for byte in sent], Library))
        assert heard.messages == expected.messages
        assert heard.marks == expected.marks
        assert (ours.written, ours.closed) == (theirs.written, theirs.closed)

    return attempt


def test_the_short_way_hears_what_the_library_would() -> None:
    compared(UNTIMED)()


@pytest.mark.soak
def test_the_short_way_hears_what_the_library_would_for_a_while() -> None:
    for_a_while(compared(THOROUGH))


def test_plain_frames_never_reach_the_library() -> None:
    long = frame(2, b"y" * 300)
    assert Cutter(LARGEST).cut(TEXT + long) == [(b'{"type":"x"}', True), (b"y" * 300, False)]


def test_a_socket_goes_on_or_closes_whatever_comes() -> None:
    spoken(UNTIMED)()


@pytest.mark.soak
def test_a_socket_goes_on_or_closes_whatever_comes_for_a_while() -> None:
    for_a_while(spoken(THOROUGH))

"""The little HTTP that commands speak: every way an answer may be framed, in any pieces, and what is none."""

from __future__ import annotations

import io
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from dragoman.cli.http1 import Answer, BadHttp, Connection, _answer


class Trickle(io.RawIOBase):
    """A source that gives a few bytes at a time."""

    def __init__(self, data: bytes, step: int) -> None:
        self._source = io.BytesIO(data)
        self._step = step

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray) -> int:  # type: ignore[override]
        data = self._source.read(min(self._step, len(buffer)))
        buffer[: len(data)] = data
        return len(data)


def answered(data: bytes, step: int = 1 << 16) -> Answer:
    return _answer(io.BufferedReader(Trickle(data, step)))


FRAMINGS = {
    "length": b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\none\ntwo\n\nxtrailing",
    "chunks": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"2;x=y\r\non\r\n6\r\ne\ntwo\n\r\n2\r\n\nx\r\n0\r\nT: 1\r\n\r\n",
    "close": b"HTTP/1.0 200\r\nServer: old\r\n\r\none\ntwo\n\nx",
    "continue": b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\ncontent-LENGTH:10\n\none\ntwo\n\nx",
}


@pytest.mark.parametrize("framing", FRAMINGS)
@pytest.mark.parametrize("step", [1, 3, 1 << 16])
def test_an_answer_is_the_same_however_it_is_framed_and_cut(framing: str, step: int) -> None:
    answer = answered(FRAMINGS[framing], step)
    lines = [answer.readline(100) for _ in range(3)]
    assert (answer.status, lines, answer.read(), answer.read()) == (200, [b"one\n", b"two\n", b"\n"], b"x", b"")


def test_a_204_has_no_body_whatever_follows() -> None:
    assert answered(b"HTTP/1.1 204 No Content\r\n\r\nnoise").read() == b""


@pytest.mark.parametrize(
    "data",
    [
        b"\x00 nonsense\r\n\r\n",
        b"HTTP/2 200\r\n\r\n",
        b"HTTP/1.1 OK\r\n\r\n",
        b"HTTP/1.1 200 OK",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabc",
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 300 + b"\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * (1 << 17),
    ],
)
def test_what_is_no_answer_or_only_a_part_of_one_is_garbled(data: bytes) -> None:
    with pytest.raises(BadHttp):
        answered(data).read()


def test_silence_is_a_connection_that_was_ended() -> None:
    with pytest.raises(ConnectionResetError):
        answered(b"")


@contextmanager
def heard() -> Iterator[tuple[int, list[bytes]]]:
    """A server that keeps what it heard and says nothing much."""
    said: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            peer, _ = server.accept()
            with peer:
                said.append(peer.recv(10_000))
                peer.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield server.getsockname()[1], said
        thread.join(timeout=5)


def test_a_request_says_its_length_and_that_it_is_the_last() -> None:
    with heard() as (port, said):
        connection = Connection("127.0.0.1", port, patience=60)
        assert connection.request("POST", "/x?y=1", b"{}", {"Accept": "*/*"}).read() == b""
        connection.close()
    assert said == [
        b"POST /x?y=1 HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nAccept: */*\r\nConnection: close\r\n"
        b"Accept-Encoding: identity\r\nContent-Length: 2\r\n\r\n{}" % port
    ]


@pytest.mark.parametrize(("target", "value"), [("/a b", "x"), ("/a\r\nX: y", "x"), ("/a", "x\r\nY: z"), ("/a", "☃")])
def test_nothing_can_be_smuggled_into_a_request(target: str, value: str) -> None:
    with pytest.raises(BadHttp):
        Connection("127.0.0.1", 1, patience=1).request("GET", target, None, {"X": value})

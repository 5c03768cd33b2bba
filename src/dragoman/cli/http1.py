"""One request over HTTP/1.1, and its answer: as much of the protocol as a command needs to ask the hub.

The standard library's client imports `email` and `ssl` first: 27 ms of processor time on top of the 120 that a command
needs to start (a command may take 250). It also has no deadline for a whole answer, only one for each read. Here a
connection is used once, bodies are bytes whose length is known, and TLS is imported where it is spoken. What is no
HTTP/1.1 is `BadHttp`; everything else that goes wrong is an `OSError` of the socket, and time that is up a
`TimeoutError`: of a single read, or of the command's own deadline.
"""

from __future__ import annotations

import io
import socket
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from dragoman.cli.deadline import NEVER, Deadline

if TYPE_CHECKING:
    import ssl

    from typing_extensions import Buffer

LONGEST_LINE = 64 * 1024
MOST_HEADERS = 200
_BODILESS = (204, 304)


class BadHttp(Exception):
    """What came is no HTTP/1.1, or ended before its end."""


class Answer:
    """Status and headers (in lower case) at once, the body as it is read."""

    def __init__(self, status: int, headers: Mapping[bytes, bytes], body: io.BufferedReader) -> None:
        self.status = status
        self.headers = headers
        self._body = body

    def read(self) -> bytes:
        return self._body.read()

    def readline(self, limit: int) -> bytes:
        return self._body.readline(limit)


class Connection:
    def __init__(
        self, host: str, port: int, *, patience: float, tls: ssl.SSLContext | None = None, deadline: Deadline = NEVER
    ) -> None:
        """Nothing happens before the request. `patience`: seconds to connect, and for every single read;
        `deadline`: for all of it."""
        self.patience = patience
        self._deadline = deadline
        self._host, self._port = host, port
        self._tls = tls
        self._socket: socket.socket | None = None

    def request(self, method: str, target: str, body: bytes | None, headers: Mapping[str, str]) -> Answer:
        head = _head(method, target, {"Host": self._named(), **headers}, None if body is None else len(body))
        self._socket = self._opened()
        self._socket.sendall(head + (body or b""))
        return _answer(io.BufferedReader(_Incoming(self._socket, self._allowed)))

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()

    def _opened(self) -> socket.socket:
        # As bytes where it can be: a name in Unicode would import its encoding, also for an address.
        host: str | bytes = self._host.encode() if self._host.isascii() else self._host
        found = self._deadline.bound(lambda: socket.getaddrinfo(host, self._port, type=socket.SOCK_STREAM))
        opened = self._connected(found)
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        opened.settimeout(self._allowed())
        if self._tls is None:
            return opened
        try:
            return self._tls.wrap_socket(opened, server_hostname=self._host)
        except BaseException:
            opened.close()
            raise

    def _connected(self, found: list[tuple[Any, ...]]) -> socket.socket:
        """To the first address that takes us."""
        refused: OSError | None = None
        for family, kind, protocol, _, address in found:
            tried = socket.socket(family, kind, protocol)
            try:
                tried.settimeout(self._allowed())
                tried.connect(address)
            except OSError as error:
                tried.close()
                refused = refused or error
            else:
                return tried
        raise refused or OSError("the name has no address")

    def _allowed(self) -> float:
        """Seconds for the next step."""
        left = self._deadline.left(self.patience)
        if left <= 0:
            raise TimeoutError
        return left

    def _named(self) -> str:
        host = self._host if self._host.isascii() else self._host.encode("idna").decode()
        usual = 80 if self._tls is None else 443
        return (f"[{host}]" if ":" in host else host) + ("" if self._port == usual else f":{self._port}")


def _head(method: str, target: str, headers: Mapping[str, str], length: int | None) -> bytes:
    if length is None and method not in ("GET", "DELETE"):
        length = 0
    fields = {**headers, "Connection": "close", "Accept-Encoding": "identity"}
    if length is not None:
        fields["Content-Length"] = str(length)
    lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items())]
    if " " in target or any(not line.isprintable() for line in lines):
        raise BadHttp("the request holds characters that HTTP does not carry")
    try:
        return "\r\n".join((*lines, "", "")).encode("latin-1")
    except UnicodeEncodeError as error:
        raise BadHttp("the request holds characters that HTTP does not carry") from error


def _answer(source: io.BufferedReader) -> Answer:
    status, headers = _status(source), _headers(source)
    while status < 200:  # 100 Continue and its like come before the answer
        status, headers = _status(source), _headers(source)
    return Answer(status, headers, io.BufferedReader(_body(source, status, headers)))


def _body(source: io.BufferedReader, status: int, headers: Mapping[bytes, bytes]) -> io.RawIOBase:
    if status in _BODILESS:
        return _Plain(source, 0)
    if headers.get(b"transfer-encoding", b"").lower() == b"chunked":
        return _Chunked(source)
    stated = headers.get(b"content-length")
    if stated is None:
        return _Plain(source, None)
    if not stated.isdigit():
        raise BadHttp("an answer with an invalid length")
    return _Plain(source, int(stated))


def _status(source: io.BufferedReader) -> int:
    version, _, rest = _line(source).partition(b" ")
    if not version.startswith(b"HTTP/1.") or not rest[:3].isdigit():
        raise BadHttp("no HTTP answer")
    return int(rest[:3])


def _headers(source: io.BufferedReader) -> dict[bytes, bytes]:
    headers: dict[bytes, bytes] = {}
    for _ in range(MOST_HEADERS):
        line = _line(source)
        if not line:
            return headers
        name, _, value = line.partition(b":")
        headers[name.strip().lower()] = value.strip()
    raise BadHttp("an answer with too many headers")


def _line(source: io.BufferedReader) -> bytes:
    line = source.readline(LONGEST_LINE)
    if not line:
        raise ConnectionResetError("the connection ended without an answer")
    if not line.endswith(b"\n"):
        raise BadHttp("an answer whose header does not end")
    return line.rstrip(b"\r\n")


class _Incoming(io.RawIOBase):
    """Reads a socket. Each read asks again how long it may take, because less of a deadline is left."""

    def __init__(self, source: socket.socket, allowed: Callable[[], float]) -> None:
        self._source = source
        self._allowed = allowed

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Buffer) -> int:
        self._source.settimeout(self._allowed())
        return self._source.recv_into(buffer)


class _Plain(io.RawIOBase):
    """A body of a known length, or one that ends with its connection."""

    def __init__(self, source: io.BufferedReader, left: int | None) -> None:
        self._source = source
        self._left = left

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Buffer) -> int:
        view = memoryview(buffer)
        if self._left == 0:
            return 0
        data = self._source.read1(len(view) if self._left is None else min(len(view), self._left))
        if self._left is not None:
            if not data:
                raise BadHttp("an answer that ended early")
            self._left -= len(data)
        view[: len(data)] = data
        return len(data)


class _Chunked(io.RawIOBase):
    """A body in pieces, each with its length before it."""

    def __init__(self, source: io.BufferedReader) -> None:
        self._source = source
        self._piece: _Plain | None = None
        self._over = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Buffer) -> int:
        while not self._over:
            if self._piece is not None:
                count = self._piece.readinto(buffer)
                if count:
                    return count
                _line(self._source)
            try:
                length = int(_line(self._source).partition(b";")[0], 16)
            except ValueError as error:
                raise BadHttp("a chunk with an invalid length") from error
            self._piece = _Plain(self._source, length)
            if length == 0:
                _headers(self._source)
                self._over = True
        return 0

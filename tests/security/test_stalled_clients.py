"""Slow headers, slow bodies, idle connections: closed in time, while everybody else is served."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.support.fleet import BROKEN
from tests.support.hubproc import HubProcess, running

STALLS = {
    "nothing at all": b"",
    "half a request line": b"POST /api/agent/mess",
    "headers without an end": b"POST /api/agent/message HTTP/1.1\r\nHost: localhost\r\nX-Slow: ",
    "a body that stands still": (
        b"POST /api/agent/message HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer TOKEN\r\n"
        b"Content-Length: 1000\r\n\r\n{"
    ),
    "a body announced and never sent": (
        b"POST /api/v1/tasks HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer TOKEN\r\nContent-Length: 1000\r\n\r\n"
    ),
    "an answered connection without a next request": b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n",
}


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubProcess]:
    impatient = {f"DRAGOMAN_SERVER__{name}_SECONDS": "1" for name in ("HEADER", "BODY", "IDLE")}
    with running(tmp_path_factory.mktemp("hub"), **impatient) as hub:
        hub.token("boss", "orchestrator")
        yield hub


def open_socket(hub: HubProcess) -> socket.socket:
    address = urlsplit(hub.url)
    return socket.create_connection((str(address.hostname), int(address.port or 0)), timeout=60)


def until_closed(stalled: socket.socket) -> None:
    """Until the hub ends the connection, or the test's patience ends."""
    try:
        while stalled.recv(65536):
            pass
    except ConnectionResetError:
        pass


def test_stalled_clients_are_closed_and_others_are_served_meanwhile(hub: HubProcess) -> None:
    token = hub.token("boss", "orchestrator").encode()
    closed: set[str] = set()

    def stall(name: str, data: bytes) -> None:
        with open_socket(hub) as client:
            client.sendall(data.replace(b"TOKEN", token))
            until_closed(client)
            closed.add(name)

    threads = [threading.Thread(target=stall, args=item) for item in STALLS.items()]
    for thread in threads:
        thread.start()
    served = 0
    while any(thread.is_alive() for thread in threads):
        try:
            served += hub.admin.get("/livez").status == 200
        except BROKEN:  # on a busy machine we may ourselves be slower than a second
            continue
    assert served
    assert closed == STALLS.keys()


def test_a_body_that_drips_is_closed(hub: HubProcess) -> None:
    token = hub.token("boss", "orchestrator")
    with open_socket(hub) as client:
        head = f"POST /api/agent/message HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n"
        client.sendall(f"{head}Content-Length: 100000\r\n\r\n".encode())
        began = time.monotonic()
        with pytest.raises((BrokenPipeError, ConnectionResetError)):  # noqa: PT012
            while time.monotonic() - began < 60:
                client.sendall(b"x")
                threading.Event().wait(0.05)  # a byte every 50 ms is alive, and far too slow


def test_headers_without_end_are_cut_off(hub: HubProcess) -> None:
    with open_socket(hub) as client:
        client.sendall(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n")
        answer = b""
        try:
            for n in range(4000):
                client.sendall(f"X-Header-{n}: {'x' * 100}\r\n".encode())
        except (BrokenPipeError, ConnectionResetError):
            pass
        try:
            answer = client.recv(1000)
        except ConnectionResetError:
            pass
        assert b"200" not in answer.split(b"\r\n")[0]


def test_too_many_connections_are_refused_and_those_there_are_served(tmp_path: Path) -> None:
    with running(tmp_path, DRAGOMAN_SERVER__MAX_CONNECTIONS="20") as hub, ExitStack() as held:
        *kept, last = [held.enter_context(open_socket(hub)) for _ in range(25)]
        assert b"503" in last.recv(100)
        kept[0].sendall(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b"200" in kept[0].recv(1000)


def test_a_request_smuggled_behind_two_lengths_is_refused(hub: HubProcess) -> None:
    with open_socket(hub) as client:
        client.sendall(
            b"POST /api/agent/message HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n"
            b"0\r\n\r\nGET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n"
        )
        answer = b""
        try:
            while piece := client.recv(65536):
                answer += piece
        except ConnectionResetError:
            pass
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert answer.count(b"HTTP/1.1 ") == 1, answer

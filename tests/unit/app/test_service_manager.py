"""What the hub says to systemd, by a socket of the test's own."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path

import pytest
from tests.support.hubproc import running

from dragoman.app.service_manager import ServiceManager

PATIENCE = 10.0


@pytest.fixture
def systemd(tmp_path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    listener.bind(str(tmp_path / "notify"))
    listener.settimeout(PATIENCE)
    return listener


def where(listener: socket.socket) -> str:
    return str(listener.getsockname())


async def test_it_says_that_it_serves_and_that_it_stops(systemd: socket.socket) -> None:
    environ = {"NOTIFY_SOCKET": where(systemd)}
    manager = ServiceManager(environ)
    manager.serving("serving at http://127.0.0.1:1")
    manager.stopping()
    assert systemd.recv(999) == b"READY=1\nSTATUS=serving at http://127.0.0.1:1"
    assert systemd.recv(999).startswith(b"STOPPING=1\n")
    assert environ == {}, "a child must not speak for the hub"


async def test_the_watchdog_hears_of_the_hub_also_while_it_stops(systemd: socket.socket) -> None:
    manager = ServiceManager(
        {"NOTIFY_SOCKET": where(systemd), "WATCHDOG_USEC": "30000", "WATCHDOG_PID": str(os.getpid())}
    )
    manager.serving("")
    manager.stopping()
    heard = [await asyncio.to_thread(systemd.recv, 999) for _ in range(4)]
    assert heard[2:] == [b"WATCHDOG=1", b"WATCHDOG=1"]


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"NOTIFY_SOCKET": "/nowhere/at/all"},
        {"NOTIFY_SOCKET": "relative"},
        {"NOTIFY_SOCKET": "", "WATCHDOG_USEC": "soon"},
        {"WATCHDOG_USEC": "1000", "WATCHDOG_PID": "1"},
    ],
)
async def test_without_systemd_nothing_happens(environ: dict[str, str]) -> None:
    manager = ServiceManager(environ)
    manager.serving("")
    manager.stopping()
    assert all(task.get_name() != "watchdog" for task in asyncio.all_tasks())


def test_a_real_hub_is_ready_for_systemd_when_it_serves(systemd: socket.socket, tmp_path: Path) -> None:
    with running(tmp_path / "hub", NOTIFY_SOCKET=where(systemd), WATCHDOG_USEC="60000000") as hub:
        assert systemd.recv(999) == f"READY=1\nSTATUS=serving at {hub.url}".encode()
        assert systemd.recv(999) == b"WATCHDOG=1"
        assert hub.stop() == 0
        assert systemd.recv(999).startswith(b"STOPPING=1")

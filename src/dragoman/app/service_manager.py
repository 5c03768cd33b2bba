"""Tells systemd how the hub is: that it serves, that its loop turns, that it stops (`Type=notify`, `WatchdogSec=`).

A word is one datagram to the socket that systemd names in NOTIFY_SOCKET. Without that variable nothing is sent, and a
socket that is gone costs nothing: systemd then restarts the hub, by the watchdog.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Mapping, MutableMapping

MICROSECONDS = 1_000_000


class ServiceManager:
    """Made from the environment, out of which it takes what children must not have."""

    def __init__(self, environ: MutableMapping[str, str]) -> None:
        self._address = _address(environ.pop("NOTIFY_SOCKET", ""))
        self._beat = _beat(environ, os.getpid())
        self._beating: asyncio.Task[None] | None = None
        environ.pop("WATCHDOG_USEC", None)
        environ.pop("WATCHDOG_PID", None)

    def serving(self, status: str) -> None:
        """The hub serves. From now on systemd hears of it, until the process ends: a stop takes its time."""
        self._send(f"READY=1\nSTATUS={status}")
        if self._beat is not None:
            self._beating = asyncio.create_task(self._keep_beating(self._beat), name="watchdog")

    def stopping(self) -> None:
        self._send("STOPPING=1\nSTATUS=stopping: finishing what was accepted")

    async def _keep_beating(self, seconds: float) -> None:
        while True:
            self._send("WATCHDOG=1")
            await asyncio.sleep(seconds)

    def _send(self, text: str) -> None:
        if self._address is None:
            return
        with (
            contextlib.suppress(OSError),
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK) as sender,
        ):
            sender.sendto(text.encode(), self._address)


def _address(named: str) -> str | None:
    """A path, or an abstract name, which begins with @."""
    if named.startswith("@"):
        return "\0" + named[1:]
    return named if named.startswith("/") else None


def _beat(environ: Mapping[str, str], pid: int) -> float | None:
    """Seconds between two signs of life: a third of what the watchdog waits."""
    waits, of = environ.get("WATCHDOG_USEC", ""), environ.get("WATCHDOG_PID", str(pid))
    if not waits.isdigit() or not int(waits) or of != str(pid):
        return None
    return int(waits) / MICROSECONDS / 3

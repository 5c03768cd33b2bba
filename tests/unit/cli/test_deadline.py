"""A command with a timeout ends by it, whatever the hub does meanwhile: heartbeats, silence, half an answer, absence.

The clock is the test's own: it moves by a step with every look at it, and nobody sleeps.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from dragoman.cli import deadline as module
from dragoman.cli.deadline import Deadline
from dragoman.cli.errors import CommandError, Exit
from dragoman.cli.http1 import Connection
from dragoman.cli.hubclient import Hub
from dragoman.cli.task_view import follow

ID = "0199f3a0-0000-7000-8000-000000000001"
STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
HEARTBEAT = b"d\r\n: heartbeat\n\n\r\n"
LIMIT = 30.0
"""Seconds of the real clock after which a test is over anyhow."""


class Ticking:
    """A clock on which every look takes `step` seconds."""

    def __init__(self, step: float) -> None:
        self.now, self.step = 0.0, step

    def __call__(self) -> float:
        self.now += self.step
        return self.now

    monotonic = __call__

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@contextmanager
def served(answer: Callable[[socket.socket], None]) -> Iterator[str]:
    """A server that gives every connection the same answer, until the client is gone; its URL."""

    def serve() -> None:
        while True:
            try:
                taken, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=attend, args=(taken,), daemon=True).start()

    def attend(taken: socket.socket) -> None:
        with taken:
            taken.settimeout(LIMIT)
            try:
                taken.recv(65536)
                answer(taken)
            except OSError:
                pass

    listener = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=serve, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def heartbeats(taken: socket.socket) -> None:
    taken.sendall(STREAM)
    while True:
        taken.sendall(HEARTBEAT)


def drops(taken: socket.socket) -> None:
    """Half an answer, a byte at a time, for ever."""
    taken.sendall(b"HTTP/1.1 200 OK\r\nX-Long: ")
    while True:
        taken.sendall(b"a")


def ended(taken: socket.socket) -> None:
    """A stream that ends at once, as behind a proxy that lost patience."""
    taken.sendall(STREAM + HEARTBEAT + b"0\r\n\r\n")


@pytest.mark.parametrize("seconds", [20.0, 45.0])
@pytest.mark.parametrize("answer", [heartbeats, ended])
def test_heartbeats_do_not_restart_the_clock_of_a_command_that_follows(
    answer: Callable[[socket.socket], None], seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Ticking(0.5)
    monkeypatch.setattr(module, "time", clock)
    deadline = Deadline(seconds, clock=clock)
    with served(answer) as url, pytest.raises(CommandError) as stopped:
        list(follow(Hub(url, None, deadline=deadline), ID, deadline=deadline))
    assert (stopped.value.code, stopped.value.sentence) == (
        Exit.TIMEOUT,
        f"task {ID} did not end within {seconds:g} s; it goes on",
    )
    assert seconds <= clock.now < seconds + 5


def test_a_hub_that_is_away_is_waited_for_no_longer_than_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Ticking(0.01)
    monkeypatch.setattr(module, "time", clock)
    deadline = Deadline(20.0, clock=clock)
    with socket.create_server(("127.0.0.1", 0)) as gone:
        url = f"http://127.0.0.1:{gone.getsockname()[1]}"
    with pytest.raises(CommandError) as stopped:
        list(follow(Hub(url, None, deadline=deadline), ID, deadline=deadline))
    assert stopped.value.code is Exit.TIMEOUT
    assert 20.0 <= clock.now < 21.0


def test_an_answer_that_comes_byte_by_byte_is_not_waited_for_beyond_the_deadline() -> None:
    clock = Ticking(1.0)  # a few reads: the kernel may put very many bytes into each
    with served(drops) as url, pytest.raises(CommandError) as stopped:
        Hub(url, None, deadline=Deadline(5.0, clock=clock)).get("tasks")
    assert (stopped.value.code, stopped.value.sentence) == (
        Exit.TIMEOUT,
        f"the hub at {url} did not answer within 5 s",
    )


def test_what_is_not_asked_in_time_is_not_asked(hub: Any) -> None:
    with pytest.raises(CommandError) as stopped:
        Hub(hub.url, None, deadline=Deadline(0.0)).get("tasks")
    assert (stopped.value.code, hub.asked) == (Exit.TIMEOUT, [])


def test_a_name_that_is_not_resolved_in_time_is_a_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = threading.Event()

    def stuck(*_: Any, **__: Any) -> Any:
        asked.wait(LIMIT)
        raise OSError("never")

    monkeypatch.setattr(socket, "getaddrinfo", stuck)
    with pytest.raises(TimeoutError):
        Connection("hub.example", 80, patience=LIMIT, deadline=Deadline(0.01)).request("GET", "/", None, {})
    asked.set()


def test_what_is_bound_returns_and_raises_as_if_it_were_not() -> None:
    assert Deadline(LIMIT).bound(lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        Deadline(LIMIT).bound(lambda: 1 // 0)
    assert Deadline().bound(threading.current_thread) is threading.current_thread()


def test_a_task_whose_acceptance_was_lost_may_exist_all_the_same(
    hub: Any, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.answers["GET /api/v1/agents/deployer"] = (200, {"id": "deployer", "kind": "infra"})
    monkeypatch.setattr(Hub, "ask", _deaf_to_post(Hub.ask))
    ran = run("call", "deployer", "x", "--timeout", "5")
    assert (ran.code, "it may have accepted the task nevertheless" in ran.err) == (6, True)
    assert ran.err.splitlines()[-1] == "  next: dragoman task ls"


def _deaf_to_post(ask: Callable[..., Any]) -> Callable[..., Any]:
    def asked(self: Hub, method: str, *path: str, **what: Any) -> Any:
        if method == "POST":
            raise CommandError(Exit.TIMEOUT, "the hub did not answer within 5 s")
        return ask(self, method, *path, **what)

    return asked

"""A hub that only pretends: canned answers over real HTTP, so that the client under test is whole."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlsplit

import pytest

from dragoman.cli import deadline, hubclient
from dragoman.cli.main import main

TOKEN = "0123456789abcdef0123456789abcdef"


class Asked(NamedTuple):
    method: str
    path: str
    query: dict[str, str]
    body: Any
    headers: dict[str, str]


class FakeHub:
    """`answers["GET /api/v1/tasks"]` is (status, body), or a list of such, one after the other; the last one stays."""

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {}
        self.ahead = 0.0
        """Seconds by which its clock is ahead of ours."""
        self.asked: list[Asked] = []
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _answer(self) -> None:
                parts = urlsplit(self.path)
                length = int(self.headers.get("Content-Length") or 0)
                body = json.loads(self.rfile.read(length)) if length else None
                headers = {key.lower(): value for key, value in self.headers.items()}
                hub.asked.append(Asked(self.command, parts.path, dict(parse_qsl(parts.query)), body, headers))
                status, content = hub.answer(f"{self.command} {parts.path}")
                stream = isinstance(content, bytes)
                payload = content if stream else b"" if content is None else json.dumps(content).encode()
                self.send_response(status)
                self.send_header("Content-Type", "text/event-stream" if stream else "application/json")
                if stream:
                    self.send_header("Connection", "close")
                    self.close_connection = True
                else:
                    self.send_header("Content-Length", str(len(payload)))
                self.end_headers()
                self.wfile.write(payload)

            def date_time_string(self, timestamp: float | None = None) -> str:
                return super().date_time_string(time.time() + hub.ahead)

            do_GET = do_POST = do_DELETE = _answer

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self._thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self._thread.start()

    def answer(self, route: str) -> tuple[int, Any]:
        found = self.answers.get(route)
        if found is None:
            return 404, {"title": "Not found", "detail": f"no route {route}. Check the id.", "kind": "not_found"}
        if isinstance(found, list):
            return found.pop(0) if len(found) > 1 else found[0]
        return found  # type: ignore[no-any-return]

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self._thread.join(timeout=5)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeHub]:
    """A fake hub that the environment names, and an empty working directory."""
    fake = FakeHub()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DRAGOMAN_URL", fake.url)
    monkeypatch.setenv("DRAGOMAN_TOKEN", TOKEN)
    yield fake
    fake.close()


class Ran(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    """The command, in this process."""

    def run(*tokens: str) -> Ran:
        umask = os.umask(0o022)
        try:
            code = main(tokens)
        finally:
            os.umask(umask)
        out, err = capsys.readouterr()
        return Ran(code, out, err)

    return run


def sse(*events: tuple[int, str, dict[str, Any]], end: str | None = "completed") -> bytes:
    """A task's stream as the hub writes it."""
    text = "retry: 1000\n\n"
    for seq, kind, body in events:
        data = {"task_id": "t1", "seq": seq, "at": "2026-01-19T04:21:04Z", "kind": kind, "body": body}
        text += f"id: {seq}\nevent: {kind}\ndata: {json.dumps(data)}\n\n: heartbeat\n\n"
    if end:
        text += f'event: end\ndata: {{"status": "{end}"}}\n\n'
    return text.encode()


def task(**changes: Any) -> dict[str, Any]:
    return {
        "id": "0199f3a0-0000-7000-8000-000000000001",
        "type": "run_playbook",
        "name": None,
        "status": "completed",
        "waiting": None,
        "priority": "normal",
        "agent": "deployer",
        "kind": "infra",
        "protocol_in": "api",
        "protocol_out": "chiffon",
        "requested_by": "admin",
        "progress": 100,
        "step": None,
        "error": None,
        "attempts": 1,
        "created_at": "2026-01-19T04:21:04Z",
        "updated_at": "2026-01-19T04:21:16.400000Z",
        "finished_at": "2026-01-19T04:21:16.400000Z",
        "trace_id": "5" * 32,
        "events": 3,
        "input": {"playbook": "x.yml"},
        "output": "",
        "result": None,
        **changes,
    }


@pytest.fixture
def make_task() -> Callable[..., dict[str, Any]]:
    return task


@pytest.fixture
def make_stream() -> Callable[..., bytes]:
    return sse


class Clock:
    """Time that passes only in a sleep."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    for module in (hubclient, deadline):
        monkeypatch.setattr(module, "time", clock)
    return clock

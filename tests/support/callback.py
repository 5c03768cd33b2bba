"""An agent that is called: a small HTTP server that keeps what the hub posted to it."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


class Callback(ThreadingHTTPServer):
    """Answers with the next of `answers`, then with 200; not while `answering` is cleared."""

    daemon_threads = True

    def __init__(self) -> None:
        self.got: list[dict[str, Any]] = []
        """What it answered with 200, or is about to."""
        self.headers: list[dict[str, str]] = []
        self.ports: list[int] = []
        """From which each of them came."""
        self.answers: list[int] = []
        self.answering = threading.Event()
        self.answering.set()
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                status = server.answers.pop(0) if server.answers else 200
                if status == 200:
                    server.headers.append({k.lower(): v for k, v in self.headers.items()})
                    server.ports.append(self.client_address[1])
                    server.got.append(body)
                server.answering.wait()
                self.send_response(status)
                self.send_header("content-length", "0")
                if status == 307:
                    self.send_header("location", "http://127.0.0.1:9/elsewhere")
                self.end_headers()

            def log_message(self, *_: object) -> None: ...

            def handle(self) -> None:
                try:
                    super().handle()
                except ConnectionError:  # the hub that asked is gone
                    pass

        super().__init__(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/hook"


def has_connection_from(pid: int, port: int) -> bool:
    """Whether the process has an open connection from this port of loopback."""
    local = f"0100007F:{port:04X}"
    rows = (line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:])
    sockets = {f"socket:[{row[9]}]" for row in rows if row[1] == local}
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        try:
            if os.readlink(descriptor) in sockets:
                return True
        except OSError:  # it was closed meanwhile
            continue
    return False


@contextmanager
def callback_server() -> Iterator[Callback]:
    server = Callback()
    try:
        yield server
    finally:
        server.answering.set()
        server.shutdown()
        server.server_close()

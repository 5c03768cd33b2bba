"""The front of all realms (`dragoman realms serve`) as a process of its own."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.chiffon import Answer, HttpClient
from tests.support.hubproc import PATIENCE
from tests.support.nest import die_with_parent


class FrontProcess:
    def __init__(self, log: Path, store: str, *options: str) -> None:
        self.log = log
        command = [sys.executable, "-m", "dragoman.cli", "realms", "serve", "--store", store, "--ready-json"]
        environment = {k: v for k, v in os.environ.items() if not k.startswith("DRAGOMAN_")}
        with log.open("ab") as errors:
            self.process = subprocess.Popen(
                [*command, "--port", "0", "--grpc-port", "0", *options], env=environment, stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=errors, preexec_fn=die_with_parent,
            )  # fmt: skip
        assert self.process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            assert selector.select(PATIENCE), f"no ready line:\n{log.read_text()}"
        line = self.process.stdout.readline()
        assert line, f"it ended with {self.process.wait(PATIENCE)}:\n{log.read_text()[-3000:]}"
        self.ready: dict[str, Any] = json.loads(line)

    @property
    def url(self) -> str:
        return str(self.ready["http"])

    @property
    def grpc(self) -> str:
        return str(self.ready["grpc"])

    def get(self, path: str, *, token: str | None = None, host: str | None = None) -> Answer:
        """A request on a connection of its own; `host`: under this name."""
        return HttpClient(self.url, token).get(path, **({} if host is None else {"Host": host}))

    def end(self) -> int:
        self.process.terminate()
        code = self.process.wait(PATIENCE)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code


@contextmanager
def front(log: Path, store: str, *options: str) -> Iterator[FrontProcess]:
    made = FrontProcess(log, store, *options)
    try:
        yield made
    finally:
        made.process.kill()
        made.process.wait(PATIENCE)

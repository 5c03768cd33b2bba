"""The raw limit of stdio: JSON lines to a child process and back, over its pipes.

The child reads a line, takes its id out and answers with a line; the parent waits for the id that it sent. No
framing rules, no limits, no task, no store. Both ends are as light as Python allows.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterable
from typing import Any

import msgspec

from bench.figures import Figure, Settings
from bench.load import Meter
from bench.load import measure as load

LEVELS = (1, 32)
CHILDREN = {1: (1,), 32: (1, 4)}
"""How many child processes, by operations in flight. More than the machine's cores help nobody in a ping-pong."""


class Pipe(asyncio.SubprocessProtocol):
    """A child whose stdout lines reach `hear`, several at once where they came so."""

    def __init__(self, hear: Any, lose: Any) -> None:
        self._hear, self._lose, self._rest = hear, lose, b""

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._stdin = transport.get_pipe_transport(0)

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._hear(line)

    def process_exited(self) -> None:
        self._lose("the child ended")

    def send(self, line: bytes) -> None:
        self._stdin.write(line)

    def close(self) -> None:
        self._lose = lambda why: None
        self._transport.kill()


class PipePing:
    """A line of JSON there, a line of JSON back; the slot travels as the id."""

    def __init__(self, size: int, children: int) -> None:
        self._count = children
        self._line = b'{"type":"request:echo","id":"%d","timestamp":"2026-02-04T14:30:00Z","payload":{"text":"'
        self._line += b"x" * (size - 100) + b'"}}\n'
        self._pipes: list[Pipe] = []
        self._turn = 0

    async def open(self, meter: Meter, in_flight: int) -> None:
        decode = msgspec.json.Decoder().decode

        def hear(line: bytes) -> None:
            meter.finish(int(decode(line)["correlationId"]))

        loop = asyncio.get_running_loop()
        for _ in range(self._count):
            command = (sys.executable, "-m", "bench.raw_pipe")
            _, pipe = await loop.subprocess_exec(lambda: Pipe(hear, meter.lose), *command, stderr=None)
            self._pipes.append(pipe)

    def begin(self, slot: int) -> None:
        self._turn += 1
        self._pipes[self._turn % self._count].send(self._line % slot)

    def close(self) -> None:
        for pipe in self._pipes:
            pipe.close()


def measure(settings: Settings) -> Iterable[Figure]:
    for in_flight in LEVELS:
        for children in CHILDREN[in_flight]:
            yield load(
                "bench.raw_pipe:PipePing",
                {"size": settings.body, "children": children},
                suite=f"pipe-{children}",
                in_flight=in_flight,
                settings=settings,
                server="children",
            )


ANSWER = (
    b'{"type":"response:success","id":"res-1","correlationId":"%b","timestamp":"2026-02-04T14:30:00Z",'
    b'"payload":{"output":"Deployment completed successfully. Kuma instance running."}}\n'
)


def child() -> None:
    decode, rest = msgspec.json.Decoder().decode, b""
    while data := os.read(0, 65536):
        *lines, rest = (rest + data).split(b"\n")
        os.write(1, b"".join([ANSWER % decode(line)["id"].encode() for line in lines]))


if __name__ == "__main__":
    child()

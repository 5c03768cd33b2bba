"""The peer of forge: the official Agent Client Protocol SDK, prompts to agents in child processes over stdio.

    acp-sdk       a prompt, one chunk of the answer's text (session/update), the end of the turn
    acp-sdk-bare  a prompt and the end of the turn, without any answer: the fastest it can be

Nothing is durable. The client is the SDK's in the load process, the agents are children over pipes. Its
fastest honest form: uvloop on both sides, no tracing (the SDK traces as soon as it finds OpenTelemetry installed,
so that is hidden from it), and as many children as serve it best, out of the counts measured.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Iterable
from typing import Any

from bench import peers
from bench.figures import Figure, Settings
from bench.load import Meter
from bench.load import measure as load

CHILDREN = {1: (1,), 32: (1, 2, 4)}
"""How many child processes are tried, by prompts in flight."""

LIMIT = 50 * 1024 * 1024
"""What the SDK itself gives its readers."""

TEXT = "Deployment completed successfully.\nKuma instance running.\nMonitored services: 5"


class AcpPrompts:
    """`prompt` of the client's connection; the turn must end as it should, with the text where there is one."""

    def __init__(self, size: int, children: int, chunk: bool) -> None:
        self._text = "x" * size
        self._count = children
        self._chunk = chunk
        self._turn = 0

    async def open(self, meter: Meter, in_flight: int) -> None:
        acp = untraced_acp()
        self._meter = meter
        self._loop = asyncio.get_running_loop()
        self._prompt = [acp.text_block(self._text)]
        self._heard: dict[str, int] = {}
        self._calls: set[asyncio.Task[None]] = set()
        heard = self._heard

        class Reader(acp.Client):
            async def session_update(self, session_id: str, update: Any, **rest: Any) -> None:
                if update.content.text == TEXT:
                    heard[session_id] = heard.get(session_id, 0) + 1

        command = (sys.executable, "-m", "bench.peer_acp", "chunk" if self._chunk else "bare")
        pipes = {"stdin": asyncio.subprocess.PIPE, "stdout": asyncio.subprocess.PIPE}
        self._seats: list[tuple[Any, str]] = []
        self._children = [
            await asyncio.create_subprocess_exec(*command, **pipes, limit=LIMIT) for _ in range(self._count)
        ]
        connections = [acp.connect_to_agent(Reader(), child.stdin, child.stdout) for child in self._children]
        for connection in connections:
            await connection.initialize(protocol_version=acp.PROTOCOL_VERSION)
        for slot in range(in_flight):
            # A session of its own for each prompt in flight: a session takes one turn at a time.
            connection = connections[slot % self._count]
            session = await connection.new_session(cwd="/", mcp_servers=[])
            self._seats.append((connection, session.session_id))

    def begin(self, slot: int) -> None:
        task = self._loop.create_task(self._call(slot))
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)

    async def _call(self, slot: int) -> None:
        connection, session = self._seats[slot]
        answer = await connection.prompt(prompt=self._prompt, session_id=session)
        got = self._heard.pop(session, 0)
        if answer.stop_reason == "end_turn" and got == int(self._chunk):
            self._meter.finish(slot)
        else:
            self._meter.fail(slot, f"{answer!r}, {got} chunks")

    def close(self) -> None:
        logging.disable()  # it complains about the children that are ended here
        for call in self._calls:
            call.cancel()
        for child in self._children:
            child.kill()


def untraced_acp() -> Any:
    sys.modules["opentelemetry"] = None  # type: ignore[assignment]
    import acp

    return acp


def measure(settings: Settings) -> Iterable[Figure]:
    for in_flight, counts in CHILDREN.items():
        for children in counts:
            yield point(settings, in_flight, children, chunk=True)
    yield point(settings, 32, 2, chunk=False)


def point(settings: Settings, in_flight: int, children: int, *, chunk: bool) -> Figure:
    return load(
        "bench.peer_acp:AcpPrompts",
        {"size": settings.body, "children": children, "chunk": chunk},
        suite=f"acp-sdk-{children}" if chunk else f"acp-sdk-bare-{children}",
        in_flight=in_flight,
        settings=settings,
        server="children",
        interpreter=peers.interpreter(),
    )


async def child(chunk: bool) -> None:
    acp = untraced_acp()

    class Infra(acp.Agent):
        def on_connect(self, connection: Any) -> None:
            self._client = connection
            self._sessions = 0

        async def initialize(self, protocol_version: int, **rest: Any) -> Any:
            return acp.InitializeResponse(protocol_version=protocol_version)

        async def new_session(self, cwd: str, **rest: Any) -> Any:
            self._sessions += 1
            return acp.NewSessionResponse(session_id=f"{os.getpid()}-{self._sessions}")

        async def prompt(self, prompt: list[Any], session_id: str, **rest: Any) -> Any:
            if chunk:
                await self._client.session_update(session_id, acp.update_agent_message_text(TEXT))
            return acp.PromptResponse(stop_reason="end_turn")

    await acp.run_agent(Infra())


if __name__ == "__main__":
    import uvloop

    uvloop.run(child(sys.argv[1] == "chunk"))

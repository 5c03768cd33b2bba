"""An agent as a real child process, with an orchestrator at the other end of its pipes."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support.forge import End
from tests.unit.sdk.harness import PATIENCE

from dragoman.protocols.forge import types as forge
from dragoman.protocols.forge.codec import Event, EventReceived, LogReceived, RequestReceived
from dragoman.protocols.forge.types import Message, Payload, Stamp
from dragoman.sdk.forge.session import HungUp
from dragoman.sdk.forge.stdio import StdioWire
from dragoman.sdk.runtime import SystemRuntime
from dragoman.wire.role import Role

WORLD = SystemRuntime()
FAKED = (
    '{"type":"event:progress","id":"e","timestamp":"2026-01-01T00:00:00Z",'
    '"payload":{"taskId":"t1","progress":1,"result":"faked"}}'
)

NOISY = f"""
import asyncio, ctypes, logging, os, subprocess, sys, threading
sys.stdout.write("imported, "); sys.stdout.flush()
from dragoman import Agent, Task

agent = Agent("noisy", grace=5)
logging.getLogger().setLevel(logging.INFO)

@agent.on("shout")
async def shout(task: Task, word: str) -> dict:
    print({FAKED!r})
    print("no end of line", end="", flush=True)
    os.write(1, b"\\nbare\\n")
    ctypes.CDLL(None).puts(b"from C"); ctypes.CDLL(None).fflush(None)
    child = subprocess.run(["sh", "-c", "cat; echo from a grandchild"], capture_output=False)
    logging.getLogger("mine").warning("told %s", word)
    thread = threading.Thread(target=lambda: (print("from a thread"), logging.error("from a thread")))
    thread.start(); thread.join()
    sys.stderr.write("on stderr\\n")
    await task.text("a piece, ")
    return {{"word": word.upper(), "stdin": sys.stdin.read()}}

@agent.on("flood")
def flood() -> str:
    for n in range(3000):
        print("x" * 100)
    return "dry"

@agent.on("sleep")
async def sleep() -> None:
    try:
        await asyncio.Event().wait()
    finally:
        print("woken", flush=True)

@agent.on("ask")
async def ask(task: Task) -> str:
    return await task.ask("Shall I?", options=["yes", "no"])

agent.run()
print("after the end", flush=True)
"""


class Child:
    """A process, and the orchestrator's end of its pipes."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.hub = End(Role.HUB, lines=True, agent_id="noisy")
        self.heard: list[Event] = []
        self.stderr: asyncio.Future[bytes] = asyncio.ensure_future(self._drain())

    async def _drain(self) -> bytes:
        assert self.process.stderr is not None
        return await self.process.stderr.read()

    @property
    def messages(self) -> list[Message]:
        return [event.message for event in self.heard if isinstance(event, RequestReceived | EventReceived)]

    async def until(self, type: str, matching: Callable[[Any], bool] = lambda payload: True) -> Message:
        """Read on until the child says this; every request but a question is answered on the way."""
        assert self.process.stdout is not None
        async with asyncio.timeout(PATIENCE):
            while True:
                data = await self.process.stdout.read(65536)
                assert data, (self.heard[-3:], await self.stderr)
                found = None
                for event in self.hub.receive(data):
                    self.heard.append(event)
                    if isinstance(event, RequestReceived) and event.message.type != "request:ask-user":
                        self.write(self.hub.succeed(event.message.id, {}, stamp()))
                    if isinstance(event, RequestReceived | EventReceived):
                        message = event.message
                        if message.type == type and matching(message.payload):
                            found = message
                if found is not None:
                    return found

    def write(self, data: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(data)

    def notify(self, payload: Payload) -> None:
        self.write(self.hub.tell(payload, stamp()))

    def assign(self, id: str, type: str, **given: Any) -> None:
        task = {"id": id, "type": type, "payload": given}
        self.notify(forge.TaskAssigned(task_id=id, message="Task assigned.", task=task))

    async def result(self, id: str) -> Any:
        said = await self.until("request:update-task", lambda said: said.task_id == id and said.status != "running")
        return said.payload

    async def end(self) -> tuple[int, str]:
        """Its exit code, and all it wrote on stderr."""
        async with asyncio.timeout(PATIENCE):
            assert self.process.stdout is not None
            for event in self.hub.receive(await self.process.stdout.read()):
                self.heard.append(event)
            return await self.process.wait(), (await self.stderr).decode()


def stamp() -> Stamp:
    return Stamp(WORLD.mint(), WORLD.now())


@pytest.fixture
async def child(tmp_path: Path) -> AsyncIterator[Child]:
    script = tmp_path / "agent.py"
    script.write_text(textwrap.dedent(NOISY))
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(script),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "DRAGOMAN_URL": "stdio:"},
        limit=1 << 20,
    )
    child = Child(process)
    yield child
    if process.returncode is None:
        process.kill()
        await process.wait()
    child.stderr.cancel()


async def test_whatever_is_printed_the_protocol_stays_whole(child: Child) -> None:
    child.assign("t1", "shout", word="hello")
    result = await child.result("t1")
    assert result.result == {"word": "HELLO", "stdin": ""}
    child.notify(forge.Shutdown(grace_period=5000, reason="enough"))
    code, stderr = await child.end()
    assert code == 0
    lines = stderr.splitlines()
    printed = [FAKED, "no end of line", "bare", "from C", "from a grandchild", "from a thread", "on stderr"]
    assert [line for line in lines if line in printed] == printed
    assert "after the end" in lines
    # On stdout there is nothing but messages, and what was printed before the agent ran.
    assert [event.text.strip() for event in child.heard if isinstance(event, LogReceived)] == ["imported,"]
    assert [m.payload.output for m in child.messages if m.type == "request:update-task"] == ["a piece, "] * 2
    assert not any(m.type == "event:progress" and m.payload.result == "faked" for m in child.messages)
    logs = {(m.payload.level, m.payload.message, m.payload.task_id) for m in child.messages if m.type == "event:log"}
    assert {("warn", "told hello", "t1"), ("info", "noisy is connected", None)} <= logs
    assert "from a thread" in {message for level, message, _ in logs if level == "error"}


async def test_a_flood_of_prints_does_not_hold_up_the_work(child: Child) -> None:
    child.assign("t1", "flood")
    assert (await child.result("t1")).output == "dry"
    assert child.process.stdin is not None
    child.process.stdin.close()
    code, stderr = await child.end()
    assert (code, stderr.splitlines().count("x" * 100)) == (0, 3000)


async def test_a_question_is_answered_while_the_handler_waits(child: Child) -> None:
    child.assign("t1", "ask")
    question = await child.until("request:ask-user")
    assert (question.payload.task_id, question.payload.options) == ("t1", ("yes", "no"))
    child.write(child.hub.succeed(question.id, {"answer": "yes"}, stamp()))
    assert (await child.result("t1")).output == "yes"


async def test_when_both_pipes_are_closed_the_agent_ends_in_order(child: Child) -> None:
    child.assign("t1", "sleep")
    await child.until("request:register")
    await child.until("event:progress")  # the first sign of life: it sleeps
    assert child.process.stdin is not None
    child.process._transport.get_pipe_transport(1).close()  # type: ignore[attr-defined]
    child.process.stdin.close()
    async with asyncio.timeout(PATIENCE):
        assert await child.process.wait() == 0
        assert "woken" in (await child.stderr).decode()


async def test_input_that_cannot_be_watched_is_read_in_a_thread(tmp_path: Path) -> None:
    said = tmp_path / "said"
    said.write_bytes(b"one\ntwo\n")
    reading, writing = os.pipe()
    wire = StdioWire(os.open(said, os.O_RDONLY), writing)
    async with asyncio.timeout(PATIENCE):
        await wire.open()
        assert await wire.receive() == b"one\ntwo\n"
        with pytest.raises(HungUp) as gone:
            await wire.receive()
        assert gone.value.hears
        await wire.close()
    assert os.read(reading, 100) == b"\n"
    os.close(reading)


async def test_a_slow_reader_holds_up_its_sender_and_loses_nothing() -> None:
    (nothing, silent), (reading, writing) = os.pipe(), os.pipe()
    wire = StdioWire(nothing, writing)
    said = b"".join(b"%07d\n" % n for n in range(100_000))
    async with asyncio.timeout(PATIENCE):
        await wire.open()
        wire.send(said)
        draining = asyncio.ensure_future(wire.drain())
        await asyncio.sleep(0)
        assert not draining.done()
        heard = b""
        while len(heard) <= len(said):
            heard += await asyncio.to_thread(os.read, reading, 65536)
        await draining
        await wire.close()
    assert heard == b"\n" + said
    os.close(reading)
    os.close(silent)

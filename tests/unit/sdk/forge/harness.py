"""An orchestrator that is nothing but forge's codec at the end of a wire, or of a child's pipes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
from tests.support.forge import End
from tests.unit.sdk.harness import FakeRuntime, settle
from tests.unit.sdk.message_log import MessageLog

from dragoman import Agent
from dragoman.protocols.forge import types as forge
from dragoman.protocols.forge.codec import EventReceived, LogReceived, RequestReceived
from dragoman.protocols.forge.types import Encoding, ErrorBody, Message, Payload, Stamp
from dragoman.sdk.forge.link import ForgeLink
from dragoman.sdk.forge.session import HungUp
from dragoman.sdk.links import Link, LinkDown
from dragoman.wire.role import Role

UPDATE, ASK, PROGRESS = "request:update-task", "request:ask-user", "event:progress"


class FakeWire:
    """One connection to the fake orchestrator."""

    def __init__(self, hub: FakeForge) -> None:
        self._hub = hub
        self._arrived: asyncio.Queue[bytes | LinkDown] = asyncio.Queue()
        self.is_lines = hub.is_lines
        self.end = End(Role.HUB, lines=hub.is_lines, encoding=hub.encoding, agent_id="worker")

    async def open(self) -> Encoding:
        self._hub.dialled += 1
        if self._hub.is_down:
            raise LinkDown("nobody there")
        self._hub.wire = self
        return self._hub.encoding

    async def receive(self) -> bytes:
        arrived = await self._arrived.get()
        if isinstance(arrived, LinkDown):
            raise arrived
        return arrived

    def deliver(self, arrived: bytes | LinkDown) -> None:
        self._arrived.put_nowait(arrived)

    def send(self, data: bytes) -> None:
        for event in self.end.receive(data):
            self._hub.hear(event)

    async def drain(self) -> None: ...

    async def close(self) -> None: ...


class FakeForge(MessageLog[Message]):
    """Says what the test wants, and keeps what the agent says. Requests in `answers` are answered as it says."""

    def __init__(
        self, runtime: FakeRuntime, *, is_lines: bool = True, encoding: Encoding = Encoding.JSON, is_child: bool = False
    ) -> None:
        super().__init__()
        self.runtime = runtime
        self.is_lines = is_lines
        self.encoding = encoding
        self.is_child = is_child
        self.is_down = False
        self.dialled = 0
        self.wire: FakeWire | None = None
        self.answers: dict[str, Callable[[Message], dict[str, Any] | ErrorBody | None]] = {
            "request:register": lambda _: {},
            "request:update-task": lambda _: {},
        }

    def dial(self) -> Link:
        return ForgeLink(FakeWire(self), self.runtime, is_child=self.is_child)

    def dial_wire(self) -> FakeWire:
        return FakeWire(self)

    # --- what the agent says ---

    def hear(self, event: Any) -> None:
        assert isinstance(event, RequestReceived | EventReceived | LogReceived), event
        if isinstance(event, LogReceived):
            assert not event.text.strip(), event
            return
        self.keep(event.message)
        answer = self.answers.get(event.message.type)
        if isinstance(event, RequestReceived) and answer is not None:
            given = answer(event.message)
            if isinstance(given, ErrorBody):
                self.fail(event.message, given)
            elif given is not None:
                self.succeed(event.message, given)

    # --- what the orchestrator says ---

    def notify(self, payload: Payload, id: str | None = None, meta: dict[str, Any] | None = None) -> str:
        assert self.wire is not None
        id = id or self.runtime.mint()
        self.wire.deliver(self.wire.end.tell(payload, Stamp(id, self.runtime.now()), meta=meta))
        return id

    def succeed(self, request: Message, payload: dict[str, Any]) -> None:
        assert self.wire is not None
        stamp = Stamp(self.runtime.mint(), self.runtime.now())
        self.wire.deliver(self.wire.end.succeed(request.id, payload, stamp))

    def fail(self, request: Message, error: ErrorBody) -> None:
        assert self.wire is not None
        self.wire.deliver(self.wire.end.fail(request.id, error, Stamp(self.runtime.mint(), self.runtime.now())))

    def assign(self, type: str, given: dict[str, Any] | None = None, *, id: str | None = None, **task: Any) -> str:
        """Returns the task's id."""
        task_id = str(task.pop("task_id", None) or self.runtime.mint())
        view = {"id": task_id, "type": type, "payload": given or {}, "attempt": 1, "submittedBy": "boss", **task}
        self.notify(forge.TaskAssigned(task_id=task_id, message="Task assigned.", task=view), id)
        return task_id

    def cut(self) -> None:
        """The connection breaks."""
        assert self.wire is not None
        self.wire.deliver(LinkDown("the line went dead"))

    def hang_up(self, *, hears: bool = True) -> None:
        assert self.wire is not None
        self.wire.deliver(HungUp("the hub has closed our input", hears=hears))


class Serving:
    """`async with Serving(agent, hub):` the agent serves inside, and is stopped at the end."""

    def __init__(self, agent: Agent, hub: FakeForge) -> None:
        self._agent = agent
        self._hub = hub

    async def __aenter__(self) -> asyncio.Future[None]:
        self._serving = asyncio.ensure_future(self._agent.serve_over(self._hub.dial))
        await settle()
        return self._serving

    async def __aexit__(self, *exc: object) -> None:
        self._serving.cancel()
        await asyncio.gather(self._serving, return_exceptions=True)


def plain(payload: Any) -> dict[str, Any]:
    """A payload as it stands on the wire."""
    found: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(payload))
    return found

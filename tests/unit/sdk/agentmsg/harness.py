"""A hub that is nothing but agentmsg's HUB role at the end of a pipe, with a WebSocket's ACKs or HTTP's receipts."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
from tests.unit.sdk.harness import FakeRuntime, settle
from tests.unit.sdk.message_log import MessageLog

from dragoman import Agent
from dragoman.protocols.agentmsg import codec
from dragoman.protocols.agentmsg import types as agentmsg
from dragoman.protocols.agentmsg.connection import Acknowledged, Connection, Inbox, Received, Repeated
from dragoman.protocols.agentmsg.records import ErrorContext, ErrorReport, ErrorType, Record
from dragoman.protocols.agentmsg.types import Message, Stamp
from dragoman.sdk.agentmsg.link import AgentmsgLink, Memory
from dragoman.sdk.links import Frame, Link, LinkDown
from dragoman.sdk.messages import Accepted
from dragoman.wire.role import Role


class FakePipe:
    """One connection to the fake hub."""

    def __init__(self, hub: FakeAgentmsg) -> None:
        self._hub = hub
        self._arrivals: asyncio.Queue[Sequence[Frame | Accepted] | None] = asyncio.Queue()
        self.connection = Connection(Role.HUB, hub.agent_id, inbox=hub.inbox)

    @property
    def confirms(self) -> bool:
        return self._hub.confirms

    async def open(self, registration: bytes | None) -> bytes:
        self._hub.dialled += 1
        if self._hub.is_down:
            raise LinkDown("nobody there")
        self._hub.pipe = self
        return b""

    async def receive(self) -> Sequence[Frame | Accepted]:
        arrival = await self._arrivals.get()
        if arrival is None:
            self._arrivals.put_nowait(None)
            raise LinkDown("the line went dead")
        return arrival

    def deliver(self, arrival: Frame | Accepted | None) -> None:
        self._arrivals.put_nowait(None if arrival is None else (arrival,))

    def send(self, frame: bytes, message_id: str, lane: str) -> None:
        self._hub.hear(self, frame)

    def acknowledge(self, receipt: str) -> None:
        self._hub.acked.append(receipt)

    async def drain(self) -> None: ...

    def quiesce(self) -> None: ...

    async def close(self) -> None:
        self.deliver(None)


class FakeAgentmsg(MessageLog[Message]):
    """Says what the test wants, and keeps what the agent says. `accepts`: it acknowledges what is to be kept."""

    def __init__(self, runtime: FakeRuntime, agent_id: str = "worker", *, confirms: bool = False) -> None:
        super().__init__()
        self.runtime = runtime
        self.agent_id = agent_id
        self.confirms = confirms
        self.inbox = Inbox()
        self.pipe: FakePipe | None = None
        self.trees: dict[str, dict[str, Any]] = {}
        self.acked: list[str] = []
        self.repeated = 0
        self.is_down = False
        self.accepts = True
        self.dialled = 0

    def dialler(self) -> Any:
        memory = Memory()
        return lambda: self.dial(memory)

    def dial(self, memory: Memory) -> Link:
        return AgentmsgLink(FakePipe(self), self.runtime, memory)

    def dial_pipe(self) -> FakePipe:
        return FakePipe(self)

    # --- what the agent says ---

    def hear(self, pipe: FakePipe, frame: bytes) -> None:
        for event in pipe.connection.receive(frame, self.runtime.now()):
            match event:
                case Acknowledged():
                    self.acked.extend(event.message_ids)
                case Received():
                    self.keep(event.message)
                    self.trees[event.message.id] = event.tree
                    if self.accepts and (event.wants_ack or self.confirms):
                        self.accept(event.message)
                case Repeated():
                    self.repeated += 1
                    if self.accepts:
                        self.accept(event.message)
                case _:
                    raise AssertionError(event)

    def accept(self, message: Message) -> None:
        assert self.pipe is not None
        ack = self.pipe.connection.acknowledge([message], self.stamp())
        self.pipe.deliver(Accepted((message.id,)) if self.confirms else Frame(ack))

    # --- what the hub says ---

    def stamp(self) -> Stamp:
        return Stamp(self.runtime.mint(), self.runtime.now())

    def say(self, payload: Record, *, sender: str = agentmsg.HUB, **more: Any) -> Message:
        message = codec.message(payload, self.stamp(), sender=sender, to=self.agent_id, **more)
        self.say_again(message)
        return message

    def say_again(self, message: Message, **task: Any) -> None:
        """`task`: more fields of an assignment's task."""
        assert self.pipe is not None
        data = codec.encode(message)
        if task:
            tree = msgspec.json.decode(data)
            tree["payload"]["task"].update(task)
            data = msgspec.json.encode(tree)
        self.pipe.deliver(Frame(data, f"delivery-{message.id}" if self.confirms else None))

    def assign(self, type: str, given: Any = None, *, task_id: str | None = None, **more: Any) -> Message:
        """`more`: fields of the task, the document's or not."""
        task_id = task_id or self.runtime.mint()
        known = {name: value for name, value in more.items() if name in agentmsg.Assignment.__struct_fields__}
        task = agentmsg.Assignment(task_id=task_id, task_type=type, input=given or {}, **known)
        message = codec.message(agentmsg.TaskAssignment(task=task), self.stamp(), sender="hub", to=self.agent_id)
        self.say_again(message, **{name: value for name, value in more.items() if name not in known})
        return message

    def refuse(self, message: Message, error_type: ErrorType, words: str = "no") -> None:
        self.say(
            ErrorReport(
                error_id=self.runtime.mint(),
                agent_id="hub",
                error_type=error_type,
                severity="medium",
                message=words,
                context=ErrorContext(),
                recovery_attempts=(),
                suggested_actions=(),
            ),
            correlation_id=message.id,
        )

    def cut(self) -> None:
        """The connection breaks."""
        assert self.pipe is not None
        self.pipe.deliver(None)


class Serving:
    """`async with Serving(agent, hub):` the agent serves inside, and is stopped at the end."""

    def __init__(self, agent: Agent, hub: FakeAgentmsg) -> None:
        self._agent = agent
        self._hub = hub

    async def __aenter__(self) -> asyncio.Future[None]:
        self._serving = asyncio.ensure_future(self._agent.serve_over(self._hub.dialler()))
        await settle()
        return self._serving

    async def __aexit__(self, *exc: object) -> None:
        self._serving.cancel()
        await asyncio.gather(self._serving, return_exceptions=True)


def plain(payload: Any) -> dict[str, Any]:
    """A payload as it stands on the wire."""
    found: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(payload))
    return found

"""A hub that only listens: what is asked of it is recorded, what it answers is scripted. For tests of endpoints."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from dragoman.core.commands import CloseLink, Command, NoteRefusal, OpenLink
from dragoman.core.ids import AgentId, Instant, SessionId, TaskId, uuid7
from dragoman.core.memory import MemoryBudget
from dragoman.core.model.agents import Agent
from dragoman.core.ports import LinkEnd
from dragoman.core.streams import Streams
from dragoman.messages.faults import Fault, Refused

T = TypeVar("T")
NOW = Instant(1_768_796_464_000_000)
PATIENCE = 60.0


async def soon(what: Awaitable[T]) -> T:
    """Every wait is bounded."""
    return await asyncio.wait_for(what, PATIENCE)


class ScriptedHub:
    """Answers each type of command from `script`: a value, a Fault, or a function of the command.

    With `held`, outcomes wait until `commit` is called: then all of them are there at once.
    """

    def __init__(self) -> None:
        self.asked: list[Command] = []
        self.streams = Streams()
        self.memory = MemoryBudget()
        self.noted: list[NoteRefusal] = []
        self.script: dict[type[Command], Any] = {}
        self.known: dict[AgentId, Agent] = {}
        self.ends: dict[SessionId, LinkEnd] = {}
        self.detached: list[SessionId] = []
        self.held: list[tuple[Command, asyncio.Future[Any]]] | None = None
        self.linked: set[AgentId] = set()
        self.looked = 0
        self.callback_changed: Callable[[AgentId], None] | None = None
        self._minted = 0
        self._changed = asyncio.Event()

    def enqueue(self, command: Command) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if isinstance(command, NoteRefusal):
            self.noted.append(command)
        else:
            self.asked.append(command)
        self._changed.set()
        if self.held is None or isinstance(command, OpenLink | CloseLink):
            self._settle(command, future)
        else:
            self.held.append((command, future))
        return future

    def enqueue_and_forget(self, command: Command) -> None:
        self.enqueue(command).add_done_callback(lambda future: future.exception())

    def enqueue_then(self, command: Command, then: Callable[[Any, Refused | None], None]) -> None:
        def settled(future: asyncio.Future[Any]) -> None:
            refusal = future.exception()
            assert refusal is None or isinstance(refusal, Refused)
            then(None if refusal else future.result(), refusal)

        self.enqueue(command).add_done_callback(settled)

    def _settle(self, command: Command, future: asyncio.Future[Any]) -> None:
        answer = self.script.get(type(command))
        if callable(answer):
            answer = answer(command)
        if future.done():
            return
        if isinstance(answer, Fault):
            future.set_exception(Refused(answer))
        else:
            future.set_result(answer)

    def commit(self) -> None:
        held, self.held = self.held or [], []
        for command, future in held:
            self._settle(command, future)

    def release(self) -> None:
        """Commit what is held, and hold no more."""
        held, self.held = self.held or [], None
        for command, future in held:
            self._settle(command, future)

    async def execute(self, command: Command) -> Any:
        return await self.enqueue(command)

    async def until(self, ready: Callable[[], bool]) -> None:
        """Wait until what was asked satisfies `ready`."""

        async def wait() -> None:
            while not ready():
                self._changed.clear()
                await self._changed.wait()

        await soon(wait())

    def asked_for(self, kind: type[Command]) -> list[Any]:
        return [command for command in self.asked if type(command) is kind]

    def attach(self, session: SessionId, end: LinkEnd) -> None:
        self.ends[session] = end

    def detach(self, session: SessionId) -> None:
        self.ends.pop(session, None)
        self.detached.append(session)
        self._changed.set()

    def agent_of(self, hashed: str) -> Agent | None:
        return next((agent for agent in self.known.values() if agent.token_hash == hashed), None)

    def agent(self, id: AgentId) -> Agent | None:
        return self.known.get(id)

    def agents(self) -> Sequence[Agent]:
        return list(self.known.values())

    def holds(self, id: AgentId, task: TaskId) -> bool:
        return task in self.load_of(id)

    def load_of(self, id: AgentId) -> Sequence[TaskId]:
        return ()

    def reachable(self, id: AgentId) -> bool:
        self.looked += 1
        self._changed.set()
        return id in self.linked

    def watch(self, task: TaskId) -> Any:
        raise NotImplementedError

    def watch_callbacks(self, changed: Callable[[AgentId], None] | None) -> None:
        self.callback_changed = changed

    def now(self) -> Instant:
        return NOW

    def mint(self) -> str:
        self._minted += 1
        return uuid7(NOW, self._minted)


async def elsewhere(scope: Any, receive: Any, send: Any) -> None:
    """Everything that is not part of the endpoint."""
    if scope["type"] == "http":
        await send({"type": "http.response.start", "status": 299, "headers": []})
        await send({"type": "http.response.body", "body": b"elsewhere"})
    else:
        await send({"type": "websocket.close"})

"""A client that speaks agentmsg itself: an agent that gives others work, with a token of its own.

A request is said again under the same id until the hub has it; from then on the hub owes us the result, and delivers
it over whatever link we have until we acknowledge it. So a broken link, a restarted hub or a lost receipt changes
nothing for who waits. Meanwhile heartbeats show that somebody still does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from dragoman.protocols.agentmsg import errors, routing
from dragoman.protocols.agentmsg.connection import Inbox
from dragoman.protocols.agentmsg.records import ErrorReport, ErrorType, Priority, TaskConstraints, TaskContext
from dragoman.protocols.agentmsg.types import (
    HUB,
    Assignment,
    Heartbeat,
    Register,
    TaskAssignment,
    TaskFailed,
    TaskUpdate,
    Welcome,
)
from dragoman.sdk import trace
from dragoman.sdk.agentmsg.calls import Call
from dragoman.sdk.agentmsg.session import Arrival, MessagePipe, Session
from dragoman.sdk.calling.calls import ConnectedClient
from dragoman.sdk.conversation.peer_handlers import report
from dragoman.sdk.errors import Conflict, DragomanError, NotAllowed
from dragoman.sdk.events import TaskInfo
from dragoman.sdk.failures import refused
from dragoman.sdk.messages import Accepted
from dragoman.sdk.runtime import Runtime

CONSTRAINTS = ("required_capabilities", "max_tokens", "deadline", "budget_usd", "quality_threshold")
KNOWN = {"parent": "parent_task_id", "name": "name", "thread": "thread"}
"""Options that travel in the context's metadata, under these names."""
OPTIONS = frozenset({"priority", "dependencies", "description", "metadata", *CONSTRAINTS, *KNOWN})
SAY_AGAIN = 1.0
MOST_TRIES = 4


class AgentmsgClient(ConnectedClient[Call, Session]):
    """What `Client` does, in agentmsg. `dial` makes a pipe; `name` is our id at the hub."""

    protocol = "agentmsg"

    def __init__(
        self, name: str, dial: Callable[[], MessagePipe], runtime: Runtime, give_up_after: float | None = None
    ) -> None:
        super().__init__(runtime, give_up_after)
        self._name = name
        self._dial = dial
        self._inbox = Inbox()
        self._cancels: dict[str, asyncio.Future[None]] = {}
        self._session: Session | None = None
        self._beating: asyncio.Task[None] | None = None

    # --- what callers want ---

    async def submit(self, target: str | None, work: str, given: Mapping[str, Any], options: Mapping[str, Any]) -> str:
        """Returns when the hub has it, durably."""
        call = self._request(target, work, dict(given), options)
        self._calls[call.task_id] = call
        self._untaken[call.id] = call
        self._say(call)
        await self._until_taken(call)
        return call.task_id

    async def cancel(self, task_id: str, reason: str | None) -> None:
        id = self._runtime.mint()
        heard = self._cancels[id] = asyncio.get_running_loop().create_future()
        try:
            while not heard.done():
                if self._session is not None:
                    update = TaskUpdate(task_id=task_id, status="cancelled", message=reason or "")
                    self._session.say(update, id=id, at=self._runtime.now(), lane=task_id, priority="high")
                again = asyncio.ensure_future(self._runtime.sleep(SAY_AGAIN))
                await asyncio.wait({heard, again}, return_when=asyncio.FIRST_COMPLETED)
                again.cancel()
            heard.result()
        finally:
            self._cancels.pop(id, None)

    async def task(self, task_id: str, wait: float = 0) -> TaskInfo:
        raise self._cannot("look at a task; `client.state.get('TASK', …)` does, or")

    # --- calls ---

    def _request(self, target: str | None, work: str, given: dict[str, Any], options: Mapping[str, Any]) -> Call:
        self._check(options, OPTIONS)
        span = trace.current()
        task_id, priority = self._runtime.mint(), Priority(options.get("priority") or "normal")
        metadata = {place: options[name] for name, place in KNOWN.items() if options.get(name) is not None}
        limits = {name: options[name] for name in CONSTRAINTS if options.get(name) is not None}
        assignment = Assignment(
            task_id=task_id,
            task_type=work,
            description=options.get("description") or "",
            context=TaskContext(
                task_id=task_id,
                task_type=work,
                priority=priority,
                metadata={**msgspec.to_builtins(options.get("metadata") or {}), **metadata},
                dependencies=tuple(options.get("dependencies") or ()),
                history=(),
            ),
            constraints=msgspec.convert({"required_capabilities": (), **limits}, TaskConstraints),
            input=given,
        )
        return Call(
            self._runtime.mint(),
            self._runtime.now(),
            target or HUB,
            TaskAssignment(task=assignment),
            priority=max(priority, Priority.HIGH, key=routing.RANK.__getitem__).value,
            traceparent=None if span is None else span.traceparent,
        )

    def _say(self, call: Call) -> None:
        if self._session is not None:
            self._session.say(call.assignment, id=call.id, at=call.at, to=call.to, lane=call.task_id, **call.metadata)

    # --- the link ---

    def _new_link(self) -> Session:
        return Session(self._dial(), self._runtime, self._name, self._inbox)

    async def _connect(self, link: Session) -> None:
        await link.open()

    def _attach(self, link: Session) -> None:
        self._session = link
        link.say(Register(agent_id=self._name), id=self._runtime.mint(), at=self._runtime.now())
        for call in list(self._untaken.values()):
            self._say(call)

    def _detach(self) -> None:
        self._session = None

    async def _listen(self, link: Session) -> None:
        for said in await link.receive():
            self._hear(link, said)

    async def _beat(self, interval: float) -> None:
        while True:
            await self._runtime.sleep(interval)
            if self._session is not None:
                self._session.say(Heartbeat(agent_id=self._name), id=self._runtime.mint(), at=self._runtime.now())

    def _hear(self, session: Session, said: Arrival | Accepted) -> None:
        if isinstance(said, Accepted):
            for id in said.ids:
                if (call := self._untaken.get(id)) is not None:
                    self._taken(call)
                if (heard := self._cancels.get(id)) is not None and not heard.done():
                    heard.set_result(None)
            return
        message = said.message
        about = message.answers or ""
        if isinstance(message.payload, ErrorReport) and about in self._untaken:
            self._refused(self._untaken[about], message.payload)
        elif isinstance(message.payload, ErrorReport) and about in self._cancels:
            heard = self._cancels[about]
            if not heard.done():
                heard.set_exception(_raised(message.payload))
        elif (found := self._calls.get(routing.task(message) or "")) is not None:
            self._taken(found)
            found.hear(message, said.tree)
        elif isinstance(message.payload, Welcome):
            if self._beating is not None:
                self._beating.cancel()
            interval = message.payload.heartbeat_interval_ms / 1000
            self._beating = self._start(self._beat(interval))
        elif isinstance(message.payload, TaskAssignment):
            self._decline(session, message.payload.task.task_id)
        if said.receipt is not None:
            session.acknowledge(said.receipt)

    def _refused(self, call: Call, said: ErrorReport) -> None:
        """The hub did not take the request: for good, or for now."""
        if errors.is_retryable(said) and call.tries < MOST_TRIES:
            call.tries += 1
            self._start(self._say_later(call, SAY_AGAIN * 2 ** (call.tries - 2)))
            return
        self._refuse(call, _raised(said))

    def _fail_all(self, error: Exception) -> None:
        super()._fail_all(error)
        for heard in self._cancels.values():
            if not heard.done():
                heard.set_exception(error)

    def _decline(self, session: Session, task_id: str) -> None:
        """Somebody wants work of a client."""
        id, kind = self._runtime.mint(), ErrorType.VALIDATION_ERROR
        words = f"{self._name} gives out work and does none"
        details = {"retryable": False, "supported_types": ()}
        error = report(kind, words, id=id, agent=self._name, task_id=task_id, details=details)
        session.say(TaskFailed(task_id=task_id, error=error), id=id, at=self._runtime.now(), lane=task_id)


def _raised(said: ErrorReport) -> DragomanError:
    if said.error_type is ErrorType.AUTHENTICATION_ERROR:
        return NotAllowed(said.message)
    if said.context.details.get("kind") == "conflict":
        return Conflict(said.message)
    details = said.context.details
    kind = str(details.get("kind") or errors.name_of(said.error_type).value)
    return refused(said.message, kind=kind, facts=details)

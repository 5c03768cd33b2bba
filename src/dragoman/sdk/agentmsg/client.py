"""A client that speaks agentmsg itself: an agent that assigns tasks to others, with a token of its own.

The client sends a request again under the same id until the hub has it; from then on the hub owes it the result, and
delivers it over any connection of the client until the client acknowledges it. So a broken connection, a restarted hub
or a lost receipt changes nothing for the caller. Meanwhile heartbeats show that the client is alive.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from dragoman.protocols.agentmsg import errors, mapping, routing
from dragoman.protocols.agentmsg.connection import Inbox
from dragoman.protocols.agentmsg.records import ErrorReport, ErrorType, Priority, TaskConstraints, TaskContext
from dragoman.protocols.agentmsg.types import (
    HUB,
    Assignment,
    Heartbeat,
    Message,
    Register,
    TaskAssignment,
    TaskComplete,
    TaskFailed,
    TaskUpdate,
    Welcome,
)
from dragoman.sdk import trace
from dragoman.sdk.agentmsg.session import Arrival, MessagePipe, Session
from dragoman.sdk.calling.calls import ConnectedClient, PendingCall
from dragoman.sdk.errors import Conflict, DragomanError, NotAllowed
from dragoman.sdk.events import TaskInfo, value_of
from dragoman.sdk.failures import failed, refused
from dragoman.sdk.messages import Accepted
from dragoman.sdk.runtime import Runtime

CONSTRAINTS = frozenset(TaskConstraints.__struct_fields__)
KNOWN = {"parent": "parent_task_id", "name": "name", "thread": "thread"}
"""Options that travel in the context's metadata, under these names."""
OPTIONS = frozenset({"priority", "dependencies", "description", "metadata", *CONSTRAINTS, *KNOWN})
SEND_AGAIN = 1.0
MOST_TRIES = 4


class Call(PendingCall):
    def __init__(self, id: str, at: Any, to: str, assignment: TaskAssignment, **metadata: Any) -> None:
        super().__init__(assignment.task.task_id, id)
        self.at = at
        self.to = to
        self.assignment = assignment
        self.metadata = metadata
        self.tries = 1
        self._output: list[str] = []

    def receive(self, message: Message, tree: dict[str, Any]) -> None:
        """The hub reports how the task goes, or how it ended."""
        payload, fields = message.payload, tree["payload"]
        match payload:
            case TaskComplete():
                done = mapping.result_in(payload, fields)
                output = done.output if done.output is not None else "".join(self._output)
                used = {} if done.usage is None else {"usage": done.usage}
                self._tell("completed", message, {"result": payload.result, "output": output, **used})
                self.finish(value_of(payload.result, output))
            case TaskFailed(error=report):
                details = report.context.details
                status = "cancelled" if fields.get("status") == "cancelled" else "failed"
                self._fail(
                    message,
                    report.message,
                    status=status,
                    kind=str(details.get("kind") or errors.name_of(report.error_type).value),
                    exit_code=details.get("exit_code"),
                    output="".join(self._output),
                    facts={**msgspec.to_builtins(report), **details},
                )
            case TaskUpdate(status="cancelled"):
                text = payload.message or "cancelled"
                self._fail(message, text, status="cancelled", kind="cancelled", facts={"message": text})
            case TaskUpdate():
                self._progress(message, payload, fields)

    def _progress(self, message: Message, update: TaskUpdate, fields: dict[str, Any]) -> None:
        if update.output:
            self._output.append(update.output)
        data: dict[str, Any] = msgspec.to_builtins(mapping.progress_in(update, fields))
        data["status"] = update.status or "in_progress"
        if update.message:
            data.setdefault("step", {"name": update.message})
        if not update.output:
            data.pop("output", None)
        if "file" in fields:
            data["file"] = fields["file"]
        self._tell("paused" if update.status == "paused" else "progress", message, data, fields.get("agent_id"))

    def _fail(self, message: Message, text: str, *, status: str, facts: dict[str, Any], **more: Any) -> None:
        self._tell(status, message, {"fault": facts})
        self.fail(failed(text, task_id=self.task_id, status=status, facts=facts, **more))

    def _tell(self, kind: str, message: Message, data: dict[str, Any], agent: Any = None) -> None:
        agent = str(agent) if agent else message.sender if message.sender != HUB else None
        self.tell(kind, data, at=message.timestamp.isoformat(), agent=agent)


class AgentmsgClient(ConnectedClient[Call, Session]):
    """`Client` in agentmsg. `dial` makes a pipe; `name` is the client's id at the hub."""

    protocol = mapping.PROTOCOL

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
        decided = self._cancels[id] = asyncio.get_running_loop().create_future()
        try:
            while not decided.done():
                if self._session is not None:
                    update = TaskUpdate(task_id=task_id, status="cancelled", message=reason or "")
                    self._session.send(update, id=id, lane=task_id, priority="high")
                again = asyncio.ensure_future(self._runtime.sleep(SEND_AGAIN))
                await asyncio.wait({decided, again}, return_when=asyncio.FIRST_COMPLETED)
                again.cancel()
            decided.result()
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
            self._session.send(call.assignment, id=call.id, at=call.at, to=call.to, lane=call.task_id, **call.metadata)

    # --- the connection ---

    def _new_link(self) -> Session:
        return Session(self._dial(), self._runtime, self._name, self._inbox)

    async def _connect(self, link: Session) -> None:
        await link.open()

    def _attach(self, link: Session) -> None:
        self._session = link
        link.send(Register(agent_id=self._name))
        for call in list(self._untaken.values()):
            self._say(call)

    def _detach(self) -> None:
        self._session = None

    async def _listen(self, link: Session) -> None:
        for arrived in await link.receive():
            if isinstance(arrived, Accepted):
                self._accepted(arrived)
            else:
                self._received(link, arrived)

    async def _beat(self, interval: float) -> None:
        while True:
            await self._runtime.sleep(interval)
            if self._session is not None:
                self._session.send(Heartbeat(agent_id=self._name))

    def _accepted(self, accepted: Accepted) -> None:
        for id in accepted.ids:
            if (call := self._untaken.get(id)) is not None:
                self._taken(call)
            if (decided := self._cancels.get(id)) is not None and not decided.done():
                decided.set_result(None)

    def _received(self, session: Session, arrival: Arrival) -> None:
        message, payload = arrival.message, arrival.message.payload
        about = message.answers or ""
        if isinstance(payload, ErrorReport) and about in self._untaken:
            self._refused(self._untaken[about], payload)
        elif isinstance(payload, ErrorReport) and about in self._cancels:
            decided = self._cancels[about]
            if not decided.done():
                decided.set_exception(_raised(payload))
        elif (call := self._calls.get(routing.task(message) or "")) is not None:
            self._taken(call)
            call.receive(message, arrival.tree)
        elif isinstance(payload, Welcome):
            if self._beating is not None:
                self._beating.cancel()
            self._beating = self._start(self._beat(payload.heartbeat_interval_ms / 1000))
        elif isinstance(payload, TaskAssignment):
            self._decline(session, payload.task.task_id)
        if arrival.receipt is not None:
            session.acknowledge(arrival.receipt)

    def _refused(self, call: Call, report: ErrorReport) -> None:
        """The hub did not accept the request: for good, or for now."""
        if errors.is_retryable(report) and call.tries < MOST_TRIES:
            call.tries += 1
            self._start(self._say_later(call, SEND_AGAIN * 2 ** (call.tries - 2)))
            return
        self._refuse(call, _raised(report))

    def _fail_all(self, error: Exception) -> None:
        super()._fail_all(error)
        for decided in self._cancels.values():
            if not decided.done():
                decided.set_exception(error)

    def _decline(self, session: Session, task_id: str) -> None:
        """An agent assigned a task to this client."""
        id = self._runtime.mint()
        error = errors.new_report(
            ErrorType.VALIDATION_ERROR,
            f"{self._name} gives out work and does none",
            error_id=id,
            agent_id=self._name,
            task_id=task_id,
            details={"retryable": False, "supported_types": ()},
        )
        session.send(TaskFailed(task_id=task_id, error=error), id=id, lane=task_id)


def _raised(report: ErrorReport) -> DragomanError:
    details = report.context.details
    if report.error_type is ErrorType.AUTHENTICATION_ERROR:
        return NotAllowed(report.message)
    if details.get("kind") == "conflict":
        return Conflict(report.message)
    kind = str(details.get("kind") or errors.name_of(report.error_type).value)
    return refused(report.message, kind=kind, facts=details)

"""What all forge connections share, WebSockets and child processes alike: rate limits, logs, the bus.

One bucket for each principal, over all its connections (D9). Beyond it the hub refuses a request with RATE_LIMITED and
drops an event, and one line in the agent's log says how many, about once a second.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import msgspec

from dragoman.core.commands import WriteLog
from dragoman.core.ids import AgentId, Instant, TaskId
from dragoman.core.model.agents import Agent
from dragoman.core.ports import Files, Intake, Store
from dragoman.core.queries.tasks import PERSONAL
from dragoman.messages import error_table
from dragoman.messages.faults import Fault, Refused
from dragoman.messages.tasks import LogEntry
from dragoman.protocols.forge import codec, mapping
from dragoman.protocols.forge.errors import error_out
from dragoman.protocols.forge.ratelimit import Bucket
from dragoman.protocols.forge.types import REQUEST_SECONDS, AgentStatus
from dragoman.server.forge.bus import Bus
from dragoman.server.forge.outbound import stamp
from dragoman.server.handler import Handler
from dragoman.server.limits import Limits

LONGEST_LINE = 16 * 1024
"""Characters of a log line that are kept with a task."""
MOST_LINES = 500
"""Log lines of one agent that may wait for their commit."""
REPORT_SECONDS = 1.0


class LogSink(Protocol):
    """Where an agent's log lines go: level, message, context; `taskId` in the context, if the line named a task."""

    def __call__(self, level: str, message: str, context: dict[str, Any], /) -> None: ...


class AgentLog(Protocol):
    """One agent's own log (`supervisor.child_log.ChildLog`), which outlives its connections."""

    def add(self, at: Instant, stream: str, message: str, *, level: str, context: dict[str, Any]) -> object: ...


class ForgeHandler(Handler):
    """`process_status` is what a supervisor knows of an agent's process, where it has one; `agent_log` is the log of an
    agent that is no child."""

    protocol = mapping.PROTOCOL

    def __init__(
        self,
        hub: Intake,
        store: Store,
        *,
        files: Files,
        bus: Bus,
        limits: Limits | None = None,
        rate: Bucket | None = None,
        request_seconds: float = REQUEST_SECONDS,
        process_status: Callable[[AgentId], AgentStatus | None] = lambda agent: None,
        agent_log: Callable[[AgentId], AgentLog | None] = lambda agent: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(hub, store, limits=limits or Limits())
        self.files: Files = files
        self.bus = bus
        self.request_seconds = request_seconds
        self.process_status = process_status
        self.agent_log = agent_log
        self.clock = clock
        self.dropped = 0
        self._rate = rate or Bucket()
        self._buckets: dict[AgentId, Bucket] = {}

    def encode_refusal(self, fault: Fault, *, agent: Agent | None = None, context: Any = None) -> bytes:
        mark = stamp(self.hub.mint(), self.hub.now())
        return codec.write(codec.failure(None, error_out(fault), mark))

    def status_of(self, fault: Fault) -> int:
        return error_table.TABLE[fault.kind].api

    def admit(self, agent: AgentId) -> bool:
        """Whether this agent may send one more message now."""
        bucket = self._buckets.get(agent)
        now = self.clock()
        if bucket is None:
            bucket = msgspec.structs.replace(self._rate, at=now)
        self._buckets[agent], granted = bucket.take(now)
        if not granted:
            self.dropped += 1
        return bool(granted)

    def wait(self, agent: AgentId) -> float:
        """Seconds until it may send the next one."""
        bucket = self._buckets.get(agent)
        return 0.0 if bucket is None else bucket.wait(self.clock())


class Excess:
    """What one connection sent beyond its rate, as one line of the log."""

    def __init__(self, log: LogSink) -> None:
        self._log = log
        self._requests = 0
        self._events = 0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def fresh(self) -> bool:
        """Whether nothing was dropped since the last line about it."""
        return self._timer is None

    def count(self, *, event: bool) -> None:
        if event:
            self._events += 1
        else:
            self._requests += 1
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(REPORT_SECONDS, self.report)

    def report(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        requests, events, self._requests, self._events = self._requests, self._events, 0, 0
        if requests or events:
            message = f"too many messages a second: {requests} requests refused, {events} events dropped"
            self._log("warn", message, {"refused": requests, "dropped": events, "reason": "RATE_LIMITED"})


class TaskLog:
    """A log sink for agents that are no children: the hub keeps their lines with the task they work on.

    Lines are gathered while a commit is under way, so that many lines cost one. A line that belongs to no task (the
    agent has none, or several and the line names none, or it names one that is not its own) goes to the agent's log.
    """

    def __init__(self, hub: Intake, agent: AgentId, agent_log: AgentLog | None = None) -> None:
        self._hub = hub
        self._agent = agent
        self._agent_log = agent_log
        self._lines: list[tuple[TaskId, LogEntry]] = []
        self._busy = False

    def __call__(self, level: str, message: str, context: dict[str, Any], /) -> None:
        named = context.get("taskId")
        held = self._hub.load_of(self._agent)
        task = TaskId(named) if type(named) is str else held[0] if len(held) == 1 else None
        text = message if len(message) <= LONGEST_LINE else f"{message[:LONGEST_LINE]} …"
        entry = LogEntry(at=self._hub.now(), level=level, message=text, context=context)
        if task is None or len(self._lines) >= MOST_LINES:
            self._note(entry)
            return
        self._lines.append((task, entry))
        if not self._busy:
            self._busy = True
            asyncio.get_running_loop().call_soon(self._send)

    def _note(self, entry: LogEntry) -> None:
        if self._agent_log is None:
            return
        agent = self._hub.agent(self._agent)
        if agent is not None and agent.does_personal_work:
            entry = msgspec.structs.replace(entry, message=PERSONAL, context={})
        self._agent_log.add(Instant(entry.at), "event", entry.message, level=entry.level, context=entry.context)

    def _send(self) -> None:
        if not self._lines:
            self._busy = False
            return
        task = self._lines[0][0]
        lines = tuple(line for about, line in self._lines if about == task)
        self._lines = [(about, line) for about, line in self._lines if about != task]
        note = WriteLog(principal=self._agent, protocol=mapping.PROTOCOL, task_id=task, lines=lines)
        self._hub.enqueue_then(note, partial(self._kept, lines))

    def _kept(self, lines: tuple[LogEntry, ...], outcome: Any, refusal: Refused | None) -> None:
        if refusal is not None:  # the task is over, or not this agent's
            for entry in lines:
                self._note(entry)
        asyncio.get_running_loop().call_soon(self._send)

"""The running task, as its handler sees it.

What a handler reports goes through here to the reporter; what the hub sends about the task is here as state: cancelled,
held, answered. `SyncTask` is the same for a plain function in a thread: each method waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from msgspec import UNSET, UnsetType

from dragoman.messages.tasks import Context, ToolResult, ToolUse
from dragoman.sdk import messages
from dragoman.sdk.blocking import Blocking, waits
from dragoman.sdk.errors import Reject
from dragoman.sdk.peers import Handoff, HandoffReason, Handover, Help, HelpKind, Urgency
from dragoman.sdk.work.outcome import clean, data_of, encoded, text_of
from dragoman.sdk.work.running_task import RunningTask

if TYPE_CHECKING:
    from dragoman.sdk.conversation.peer_requests import PeerRequests
    from dragoman.sdk.work.reporter import Reporter

HANDOFF_DEADLINE = 60.0
"""Seconds that others have to take a task over."""


CallNext: TypeAlias = Callable[["Task"], Awaitable[Any]]
Middleware: TypeAlias = Callable[["Task", CallNext], Awaitable[Any]]
"""What runs around every handler: `await call_next(task)` runs the next one, and in the end the handler."""


class Facts:
    __slots__ = ("_running",)

    def __init__(self, running: RunningTask) -> None:
        self._running = running

    @property
    def id(self) -> str:
        return self._running.id

    @property
    def type(self) -> str:
        return self._running.type

    @property
    def request_id(self) -> str:
        """The request that gives this work: the same whenever the hub gives it again, another one after a retry by a
        person. A key for what must be done once elsewhere."""
        return self._running.requests[0]

    @property
    def input(self) -> dict[str, Any]:
        """The input as it came."""
        return self._running.input

    @property
    def cancelled(self) -> bool:
        """Whether the task was cancelled. A coroutine is cancelled by itself; a plain function should look here."""
        return self._running.cancelled

    @property
    def withdrawn(self) -> bool:
        """Whether the hub took the task back. Where it did not, but the task is `cancelled`, this agent stops, and will
        be given the task again."""
        return self._running.withdrawn

    @property
    def handed_to(self) -> str | None:
        """The agent that has the task after a handoff. Reports from here are then dropped."""
        return self._running.handed_to

    @property
    def trace_id(self) -> str:
        """The trace this work belongs to: 32 hex characters."""
        return self._running.trace_id

    @property
    def attempt(self) -> int:
        """1 at first; more when the hub had to give the work out again."""
        return self._running.work.attempt or 1

    @property
    def retries(self) -> int:
        """How often the SDK ran the handler again within this attempt (`RetryPolicy`)."""
        return self._running.retries

    @property
    def files(self) -> tuple[messages.File, ...]:
        """The files that came with the work: `name` (for display only), `mime_type`, `data`."""
        return self._running.work.files

    @property
    def context(self) -> dict[str, Any]:
        """The metadata of the task, and its `thread`, if it has one."""
        work = self._running.work
        request = work.request
        metadata = {} if request.context is None else request.context.metadata
        if request.handover is not None and request.handover.metadata:
            metadata = {**metadata, **request.handover.metadata}
        return metadata if work.thread is None else {**metadata, "thread": work.thread}

    @property
    def history(self) -> tuple[dict[str, Any], ...]:
        """The past events of the task, where the protocol has them: `timestamp`, `event_type`, `details`, …"""
        request = self._running.work.request
        handover, context = request.handover, request.context or Context()
        past = () if handover is None else handover.whole_history
        return past or tuple(context.history)

    @property
    def handover(self) -> Handover | None:
        """Which agent handed the task over, and why; None if none did."""
        handover = self._running.work.request.handover
        if handover is None:
            return None
        return Handover(
            from_agent=handover.source or "",
            reason=(handover.reason or "").upper(),
            error=handover.error,
            recovery_attempts=tuple(handover.recovery_attempts or ()),
            parts=tuple(handover.parts or ()),
        )

    @property
    def is_held(self) -> bool:
        """Whether a person paused it."""
        return self._running.is_held

    def used(self, *, tokens: float = 0, cost_usd: float = 0) -> None:
        """Count what the work has used: sent with the result, and charged to budgets (agentmsg)."""
        usage = self._running.usage or {"tokens_used": 0, "cost_usd": 0}
        self._running.usage = {"tokens_used": usage["tokens_used"] + tokens, "cost_usd": usage["cost_usd"] + cost_usd}

    def reject(self, reason: str) -> Reject:
        """The exception that refuses the task: `raise task.reject("declined by a person")`."""
        return Reject(reason)


class Task(Facts):
    """The task that a handler works on: its facts, and the ways to report on it.

        @agent.on("deploy")
        async def deploy(task: Task, service: str) -> str:
            await task.progress(10, "building")
            if await task.ask(f"Deploy {service}?", options=["yes", "no"]) == "no":
                raise task.reject("declined by a person")
            return "deployed"

    What the handler returns is the result. An exception that it raises is a failure, and `task.reject(…)` a refusal.
    """

    __slots__ = ("_peer_requests", "_reporter")

    def __init__(self, reporter: Reporter, peer_requests: PeerRequests, running: RunningTask) -> None:
        super().__init__(running)
        self._reporter = reporter
        self._peer_requests = peer_requests

    @property
    def held(self) -> asyncio.Event:
        """Set while a person holds the task."""
        return self._running.held

    @property
    def released(self) -> asyncio.Event:
        """Set while no person holds the task."""
        return self._running.released

    async def progress(self, percent: float, step: str | None = None, output: str | None = None) -> None:
        """Report how far the work is, at which step, and the output since the last report."""
        try:
            fits = 0 <= percent <= 100
        except TypeError:
            fits = False
        if not fits:
            raise ValueError(f"progress is a percentage from 0 to 100, not {percent!r}")
        running = self._running
        running.percent = round(percent)
        if step is not None and (step := text_of("a step", step)) != running.step:
            running.step = step
            running.step_number += 1
        await self._reporter.report(self._running, text_of("output", output or ""))

    async def log(self, text: str) -> None:
        """Add a line to the task's output."""
        text = text_of("a line of the log", text)
        await self._reporter.report(self._running, text if text.endswith("\n") else text + "\n")

    async def text(self, chunk: str) -> None:
        """Stream a piece of the answer; pieces are joined as they are."""
        if chunk := text_of("a piece of the answer", chunk):
            self._running.answer_pieces.append(chunk)
            await self._reporter.report(self._running, chunk)

    async def think(self, text: str) -> None:
        """Report what the agent is thinking: shown, but not part of the answer."""
        if text := text_of("a thought", text):
            await self._reporter.report(self._running, thinking=text)

    async def tool_use(self, name: str, input: Any = None, *, id: str | None = None) -> str:
        """Report that a tool is used, with what input; returns the id for `tool_result`."""
        name = text_of("a tool's name", name)
        id = id or self._reporter.mint()
        use = ToolUse(id=id, name=name, input=data_of(f"the input of {name}", input))
        await self._reporter.report(self._running, tool_use=use)
        return id

    async def tool_result(self, id: str, output: Any, *, is_error: bool = False) -> None:
        """Report what a tool returned: text, or anything with a JSON form."""
        text = clean(output) if isinstance(output, str) else encoded("what a tool gave", output).decode()
        await self._reporter.report(self._running, tool_result=ToolResult(id=id, output=text, is_error=is_error))

    async def send_file(self, name: str, data: bytes, mime_type: str = "application/octet-stream") -> None:
        """Send a file to the caller. Raises if it is too large for the protocol or the hub."""
        if not isinstance(data, bytes | bytearray | memoryview):
            raise TypeError(f"the data of a file is bytes, not {type(data).__name__}")
        name, mime_type = text_of("a file's name", name), text_of("a file's type", mime_type)
        await self._reporter.send_file(self._running, messages.File(name, mime_type, bytes(data)))

    async def ask(
        self,
        question: str,
        *,
        options: Sequence[Any] = (),
        timeout: float | None = None,
        default: Any | UnsetType = UNSET,
    ) -> Any:
        """Ask a person and wait for the answer, for as long as it takes: `await task.ask("Restart prod?")`.

        After `timeout` seconds the hub answers with `default`, or None. If the agent restarts while it waits, the
        handler runs again from its start and gets every earlier answer at the same place: so ask before you do what
        must not be done twice.
        """
        if isinstance(options, str):
            raise TypeError(f"options are a list of answers, not one text: options=[{options!r}]")
        answers = data_of("the options of a question", tuple(options))
        if default is not UNSET:
            default = data_of("the default of a question", default)
        return await self._reporter.ask(
            self._running, text_of("a question", question), tuple(answers), timeout, default
        )

    async def help(
        self,
        question: str,
        *,
        help_type: HelpKind = "TECHNICAL_GUIDANCE",
        to: str | None = None,
        urgency: Urgency = "medium",
        deadline: datetime | timedelta | float | None = None,
        attempted: Sequence[str] = (),
        error: BaseException | str | None = None,
    ) -> Help:
        """Ask another agent for help, and wait for the answer (agentmsg).

        The hub finds an agent that helps with `help_type`, and in the end a person; `to` names an agent. `deadline` is
        a time, or how long. Answers survive a restart as those of `ask` do.
        """
        return await self._peer_requests.help(
            self._running, question, help_type, to, urgency, deadline, tuple(attempted), error
        )

    async def handoff(
        self,
        to: str | None = None,
        reason: HandoffReason = "LOAD_BALANCING",
        *,
        context: dict[str, Any] | None = None,
        capabilities: Sequence[str] = (),
        deadline: datetime | timedelta | float = HANDOFF_DEADLINE,
        error: BaseException | str | None = None,
    ) -> Handoff:
        """Hand this task over to another agent: `to`, or one that the hub finds (agentmsg).

        `context` is added to the task's metadata. Until an agent accepts, the task stays here. Once one has accepted,
        return: the result is the other agent's, and what this handler returns is ignored.
        """
        return await self._peer_requests.handoff(
            self._running, to, reason, context or {}, tuple(capabilities), deadline, error
        )

    async def checkpoint(self) -> None:
        """Wait here while a person has paused the task."""
        while self.is_held:
            await self.released.wait()


T = TypeVar("T")


class SyncTask(Facts, Blocking[Task]):
    """The task of a handler that is a plain function: `Task`, with methods that wait until they are done.

        @agent.on("resize")
        def resize(task: SyncTask, width: int) -> str:
            task.progress(50, "resizing")
            return "done"

    Each method raises `Reject` once the task was cancelled.
    """

    def __init__(self, task: Task, running: RunningTask, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(running)
        self._asynchronous = task
        self._loop = loop

    progress = waits(Task.progress)
    log = waits(Task.log)
    text = waits(Task.text)
    think = waits(Task.think)
    tool_use = waits(Task.tool_use)
    tool_result = waits(Task.tool_result)
    send_file = waits(Task.send_file)
    ask = waits(Task.ask)
    help = waits(Task.help)
    handoff = waits(Task.handoff)
    checkpoint = waits(Task.checkpoint)

    def _wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        if self.cancelled:
            coroutine.close()
            raise Reject("the task was cancelled")
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

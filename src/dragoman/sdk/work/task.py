"""The work in hand, as its handler sees it.

Everything a handler reports goes through here to the task runner; everything the hub says about the work arrives here
as state: cancelled, held, answered. `sync_task` has the same for handlers that are plain functions in a thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeAlias

from msgspec import UNSET, UnsetType

from dragoman.sdk import messages
from dragoman.sdk.errors import Reject
from dragoman.sdk.peers import Handoff, HandoffReason, Help, HelpKind, Urgency
from dragoman.sdk.work.facts import Facts
from dragoman.sdk.work.outcome import clean, data_of, encoded, text_of

if TYPE_CHECKING:
    from dragoman.sdk.work.reporter import Reporter
    from dragoman.sdk.work.running_task import RunningTask

HANDOFF_DEADLINE = 60.0
"""Seconds that others have to take a task over."""


CallNext: TypeAlias = Callable[["Task"], Awaitable[Any]]
Middleware: TypeAlias = Callable[["Task", CallNext], Awaitable[Any]]
"""What runs around every handler: `await call_next(task)` runs the next one, and in the end the handler."""


class Task(Facts):
    """One piece of work. Handlers read and speak."""

    __slots__ = ("_reporter",)

    def __init__(self, reporter: Reporter, running: RunningTask) -> None:
        super().__init__(running)
        self._reporter = reporter

    @property
    def held(self) -> asyncio.Event:
        """Set while a person holds the task."""
        return self._running.held

    @property
    def released(self) -> asyncio.Event:
        """Set while nobody holds the task."""
        return self._running.released

    async def progress(self, percent: float, step: str | None = None, output: str | None = None) -> None:
        """Tell how far the work is, at which step, and what it has put out since the last time."""
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
        """Say a piece of the answer, as it comes; pieces are joined as they are."""
        if chunk := text_of("a piece of the answer", chunk):
            self._running.said.append(chunk)
            await self._reporter.report(self._running, chunk)

    async def think(self, text: str) -> None:
        """Tell what the agent is thinking: shown, but not part of the answer."""
        if text := text_of("a thought", text):
            await self._reporter.report(self._running, thinking=text)

    async def tool_use(self, name: str, input: Any = None, *, id: str | None = None) -> str:
        """Tell that a tool is used, with what input; returns the id by which its result is told."""
        name = text_of("a tool's name", name)
        use = messages.ToolUse(id or self._reporter.mint(), name, data_of(f"the input of {name}", input))
        await self._reporter.report(self._running, tool_use=use)
        return use.id

    async def tool_result(self, id: str, output: Any, *, is_error: bool = False) -> None:
        """Tell what a tool gave: text, or anything with a JSON form."""
        text = clean(output) if isinstance(output, str) else encoded("what a tool gave", output).decode()
        await self._reporter.report(self._running, tool_result=messages.ToolResult(id, text, is_error))

    async def send_file(self, name: str, data: bytes, mime_type: str = "application/octet-stream") -> None:
        """Give a file to whoever asked for the work. Raises where it is too large for the protocol, or for the hub."""
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
        """Ask a person and wait for the answer, however long it takes and whoever restarts meanwhile.

        After `timeout` seconds the hub answers with `default`, or with None where there is none. If the agent restarts
        while it waits, the handler runs again from its start and gets every earlier answer at the same place: ask
        before doing what must not be done twice.
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
        """Ask another agent for help, or whoever can, and wait for the answer (agentmsg).

        The hub finds somebody who helps with `help_type`, and in the end a person; `to` names an agent. `deadline` is a
        time, or how long. Answers survive a restart as those of `ask` do.
        """
        return await self._reporter.peer_requests.help(
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
        """Have another agent go on with this task: `to`, or whoever can (agentmsg).

        `context` goes with it, beside what is known already. Until somebody accepts, the task stays here. Once it is
        accepted, return: the result is no longer ours to give, and whatever the handler returns is ignored.
        """
        return await self._reporter.peer_requests.handoff(
            self._running, to, reason, context or {}, tuple(capabilities), deadline, error
        )

    def used(self, *, tokens: float = 0, cost_usd: float = 0) -> None:
        """Count what the work has used up: told with the result, and held against budgets (agentmsg)."""
        usage = self._running.usage or {"tokens_used": 0, "cost_usd": 0}
        self._running.usage = {"tokens_used": usage["tokens_used"] + tokens, "cost_usd": usage["cost_usd"] + cost_usd}

    async def checkpoint(self) -> None:
        """A good place to stop: waits here while a person holds the task."""
        while self.is_held:
            await self.released.wait()

    def reject(self, reason: str) -> Reject:
        """The exception to raise to say no: `raise task.reject("declined by a person")`."""
        return Reject(reason)

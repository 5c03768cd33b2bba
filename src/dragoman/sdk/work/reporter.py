"""Reports on running tasks: progress, pieces of the answer, thoughts, tools, files, signs of life, questions.

All but bare progress must arrive, so the outbox keeps it until the hub has it. Progress alone is sent once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from msgspec import UNSET, UnsetType

from dragoman.messages.files import FileRef
from dragoman.messages.tasks import Ask, Progress, Step, ToolResult, ToolUse
from dragoman.sdk.errors import NotSupported, Reject
from dragoman.sdk.links import Bring, LinkDown
from dragoman.sdk.messages import PRIVATE, File, Outcome, OutgoingMessage, Question, Report
from dragoman.sdk.runtime import Runtime, backoff
from dragoman.sdk.work.journal import Answered, Journal
from dragoman.sdk.work.outbox import Outbox
from dragoman.sdk.work.outcome import clean
from dragoman.sdk.work.running_task import RunningTask, Slots

log = logging.getLogger("dragoman.sdk")

MOST_UNCONFIRMED = 8
"""Reports of one task that the hub has not confirmed; the handler waits before its next one. Less than the number of
message ids by which the hub recognises repetitions."""
LONG_OUTPUT = 200_000
SIGN_DELAY = 0.05


class Reporter:
    """Sends the reports and questions of all tasks of a task runner."""

    def __init__(
        self,
        outbox: Outbox,
        journal: Journal,
        runtime: Runtime,
        slots: Slots,
        peer_message_accepted: Callable[[str], None],
        bring: Bring | None = None,
    ) -> None:
        self._peer_message_accepted = peer_message_accepted
        self._bring = bring
        self._slots = slots
        self._outbox = outbox
        self._journal = journal
        self._runtime = runtime
        self._reports: dict[str, RunningTask] = {}

    async def report(
        self,
        task: RunningTask,
        output: str = "",
        *,
        thinking: str | None = None,
        tool_use: ToolUse | None = None,
        tool_result: ToolResult | None = None,
        file: FileRef | None = None,
        data: bytes | None = None,
    ) -> None:
        """Report progress, and what comes with it. A report with content must arrive, so the handler waits for room."""
        output = clean(output)
        must_arrive = bool(output or thinking or tool_use or tool_result or file)
        if task.handed_to is not None:
            return  # its new owner reports on it
        while must_arrive and task.unconfirmed >= MOST_UNCONFIRMED:
            if task.cancelled:
                raise Reject("the task was cancelled")
            task.room = task.room or asyncio.Event()
            task.room.clear()
            await task.room.wait()
        if len(output) > LONG_OUTPUT:  # it may travel in blocks, which are counted per step
            task.step_number += 1
        content = Progress(
            status="running",
            percent=task.percent,
            step=_step(task),
            output=output or None,
            thinking=thinking,
            tool_use=tool_use,
            tool_result=tool_result,
            file=file,
        )
        message = self._message(task, content, data)
        if output:
            task.output_pieces.append(output)
        if must_arrive:
            task.unconfirmed += 1
            self._reports[message.id] = task
            self._outbox.enqueue(message)
        else:
            self._outbox.send_once(message)
        self.spoke(task)
        await self._outbox.drain()

    async def send_file(self, task: RunningTask, file: File) -> None:
        if self._bring is not None:
            id = await self._brought(task, file, self._bring)
            await self.report(task, file=_reference(file, id))
            return
        protocol = self._outbox.protocol_capabilities
        if not protocol.largest_file:
            raise NotSupported(
                f"{protocol.name} carries no files: put {file.name!r} where others can fetch it, and return where"
            )
        if len(file.data) > protocol.largest_file:
            raise ValueError(
                f"{file.name!r} has {len(file.data)} bytes; {protocol.name} carries {protocol.largest_file}"
            )
        await self.report(task, file=_reference(file), data=file.data)

    async def _brought(self, task: RunningTask, file: File, bring: Bring) -> str:
        """Upload a file; retries until the hub has it."""
        failures = 0
        while True:
            if task.cancelled:
                raise Reject("the task was cancelled")
            try:
                return await bring(file)
            except LinkDown as down:
                log.warning("%r did not reach the hub (%s); it is brought again", file.name, down)
            await self._runtime.sleep(backoff(failures, self._runtime.chance()))
            failures += 1

    def sign_of_life(self, task: RunningTask) -> None:
        """Report that the task is alive. Not while it waits for an answer or a person holds it: no timeout runs
        then."""
        if task.asking is None and not task.waits and not task.is_held:
            content = Progress(status="running", percent=task.percent, step=_step(task))
            self._outbox.send_once(self._message(task, content))
            self.spoke(task)

    def sign_of_life_soon(self, task: RunningTask) -> None:
        """Send a sign of life after the handler had its turn: the handler may report something by then."""
        sent = task.messages_sent
        self._runtime.later(SIGN_DELAY, lambda: self._sign_unless_reported(task, sent))

    def _sign_unless_reported(self, task: RunningTask, sent: int) -> None:
        is_running = task.execution is not None and not task.execution.done()
        if is_running and not task.cancelled and task.messages_sent == sent:
            self.sign_of_life(task)

    def mint(self) -> str:
        return self._runtime.mint()

    def spoke(self, task: RunningTask) -> None:
        self._outbox.acknowledge_by_message(task)
        task.messages_sent += 1
        task.last_sign = self._runtime.monotonic()

    def _message(self, task: RunningTask, content: Progress, data: bytes | None = None) -> Report:
        id, at = self._runtime.mint(), self._runtime.now()
        return Report(id=id, at=at, correlation=task.correlation, content=content, number=task.step_number, data=data)

    def accepted(self, id: str) -> None:
        """The hub has a message of the agent."""
        message = self._outbox.settle(id)
        if type(message) is Outcome:
            self._journal.settle(id)
        elif type(message) is OutgoingMessage:
            self._peer_message_accepted(id)
        elif type(message) is Report:
            task = self._reports.pop(id, None)
            if task is not None:
                task.unconfirmed -= 1
                if task.room is not None:
                    task.room.set()

    async def ask(
        self,
        task: RunningTask,
        question: str,
        options: tuple[Any, ...],
        timeout: float | None,
        default: Any | UnsetType,
    ) -> Any:
        """The recorded answer to a question, or a person's."""
        recorded = self.recorded(task, question)
        if recorded is not None:
            return recorded.answer
        if PRIVATE in task.correlation.about:
            raise NotSupported(
                "only the two agents can read messages under an end-to-end contract, so no person can be asked:"
                " reject the task with what is missing"
            )
        async with task.turn:  # one question at a time
            return await self._put(task, question, options, timeout, default)

    def recorded(self, task: RunningTask, question: str) -> Answered | None:
        """The answer to this question from an earlier run of the handler."""
        place, task.asked = task.asked, task.asked + 1
        if place < len(task.answers):
            recorded = task.answers[place]
            if recorded.question in (None, question):
                return recorded
            del task.answers[place:]  # the handler asks other things than the last time: these answers are void
        return None

    async def _put(
        self,
        task: RunningTask,
        question: str,
        options: tuple[Any, ...],
        timeout: float | None,
        default: Any | UnsetType,
    ) -> Any:
        query = Question(
            id=self._runtime.mint(),
            at=self._runtime.now(),
            correlation=task.correlation,
            ask=Ask(
                question=question,
                options=options,
                timeout_seconds=timeout,
                default=None if default is UNSET else default,
                has_default=default is not UNSET,
            ),
            percent=task.percent,
        )
        task.asking, task.answer = query, asyncio.get_running_loop().create_future()
        async with self.away(task):
            self._outbox.enqueue(query)
            self.spoke(task)
            try:
                answered = await task.answer
            finally:
                task.asking = None
                self._outbox.settle(query.id)
        task.answers.append(answered)
        return answered.answer

    @asynccontextmanager
    async def away(self, task: RunningTask) -> AsyncIterator[None]:
        """Around a wait: another task may run meanwhile, and the time does not count for the handler."""
        left, deadline = self._runtime.monotonic(), task.deadline
        task.deadline = None
        self._slots.leave(task)
        try:
            yield
        except Exception:
            await self._slots.back(task)
            raise
        else:
            await self._slots.back(task)
        finally:
            task.last_sign = self._runtime.monotonic()
            if deadline is not None:
                task.deadline = deadline + task.last_sign - left


def _step(task: RunningTask) -> Step | None:
    return Step(number=task.step_number, name=task.step) if task.step else None


def _reference(file: File, id: str = "") -> FileRef:
    """A file of a report; without an id where its bytes travel with it."""
    return FileRef(id=id, name=file.name, mime_type=file.mime_type, size=len(file.data), sha256="")

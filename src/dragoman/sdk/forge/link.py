"""An agent's link in forge, over pipes or a WebSocket.

    the engine sends    forge                                        the hub sends           the engine receives
    ------------------  -------------------------------------------  ----------------------  --------------------
    Report              event:progress                               notify:task-assigned    Assignment
    - output, file      request:update-task running, in pieces       notify:task-cancelled   Cancel
    Question            request:ask-user                             notify:task-paused      Pause
    Outcome             request:update-task completed or failed      notify:task-resumed     Resume
    Decline             request:update-task failed                   response to ask-user    Answer
                                                                     response:success        Accepted
                                                                     response:error          Refused
                                                                     notify:shutdown         Shutdown (a child only)

Output must arrive, and no event is answered: so it goes in requests, whose repetition under the same id the hub
recognises. An agent that is no child goes on working after a shutdown: the link ends, and the next one finds a new hub.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

import msgspec

from dragoman.messages.faults import Kind
from dragoman.protocols.forge import mapping
from dragoman.protocols.forge import types as forge
from dragoman.protocols.forge.errors import Code, decline_out, failure_out, is_retryable
from dragoman.protocols.forge.types import Failure, Message, Response, Stamp, Success
from dragoman.sdk import trace
from dragoman.sdk.errors import DragomanError, NotAllowed
from dragoman.sdk.forge.session import LARGEST, Declined, HungUp, Session, TooLong, Wire
from dragoman.sdk.links import Introduction, LinkDown, ProtocolCapabilities
from dragoman.sdk.messages import (
    Accepted,
    Answer,
    Assignment,
    Cancel,
    Correlation,
    Decline,
    File,
    Inbound,
    Outbound,
    Outcome,
    Pause,
    Question,
    Refused,
    Report,
    Resume,
    Shutdown,
)
from dragoman.sdk.runtime import Runtime

log = logging.getLogger("dragoman.sdk")

PROTOCOL_CAPABILITIES = ProtocolCapabilities(name="forge", largest_file=(LARGEST - 64 * 1024) // 4 * 3)
PIECE = 128 * 1024
"""Characters of output in one message: even if all of them are written as escapes it fits."""
GRACE_MARGIN = 0.9
"""Of the time that the hub gives a child to end, so that it ends by itself."""


class ForgeLink:
    """`links.Link` in forge. `is_child`: the hub started this process, and the agent ends with it."""

    def __init__(self, wire: Wire, runtime: Runtime, *, is_child: bool = False) -> None:
        self._runtime = runtime
        self._is_child = is_child
        self._received: list[Inbound] = []
        self._news = asyncio.Event()
        self._end: DragomanError | None = None
        self._reading: asyncio.Task[None] | None = None
        self._fetching: dict[str, asyncio.Task[None]] = {}
        self._steps: dict[str, int] = {}
        self._begun: set[str] = set()
        self.session = Session(wire, runtime)

    @property
    def protocol_capabilities(self) -> ProtocolCapabilities:
        return PROTOCOL_CAPABILITIES

    async def open(self, who: Introduction) -> None:
        await self.session.open()
        self._reading = asyncio.get_running_loop().create_task(self._read())
        register = forge.Register(
            agent_id=None if self._is_child else who.agent_id,  # the hub knows which agent it started
            name=who.agent_id,
            work_types=who.work_types,
            version=who.version,
            max_concurrent=who.concurrency,
        )
        self.session.request(register, self._registered)

    async def receive(self) -> Sequence[Inbound]:
        while not self._received:
            if self._end is not None:
                raise self._end
            self._news.clear()
            await self._news.wait()
        received, self._received = self._received, []
        return received

    def acknowledge(self, receipt: str) -> None:
        """The receipt of work is its task: that the agent has begun is progress, unless it reports more at once."""
        if not self._begun:
            asyncio.get_running_loop().call_soon(self._acknowledge)
        self._begun.add(receipt)

    def _acknowledge(self) -> None:
        begun, self._begun = self._begun, set()
        for task_id in begun:
            self.session.event(forge.Progress(task_id=task_id))

    def send(self, message: Outbound) -> None:
        self._begun.discard(message.correlation.task_id)
        match message:
            case Report():
                self._report(message)
            case Question():
                self._ask(message)
            case Outcome():
                self._finish(message)
            case Decline():
                self._update(message, message.id, status="failed", error=decline_out(message.fault, message.sentence))
            case _:
                raise AssertionError("agents of forge do not converse")

    async def drain(self) -> None:
        await self.session.drain()

    def quiesce(self) -> None:
        """The hub pushes; what comes now is left to it."""

    async def close(self) -> None:
        chores = [chore for chore in (self._reading, *self._fetching.values()) if chore is not None]
        for chore in chores:
            chore.cancel()
        await asyncio.gather(*chores, return_exceptions=True)
        await self.session.close()

    # --- in ---

    async def _read(self) -> None:
        try:
            while True:
                for notice in await self.session.notices():
                    self._notice(notice)
        except HungUp as gone:
            self._receive(Shutdown(reason=str(gone), grace=None if gone.hears else 0.0, hears=False))
        except DragomanError as error:
            self._fail(error)
        except Exception as error:
            log.exception("a message of the hub could not be handled")
            self._fail(LinkDown(f"{type(error).__name__}: {error}"))

    def _receive(self, message: Inbound) -> None:
        self._received.append(message)
        self._news.set()

    def _fail(self, error: DragomanError) -> None:
        self._end = error
        self._news.set()

    def _registered(self, response: Response) -> None:
        if isinstance(response, Success):
            return
        if response.error.code == Code.UNAUTHORIZED:
            self._fail(NotAllowed(response.error.message))
        else:  # an orchestrator that knows no such request gives out work all the same
            log.info("not registered: %s", response.error.message)

    def _notice(self, notice: Message) -> None:
        match notice.payload:
            case forge.TaskAssigned() as assigned:
                self._assigned(notice, assigned)
            case forge.TaskCancelled(task_id=task_id, reason=reason):
                if (fetching := self._fetching.get(task_id)) is not None:
                    fetching.cancel()
                self._receive(Cancel(task_id=task_id, reason=reason))
            case forge.TaskPaused(task_id=task_id):
                self._receive(Pause(task_id=task_id))
            case forge.TaskResumed(task_id=task_id):
                self._receive(Resume(task_id=task_id))
            case forge.Shutdown(reason=reason, grace_period=ms) if self._is_child:
                self._receive(Shutdown(reason=reason, grace=ms / 1000 * GRACE_MARGIN))
            case forge.Shutdown(reason=reason):
                log.info("the hub stops: %s", reason)
            case _:
                log.debug("%s is not for an agent", notice.type)

    def _assigned(self, notice: Message, assigned: forge.TaskAssigned) -> None:
        id, task = assigned.task_id, assigned.task
        if task is not None and not task.get("files"):
            self._receive(self._assignment(notice, id, mapping.task_in(task)))
        elif id not in self._fetching:
            self._fetching[id] = asyncio.get_running_loop().create_task(self._fetch(notice, id, task))
            self._fetching[id].add_done_callback(lambda _: self._fetching.pop(id, None))

    async def _fetch(self, notice: Message, task_id: str, tree: dict[str, Any] | None) -> None:
        """What did not come with the assignment: the task itself, its files."""
        try:
            if tree is None:
                tree = (await self.session.ask(forge.GetTask(task_id=task_id))).get("task")
                if type(tree) is not dict:
                    raise ValueError("a task is an object")
            task = mapping.task_in(tree)
            files = [await self._file(task_id, file) for file in task.files or ()]
        except (Declined, ValueError, msgspec.ValidationError) as error:
            log.warning("task %s was assigned, but cannot be fetched: %s", task_id, error)
            return
        self._receive(self._assignment(notice, task_id, task, tuple(files)))

    async def _file(self, task_id: str, file: forge.FileView) -> File:
        data = b""
        while True:
            answer = await self.session.ask(forge.GetFile(task_id=task_id, file_id=file.id, offset=len(data)))
            piece = msgspec.convert(answer, forge.FilePiece)
            came = mapping.data_in(piece.data)
            data += came
            if not came or len(data) >= piece.size:
                return File(file.name, file.mime_type, data)

    def _assignment(
        self, notice: Message, task_id: str, task: forge.TaskView, files: tuple[File, ...] = ()
    ) -> Assignment:
        """Assignments with one request id are the same work; where the hub names none, each is a new one."""
        traceparent = notice.meta.get("traceparent")
        span = trace.parse(traceparent)
        return Assignment(
            correlation=Correlation(
                task_id=task_id,
                request_id=task.request_id or notice.id,
                trace_id=self._runtime.mint().replace("-", "") if span is None else span.trace_id,
                sender=task.submitted_by or "",
            ),
            type=task.type,
            request=mapping.request_in(task),
            receipt=task_id,
            attempt=task.attempt,
            traceparent=traceparent if span is not None else None,
            thread=task.thread or None,
            files=files,
        )

    # --- out ---

    def _report(self, report: Report) -> None:
        content, task_id = report.content, report.correlation.task_id
        progress = mapping.fraction_out(content.percent)
        if content.file is not None:
            name = content.file.name[:200] or "file"
            file = mapping.attachment_out(name, content.file.mime_type, report.data or b"")
            self._update(report, report.id, status="running", progress=progress, file=file)
            return
        is_new_step = content.step is not None and self._steps.get(task_id) != report.number
        if is_new_step or not content.output:
            self._progress(report)
        if content.output:
            *first, last = _pieces(content.output)
            self._send_pieces(report, first)
            self._update(report, report.id, status="running", output=last, progress=progress)

    def _progress(self, report: Report) -> None:
        """All but the output. No event is acknowledged: it has arrived when it has left."""
        self._steps[report.correlation.task_id] = report.number
        payload = mapping.progress_out(report.correlation.task_id, report.content)
        id = f"{report.id}/step" if report.content.output else report.id
        is_kept = report.has_content and not report.content.output

        def has_left() -> None:
            self._receive(Accepted((report.id,)))

        try:
            meta, then = _meta(report.correlation, report.id), has_left if is_kept else None
            self.session.event(payload, Stamp(id, report.at), meta, then)
        except TooLong as error:
            log.warning("a report of task %s is lost: %s", report.correlation.task_id, error)
            if is_kept:
                has_left()

    def _send_pieces(self, message: Outbound, pieces: Sequence[str]) -> None:
        for number, piece in enumerate(pieces):
            self._update(message, f"{message.id}/{number}", status="running", output=piece)

    def _finish(self, outcome: Outcome) -> None:
        self._steps.pop(outcome.correlation.task_id, None)
        if outcome.failure is not None:
            self._update(outcome, outcome.id, status="failed", error=failure_out(outcome.failure))
        elif outcome.result_json:
            try:
                result = msgspec.json.decode(outcome.result_json)
                self._update(outcome, outcome.id, status="completed", result=result, output=_output_beside(outcome))
            except TooLong as error:
                why = f"the result cannot be sent: {error}; return text, which is split, or store it and return where"
                self._update(outcome, outcome.id, status="failed", error={"message": why})
        elif len(outcome.output) > PIECE:
            self._send_pieces(outcome, _pieces(outcome.output))
            self._update(outcome, outcome.id, status="completed")
        else:
            self._update(outcome, outcome.id, status="completed", output=outcome.output or None)

    def _update(self, message: Outbound, id: str, **fields: Any) -> None:
        def then(response: Response) -> None:
            if isinstance(response, Failure):
                self._refused(message.correlation, response)
            elif id == message.id:
                self._receive(Accepted((id,)))

        update = forge.UpdateTask(task_id=message.correlation.task_id, **fields)
        self.session.request(update, then, Stamp(id, message.at), _meta(message.correlation, message.id))

    def _ask(self, question: Question) -> None:
        ask, task_id = question.ask, question.correlation.task_id

        def then(response: Response) -> None:
            if isinstance(response, Success):
                answer = response.payload.get("answer")
            elif response.error.code == Code.TIMEOUT:  # no person answered in time
                answer = ask.default
            else:
                if response.error.details.get("reason") != Kind.CANCELLED:  # else a notice says that the task ended
                    self._refused(question.correlation, response)
                return
            self._receive(Answer(id=question.id, task_id=task_id, answer=answer))

        meta = _meta(question.correlation, question.id)
        self.session.request(mapping.ask_out(ask, task_id), then, Stamp(question.id, question.at), meta)

    def _refused(self, correlation: Correlation, response: Failure) -> None:
        error = response.error
        self._receive(Refused(request_id=correlation.request_id, reason=error.message, retryable=is_retryable(error)))


def _output_beside(outcome: Outcome) -> str | None:
    """What the handler put out beside its result. The hub may have lost the pieces with a process that is no more; if
    it has them, it recognises this as the same."""
    is_beside = outcome.output.encode() != outcome.result_json and len(outcome.output) <= PIECE
    return outcome.output if is_beside else None


def _pieces(output: str) -> list[str]:
    return [output[start : start + PIECE] for start in range(0, len(output), PIECE)]


def _meta(correlation: Correlation, id: str) -> dict[str, Any]:
    return {"traceparent": f"00-{correlation.trace_id}-{trace.span_id(id)}-01"}

"""An agent's words in forge, over pipes or a WebSocket.

    the engine says     forge says                                   the hub says            the engine hears
    ------------------  -------------------------------------------  ----------------------  --------------------
    Report              event:progress                               notify:task-assigned    Work
    - output, file      request:update-task running, in pieces       notify:task-cancelled   Cancel
    - thinking, tool    event:progress                               notify:task-paused      Hold
    Query               request:ask-user                             notify:task-resumed     Release
    Outcome             request:update-task completed or failed      response to ask-user    Reply
    Decline             request:update-task failed                   response:success        Accepted
                                                                     response:error          Refused
                                                                     notify:shutdown         Dismiss (a child only)

Output must arrive, and events are answered by nobody: so it travels in requests, whose repetition under the same id the
hub recognises. An agent elsewhere that hears of a shutdown works on; the link ends, and the next one finds a new hub.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import logging
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import UNSET

from dragoman.messages import tasks
from dragoman.messages.faults import Kind
from dragoman.messages.files import FileRef
from dragoman.protocols.forge import mapping
from dragoman.protocols.forge import types as forge
from dragoman.protocols.forge.errors import Code, is_retryable
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

UNTIL_ANSWERED_MS = 365 * 24 * 3600 * 1000.0
"""A question without a time would be given up as any request is (D8): who asks the SDK for none means none."""
ENDED_FIRST = "cancelled"
"""Why nobody answers a question any more whose task has ended."""

log = logging.getLogger("dragoman.sdk")

PROTOCOL_CAPABILITIES = ProtocolCapabilities(name="forge", largest_file=(LARGEST - 64 * 1024) // 4 * 3)
PIECE = 128 * 1024
"""Characters of output in one message: even if all of them are written as escapes it fits."""
GRACE_MARGIN = 0.9
"""Of the time we are given to end, so that the end is ours."""


class ForgeLink:
    """`links.Link` in forge. `is_child`: whoever started us is at the other end, and we end with it."""

    def __init__(self, wire: Wire, runtime: Runtime, *, is_child: bool = False) -> None:
        self._runtime = runtime
        self._is_child = is_child
        self._heard: list[Inbound] = []
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
        said = forge.Register(
            agent_id=None if self._is_child else who.agent_id,  # a child is who the hub started it as
            name=who.agent_id,
            work_types=who.work_types,
            version=who.version,
            max_concurrent=who.concurrency,
        )
        self.session.request(said, self._registered)

    async def receive(self) -> Sequence[Inbound]:
        while not self._heard:
            if self._end is not None:
                raise self._end
            self._news.clear()
            await self._news.wait()
        heard, self._heard = self._heard, []
        return heard

    def acknowledge(self, receipt: str) -> None:
        """The receipt of work is its task: that somebody has begun is progress, unless more is said at once."""
        if not self._begun:
            asyncio.get_running_loop().call_soon(self._acknowledge)
        self._begun.add(receipt)

    def _acknowledge(self) -> None:
        begun, self._begun = self._begun, set()
        for task_id in begun:
            self.session.event(forge.Progress(task_id=task_id))

    def send(self, message: Outbound) -> None:
        self._begun.discard(message.correlation.task_id)
        if type(message) is Report:
            self._report(message)
        elif type(message) is Question:
            self._ask(message)
        elif type(message) is Outcome:
            self._finish(message)
        else:
            assert type(message) is Decline
            self._update(message, message.id, status="failed", error=_declined(message))

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
            self._tell(Shutdown(reason=str(gone), grace=None if gone.hears else 0.0, hears=False))
        except DragomanError as error:
            self._fail(error)
        except Exception as error:
            log.exception("what the hub said could not be dealt with")
            self._fail(LinkDown(f"{type(error).__name__}: {error}"))

    def _tell(self, word: Inbound) -> None:
        self._heard.append(word)
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
        said = notice.payload
        match said:
            case forge.TaskAssigned():
                self._assigned(notice, said)
            case forge.TaskCancelled():
                fetching = self._fetching.get(said.task_id)
                if fetching is not None:
                    fetching.cancel()
                self._tell(Cancel(task_id=said.task_id, reason=said.reason))
            case forge.TaskPaused():
                self._tell(Pause(task_id=said.task_id))
            case forge.TaskResumed():
                self._tell(Resume(task_id=said.task_id))
            case forge.Shutdown() if self._is_child:
                self._tell(Shutdown(reason=said.reason, grace=said.grace_period / 1000 * GRACE_MARGIN))
            case forge.Shutdown():
                log.info("the hub stops: %s", said.reason)
            case _:
                log.debug("%s is not for us", notice.type)

    def _assigned(self, notice: Message, said: forge.TaskAssigned) -> None:
        if said.task is not None and not said.task.get("files"):
            self._tell(_work(notice, said.task_id, said.task, self._runtime))
        elif said.task_id not in self._fetching:
            fetching = asyncio.get_running_loop().create_task(self._fetch(notice, said))
            self._fetching[said.task_id] = fetching
            fetching.add_done_callback(lambda _: self._fetching.pop(said.task_id, None))

    async def _fetch(self, notice: Message, said: forge.TaskAssigned) -> None:
        """What was not told with the assignment: the task itself, the files that came with it."""
        try:
            task = said.task or _object((await self.session.ask(forge.GetTask(task_id=said.task_id))).get("task"))
            files = [await self._file(said.task_id, file) for file in task.get("files") or ()]
        except (Declined, TypeError, ValueError, KeyError) as error:
            log.warning("task %s was assigned, but cannot be seen: %s", said.task_id, error)
            return
        self._tell(_work(notice, said.task_id, task, self._runtime, tuple(files)))

    async def _file(self, task_id: str, file: dict[str, Any]) -> File:
        data = b""
        while True:
            piece = await self.session.ask(forge.GetFile(task_id=task_id, file_id=file["id"], offset=len(data)))
            try:
                came = base64.b64decode(piece["data"], validate=True)
            except binascii.Error as error:
                raise ValueError(f"file {file['id']}: {error}") from None
            data += came
            if not came or len(data) >= int(piece.get("size") or 0):
                return File(str(file.get("name") or ""), str(file.get("mimeType") or ""), data)

    # --- out ---

    def _report(self, report: Report) -> None:
        content = report.content
        progress = mapping.fraction_out(content.percent)
        if content.file is not None:
            file = _file(content.file, report.data or b"")
            self._update(report, report.id, status="running", progress=progress, file=file)
            return
        is_new_step = content.step is not None and self._steps.get(report.correlation.task_id) != report.number
        if is_new_step or not content.output:
            self._progress(report)
        if content.output:
            *first, last = _pieces(content.output)
            self._put_out(report, first)
            self._update(report, report.id, status="running", output=last, progress=progress)

    def _progress(self, report: Report) -> None:
        """All but the output. Nobody says that it arrived: it has when it has left."""
        self._steps[report.correlation.task_id] = report.number
        said = mapping.progress_out(report.correlation.task_id, report.content)
        id = f"{report.id}/step" if report.content.output else report.id
        is_kept = report.has_content and not report.content.output

        def has_left() -> None:
            self._tell(Accepted((report.id,)))

        try:
            meta, then = _meta(report.correlation, report.id), has_left if is_kept else None
            self.session.event(said, stamp=Stamp(id, report.at), meta=meta, then=then)
        except TooLong as error:
            log.warning("what task %s tells is lost: %s", report.correlation.task_id, error)
            if is_kept:
                has_left()

    def _put_out(self, message: Outbound, pieces: Sequence[str]) -> None:
        for number, piece in enumerate(pieces):
            self._update(message, f"{message.id}/{number}", status="running", output=piece)

    def _finish(self, outcome: Outcome) -> None:
        self._steps.pop(outcome.correlation.task_id, None)
        if outcome.failure is not None:
            self._update(outcome, outcome.id, status="failed", error=_failed(outcome.failure))
        elif outcome.result_json:
            try:
                result = msgspec.json.decode(outcome.result_json)
                self._update(outcome, outcome.id, status="completed", result=result, output=_words(outcome))
            except TooLong as error:
                words = f"the result cannot be told: {error}; return text, which is split, or store it and return where"
                self._update(outcome, outcome.id, status="failed", error={"message": words})
        elif len(outcome.output) > PIECE:
            self._put_out(outcome, _pieces(outcome.output))
            self._update(outcome, outcome.id, status="completed")
        else:
            self._update(outcome, outcome.id, status="completed", output=outcome.output or None)

    def _update(self, message: Outbound, id: str, **fields: Any) -> None:
        said = forge.UpdateTask(task_id=message.correlation.task_id, **fields)

        def then(response: Response) -> None:
            if isinstance(response, Failure):
                self._refused(message.correlation, response)
            elif id == message.id:
                self._tell(Accepted((id,)))

        self.session.request(said, then, stamp=Stamp(id, message.at), meta=_meta(message.correlation, message.id))

    def _ask(self, query: Question) -> None:
        ask, seconds = query.ask, query.ask.timeout_seconds
        said = forge.AskUser(
            question=ask.question,
            options=ask.options,
            timeout=UNTIL_ANSWERED_MS if seconds is None else max(1.0, seconds * 1000),
            default=ask.default if ask.has_default else UNSET,
            task_id=query.correlation.task_id,
        )

        def then(response: Response) -> None:
            if isinstance(response, Success):
                self._answer(query, response.payload.get("answer"))
            elif response.error.code == Code.TIMEOUT:  # nobody answered in time
                self._answer(query, ask.default)
            elif (response.error.details or {}).get("reason") != ENDED_FIRST:  # a notice of its own says so
                self._refused(query.correlation, response)

        self.session.request(said, then, stamp=Stamp(query.id, query.at), meta=_meta(query.correlation, query.id))

    def _answer(self, query: Question, answer: Any) -> None:
        self._tell(Answer(id=query.id, task_id=query.correlation.task_id, answer=answer))

    def _refused(self, correlation: Correlation, response: Failure) -> None:
        error = response.error
        self._tell(Refused(request_id=correlation.request_id, reason=error.message, retryable=is_retryable(error)))


def _file(file: FileRef, data: bytes) -> forge.Attachment:
    text = base64.b64encode(data).decode()
    return forge.Attachment(filename=file.name[:200] or "file", mime_type=file.mime_type, data=text)


def _work(
    notice: Message, task_id: str, task: dict[str, Any], runtime: Runtime, files: tuple[File, ...] = ()
) -> Assignment:
    """The task as work. Orders with one request id are the same work; where the hub names none, each is a new one."""
    attempt, context, thread = task.get("attempt"), task.get("context"), task.get("thread")
    traceparent = notice.meta.get("traceparent")
    span = trace.parse(traceparent)
    return Assignment(
        correlation=Correlation(
            task_id=task_id,
            request_id=str(task.get("requestId") or notice.id),
            trace_id=runtime.mint().replace("-", "") if span is None else span.trace_id,
            sender=str(task.get("submittedBy") or ""),
        ),
        type=str(task.get("type") or ""),
        request=tasks.Request(
            input=task.get("payload"),
            answer=task.get("answer", UNSET),
            question=task["question"] if isinstance(task.get("question"), str) else None,
            context=tasks.fitting(tasks.Context, context),
            handover=tasks.handoff_in(task.get("handover")),
        ),
        receipt=task_id,
        attempt=attempt if type(attempt) is int else None,
        traceparent=traceparent if span is not None else None,
        thread=thread if isinstance(thread, str) else None,
        files=files,
    )


def _words(outcome: Outcome) -> str | None:
    """What the handler said beside its result. The hub may have lost the pieces with a process that is no more; if it
    has them, it knows this for the same."""
    has_words = outcome.output.encode() != outcome.result_json and len(outcome.output) <= PIECE
    return outcome.output if has_words else None


def _failed(failure: tasks.Failure) -> dict[str, Any]:
    """The words first; what is beside them as details."""
    known = failure.report or {}
    words = (failure.output or "").rstrip().rpartition("\n")[2] or str(known.get("message") or "the work failed")
    return {"message": words, "details": {"type": known.get("type"), "exit_code": failure.exit_code}}


def _declined(decline: Decline) -> dict[str, Any]:
    fault = decline.fault
    field = fault.field and fault.field.replace("parameters", "payload", 1)
    details: dict[str, Any] = {"reason": "invalid"} | ({"field": field} if field else {})
    if fault.kind is Kind.UNSUPPORTED_WORK:
        details |= {"reason": "unsupported_work", **fault.facts}
    return {"code": Code.INVALID_REQUEST, "message": decline.sentence, "details": details}


def _pieces(output: str) -> list[str]:
    return [output[start : start + PIECE] for start in range(0, len(output), PIECE)]


def _meta(correlation: Correlation, id: str) -> dict[str, Any]:
    return {"traceparent": f"00-{correlation.trace_id}-{trace.span_id(id)}-01"}


def _object(value: Any) -> dict[str, Any]:
    if type(value) is not dict:
        raise TypeError("a task is an object")
    return value

"""A client that speaks forge itself: an agent that submits tasks and follows them.

A task is submitted again with the same request id until the hub has answered. From then on the hub reports how it goes.
Reports are lost while the link is down, so over every new link the client looks at each open task: a task that ended
meanwhile ends here as well.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from msgspec import UNSET

from dragoman.protocols.forge import mapping
from dragoman.protocols.forge import types as forge
from dragoman.protocols.forge.errors import Code, is_retryable, task_error_in
from dragoman.protocols.forge.types import ErrorBody, Failure, Message, Response, Stamp, SubmitTask, TaskUpdated
from dragoman.sdk import trace
from dragoman.sdk.calling.calls import ConnectedClient, PendingCall
from dragoman.sdk.errors import (
    Conflict,
    DragomanError,
    Misconfigured,
    NotAllowed,
    NotFound,
    RequestRefused,
)
from dragoman.sdk.events import FINAL, TaskInfo, value_of
from dragoman.sdk.failures import failed, refused
from dragoman.sdk.forge.session import Session, Wire
from dragoman.sdk.messages import File
from dragoman.sdk.runtime import Runtime

#: The hub's options → forge's fields.
OPTIONS = {
    "name": "name",
    "description": "description",
    "dependencies": "dependencies",
    "parent": "parentId",
    "thread": "thread",
    "required_role": "requiredRole",
    "required_capabilities": "requiredCapabilities",
}
RETRY_DELAYS = (0.0, 1.0, 2.0, 4.0)
NO_SUCH_RECEIVER = "unavailable"
"""Why the hub refuses a request that names an agent, or a kind, which does not exist."""


class Call(PendingCall):
    """One call, and what the hub reported of it.

    A call is taken when the hub has named the task, and done when its end was reported, or seen. An output too long for
    one message comes in pieces before it, named after it: `D/1`, `D/2`, then `D` itself. Parts of the final output say
    in `_meta.part` which bytes they are.
    """

    def __init__(self, payload: SubmitTask, stamp: Stamp, traceparent: str | None) -> None:
        super().__init__("", stamp.id)
        self.payload = payload
        self.stamp = stamp
        self.traceparent = traceparent
        self.tries = 1
        self._seen: set[str] = set()
        self._pieces: dict[str, str] = {}
        self._parts: dict[int, str] = {}
        self._output: list[str] = []

    def updated(self, notice: Message, update: TaskUpdated) -> None:
        """The hub reports how it goes, or how it ended."""
        if notice.id in self._seen or self.done.done():
            return  # a redelivery
        self._seen.add(notice.id)
        part = notice.meta.get("part")
        if isinstance(part, list) and part and isinstance(part[0], int):
            if part[0] == 0:  # an earlier attempt may have broken off in the middle
                self._parts.clear()
            self._parts[part[0]] = update.output or ""
            if not update.final:
                return
            update = msgspec.structs.replace(update, output="".join(text for _, text in sorted(self._parts.items())))
        whole, slash, _ = notice.id.partition("/")
        if slash:
            self._pieces[whole] = self._pieces.get(whole, "") + (update.output or "")
            return
        output = self._pieces.pop(whole, "") + (update.output or "")
        at = notice.timestamp.isoformat()
        if update.final:
            self._end(update.status, at, update.result, output, update.error)
            return
        self._output.append(output)
        data: dict[str, Any] = msgspec.to_builtins(mapping.progress_in(update, output or None))
        if update.file is not None:
            data["file"] = update.file
        self.tell("progress", data, at=at)

    def looked_at(self, task: forge.TaskView) -> None:
        """The task as it is now. The hub reports its output so far by itself."""
        if task.status in FINAL and not self.done.done():
            self._output.clear()
            self._end(task.status, task.updated_at, task.result, task.output or "", task.error)

    def _end(self, status: str, at: str, result: Any, output: str, error: dict[str, Any] | None) -> None:
        output = output or "".join(self._output)
        if status == "completed":
            result = None if result is UNSET else result
            self.tell(status, {"output": output, "result": result}, at=at)
            self.finish(value_of(result, output))
            return
        reported = task_error_in(error or {})
        facts = reported.facts
        self.tell(status, {"output": output, "fault": {**facts, "message": reported.message}}, at=at)
        ended = failed(
            reported.message,
            task_id=self.task_id,
            status=status,
            kind=reported.kind,
            exit_code=facts.get("exit_code"),
            output=output,
            facts=facts,
        )
        self.fail(ended)


class ForgeClient(ConnectedClient[Call, Session]):
    """What `Client` does, in forge. `dial` makes a wire. A client that names itself (`id`) is refused with another
    agent's token."""

    protocol = "forge"

    def __init__(
        self,
        dial: Callable[[], Wire],
        runtime: Runtime,
        id: str | None = None,
        give_up_after: float | None = None,
    ) -> None:
        super().__init__(runtime, give_up_after)
        self._dial = dial
        self._id = id
        self._early: dict[str, list[Message]] = {}
        self._session: Session | None = None
        self._is_known: dict[str, str] = {}
        self._asked: dict[str, tuple[forge.Payload, Stamp, asyncio.Future[Response]]] = {}

    async def submit(self, target: str | None, work: str, given: Mapping[str, Any], options: Mapping[str, Any]) -> str:
        """Returns when the hub has it, durably."""
        self._check(options, {*OPTIONS, "priority", "hints", "files"})
        payload, span = _submission(work, dict(given), options), trace.current()
        for field in self._addresses(target):
            named = payload if target is None else msgspec.structs.replace(payload, **{field: target})
            call = Call(named, self._stamp(), None if span is None else span.traceparent)
            try:
                self._untaken[call.id] = call
                self._say(call)
                await self._until_taken(call)
            except RequestRefused as error:
                if field == "agent" and target not in self._is_known and error.kind == NO_SUCH_RECEIVER:
                    continue  # no agent is called so: perhaps a kind is
                raise
            if target is not None:
                self._is_known[target] = field
            return call.task_id
        raise AssertionError("every name is an agent's or a kind's")

    def _addresses(self, target: str | None) -> tuple[str, ...]:
        if target is None:
            return ("",)
        known = self._is_known.get(target)
        return ("agent", "kind") if known is None else (known,)

    async def cancel(self, task_id: str, reason: str | None) -> None:
        await self._ask(forge.CancelTask(task_id=task_id, reason=reason))

    async def task(self, task_id: str, wait: float = 0) -> TaskInfo:
        return _info(mapping.task_in((await self._ask(forge.GetTask(task_id=task_id))).get("task")))

    # --- calls ---

    def _say(self, call: Call) -> None:
        if self._session is not None:
            meta = {"traceparent": call.traceparent} if call.traceparent else None
            self._session.request(call.payload, lambda response: self._answered(call, response), call.stamp, meta)

    def _answered(self, call: Call, response: Response) -> None:
        if call.id not in self._untaken or call.taken.done():
            return
        if isinstance(response, Failure):
            self._refused(call, response.error)
            return
        call.task_id = mapping.task_in(response.payload.get("task")).id
        self._calls[call.task_id] = call
        self._taken(call)
        for notice in self._early.pop(call.task_id, ()):
            call.updated(notice, notice.payload)

    def _refused(self, call: Call, error: ErrorBody) -> None:
        reason = error.details.get("reason")
        if is_retryable(error) and reason != NO_SUCH_RECEIVER and call.tries < len(RETRY_DELAYS):
            delay, call.tries = RETRY_DELAYS[call.tries], call.tries + 1
            self._start(self._say_later(call, delay))
            return
        self._refuse(call, _error(error))

    async def _ask(self, payload: forge.Payload) -> dict[str, Any]:
        """Over the next link, too, if this one breaks before the answer."""
        stamp = self._stamp()
        answered: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        self._asked[stamp.id] = payload, stamp, answered
        self._put(payload, stamp, answered)
        try:
            response = await answered
        finally:
            del self._asked[stamp.id]
        if isinstance(response, Failure):
            raise _error(response.error)
        return response.payload

    def _put(self, payload: forge.Payload, stamp: Stamp, answered: asyncio.Future[Response]) -> None:
        if self._session is not None:
            then = lambda response: None if answered.done() else answered.set_result(response)  # noqa: E731
            self._session.request(payload, then, stamp)

    def _look(self, link: Session, call: Call) -> None:
        """Whether it has ended without a report."""
        link.request(forge.GetTask(task_id=call.task_id), lambda response: self._looked(link, call, response))

    def _looked(self, link: Session, call: Call, response: Response) -> None:
        if isinstance(response, Failure) and is_retryable(response.error):
            self._start(self._look_later(link, call))
        elif not isinstance(response, Failure):
            call.looked_at(mapping.task_in(response.payload.get("task")))

    async def _look_later(self, link: Session, call: Call) -> None:
        await self._runtime.sleep(RETRY_DELAYS[1])
        if self._session is link and not call.done.done():
            self._look(link, call)

    def _fail_all(self, error: Exception) -> None:
        super()._fail_all(error)
        for _, _, answered in self._asked.values():
            if not answered.done():
                answered.set_exception(error)

    # --- the link ---

    def _new_link(self) -> Session:
        return Session(self._dial(), self._runtime)

    async def _connect(self, link: Session) -> None:
        await link.open()
        if self._id is not None:
            await self._register(link, self._id)

    async def _register(self, link: Session, id: str) -> None:
        """The client names its id before anything else; the hub compares it with the token's owner. If the hub cannot
        answer now, the client goes on: each call gets the same error."""
        answers: list[Response] = []
        link.request(forge.Register(agent_id=id), answers.append)
        while not answers:
            for notice in await link.notices():
                self._received(link, notice)
        answer = answers[0]
        if isinstance(answer, Failure) and not is_retryable(answer.error):
            raise _error(answer.error)

    def _attach(self, link: Session) -> None:
        """A new link: ask again what has no answer, and look at what may have ended meanwhile."""
        self._session = link
        for call in list(self._untaken.values()):
            self._say(call)
        for asked in list(self._asked.values()):
            self._put(*asked)
        for call in list(self._calls.values()):
            if not call.done.done():
                self._look(link, call)

    def _detach(self) -> None:
        self._session = None

    async def _listen(self, link: Session) -> None:
        for notice in await link.notices():
            self._received(link, notice)

    def _received(self, session: Session, notice: Message) -> None:
        match notice.payload:
            case TaskUpdated(task_id=task_id) as update:
                call = self._calls.get(task_id)
                if call is not None:
                    call.updated(notice, update)
                elif self._untaken:  # the report came before the response that names the task
                    self._early.setdefault(task_id, []).append(notice)
                if not self._untaken:
                    self._early.clear()
            case forge.TaskAssigned(task_id=task_id):
                why = {"code": Code.INVALID_REQUEST, "message": "this is a client: it asks for work and does none"}
                session.request(forge.UpdateTask(task_id=task_id, status="failed", error=why), lambda _: None)

    def _stamp(self) -> Stamp:
        return Stamp(self._runtime.mint(), self._runtime.now())


def _submission(work: str, given: dict[str, Any], options: Mapping[str, Any]) -> SubmitTask:
    fields = {field: options[name] for name, field in OPTIONS.items() if options.get(name)}
    priority = options.get("priority") or "normal"
    seconds = (options.get("hints") or {}).get("max_duration_seconds")
    if seconds is not None:
        fields["timeout"] = seconds * 1000
    files: tuple[File, ...] = tuple(options.get("files") or ())
    attachments = [msgspec.to_builtins(mapping.attachment_out(file.name, file.mime_type, file.data)) for file in files]
    fields |= {"attachments": attachments, "type": work, "payload": given}
    fields["priority"] = mapping.PRIORITIES.get(priority, priority)
    try:
        return msgspec.convert(fields, SubmitTask)
    except msgspec.ValidationError as error:
        raise Misconfigured(f"forge cannot send that: {error}") from None


def _error(error: ErrorBody) -> DragomanError:
    """What a refused request raises."""
    reason = error.details.get("reason")
    sentence = f"{error.message} ({error.code})"
    if error.code == Code.UNAUTHORIZED:
        return NotAllowed(sentence)
    if reason == "conflict":
        return Conflict(sentence)
    if error.code == Code.NOT_FOUND and reason != NO_SUCH_RECEIVER:
        return NotFound(sentence)
    fault = error.details.get("fault")
    message = fault.get("message") if isinstance(fault, dict) else None
    kind = reason if isinstance(reason, str) else error.code.lower()
    return refused(sentence, kind=kind, message=message, facts=error.details)


def _info(task: forge.TaskView) -> TaskInfo:
    error = task.error
    return TaskInfo(
        id=task.id,
        type=task.type,
        status=mapping.status_in(task.status),
        progress=round((task.progress or 0) * 100),
        agent=task.assigned_to,
        attempts=task.attempt or 0,
        waiting=task.waiting_for or None,
        input=None if task.payload is UNSET else task.payload,
        output=task.output or "",
        result=None if task.result is UNSET else task.result,
        error=None if error is None else {"message": error.get("message"), "kind": _kind(error), "facts": error},
        created_at=task.created_at,
        updated_at=task.updated_at,
    )


def _kind(error: dict[str, Any]) -> str | None:
    kind = (error.get("details") or {}).get("reason")
    return kind if isinstance(kind, str) else None

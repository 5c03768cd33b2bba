"""A client that speaks forge itself: an agent that submits tasks and follows them.

A task is submitted again with the same request id until the hub has answered. From then on the hub tells how it goes;
what was told while the link was down is lost, so over every new link each open task is looked at: whatever ended
meanwhile ends here as well.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from dragoman.protocols.forge import types as forge
from dragoman.protocols.forge.errors import Code, is_retryable
from dragoman.protocols.forge.types import ErrorBody, Failure, Message, Response, Stamp
from dragoman.sdk import trace
from dragoman.sdk.calling.calls import ConnectedClient
from dragoman.sdk.errors import (
    Conflict,
    DragomanError,
    Misconfigured,
    NotAllowed,
    NotFound,
    RequestRefused,
)
from dragoman.sdk.events import TaskInfo
from dragoman.sdk.failures import refused
from dragoman.sdk.forge.calls import Call
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
PRIORITIES = {"critical": 1, "high": 2, "normal": 3, "low": 4}
RETRY_DELAYS = (0.0, 1.0, 2.0, 4.0)
NOBODY = "unavailable"
"""Why a request is refused that names an agent, or a kind, which does not exist."""

#: forge's statuses → the hub's.
STATUSES = {"pending": "waiting", "retrying": "queued"}


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

    # --- what callers want ---

    async def submit(self, target: str | None, work: str, given: Mapping[str, Any], options: Mapping[str, Any]) -> str:
        """Returns when the hub has it, durably."""
        self._check(options, {*OPTIONS, "priority", "hints", "files"})
        said, traceparent = _submission(work, dict(given), options), _traceparent()
        for field in self._addresses(target):
            named = said if target is None else msgspec.structs.replace(said, **{field: target})
            call = Call(named, Stamp(self._runtime.mint(), self._runtime.now()), traceparent)
            try:
                task_id = await self._submit(call)
            except RequestRefused as error:
                if field == "agent" and target not in self._is_known and error.kind == NOBODY:
                    continue  # no agent is called so: perhaps a kind is
                raise
            if target is not None:
                self._is_known[target] = field
            return task_id
        raise AssertionError("every name is an agent's or a kind's")

    def _addresses(self, target: str | None) -> tuple[str, ...]:
        if target is None:
            return ("",)
        known = self._is_known.get(target)
        return ("agent", "kind") if known is None else (known,)

    async def _submit(self, call: Call) -> str:
        self._untaken[call.id] = call
        self._say(call)
        await self._until_taken(call)
        return call.task_id

    async def cancel(self, task_id: str, reason: str | None) -> None:
        await self._ask(forge.CancelTask(task_id=task_id, reason=reason))

    async def task(self, task_id: str, wait: float = 0) -> TaskInfo:
        return _info((await self._ask(forge.GetTask(task_id=task_id))).get("task") or {})

    # --- calls ---

    def _say(self, call: Call) -> None:
        if self._session is not None:
            meta = {"traceparent": call.traceparent} if call.traceparent else None
            self._session.request(
                call.said, lambda response: self._answered(call, response), stamp=call.stamp, meta=meta
            )

    def _answered(self, call: Call, response: Response) -> None:
        if call.id not in self._untaken or call.taken.done():
            return None
        if isinstance(response, Failure):
            return self._refused(call, response.error)
        task = response.payload.get("task")
        call.task_id = str(task["id"]) if isinstance(task, dict) and task.get("id") else ""
        self._calls[call.task_id] = call
        self._taken(call)
        for notice in self._early.pop(call.task_id, ()):
            call.hear(notice, notice.payload)
        return None

    def _refused(self, call: Call, error: ErrorBody) -> None:
        reason = error.details.get("reason")
        if is_retryable(error) and reason != NOBODY and call.tries < len(RETRY_DELAYS):
            delay, call.tries = RETRY_DELAYS[call.tries], call.tries + 1
            self._start(self._say_later(call, delay))
            return
        self._refuse(call, _error(error))

    async def _ask(self, payload: forge.Payload) -> dict[str, Any]:
        """Over the next link, too, if this one breaks before the answer."""
        stamp = Stamp(self._runtime.mint(), self._runtime.now())
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
            self._session.request(payload, then, stamp=stamp)

    def _look(self, link: Session, call: Call) -> None:
        """Whether it has ended unheard."""
        link.request(forge.GetTask(task_id=call.task_id), lambda response: self._looked(link, call, response))

    def _looked(self, link: Session, call: Call, response: Response) -> None:
        if isinstance(response, Failure) and is_retryable(response.error):
            self._start(self._look_later(link, call))
        else:
            call.look(response)

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
        """The client tells the hub its id before it says anything else; the hub compares it with the token's owner.
        A hub that cannot answer now does not keep the client from calling: it tells each call the same."""
        answers: list[Response] = []
        link.request(forge.Register(agent_id=id), answers.append)
        while not answers:
            for notice in await link.notices():
                self._hear(link, notice)
        answer = answers[0]
        if isinstance(answer, Failure) and not is_retryable(answer.error):
            raise _error(answer.error)

    def _attach(self, link: Session) -> None:
        """A new link: ask again what has no answer, and look at what may have ended unheard."""
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
            self._hear(link, notice)

    def _hear(self, session: Session, notice: Message) -> None:
        said = notice.payload
        if isinstance(said, forge.TaskUpdated):
            call = self._calls.get(said.task_id)
            if call is not None:
                call.hear(notice, said)
            elif self._untaken:  # the hub was quicker to tell of it than we to learn its name
                self._early.setdefault(said.task_id, []).append(notice)
            if not self._untaken:
                self._early.clear()
        elif isinstance(said, forge.TaskAssigned):
            why = {"code": Code.INVALID_REQUEST, "message": "this is a client: it asks for work and does none"}
            session.request(forge.UpdateTask(task_id=said.task_id, status="failed", error=why), lambda _: None)


def _submission(work: str, given: dict[str, Any], options: Mapping[str, Any]) -> forge.SubmitTask:
    said = {field: options[name] for name, field in OPTIONS.items() if options.get(name)}
    priority = options.get("priority") or "normal"
    seconds = (options.get("hints") or {}).get("max_duration_seconds")
    if seconds is not None:
        said["timeout"] = seconds * 1000
    files: tuple[File, ...] = tuple(options.get("files") or ())
    said["attachments"] = [
        {"filename": file.name, "mimeType": file.mime_type, "data": base64.b64encode(file.data).decode()}
        for file in files
    ]
    said |= {"type": work, "payload": given, "priority": PRIORITIES.get(priority, priority)}
    try:
        return msgspec.convert(said, forge.SubmitTask)
    except msgspec.ValidationError as error:
        raise Misconfigured(f"forge cannot say that: {error}") from None


def _traceparent() -> str | None:
    span = trace.current()
    return None if span is None else span.traceparent


def _error(error: ErrorBody) -> DragomanError:
    """What a refused request raises."""
    reason = error.details.get("reason")
    words = f"{error.message} ({error.code})"
    if error.code == Code.UNAUTHORIZED:
        return NotAllowed(words)
    if reason == "conflict":
        return Conflict(words)
    if error.code == Code.NOT_FOUND and reason != NOBODY:
        return NotFound(words)
    fault = error.details.get("fault")
    message = fault.get("message") if isinstance(fault, dict) else None
    kind = reason if isinstance(reason, str) else error.code.lower()
    return refused(words, kind=kind, message=message, facts=error.details)


def _info(task: dict[str, Any]) -> TaskInfo:
    error, progress = task.get("error"), task.get("progress")
    status = str(task.get("status") or "")
    return TaskInfo(
        id=str(task.get("id") or ""),
        type=str(task.get("type") or ""),
        status=STATUSES.get(status, status),
        progress=round(progress * 100) if isinstance(progress, int | float) else 0,
        agent=task.get("assignedTo"),
        attempts=int(task.get("attempt") or 0),
        waiting=task.get("waitingFor"),
        input=task.get("payload"),
        output=str(task.get("output") or ""),
        result=task.get("result"),
        error=None if error is None else {"message": error.get("message"), "kind": _kind(error), "facts": error},
        created_at=str(task.get("createdAt") or ""),
        updated_at=str(task.get("updatedAt") or ""),
    )


def _kind(error: dict[str, Any]) -> str | None:
    kind = (error.get("details") or {}).get("reason")
    return kind if isinstance(kind, str) else None

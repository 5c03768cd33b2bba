"""A client that speaks forge itself: an agent that submits tasks and follows them.

A task is submitted again with the same request id until the hub has answered. From then on the hub tells how it goes;
what was told while the link was down is lost, so over every new link each open task is looked at: whatever ended
meanwhile ends here as well.
"""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from dragoman.protocols.forge import types as forge
from dragoman.protocols.forge.errors import Code, is_retryable
from dragoman.protocols.forge.types import ErrorBody, Failure, Message, Response, Stamp
from dragoman.sdk import trace
from dragoman.sdk.calls_forge import Call
from dragoman.sdk.errors import (
    Conflict,
    DragomanError,
    HubUnreachable,
    Misconfigured,
    NotAllowed,
    NotFound,
    RequestRefused,
)
from dragoman.sdk.events import Question, TaskInfo
from dragoman.sdk.following import Calls
from dragoman.sdk.links import File, LinkDown, unreachable
from dragoman.sdk.talk_forge import Conversation, Declined, Wire
from dragoman.sdk.world import World, backoff

log = logging.getLogger("dragoman.sdk")

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


class ForgeClient(Calls[Call]):
    """What `Client` does, in forge. `dial` makes a wire."""

    def __init__(self, dial: Callable[[], Wire], world: World) -> None:
        self._dial = dial
        self._world = world
        self._calls: dict[str, Call] = {}
        self._untaken: dict[str, Call] = {}
        self._early: dict[str, list[Message]] = {}
        self._talk: Conversation | None = None
        self._online: asyncio.Task[None] | None = None
        self._later: set[asyncio.Task[None]] = set()
        self._is_known: dict[str, str] = {}

    async def open(self) -> None:
        """Connect; a hub that is not there is reported at once, one that goes away later is waited for."""
        talk = Conversation(self._dial(), self._world)
        try:
            await talk.open()
        except LinkDown as down:
            await talk.close()
            raise unreachable(down) from None
        self._talk = talk
        self._online = asyncio.get_running_loop().create_task(self._stay_online(talk))

    async def close(self) -> None:
        doing = [task for task in (self._online, *self._later) if task is not None]
        for task in doing:
            task.cancel()
        await asyncio.gather(*doing, return_exceptions=True)
        self._fail_all(HubUnreachable("the client was closed"))

    # --- what callers want ---

    async def submit(self, target: str | None, work: str, given: Mapping[str, Any], options: Mapping[str, Any]) -> str:
        """Returns when the hub has it, durably."""
        said, traceparent = _submission(work, dict(given), options), _traceparent()
        for field in self._addresses(target):
            named = said if target is None else msgspec.structs.replace(said, **{field: target})
            call = Call(named, Stamp(self._world.mint(), self._world.now()), traceparent)
            try:
                task_id = await self._submit(call)
            except RequestRefused as refused:
                if field == "agent" and target not in self._is_known and refused.kind == NOBODY:
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
        self._untaken[call.stamp.id] = call
        self._say(call)
        try:
            return await asyncio.shield(call.taken)
        except BaseException:
            self._forget(call)
            raise

    async def cancel(self, task_id: str, reason: str | None) -> None:
        await self._ask(forge.CancelTask(task_id=task_id, reason=reason))

    async def task(self, task_id: str, wait: float = 0) -> TaskInfo:
        return _info((await self._ask(forge.GetTask(task_id=task_id))).get("task") or {})

    async def questions(self, status: str | None) -> list[Question]:
        raise _no_word("list questions")

    async def answer(self, question_id: str, answer: Any) -> None:
        raise _no_word("answer a question")

    # --- calls ---

    def _say(self, call: Call) -> None:
        if self._talk is not None:
            meta = {"traceparent": call.traceparent} if call.traceparent else None
            self._talk.request(call.said, lambda response: self._answered(call, response), stamp=call.stamp, meta=meta)

    def _answered(self, call: Call, response: Response) -> None:
        if call.stamp.id not in self._untaken or call.taken.done():
            return None
        if isinstance(response, Failure):
            return self._refused(call, response.error)
        del self._untaken[call.stamp.id]
        task = response.payload.get("task")
        call.task_id = str(task["id"]) if isinstance(task, dict) and task.get("id") else ""
        self._calls[call.task_id] = call
        call.taken.set_result(call.task_id)
        for notice in self._early.pop(call.task_id, ()):
            call.hear(notice, notice.payload)
        return None

    def _refused(self, call: Call, error: ErrorBody) -> None:
        reason = error.details.get("reason")
        if is_retryable(error) and reason != NOBODY and call.tries < len(RETRY_DELAYS):
            delay, call.tries = RETRY_DELAYS[call.tries], call.tries + 1
            later = asyncio.get_running_loop().create_task(self._say_later(call, delay))
            self._later.add(later)
            later.add_done_callback(self._later.discard)
            return
        del self._untaken[call.stamp.id]
        call.taken.set_exception(_error(error))

    async def _say_later(self, call: Call, delay: float) -> None:
        await self._world.sleep(delay)
        if not call.taken.done():
            self._say(call)

    def _known(self, task_id: str) -> Call:
        call = self._calls.get(task_id)
        if call is None:
            raise Misconfigured(f"task {task_id} was not called for by this client, or its result was fetched already")
        return call

    def _forget(self, call: Call) -> None:
        self._untaken.pop(call.stamp.id, None)
        if self._calls.get(call.task_id) is call:
            del self._calls[call.task_id]
        call.abandon()

    def _fail_all(self, error: Exception) -> None:
        for call in [*self._untaken.values(), *self._calls.values()]:
            call.fail(error)
        self._untaken.clear()

    async def _ask(self, payload: forge.Payload) -> dict[str, Any]:
        if self._talk is None:
            raise HubUnreachable("no link to the hub at the moment")
        try:
            return await self._talk.ask(payload)
        except Declined as declined:
            raise _error(declined.error) from None

    # --- the link ---

    async def _stay_online(self, talk: Conversation) -> None:
        failures = 0
        try:
            while True:
                try:
                    while True:
                        for notice in await talk.notices():
                            self._hear(talk, notice)
                        failures = 0
                except LinkDown as down:
                    log.warning("no link to the hub (%s)", down)
                self._talk = None
                while self._talk is None:
                    await talk.close()
                    await self._world.sleep(backoff(failures, self._world.chance()))
                    failures += 1
                    talk = Conversation(self._dial(), self._world)
                    try:
                        await talk.open()
                        self._talk = talk
                    except LinkDown as down:
                        log.info("still no link to the hub (%s)", down)
                self._catch_up(talk)
        except DragomanError as error:
            self._fail_all(error)
        finally:
            self._talk = None
            await talk.close()

    def _catch_up(self, talk: Conversation) -> None:
        """A new link: ask again what has no answer, and look at what may have ended unheard."""
        for call in list(self._untaken.values()):
            self._say(call)
        for call in list(self._calls.values()):
            if not call.done.done():
                talk.request(forge.GetTask(task_id=call.task_id), call.look)

    def _hear(self, talk: Conversation, notice: Message) -> None:
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
            talk.request(forge.UpdateTask(task_id=said.task_id, status="failed", error=why), lambda _: None)


def _submission(work: str, given: dict[str, Any], options: Mapping[str, Any]) -> forge.SubmitTask:
    unknown = set(options) - {*OPTIONS, "priority", "hints", "files"}
    if unknown:
        raise Misconfigured(f"forge has no word for {', '.join(sorted(unknown))}")
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
    return RequestRefused(words, kind=reason if isinstance(reason, str) else error.code.lower(), facts=error.details)


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


def _no_word(what: str) -> Misconfigured:
    return Misconfigured(f"forge has no word to {what}: use a Client of the management API (an http:// address)")

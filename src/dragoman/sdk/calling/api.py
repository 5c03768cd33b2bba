"""A client of the management API, with the admin token.

Submitting is safe to repeat (it has an Idempotency-Key), waiting is a long poll, and following a task is a stream that
resumes where it broke off: no event is missed and none comes twice. If the hub was reached once and is gone for a
moment (a restart), the client waits up to `retry_for` seconds; if it was never reached, the client raises at once.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any, Protocol
from urllib.parse import quote

import httpx2
import msgspec

from dragoman.sdk import trace
from dragoman.sdk.address import Address
from dragoman.sdk.calling.backend import LONGEST_ABSENCE, HubRetries, TemporaryFailure, named
from dragoman.sdk.errors import Conflict, DragomanError, NotAllowed, NotFound, NotSupported
from dragoman.sdk.events import Event, Question, TaskInfo, event_of
from dragoman.sdk.failures import refused
from dragoman.sdk.network.http import http_client, listening
from dragoman.sdk.runtime import Runtime

V1 = "/api/v1"
WAIT = 60
OPTIONS = frozenset(
    {
        *("agent", "attachments", "budget", "deadline", "dependencies", "description", "hints", "kind", "name"),
        *("parent", "priority", "required_capabilities", "required_role", "thread"),
    }
)

#: HTTP status → what the SDK raises; anything else is `RequestRefused`.
RAISED: dict[int, type[DragomanError]] = {401: NotAllowed, 403: NotAllowed, 404: NotFound, 409: Conflict}


def _quoted(name: str) -> str:
    """A name as one part of a path, whatever is in it."""
    return quote(name, safe="")


class _SentEvent(msgspec.Struct, frozen=True, kw_only=True):
    task_id: str
    seq: int
    kind: str
    at: str | None = None
    agent: str | None = None
    body: dict[str, Any] = {}

    @property
    def typed(self) -> Event:
        return event_of(self.task_id, self.seq, self.kind, self.body, at=self.at, agent=self.agent)


class _Questions(msgspec.Struct, frozen=True):
    questions: tuple[Question, ...]
    next: str | None = None


class _Agent(msgspec.Struct, frozen=True):
    id: str
    kind: str | None = None
    work_types: tuple[str, ...] | None = None


class _Agents(msgspec.Struct, frozen=True):
    agents: tuple[_Agent, ...]


class _Named(msgspec.Struct, frozen=True):
    id: str
    name: str | None = None


class _Tasks(msgspec.Struct, frozen=True):
    tasks: tuple[_Named, ...]


class _Kept(msgspec.Struct, frozen=True):
    id: str


class _Credential(msgspec.Struct, frozen=True):
    token: str


class _Patient(Protocol):
    @property
    def give_up_after(self) -> float | None: ...


def client(who: _Patient, address: Address, runtime: Runtime) -> ApiClient:
    """The management API's row of `sdk.services`."""
    return ApiClient(address, runtime, retry_for=LONGEST_ABSENCE if who.give_up_after is None else who.give_up_after)


class ApiClient:
    """What `Client` does, over the management API."""

    def __init__(
        self,
        address: Address,
        runtime: Runtime,
        *,
        retry_for: float = LONGEST_ABSENCE,
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        self._runtime = runtime
        self._retries = HubRetries(address.base, runtime, retry_for)
        self._names: dict[str, str] = {}
        self._http = http_client(address, read=WAIT + 30.0, transport=transport)

    async def open(self) -> None:
        """Nothing to do before the first request."""

    async def close(self) -> None:
        await self._http.aclose()

    async def submit(
        self,
        target: str | None,
        work: str,
        given: Mapping[str, Any],
        options: Mapping[str, Any],
        key: str | None = None,
    ) -> str:
        """`key`: submitting again under the same key is the same task, also from another process."""
        if unknown := set(options) - OPTIONS:
            raise NotSupported(f"the management API has no option {named(unknown)}")
        body: dict[str, Any] = {"type": work, "input": given, **options}
        if target is None:
            return await self._as_part_of(options, body, key)
        sort = self._names.get(target) or await self._sort_of(target)
        try:
            task_id = await self._as_part_of(options, {**body, sort: target}, key)
        except DragomanError:
            self._names.pop(target, None)  # the name may be registered later, as an agent or as a kind
            raise
        self._names[target] = sort
        return task_id

    async def _as_part_of(self, options: Mapping[str, Any], body: Mapping[str, Any], key: str | None) -> str:
        span = trace.current()
        if span is None:
            return await self._submit(body, {}, key)
        headers = {"traceparent": span.traceparent}
        if "parent" in options:
            return await self._submit(body, headers, key)
        # A task that a handler submits is part of its own, so that a cancel reaches it, unless that is at another hub.
        try:
            return await self._submit({**body, "parent": span.task_id}, headers, key)
        except (NotFound, Conflict):
            return await self._submit(body, headers, key)

    async def _submit(self, body: Mapping[str, Any], headers: Mapping[str, str], key: str | None) -> str:
        answer = await self._ask(
            "POST", "/tasks", body=body, headers={"idempotency-key": key or self._runtime.mint(), **headers}
        )
        return msgspec.json.decode(answer, type=TaskInfo).id

    async def _sort_of(self, target: str) -> str:
        """Whether a name is an agent's or a kind's."""
        try:
            await self._ask("GET", f"/agents/{_quoted(target)}")
        except NotFound:
            return "kind"
        return "agent"

    async def result(self, task_id: str) -> Any:
        while True:
            info = await self.task(task_id, wait=WAIT)
            if info.is_final:
                return info.outcome()

    async def task(self, task_id: str, wait: float = 0) -> TaskInfo:
        params = {"wait": wait} if wait else None
        return msgspec.json.decode(await self._ask("GET", f"/tasks/{_quoted(task_id)}", params=params), type=TaskInfo)

    async def add_agent(self, agent_id: str, protocol: str, **fields: Any) -> str:
        """Add an agent, as `dragoman agent add` does, and return its token, which the hub shows only once."""
        answer = await self._ask("POST", "/agents", body={"agent_id": agent_id, "protocol": protocol, **fields})
        return msgspec.json.decode(answer, type=_Credential).token

    async def new_token(self, agent_id: str) -> str:
        """Give an agent a new token; the former one ends."""
        return msgspec.json.decode(
            await self._ask("POST", f"/agents/{_quoted(agent_id)}/token"), type=_Credential
        ).token

    async def work(self) -> list[tuple[str, str]]:
        """What agents of this hub do, each with the kind of agent that does it."""
        listed = msgspec.json.decode(await self._ask("GET", "/agents"), type=_Agents)
        return [(agent.kind or agent.id, work) for agent in listed.agents for work in agent.work_types or ()]

    async def upload(self, name: str, data: bytes, mime_type: str) -> str:
        """Keep a file at the hub, to attach it to a task; returns its id."""
        answer = await self._ask(
            "POST", "/files", content=data, params={"name": name}, headers={"content-type": mime_type}
        )
        return msgspec.json.decode(answer, type=_Kept).id

    async def find(self, name: str) -> str | None:
        """The id of the newest task of this name."""
        answer = await self._ask("GET", "/tasks", params={"q": name})
        listed = msgspec.json.decode(answer, type=_Tasks)
        return next((task.id for task in listed.tasks if task.name == name), None)

    async def download(self, task_id: str, file_id: str) -> bytes:
        """A file of a task."""
        return await self._ask("GET", f"/tasks/{_quoted(task_id)}/files/{_quoted(file_id)}")

    async def why(self, task_id: str) -> dict[str, Any]:
        """Why the task is in its state: `summary` is a sentence, `next` what to do, and there are the facts."""
        answer: dict[str, Any] = msgspec.json.decode(await self._ask("GET", f"/tasks/{_quoted(task_id)}/why"))
        return answer

    async def cancel(self, task_id: str, reason: str | None) -> None:
        await self._ask("POST", f"/tasks/{_quoted(task_id)}/cancel", body={"reason": reason} if reason else {})

    async def questions(self, status: str | None) -> list[Question]:
        found: list[Question] = []
        params = {"status": status} if status else {}
        while True:
            answer = await self._ask("GET", "/questions", params=params or None)
            page = msgspec.json.decode(answer, type=_Questions)
            found += page.questions
            if page.next is None:
                return found
            params = {**params, "cursor": page.next}

    async def answer(self, question_id: str, answer: Any) -> None:
        await self._ask("POST", f"/questions/{_quoted(question_id)}/answer", body={"answer": answer})

    async def events(self, task_id: str, after: int) -> AsyncIterator[Event]:
        """A task's events from `after` on, until the last one."""
        tries = self._retries.begin()
        while True:
            try:
                path, headers = (
                    f"{V1}/tasks/{_quoted(task_id)}/events",
                    {"last-event-id": str(after)} if after else None,
                )
                async with listening(self._http, path, check=self._check, headers=headers) as stream:
                    tries.reached()
                    async for sent in stream:
                        if sent.event == "end":
                            return
                        if not sent.id or not sent.data:
                            continue
                        event = msgspec.json.decode(sent.data, type=_SentEvent)
                        if event.seq <= after:
                            continue
                        after = event.seq
                        yield event.typed
                raise TemporaryFailure("the stream ended before the task did")
            except (httpx2.TransportError, TemporaryFailure) as error:
                await tries.again(error)

    # --- one request ---

    async def _ask(
        self,
        method: str,
        path: str,
        *,
        body: Mapping[str, Any] | None = None,
        content: bytes | None = None,
        params: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> bytes:
        sent = dict(headers or {})
        if body is not None:
            content = msgspec.json.encode(body)
            sent["content-type"] = "application/json"
        tries = self._retries.begin()
        while True:
            try:
                response = await self._http.request(method, V1 + path, content=content, params=params, headers=sent)
                self._check(response)
                return response.content
            except (httpx2.TransportError, TemporaryFailure) as error:
                await tries.again(error)

    def _check(self, response: httpx2.Response) -> None:
        self._retries.was_reached = True
        if response.is_success:
            return
        try:
            problem = msgspec.json.decode(response.content)
            detail, kind, facts = str(problem["detail"]), problem.get("kind"), problem.get("facts") or {}
            message = problem.get("message")
        except (msgspec.DecodeError, KeyError, TypeError):
            detail, kind, facts = f"the hub answered with {response.status_code}", None, {}
            message = None
        if response.status_code in (429, 502, 503, 504) and kind not in ("unavailable", "resources", "timeout"):
            raise TemporaryFailure(detail)
        raised = None if kind == "unavailable" else RAISED.get(response.status_code)
        raise refused(detail, kind=kind, message=message, facts=facts) if raised is None else raised(detail)

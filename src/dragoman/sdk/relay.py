"""A relay: an agent of one hub that has its work done by another hub. So a realm is an agent in another realm.

Above: the command `dragoman relay`, and programs. Below: `Agent`, which serves the hub *here*, and the client of the
management API of the hub *there*. Neither hub knows the other: what one of them asks of the relay, it may ask of any
agent, and there is no transaction over both.

    here: task, request id ──▶ relay ──▶ there: task under the key of that request id
          progress, output, tools, files, result ◀── its events
          question to a person ◀── question to a person
          answer ──▶ answer;  cancel ──▶ cancel

- *Once*: the request id here is the key there. A relay that starts again, or is given the same work again, comes to the
  task that it has there, and follows its events from the first.
- *No circles*: a relay offers what agents there do, but not what relays there do (agents of the kind `relay`), and it
  asks for a kind of agent there that is none: of several kinds that do the same work, the first by name.
- A pause here keeps the task; its work there goes on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any

from dragoman.sdk.address import Address
from dragoman.sdk.agent import Agent
from dragoman.sdk.calling.api import ApiClient
from dragoman.sdk.errors import Conflict, HubUnreachable, NotAllowed, NotFound
from dragoman.sdk.events import (
    Event,
    FileSent,
    LogWritten,
    Progress,
    QuestionAsked,
    Thinking,
    ToolReturned,
    ToolUsed,
)
from dragoman.sdk.runtime import Runtime, SystemRuntime, backoff
from dragoman.sdk.work.task import Task

log = logging.getLogger("dragoman.sdk")

KIND = "relay"
"""The kind of agent that a relay is at its hub."""

LOOK_EVERY = 60.0
"""Seconds between two looks at what the agents there do."""

LEFT_THERE = "left to the other hub"
"""The answer to a question that no person answered here: none is given there."""


class Relay:
    """One hub's work, as an agent of another hub.

    id        the agent's id here
    there     the management API of the other hub, with the token of a person there who may submit (operator)
    only      of the work that agents do there, only this; by default all
    runtime   clock and ids
    """

    def __init__(
        self, id: str, there: Address, *, only: Collection[str] = (), token: str | None = None,
        state_dir: str | None = None, runtime: Runtime | None = None,
    ) -> None:  # fmt: skip
        self.id = id
        self._there = there
        self._only = frozenset(only)
        self._token = token
        self._state_dir = state_dir
        self._runtime = runtime or SystemRuntime()
        self._agent: Agent | None = None
        self._stopped = False

    async def serve(self, url: str | None = None) -> None:
        """Serve the hub here, at `url` as an agent would, until `stop`; again when other work is done there."""
        api = ApiClient(self._there, self._runtime)
        try:
            while not self._stopped:
                offered = await self._offered(api)
                self._agent = relaying(
                    self.id, api, offered, token=self._token, state_dir=self._state_dir, runtime=self._runtime
                )
                watching = asyncio.create_task(self._stop_when_changed(api, self._agent, offered), name="relay")
                try:
                    await self._agent.serve(url)
                finally:
                    watching.cancel()
                if not watching.done():
                    return  # the hub here, or a signal, ended it
        finally:
            await api.close()

    def stop(self) -> None:
        self._stopped = True
        if self._agent is not None:
            self._agent.stop()

    async def _offered(self, api: ApiClient) -> dict[str, str]:
        """What can be asked for there; waits for the other hub, and for an agent there that does something."""
        failures = 0
        while not self._stopped:
            try:
                if offered := self._chosen(await api.work()):
                    return offered
                why = "no agent there does any work that this relay passes on"
            except HubUnreachable as error:
                why = str(error)
            log.warning("nothing to offer yet of %s: %s", self._there.base, why)
            await self._runtime.sleep(backoff(failures, self._runtime.chance()))
            failures += 1
        return {}

    def _chosen(self, there: Collection[tuple[str, str]]) -> dict[str, str]:
        """Work → the kind of agent there that does it."""
        wanted = [(work, kind) for kind, work in there if kind != KIND and (not self._only or work in self._only)]
        return dict(sorted(wanted, reverse=True))

    async def _stop_when_changed(self, api: ApiClient, agent: Agent, offered: Mapping[str, str]) -> None:
        while True:
            await self._runtime.sleep(LOOK_EVERY)
            try:
                now = self._chosen(await api.work())
            except (HubUnreachable, NotAllowed):
                continue  # the tasks under way say so
            if now and now != offered:
                log.info("%s does %s now", self._there.base, ", ".join(sorted(now)))
                agent.stop()
                return


def relaying(
    id: str, api: ApiClient, offered: Mapping[str, str], *, token: str | None, state_dir: str | None, runtime: Runtime
) -> Agent:
    """The agent whose handlers pass their tasks on."""
    agent = Agent(id, kind=KIND, token=token, state_dir=state_dir, concurrency=64, runtime=runtime)

    async def pass_on(task: Task, **given: Any) -> Any:
        return await _PassedOn(api, task).done(offered[task.type], given)

    for work in sorted(offered):
        agent.on(work)(pass_on)
    return agent


class _PassedOn:
    """One task, and its counterpart there."""

    def __init__(self, api: ApiClient, task: Task) -> None:
        self._api = api
        self._task = task
        self._questions: list[asyncio.Task[None]] = []
        self._percent = 0.0

    async def done(self, kind: str, given: dict[str, Any]) -> Any:
        api, task = self._api, self._task
        submitting = asyncio.create_task(self._submitted(kind, given), name=f"submit {task.id} there")
        try:
            counterpart = await asyncio.shield(submitting)
            async for event in api.events(counterpart, 0):
                await self._follow(counterpart, event)
            return await api.result(counterpart)
        except asyncio.CancelledError:
            if task.withdrawn:  # else the relay stops, and comes back to it
                # The agent there may have begun before the answer to the request was here.
                known = await submitting
                await _unless_over(lambda: api.cancel(known, f"cancelled by the caller of {task.id}"))
            raise
        finally:
            submitting.cancel()
            for question in self._questions:
                question.cancel()

    async def _submitted(self, kind: str, given: dict[str, Any]) -> str:
        api, task, name = self._api, self._task, f"relayed {self._task.request_id}"
        files = [await api.upload(file.name, file.data, file.mime_type) for file in task.files]
        options: dict[str, Any] = {"kind": kind, "name": name, "parent": None}
        if not files:
            return await api.submit(None, task.type, given, options, key=task.request_id)
        try:
            return await api.submit(None, task.type, given, {**options, "attachments": files}, key=task.request_id)
        except Conflict:  # submitted before, with the files as they were uploaded then
            if (found := await api.find(name)) is None:
                raise
            return found

    async def _follow(self, counterpart: str, event: Event) -> None:
        task = self._task
        match event:
            case QuestionAsked(question_id=id) if id and event.data.get("asked_of") is None:
                self._questions.append(asyncio.create_task(self._ask(event), name=f"question {id}"))
            case FileSent(id=str(id)):
                await task.send_file(event.name, await self._api.download(counterpart, id), event.mime_type)
            case Thinking(text=text):
                await task.think(text)
            case ToolUsed(tool_id=id, name=name, input=given):
                await task.tool_use(name, given, id=id)
            case ToolReturned(tool_id=id, result=result, is_error=is_error):
                await task.tool_result(id, result, is_error=is_error)
            case Progress(percent=percent, step=step, output=output) if percent is not None or output:
                self._percent = self._percent if percent is None else min(100.0, max(0.0, percent))
                await task.progress(self._percent, None if step is None else step.name or None, output or None)
            case LogWritten(lines=lines):
                for line in lines:
                    await task.log(line.message)
            case _:
                pass

    async def _ask(self, event: QuestionAsked) -> None:
        """Ask a person here what the hub there asks a person; the first answer counts."""
        answer = await self._task.ask(event.question, options=event.options, default=LEFT_THERE)
        if answer != LEFT_THERE:
            await _unless_over(lambda: self._api.answer(event.question_id, answer))


async def _unless_over(request: Callable[[], Awaitable[None]]) -> None:
    """Nothing is left to do where the other side was quicker."""
    try:
        await request()
    except (Conflict, NotFound):
        pass

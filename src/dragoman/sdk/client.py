"""Calling agents: the same few words over the management API and over an agent protocol.

async with Client() as hub:
    result = await hub.call("deployer", "run_playbook", playbook="x.yml")

async with Client("chiffon+ws://localhost:8420", token=…, id="planner") as hub:
    async for event in hub.stream("deployer", "run_playbook", playbook="x.yml"): ...
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from dragoman.sdk.address import API, STDIO, Address, resolve
from dragoman.sdk.errors import Conflict, HubUnreachable, Misconfigured, NotAllowed, NotFound
from dragoman.sdk.events import Event, Question, TaskInfo
from dragoman.sdk.links import Pipe
from dragoman.sdk.world import RealWorld, World

if TYPE_CHECKING:
    from dragoman.sdk.shared import SharedState

SHARES = (API, "agentmsg")
"""With which addresses a client reaches the shared state."""


class Backend(Protocol):
    """What every way of calling can do, or says that it cannot."""

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def submit(
        self, target: str | None, work: str, given: Mapping[str, Any], options: Mapping[str, Any]
    ) -> str: ...

    async def result(self, task_id: str) -> Any: ...

    async def task(self, task_id: str, wait: float = 0) -> TaskInfo: ...

    def events(self, task_id: str, after: int) -> AsyncIterator[Event]: ...

    async def cancel(self, task_id: str, reason: str | None) -> None: ...

    async def questions(self, status: str | None) -> list[Question]: ...

    async def answer(self, question_id: str, answer: Any) -> None: ...


class Client:
    """A caller of agents.

    With an `http://` address (or none: then DRAGOMAN_URL, or the `dragoman dev` of this directory) it uses the
    management API with the admin token. With an address such as `chiffon+ws://` it speaks that protocol, as the
    agent `id` (and `kind`, if it was added with one).

    A target is an agent's id or a kind of agent; over chiffon also `kind/id`.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        token: str | None = None,
        id: str | None = None,
        kind: str | None = None,
        world: World | None = None,
        backend: Backend | None = None,
    ) -> None:
        self._world = world or RealWorld()
        self._address = None if backend is not None else resolve(url, token)
        self._backend = backend or _backend(self._address or resolve(url, token), id, kind, self._world)
        self._state: SharedState | None = None

    async def __aenter__(self) -> Client:
        await self._backend.open()
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._state is not None:
            await self._state.close()
            self._state = None
        await self._backend.close()

    @property
    def state(self) -> SharedState:
        """What all agents share: tasks, agents, resources, policy."""
        if self._state is None:
            if self._address is None or self._address.protocol not in SHARES:
                raise Misconfigured(
                    "the shared state is reached by an agentmsg+http://, agentmsg+ws:// or http:// address"
                )
            from dragoman.sdk.shared import SharedState

            self._state = SharedState(self._address, self._world)
        return self._state

    async def call(self, target: str, work: str, /, **input: Any) -> Any:
        """Have work done and return its result; raises `TaskFailed` with the facts if it fails."""
        return await self._backend.result(await self._backend.submit(target, work, input, {}))

    async def submit(
        self, target: str | None, work: str, /, input: Mapping[str, Any] | None = None, **options: Any
    ) -> str:
        """Have work done, without waiting: returns the task's id once the hub has it.

        Options are the hub's: priority, dependencies, deadline, hints, parent, name, …
        """
        return await self._backend.submit(target, work, input or {}, options)

    async def result(self, task_id: str) -> Any:
        """Wait for a submitted task's end and return its result."""
        return await self._backend.result(task_id)

    async def task(self, task_id: str) -> TaskInfo:
        """The task as it is now."""
        return await self._backend.task(task_id)

    async def stream(self, target: str, work: str, /, **input: Any) -> AsyncIterator[Event]:
        """Have work done and follow it: every event until the last, none missed and none twice."""
        task_id = await self._backend.submit(target, work, input, {})
        async for event in self._backend.events(task_id, 0):
            yield event

    async def events(self, task_id: str, *, after: int = 0) -> AsyncIterator[Event]:
        """Follow a task that was submitted before, from event `after` on."""
        async for event in self._backend.events(task_id, after):
            yield event

    async def cancel(self, task_id: str, reason: str | None = None) -> None:
        """Stop a task and everything it asked others to do."""
        await self._backend.cancel(task_id, reason)

    async def questions(self, *, status: str | None = "open") -> list[Question]:
        """What agents want to know from a person."""
        return await self._backend.questions(status)

    async def answer(self, question_id: str, answer: Any) -> None:
        """Answer a question; the second answer is a `Conflict`."""
        await self._backend.answer(question_id, answer)


def _backend(address: Address, id: str | None, kind: str | None, world: World) -> Backend:
    """Imports stay here: who calls over one way does not pay for the others."""
    if address.protocol == API:
        from dragoman.sdk.client_api import ApiClient

        return ApiClient(address, world)
    if address.protocol == "coven":
        if not address.token and address.needs_token:
            raise Misconfigured("coven beyond this machine needs a token: pass token=… or set DRAGOMAN_TOKEN")
        from dragoman.sdk.client_coven import CovenClient

        return CovenClient(address, id or "", world)
    if address.transport == STDIO:
        raise Misconfigured("a client cannot use the agent's own pipes: give it an address, as http://localhost:8420")
    if address.protocol == "forge":
        if not address.token:
            raise Misconfigured("no token: pass token=… or set DRAGOMAN_TOKEN; `dragoman agent add` gives one")
        from dragoman.sdk.client_forge import ForgeClient
        from dragoman.sdk.io_forge_ws import WebSocketWire

        return ForgeClient(lambda: WebSocketWire(address), world)
    if id is None:
        raise Misconfigured("say who calls: Client(url, id=…), an agent added with `dragoman agent add`")
    if not address.token:
        raise Misconfigured(f"{id!r} has no token: pass token=… or set DRAGOMAN_TOKEN")
    if address.protocol == "agentmsg":
        from dragoman.sdk.client_agentmsg import AgentmsgClient
        from dragoman.sdk.io_agentmsg import pipes

        return AgentmsgClient(id, pipes(address, world), world)
    from dragoman.sdk.client_chiffon import ChiffonClient

    return ChiffonClient(kind or id, _pipes(address), world, _canceller(address))


def _pipes(address: Address) -> Callable[[], Pipe]:
    if address.transport == "ws":
        from dragoman.sdk.io_chiffon_ws import WebSocketPipe

        return lambda: WebSocketPipe(address)
    from dragoman.sdk.io_chiffon_http import HttpPipe

    return lambda: HttpPipe(address)


#: Status of `POST /api/tasks/{id}/cancel` → what is raised.
_CANCEL_RAISES: dict[int, type[Exception]] = {401: NotAllowed, 403: NotAllowed, 404: NotFound, 409: Conflict}


def _canceller(address: Address) -> Callable[[str, str | None], Any]:
    async def cancel(task_id: str, reason: str | None) -> None:
        import httpx2

        from dragoman.sdk.io_chiffon_http import http_client, refusal

        async with http_client(address) as http:
            try:
                response = await http.post(f"/api/tasks/{task_id}/cancel", json={"reason": reason} if reason else {})
            except httpx2.TransportError as error:
                raise HubUnreachable(f"no answer from {address.base}: {error}") from None
        if not response.is_success:
            words = refusal(response.content) or f"the hub answered with {response.status_code}"
            raise _CANCEL_RAISES.get(response.status_code, HubUnreachable)(words)

    return cancel

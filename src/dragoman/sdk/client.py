"""Calling agents: the same few words over the management API and over an agent protocol.

async with Client() as hub:
    result = await hub.call("deployer", "run_playbook", playbook="x.yml")

async with Client("chiffon+ws://localhost:8420", token=…, id="planner") as hub:
    async for event in hub.stream("deployer", "run_playbook", playbook="x.yml"): ...
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, overload

from dragoman.sdk.address import API, STDIO, Address, resolve
from dragoman.sdk.errors import Misconfigured, StillRunning
from dragoman.sdk.events import Event, Question, TaskInfo
from dragoman.sdk.excepthook import speak_plainly
from dragoman.sdk.runtime import Runtime, SystemRuntime
from dragoman.sdk.work.outcome import data_of

if TYPE_CHECKING:
    from dragoman.protocols.a2acp.contracts import Contract, Mode
    from dragoman.protocols.a2acp.intents import Offering
    from dragoman.sdk.a2acp.caller import A2acpCaller
    from dragoman.sdk.shared_state import SharedState

PRIORITIES = ("low", "normal", "high", "critical")
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
    agent `id` (and `kind`, if it was added with one). Over a2acp an agent also has a `domain` and a `version`, and
    keeps the keys of its contracts in `state_dir`, if there is one.

    A target is an agent's id or a kind of agent; over chiffon also `kind/id`.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        token: str | None = None,
        id: str | None = None,
        kind: str | None = None,
        domain: str | None = None,
        version: str | None = None,
        state_dir: str | Path | None = None,
        runtime: Runtime | None = None,
        backend: Backend | None = None,
    ) -> None:
        speak_plainly()
        self._runtime = runtime or SystemRuntime()
        self._address = None if backend is not None else resolve(url, token)
        if backend is None:
            who = _Who(id, kind, domain, version, state_dir)
            backend = _backend(self._address or resolve(url, token), who, self._runtime)
        self._backend = backend
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
            from dragoman.sdk.shared_state import SharedState

            self._state = SharedState(self._address, self._runtime)
        return self._state

    @overload
    async def call(self, target: str, work: str, /, **input: Any) -> Any: ...

    @overload
    async def call(
        self, work: str, input: Mapping[str, Any] | None = None, /, *, agent: str | None = None, **options: Any
    ) -> Any: ...

    async def call(self, first: str, second: Any = None, /, **rest: Any) -> Any:
        """Have work done and return its result; raises `TaskFailed` with the facts if it fails.

        `call("deployer", "run_playbook", playbook="x.yml")`, or by what is wanted, with options as for `submit`:
        `call("provision", {"records": 10}, agent="datasets")`. Without an agent, whoever can does it.
        """
        if isinstance(second, str):
            return await self._backend.result(await self._backend.submit(first, second, _fields(rest), {}))
        agent = rest.pop("agent", None)
        return await self._backend.result(await self.submit(agent, first, second, **rest))

    async def submit(
        self, target: str | None, work: str, /, input: Mapping[str, Any] | None = None, **options: Any
    ) -> str:
        """Have work done, without waiting: returns the task's id once the hub has it.

        Options are the hub's: priority, dependencies, deadline, hints, parent, name, …
        """
        urgency = options.get("priority")
        if isinstance(urgency, str) and urgency not in PRIORITIES:
            raise Misconfigured(f"there is no priority {urgency!r}: use one of {', '.join(PRIORITIES)}")
        return await self._backend.submit(target, work, _fields({} if input is None else input), options)

    async def result(self, task_id: str, *, timeout: float | None = None) -> Any:
        """Wait for a submitted task's end and return its result. After `timeout` seconds `StillRunning` is raised: the
        task goes on, and may be asked for again."""
        waiting = asyncio.timeout(timeout)
        try:
            async with waiting:
                return await self._backend.result(task_id)
        except TimeoutError:
            if timeout is None or not waiting.expired():
                raise
            raise StillRunning(task_id, timeout) from None

    async def task(self, task_id: str) -> TaskInfo:
        """The task as it is now."""
        return await self._backend.task(task_id)

    async def stream(self, target: str, work: str, /, **input: Any) -> AsyncIterator[Event]:
        """Have work done and follow it: every event until the last, none missed and none twice."""
        task_id = await self._backend.submit(target, work, _fields(input), {})
        async for event in self._backend.events(task_id, 0):
            yield event

    async def events(self, task_id: str, *, after: int = 0) -> AsyncIterator[Event]:
        """Follow a task that was submitted before, from event `after` on."""
        async for event in self._backend.events(task_id, after):
            yield event

    async def cancel(self, task_id: str, reason: str | None = None) -> None:
        """Stop a task and everything it asked others to do."""
        await self._backend.cancel(task_id, reason)

    # --- contracts (a2acp) ---

    async def discover(
        self,
        intent: str | None = None,
        *,
        domain: str | None = None,
        agent: str | None = None,
        capability: str | None = None,
        version: str | None = None,
    ) -> list[Offering]:
        """Who serves what: agents of all protocols, those that can be reached first."""
        return await self._party().discover(
            intent=intent, domain=domain, agent_id=agent, capability=capability, version=version
        )

    async def contract(
        self,
        intent: str,
        *,
        agent: str | None = None,
        mode: Mode = "broker",
        encrypt: bool = False,
        request_schema: Any = None,
        response_schema: Any = None,
    ) -> Contract:
        """The terms that calls for this intent are under; agreed on now if there are none yet.

        `mode="end-to-end"`: only the two agents can read payloads, and so nobody checks them. `request_schema` is what
        we will send and `response_schema` what we can read, where that is less than what the other side takes or gives.
        """
        from dragoman.sdk.a2acp.relations import Terms

        schemas = {"request_schema": request_schema, "response_schema": response_schema}
        given = {name: schema for name, schema in schemas.items() if schema is not None}
        return await self._party().contract(Terms(agent, intent, mode, encrypt), **given)

    async def terminate(self, contract: Contract | str, reason: str = "") -> None:
        """End a collaboration, given by a contract or its id. The other side is told; what is over stays over."""
        await self._party().terminate(_collaboration(contract), reason)

    async def rotate(self, contract: Contract | str) -> None:
        """A new key for a collaboration; what is on its way under the old one still arrives."""
        await self._party().rotate(_collaboration(contract))

    def _party(self) -> A2acpCaller:
        from dragoman.sdk.a2acp.caller import A2acpCaller

        if not isinstance(self._backend, A2acpCaller):
            raise Misconfigured("contracts are a2acp's: use an a2acp+http:// or a2acp+ws:// address")
        return self._backend

    async def questions(self, *, status: str | None = "open") -> list[Question]:
        """What agents want to know from a person."""
        return await self._backend.questions(status)

    async def answer(self, question_id: str, answer: Any) -> None:
        """Answer a question; the second answer is a `Conflict`."""
        await self._backend.answer(question_id, answer)


class _Who(NamedTuple):
    id: str | None
    kind: str | None
    domain: str | None
    version: str | None
    state_dir: str | Path | None


def _fields(input: Any) -> dict[str, Any]:
    """An input as plain JSON; raises for what no hub would read, before anything is sent."""
    if not isinstance(input, Mapping):
        raise TypeError(f"an input is a dict of fields, not {type(input).__name__}")
    fields: dict[str, Any] = data_of("the input", dict(input))
    return fields


def _collaboration(contract: Contract | str) -> str:
    return contract if isinstance(contract, str) else contract.collaboration_id


def _backend(address: Address, who: _Who, runtime: Runtime) -> Backend:
    """Imports stay here: who calls over one way does not pay for the others."""
    id, kind = who.id, who.kind
    if address.protocol == API:
        from dragoman.sdk.calling.api import ApiClient

        return ApiClient(address, runtime)
    if address.protocol == "coven":
        if not address.token and address.needs_token:
            raise Misconfigured("coven beyond this machine needs a token: pass token=… or set DRAGOMAN_TOKEN")
        from dragoman.sdk.coven.client import CovenClient

        return CovenClient(address, id or "", runtime)
    if address.transport == STDIO:
        raise Misconfigured("a client cannot use the agent's own pipes: give it an address, as http://localhost:8420")
    if address.protocol == "forge":
        if not address.token:
            raise Misconfigured("no token: pass token=… or set DRAGOMAN_TOKEN; `dragoman agent add` gives one")
        from dragoman.sdk.forge.client import ForgeClient
        from dragoman.sdk.forge.ws import WebSocketWire

        return ForgeClient(lambda: WebSocketWire(address), runtime, id)
    if id is None:
        raise Misconfigured("say who calls: Client(url, id=…), an agent added with `dragoman agent add`")
    if not address.token:
        raise Misconfigured(f"{id!r} has no token: pass token=… or set DRAGOMAN_TOKEN")
    if address.protocol == "agentmsg":
        from dragoman.sdk.agentmsg.client import AgentmsgClient
        from dragoman.sdk.agentmsg.io import pipes

        return AgentmsgClient(id, pipes(address, runtime), runtime)
    if address.protocol == "a2acp":
        from dragoman.sdk.a2acp.client import A2acpClient
        from dragoman.sdk.a2acp.identity import Identity
        from dragoman.sdk.a2acp.io import HttpPost, channels

        post = HttpPost(address)
        identity = Identity(id, post, runtime, domain=who.domain, version=who.version, state_dir=who.state_dir)
        return A2acpClient(identity, channels(address, post))
    from dragoman.sdk.chiffon.client import ChiffonClient

    return ChiffonClient.at(address, kind or id, runtime)

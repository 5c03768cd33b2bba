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
from typing import TYPE_CHECKING, Any, overload

from dragoman.sdk.address import API, STDIO, Address, resolve
from dragoman.sdk.calling.backend import Backend
from dragoman.sdk.errors import Misconfigured, StillRunning
from dragoman.sdk.events import Event, Question, TaskInfo
from dragoman.sdk.excepthook import speak_plainly
from dragoman.sdk.runtime import Runtime, SystemRuntime
from dragoman.sdk.services import TABLE, Participant, entry
from dragoman.sdk.work.outcome import data_of

if TYPE_CHECKING:
    from dragoman.protocols.a2acp.contracts import Contract, Mode
    from dragoman.protocols.a2acp.intents import Offering
    from dragoman.sdk.a2acp.caller import A2acpCaller
    from dragoman.sdk.shared_state import SharedState

PRIORITIES = ("low", "normal", "high", "critical")


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
            who = Participant(id=id, kind=kind, domain=domain, version=version, state_dir=state_dir)
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
            if self._address is None or not TABLE[self._address.protocol].shares_state:
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


def _fields(input: Any) -> dict[str, Any]:
    """An input as plain JSON; raises for what no hub would read, before anything is sent."""
    if not isinstance(input, Mapping):
        raise TypeError(f"an input is a dict of fields, not {type(input).__name__}")
    fields: dict[str, Any] = data_of("the input", dict(input))
    return fields


def _collaboration(contract: Contract | str) -> str:
    return contract if isinstance(contract, str) else contract.collaboration_id


def _backend(address: Address, who: Participant, runtime: Runtime) -> Backend:
    if address.transport == STDIO:
        raise Misconfigured("a client cannot use the agent's own pipes: give it an address, as http://localhost:8420")
    if TABLE[address.protocol].needs_id and who.id is None:
        raise Misconfigured("say who calls: Client(url, id=…), an agent added with `dragoman agent add`")
    if not address.token and address.needs_token and address.protocol != API:
        name = "the client" if who.id is None else repr(who.id)
        raise Misconfigured(f"{name} has no token: pass token=… or set DRAGOMAN_TOKEN; `dragoman agent add` gives one")
    return entry(address.protocol).client(who, address, runtime)

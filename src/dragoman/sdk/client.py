"""`Client`: calls agents, with the same methods over the management API and over an agent protocol (`backend`).

`Any` is a result whose type the caller did not name, or JSON of another program.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Generic,
    NamedTuple,
    Protocol,
    TypeAlias,
    TypeVar,
    Unpack,
    cast,
    overload,
)

import msgspec
from msgspec import Struct

from dragoman.sdk.address import API, STDIO, Address, resolve
from dragoman.sdk.calling.backend import Backend, ContractBackend
from dragoman.sdk.errors import BadResult, Misconfigured, NotSupported, StillRunning
from dragoman.sdk.events import Event, Question, TaskInfo
from dragoman.sdk.options import Handle, SubmitOptions, checked
from dragoman.sdk.program import install_excepthook
from dragoman.sdk.runtime import Runtime, SystemRuntime
from dragoman.sdk.services import TABLE, Participant, connect
from dragoman.sdk.work import signature
from dragoman.sdk.work.outcome import data_of
from dragoman.sdk.work.signature import declaration_of

if TYPE_CHECKING:
    from dragoman.protocols.a2acp.contracts import Contract, Mode
    from dragoman.protocols.a2acp.intents import Offering
    from dragoman.sdk.shared_state import SharedState

T = TypeVar("T")


class _Dataclass(Protocol):
    __dataclass_fields__: ClassVar[dict[str, Any]]


Input: TypeAlias = Mapping[str, Any] | Struct | _Dataclass
"""What work is given: its fields, by their names."""


class TaskHandle(Generic[T]):
    """A submitted task, as its caller holds it. The client that made it must be open.

        handle = await hub.submit("write", {"topic": "tides"}, returns=Report)
        async for event in handle.events(): ...
        report = await handle.result()

    `str(handle)` is the task's id, and a handle equals that id.
    """

    __slots__ = ("_backend", "_returns", "id")

    def __init__(self, backend: Backend, id: str, returns: Any = Any) -> None:
        self._backend = backend
        self._returns = returns
        self.id = id

    async def result(self, *, timeout: float | None = None) -> T:
        """Wait for the task's end and return its result; raises `TaskFailed` with the facts if it failed.

        After `timeout` seconds it raises `StillRunning`: the task goes on, and its result can be asked for again.
        """
        waiting = asyncio.timeout(timeout)
        try:
            async with waiting:
                value = await self._backend.result(self.id)
        except TimeoutError:
            if timeout is None or not waiting.expired():
                raise
            raise StillRunning(self.id, timeout) from None
        return self._typed(value)

    async def events(self, *, after: int = 0) -> AsyncIterator[Event]:
        """Every event of the task until the last, from number `after` on: none missed and none twice."""
        async for event in self._backend.events(self.id, after):
            yield event

    async def cancel(self, reason: str | None = None) -> None:
        """Stop the task and everything it asked others to do."""
        await self._backend.cancel(self.id, reason)

    async def info(self) -> TaskInfo:
        """The task as it is now."""
        return await self._backend.task(self.id)

    def _typed(self, value: Any) -> T:
        if self._returns is Any:
            return cast(T, value)
        try:
            return cast(T, msgspec.convert(value, self._returns, dec_hook=signature.made))
        except msgspec.ValidationError as error:
            raise BadResult(self.id, str(error), value) from None

    def __str__(self) -> str:
        return self.id

    def __repr__(self) -> str:
        return f"TaskHandle({self.id!r})"

    def __eq__(self, other: object) -> bool:
        if isinstance(other, TaskHandle):
            return self.id == other.id
        return self.id == other if isinstance(other, str) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.id)


class Client:
    """Calls agents through a hub.

        async with Client() as hub:
            report = await hub.call("run_playbook", {"playbook": "x.yml"}, agent="deployer")

    With an `http://` address the client uses the management API, with the admin token. Without an address that is
    DRAGOMAN_URL, or the `dragoman dev` of this directory. With an address such as `chiffon+ws://` it speaks that
    protocol, as the agent `id` (of `kind`, if it was added with one). Over a2acp it also has a `domain` and a
    `version`, and keeps the keys of its contracts in `state_dir`.

    If the hub is gone, the client waits for it: over the management API and coven for two minutes, over the other
    protocols as long as the caller waits, or for `give_up_after` seconds. Then calls raise `HubUnreachable`.

    `agent` is an agent's id or a kind of agent; over chiffon also `kind/id`.
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
        give_up_after: float | None = None,
        runtime: Runtime | None = None,
        backend: Backend | None = None,
    ) -> None:
        install_excepthook()
        self._runtime = runtime or SystemRuntime()
        self._address = None if backend is not None else resolve(url, token)
        if backend is None:
            who = Participant(
                id=id, kind=kind, domain=domain, version=version, state_dir=state_dir, give_up_after=give_up_after
            )
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
        """The state that all agents share: tasks, agents, resources, policy (agentmsg, management API)."""
        if self._state is None:
            if self._address is None or not TABLE[self._address.protocol].shares_state:
                raise NotSupported(
                    "the shared state is reached by an agentmsg+http://, agentmsg+ws:// or http:// address"
                )
            from dragoman.sdk.shared_state import SharedState

            self._state = SharedState(self._address, self._runtime)
        return self._state

    # --- calling ---

    @overload
    async def call(
        self, work: Callable[..., Awaitable[T]], /, input: Input | None = None, **options: Unpack[SubmitOptions]
    ) -> T: ...

    @overload
    async def call(
        self, work: Callable[..., T], /, input: Input | None = None, **options: Unpack[SubmitOptions]
    ) -> T: ...

    @overload
    async def call(
        self, work: str, /, input: Input | None = None, *, returns: type[T], **options: Unpack[SubmitOptions]
    ) -> T: ...

    @overload
    async def call(self, work: str, /, input: Input | None = None, **options: Unpack[SubmitOptions]) -> Any: ...

    @overload
    async def call(self, target: str, work: str, /, **input: object) -> Any: ...

    async def call(self, /, *what: Any, **rest: Any) -> Any:
        """Submit a task, wait for its end and return its result. Raises `TaskFailed` if the task fails.

        await hub.call("provision", {"records": 10}, agent="datasets")   # without `agent`, the hub chooses one
        await hub.call("report", {"day": 3}, returns=Report)             # the result is converted to this type
        await hub.call(provision, {"records": 10})                       # a handler: its agent, its return type
        await hub.call("deployer", "run_playbook", playbook="x.yml")     # short: agent, work, input
        """
        return await (await self._submit(_order(what, rest, has_fields=True))).result()

    @overload
    async def submit(
        self, work: Callable[..., Awaitable[T]], /, input: Input | None = None, **options: Unpack[SubmitOptions]
    ) -> TaskHandle[T]: ...

    @overload
    async def submit(
        self, work: Callable[..., T], /, input: Input | None = None, **options: Unpack[SubmitOptions]
    ) -> TaskHandle[T]: ...

    @overload
    async def submit(
        self, work: str, /, input: Input | None = None, *, returns: type[T], **options: Unpack[SubmitOptions]
    ) -> TaskHandle[T]: ...

    @overload
    async def submit(
        self, work: str, /, input: Input | None = None, **options: Unpack[SubmitOptions]
    ) -> TaskHandle[Any]: ...

    @overload
    async def submit(
        self, target: str | None, work: str, /, input: Input | None = None, **options: Unpack[SubmitOptions]
    ) -> TaskHandle[Any]: ...

    async def submit(self, /, *what: Any, **rest: Any) -> TaskHandle[Any]:
        """Submit a task and return its handle as soon as the hub has it, durably.

        It takes the forms of `call`, or an agent, the work and its input: `submit("datasets", "provision", {…})`.
        """
        return await self._submit(_order(what, rest))

    @overload
    def stream(
        self, work: str | Callable[..., object], /, input: Input | None = None, **options: Unpack[SubmitOptions]
    ) -> AsyncIterator[Event]: ...

    @overload
    def stream(self, target: str, work: str, /, **input: object) -> AsyncIterator[Event]: ...

    async def stream(self, /, *what: Any, **rest: Any) -> AsyncIterator[Event]:
        """Submit a task and yield its events until the last, none missed and none twice."""
        async for event in (await self._submit(_order(what, rest, has_fields=True))).events():
            yield event

    async def _submit(self, order: _Order) -> TaskHandle[Any]:
        options = checked(order.options)
        given = _fields({} if order.input is None else order.input)
        task_id = await self._backend.submit(order.target, order.work, given, options)
        return TaskHandle(self._backend, task_id, order.returns)

    # --- a task that was submitted before ---

    def handle(self, task_id: str, *, returns: Any = Any) -> TaskHandle[Any]:
        """The handle of a task whose id is known, as from another process."""
        return TaskHandle(self._backend, task_id, returns)

    async def result(self, task: TaskHandle[T] | str, *, timeout: float | None = None) -> T | Any:
        """`handle.result`, also for a task's id."""
        return await (self.handle(task) if isinstance(task, str) else task).result(timeout=timeout)

    async def task(self, task: Handle) -> TaskInfo:
        """The task as it is now."""
        return await self._backend.task(str(task))

    async def events(self, task: Handle, *, after: int = 0) -> AsyncIterator[Event]:
        """`handle.events`, also for a task's id."""
        async for event in self._backend.events(str(task), after):
            yield event

    async def cancel(self, task: Handle, reason: str | None = None) -> None:
        """Stop a task and everything it asked others to do."""
        await self._backend.cancel(str(task), reason)

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
        """Which agents serve which intents, of all protocols; connected agents come first (a2acp)."""
        return await self._contracts().discover(
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
        """The contract that calls for this intent are under; agreed on now if there is none yet (a2acp).

        With `mode="end-to-end"` only the two agents can read payloads, so the hub checks none. `request_schema` and
        `response_schema` narrow what this side sends and reads.
        """
        schemas = {"request_schema": request_schema, "response_schema": response_schema}
        given = {name: schema for name, schema in schemas.items() if schema is not None}
        return await self._contracts().contract(intent, agent, mode, encrypt, **given)

    async def terminate(self, contract: Contract | str, reason: str = "") -> None:
        """End a collaboration, given by its contract or its id (a2acp). The hub informs the other agent."""
        await self._contracts().terminate(_collaboration(contract), reason)

    async def rotate(self, contract: Contract | str) -> None:
        """Agree on a new key for a collaboration (a2acp); messages under the old key still arrive."""
        await self._contracts().rotate(_collaboration(contract))

    def _contracts(self) -> ContractBackend:
        if not isinstance(self._backend, ContractBackend):
            raise NotSupported("contracts are a2acp's: use an a2acp+http:// or a2acp+ws:// address")
        return self._backend

    # --- questions to persons ---

    async def questions(self, *, status: str | None = "open") -> list[Question]:
        """The questions that agents ask people (management API)."""
        return await self._backend.questions(status)

    async def answer(self, question_id: str, answer: Any) -> None:
        """Answer a question of an agent (management API). A second answer raises `Conflict`."""
        await self._backend.answer(question_id, answer)


class _Order(NamedTuple):
    """What `call`, `submit` and `stream` were given."""

    target: str | None
    work: str
    input: Any
    options: dict[str, Any]
    returns: Any


def _order(what: tuple[Any, ...], rest: dict[str, Any], *, has_fields: bool = False) -> _Order:
    """The order behind the forms of a call. Of `call` and `stream`, a target and its work take the input as keywords
    (`has_fields`)."""
    if len(what) >= 2 and isinstance(what[1], str):
        target, work, *more = what
        if has_fields:
            _no_more(more)
            return _Order(target, work, rest, {}, Any)
        given = more.pop(0) if more else rest.pop("input", None)
        _no_more(more)
        if rest.get("agent") is not None:
            raise Misconfigured(f"two agents are named: {target!r} and {rest['agent']!r}")
        rest.pop("agent", None)
        return _Order(target, work, given, rest, rest.pop("returns", Any))
    if not what:
        raise TypeError("say which work is to be done")
    work, *more = what
    given = more.pop(0) if more else rest.pop("input", None)
    _no_more(more)
    if isinstance(work, str):
        return _Order(rest.pop("agent", None), work, given, rest, rest.pop("returns", Any))
    declared = declaration_of(work)
    return _Order(rest.pop("agent", declared.agent_id), declared.work_type, given, rest, declared.returns)


def _no_more(left: Sequence[object]) -> None:
    if left:
        raise TypeError(f"too many arguments: {', '.join(map(repr, left))}")


def _fields(input: Any) -> dict[str, Any]:
    """An input as plain JSON; raises for what no hub would read, before anything is sent."""
    fields = data_of("the input", dict(input) if isinstance(input, Mapping) else input)
    if not isinstance(fields, dict):
        raise TypeError(f"an input is a dict, a dataclass or a Struct, not {type(input).__name__}")
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
    return connect(who, address, runtime)

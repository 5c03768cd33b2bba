"""The hub as a test uses it: every method is plain and waits until it is done, also in `async def` tests.

Only the test waits: the hub, the agents and their handlers run on a thread of their own. A test whose own loop must go
on meanwhile (because a handler calls something that runs there) uses `hub.aio`, or `hub.client()`.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

from dragoman.sdk.agent import Agent
from dragoman.sdk.client import Client
from dragoman.sdk.errors import Misconfigured
from dragoman.sdk.events import Event, TaskInfo
from dragoman.sdk.sync import SyncClient
from dragoman.testing.clock import Clock
from dragoman.testing.environment import Environment, Pass, logs, settings_of
from dragoman.testing.faults import Faults
from dragoman.testing.human import Human
from dragoman.testing.loop import LoopThread, Misused

T = TypeVar("T")

MADE_AT_START = ("clock", "human", "faults", "aio", "_environment")
CALLER = "tester"
"""Who calls over a protocol, unless the test says who."""


class Hub:
    """A hub in this process, from `with` to its end; the fixture `hub` is one for each test.

    `store` is "memory", or "sqlite", which a restart of the hub survives. `settings` are the hub's, by their dotted
    names (`{"rules.idle_seconds": 5}`). `patience` is how many real seconds `call` and `result` wait at most.
    """

    def __init__(
        self,
        *,
        store: str = "memory",
        settings: Mapping[str, Any] | None = None,
        patience: float = 10.0,
        data: Path | None = None,
    ) -> None:
        self.patience = patience
        self._closing = ExitStack()
        place = data or Path(self._closing.enter_context(tempfile.TemporaryDirectory(prefix="dragoman-test-")))
        self._settings = settings_of(place / "hub", store, settings or {})
        self._thread: LoopThread | None = None
        self._environment: Environment
        self.clock: Clock
        """Its time: `hub.clock.advance(60)`."""
        self.human: Human
        """Whom agents ask: `hub.human.answers("no")`."""
        self.faults: Faults
        """What goes wrong: `hub.faults.drop_response("deployer", times=2)`."""
        self.aio: Aio
        """The same for a test that has to go on meanwhile: `await hub.aio.call(…)`."""

    def __getattr__(self, name: str) -> Any:
        if name in MADE_AT_START:
            raise Misused("use it as `with Hub(…) as hub:`, or by the fixture `hub`")
        raise AttributeError(f"a hub for tests has no {name!r}")

    def __enter__(self) -> Hub:
        if self._thread is not None:
            raise Misused("this hub has been started already: make another one, Hub(…)")
        self._closing.enter_context(logs())
        thread = self._thread = LoopThread()
        self._environment = Environment(self._settings, thread)
        self.clock = Clock(thread, self._environment)
        self.human = self._environment.human
        self.faults = Faults(thread, self._environment)
        self.aio = Aio(self)
        try:
            thread.do(self._environment.open())
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        with self._closing:
            thread = self._thread
            assert thread is not None
            try:
                thread.do(self._environment.close())
            finally:
                thread.end()
        if not any(exc):
            self._environment.raise_noted()

    # --- agents ---

    def add(
        self,
        agent: Agent,
        protocol: str = "chiffon",
        *,
        transport: str | None = None,
        capabilities: Sequence[str] = (),
        role: str | None = None,
    ) -> Agent:
        """Have an agent of the SDK at work, over this protocol; returns when the hub can give it work.

        `transport` is "ws" or "http" where there is a choice. `capabilities` are what the hub lets it ask for (a2acp).
        Its own token and address are not used, and its `state_dir` is one of the test's.
        """
        self._do(self._environment.add(agent, protocol, transport, capabilities=tuple(capabilities), role=role))
        return agent

    def remove(self, agent: str | Agent, *, kill: bool = True) -> None:
        """The agent is gone, as if its process was killed; with `kill=False` it is asked to end, as by SIGTERM in a
        deployment, and has its `grace` to finish. The hub still knows it; `add` brings it back."""
        self._do(self._environment.remove(agent, kill=kill))

    def let_in(
        self,
        id: str,
        protocol: str = "chiffon",
        *,
        transport: str | None = None,
        kind: str | None = None,
        role: str | None = None,
        domain: str | None = None,
        version: str | None = None,
        capabilities: Sequence[str] = (),
    ) -> Pass:
        """An address and a token, for agents and clients that are not the SDK's, or run elsewhere."""
        fields = {"kind": kind, "role": role, "domain": domain, "version": version}
        return self._do(self._environment.let_in(id, protocol, transport, capabilities=tuple(capabilities), **fields))

    def allow(self, source: str, target: str) -> None:
        """Agents of the one domain may ask those of the other (a2acp), as by `dragoman policy allow`."""
        self._do(self._environment.allow(source, target))

    # --- work ---

    def call(self, first: str, second: Any = None, /, **rest: Any) -> Any:
        """As `Client.call`. While everybody only waits, time passes: retries and timeouts cost nothing."""
        return self._do(self._call(first, second, rest))

    def submit(self, target: str | None, work: str, /, input: Mapping[str, Any] | None = None, **options: Any) -> str:
        """As `Client.submit`: the task's id, when the hub has it and what can be done at once is done."""
        return self._do(self._submit(target, work, input, options))

    def result(self, task_id: str) -> Any:
        """As `Client.result`; time passes as in `call`."""
        return self._do(self._environment.scheduler.result(task_id, self.patience))

    def task(self, task_id: str) -> TaskInfo:
        """The task as it is now."""
        return self._do(self._environment.people.task(task_id))

    def events(self, task_id: str) -> list[Event]:
        """What happened to a task so far; all of it, if it is over."""
        return self._do(self._events(task_id))

    def settle(self) -> None:
        """Wait until nothing is on its way. Time stands still."""
        self._do(self._environment.scheduler.settle())

    # --- callers ---

    def client(self, protocol: str | None = None, id: str = CALLER, **given: Any) -> Client:
        """A client for `async with`: of the management API, or of a protocol, as the agent `id`.

        Further arguments are those of `let_in`, and `state_dir`.
        """
        return Client(**self._caller(protocol, id, given))

    def sync_client(self, protocol: str | None = None, id: str = CALLER, **given: Any) -> SyncClient:
        """The same for `with`."""
        return SyncClient(**self._caller(protocol, id, given))

    def _caller(self, protocol: str | None, id: str, given: dict[str, Any]) -> dict[str, Any]:
        runtime = self._environment.runtime
        if protocol is None:
            if given:
                raise Misused(f"{', '.join(given)}: only for a client that speaks a protocol, hub.client('chiffon', …)")
            return {"url": self.url, "token": self.admin_token, "runtime": runtime}
        state_dir = given.pop("state_dir", None)
        url, token = self.let_in(id, protocol, **given)
        mine = {name: given.get(name) for name in ("kind", "domain", "version")}
        return {"url": url, "token": token, "id": id, "state_dir": state_dir, "runtime": runtime, **mine}

    @property
    def url(self) -> str:
        """Of its HTTP port, the same over restarts; with `admin_token`, the management API."""
        return self._environment.url

    @property
    def admin_token(self) -> str:
        return self._environment.running.admin_token

    # --- on the hub's thread ---

    async def _call(self, first: str, second: Any, rest: dict[str, Any]) -> Any:
        if isinstance(second, str):
            task = await self._environment.submit(first, second, rest, {})
        elif second is None or isinstance(second, Mapping):
            task = await self._environment.submit(rest.pop("agent", None), first, second or {}, rest)
        else:
            raise Misconfigured('call("deployer", "run_playbook", playbook="x.yml"), or call("run_playbook", {…})')
        return await self._environment.scheduler.result(task, self.patience)

    async def _submit(
        self, target: str | None, work: str, input: Mapping[str, Any] | None, options: dict[str, Any]
    ) -> str:
        task = await self._environment.submit(target, work, input or {}, options)
        await self._environment.scheduler.come_to_rest()
        return task

    async def _events(self, task_id: str) -> list[Event]:
        found: list[Event] = []
        last = await self._environment.last_event(task_id)
        async for event in self._environment.people.events(task_id):
            found.append(event)
            if event.seq >= last:
                break
        return found

    def _do(self, coroutine: Coroutine[Any, Any, T]) -> T:
        assert self._thread is not None
        done = self._thread.do(coroutine)
        self._environment.raise_noted()
        return done


class Aio:
    """What takes a while, for a test whose own loop must go on meanwhile."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub

    async def call(self, first: str, second: Any = None, /, **rest: Any) -> Any:
        return await self._do(self._hub._call(first, second, rest))

    async def submit(
        self, target: str | None, work: str, /, input: Mapping[str, Any] | None = None, **options: Any
    ) -> str:
        return await self._do(self._hub._submit(target, work, input, options))

    async def result(self, task_id: str) -> Any:
        return await self._do(self._hub._environment.scheduler.result(task_id, self._hub.patience))

    async def advance(self, seconds: float | timedelta) -> None:
        await self._do(self._hub._environment.scheduler.advance(Clock.micros(seconds)))

    async def settle(self) -> None:
        await self._do(self._hub._environment.scheduler.settle())

    async def _do(self, coroutine: Coroutine[Any, Any, T]) -> T:
        assert self._hub._thread is not None
        done = await asyncio.wrap_future(self._hub._thread.post(coroutine))
        self._hub._environment.raise_noted()
        return done

"""`Agent`: what it does is declared by functions (`declarations`), and the engine runs them for the hub's tasks."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from dragoman.sdk import program
from dragoman.sdk.address import AMQP, Address, resolve_agent
from dragoman.sdk.calling.backend import Backend
from dragoman.sdk.client import Client
from dragoman.sdk.conversation.peer_handlers import help_as_work
from dragoman.sdk.declarations import Declarations, several
from dragoman.sdk.engine import Engine
from dragoman.sdk.errors import DragomanError, Misconfigured, NotSupported
from dragoman.sdk.links import Bring, Introduction, Link
from dragoman.sdk.peers import State, Urgency
from dragoman.sdk.runtime import Runtime, SystemRuntime
from dragoman.sdk.services import TABLE, Participant, Service, serve
from dragoman.sdk.work.journal import Journal, path_for
from dragoman.sdk.work.signature import Handler

if TYPE_CHECKING:
    from dragoman.sdk.shared_state import SharedState

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@+-]{0,127}")
NAMES = "use letters, digits and . _ : @ + -, the first a letter or a digit, at most 128 of them"


Lifespan: TypeAlias = "Callable[[Agent], AbstractAsyncContextManager[object]]"
"""Entered when the agent begins to serve, before it connects; left when it stopped, after running work ended."""


class Agent(Declarations):
    """An agent: it connects to a hub under its id, and runs your functions for the tasks that the hub assigns to it.

        agent = Agent("deployer", version="1.2.3")

        @agent.on("run_playbook", timeout=300)
        async def run(task: Task, playbook: str) -> dict:
            await task.progress(50, "applying")
            return {"changed": 3}

        agent.run("chiffon+ws://localhost:8420")

    The protocol is that of the address. The agent connects again by itself, and the hub gets each result once, also
    when the connection breaks.

    id             the agent's name at the hub
    token          its credential; else DRAGOMAN_TOKEN, or the token in the address. It is never logged
    version        the version of your program, shown to people and callers
    kind           what sort of agent it is; callers may ask for any agent of a kind
    skills         what else it can do; callers may require a skill
    concurrency    how many tasks run at once; those that wait for a person or another agent do not count
    memory_mb, gpu_vram_mb   memory that its running tasks may need together, by the hints of their callers (chiffon)
    state_dir      a directory where results and answers survive a restart
    grace          seconds that running tasks have to end when the agent stops
    give_up_after  seconds without a hub after which it ends with `HubUnreachable`; by default it tries for ever
    domain         the organisation that it belongs to, as registered at the hub (a2acp)
    lifespan       an asynchronous context manager around its serving, as in `on_start` and `on_stop`
    """

    def __init__(
        self,
        id: str,
        *,
        version: str | None = None,
        kind: str | None = None,
        domain: str | None = None,
        skills: Sequence[str] = (),
        token: str | None = None,
        concurrency: int = 8,
        memory_mb: int | None = None,
        gpu_vram_mb: int | None = None,
        state_dir: str | Path | None = None,
        grace: float = 30.0,
        give_up_after: float | None = None,
        lifespan: Lifespan | None = None,
        runtime: Runtime | None = None,
    ) -> None:
        program.install_excepthook()
        _check(id, concurrency, grace)
        _check_megabytes(id, "memory_mb", memory_mb, least=1)
        _check_megabytes(id, "gpu_vram_mb", gpu_vram_mb, least=0)
        super().__init__(id)
        self.version = version
        self.kind = kind
        self.domain = domain
        self.skills = several("skills", skills)
        self.concurrency = concurrency
        self.memory_mb = memory_mb
        self.gpu_vram_mb = gpu_vram_mb
        self._token = token
        self._state_dir = state_dir
        self._grace = grace
        self._give_up_after = seconds_of("give_up_after", id, give_up_after)
        self._lifespan = lifespan
        self._runtime = runtime or SystemRuntime()
        self._through: Callable[[Link], Link] | None = None
        self._engine: Engine | None = None
        self._state: SharedState | None = None
        self._caller: Backend | None = None

    # --- other agents (a2acp) ---

    @property
    def client(self) -> Client:
        """To call other agents as this one, while it serves over a2acp: its answers come by the same link."""
        self._serving()
        if self._caller is None:
            raise NotSupported(f"{self.id} can call as itself while it serves over a2acp (a2acp+ws://…)")
        return Client(backend=self._caller, runtime=self._runtime)

    # --- other agents (agentmsg) ---

    async def tell(
        self,
        to: str,
        payload: Mapping[str, Any] | Any,
        *,
        type: str | None = None,
        priority: Urgency | str | None = None,
        ttl: float | None = None,
        retry: Mapping[str, Any] | None = None,
    ) -> None:
        """Send a message to another agent (agentmsg): `await agent.tell("reviewer", {"ready": True})`.

        `payload` is the JSON object of a message of `type`; without a type, any object, which travels with this agent's
        STATUS_UPDATE. With a priority of high or critical the message is kept until it arrives, and this returns when
        the hub has it; otherwise it is sent once. The message expires after `ttl` seconds. `retry` says how a kept
        message is sent again: `max_attempts`, `base_delay_ms`, `max_delay_ms`, `backoff_multiplier`, `jitter`.
        """
        await self._serving().status_reporter.tell(to, payload, type, priority, ttl, retry)

    async def status(
        self,
        state: State | None = None,
        *,
        capability_level: float | None = None,
        tokens_used: float | None = None,
        tokens_remaining: float | None = None,
        cost_usd: float | None = None,
        cpu_usage: float | None = None,
        memory_usage: float | None = None,
        next_available: datetime | timedelta | float | None = None,
    ) -> None:
        """Send the hub a status report (agentmsg). The SDK fills in what is not given; what is given also holds for
        the reports that it sends by itself every few heartbeats."""
        engine = self._serving()
        engine.peer_requests.require("tell how it is", "")
        engine.status_reporter.tell_status(
            state=state,
            capability_level=capability_level,
            tokens_used=tokens_used,
            tokens_remaining=tokens_remaining,
            cost_usd=cost_usd,
            cpu_usage=cpu_usage,
            memory_usage=memory_usage,
            next_available=next_available,
        )

    async def report_error(
        self,
        error: BaseException | str,
        *,
        error_type: str = "INTERNAL_ERROR",
        severity: Urgency | None = None,
        task_id: str | None = None,
        to: str | None = None,
        details: Mapping[str, Any] | None = None,
        attempts: Sequence[Mapping[str, Any]] = (),
        actions: Sequence[str] = (),
    ) -> None:
        """Report that something went wrong, in the course of a task or not: to the hub, or to an agent.

        Returns when the hub has it. `attempts` are what was tried (`strategy`, `outcome`, `details`), `actions` what
        could be done.
        """
        await self._serving().status_reporter.report_error(
            error,
            error_type=error_type,
            severity=severity,
            task_id=task_id,
            to=to,
            details=details,
            attempts=attempts,
            actions=actions,
        )

    @property
    def state(self) -> SharedState:
        """The state that all agents share: tasks, agents, resources, policy; while the agent serves over agentmsg."""
        self._serving()
        if self._state is None:
            raise NotSupported(f"{self.id} shares state while it serves over agentmsg (agentmsg+ws://…)")
        return self._state

    def _serving(self) -> Engine:
        if self._engine is None:
            raise Misconfigured(f"{self.id} is not at work: it can speak while it serves")
        return self._engine

    # --- its life ---

    def run(self, url: str | None = None) -> None:
        """Serve until SIGINT or SIGTERM: then take no more tasks, let running ones end, and return. A second signal
        ends at once. In a thread other than the main one there are no signals: call `stop`.
        """
        try:
            program.run(self, url)
        except DragomanError as error:
            raise error.with_traceback(None) from None  # the reason helps, not the frames that it passed

    async def serve(self, url: str | None = None) -> None:
        """Serve until `stop` or cancellation, on a running event loop. It connects again by itself, and returns or
        raises only when it is over."""
        await self._serve(resolve_agent(self.id, url, self._token))

    async def serve_in(
        self, runtime: Runtime, address: Address, *, state_dir: Path, through: Callable[[Link], Link]
    ) -> None:
        """As `serve`, for `dragoman.testing`: with the test's clock, its directory (if the agent has a state_dir), and
        links that `through` wraps."""
        if self._engine is not None:
            raise Misconfigured(f"{self.id} is already at work")
        usual = self._runtime, self._state_dir
        self._runtime, self._through = runtime, through
        if self._state_dir is not None:
            self._state_dir = state_dir
        try:
            await self._serve(address)
        finally:
            self._runtime, self._state_dir = usual
            self._through = None

    @property
    def at_work(self) -> list[Handler]:
        """The handlers that run now: without those that wait for a person, or for another agent's help."""
        return [] if self._engine is None else self._engine.at_work

    @property
    def is_writing(self) -> bool:
        """Whether the agent waits for its disk: what it says next comes after an fsync."""
        return self._engine is not None and self._engine.is_writing

    async def _serve(self, address: Address) -> None:
        address = msgspec.structs.replace(address, instance=self._runtime.mint())
        row = TABLE[address.protocol]
        if row.shares_state:
            from dragoman.sdk.shared_state import SharedState

            self._state = SharedState(address, self._runtime)
        try:
            async with serve(self._participant, address, self._runtime) as made:
                service = msgspec.structs.replace(made, converses=row.converses)
                if row.fetches_files and address.transport != AMQP:
                    from dragoman.sdk.network.http import bringer, fetcher

                    service = msgspec.structs.replace(service, fetch=fetcher(address), bring=bringer(address))
                await self._serve_by(service)
        finally:
            if self._state is not None:
                await self._state.close()
                self._state = None

    @property
    def _participant(self) -> Participant:
        return Participant(
            id=self.id, kind=self.kind, domain=self.domain, version=self.version, state_dir=self._state_dir
        )

    async def serve_over(self, dial: Callable[[], Link], *, converses: bool = True, bring: Bring | None = None) -> None:
        """As `serve`, over links of one's own making. Where agents do not converse, help is asked for as a task."""
        await self._serve_by(Service(dial=dial, converses=converses, bring=bring))

    async def serve_through(self, connect: Callable[[Participant], AbstractAsyncContextManager[Service]]) -> None:
        """As `serve`, through a service of one's own making."""
        async with connect(self._participant) as service:
            await self._serve_by(service)

    async def _serve_by(self, service: Service) -> None:
        if self._engine is not None:
            raise Misconfigured(f"{self.id} is already at work")
        if not self._handlers and not self._peer_handlers.help and not self._peer_handlers.direct_messages:
            raise Misconfigured(f"{self.id} does nothing: declare a function with @agent.on(…)")
        handlers = self._handlers
        if not service.converses and self._peer_handlers.help:
            handlers = {**handlers, **help_as_work(self._peer_handlers.help, handlers)}
        who = Introduction(
            agent_id=self.id,
            kind=self.kind,
            version=self.version,
            domain=self.domain,
            work_types=tuple(handlers),
            concurrency=self.concurrency,
            memory_mb=self.memory_mb,
            gpu_vram_mb=self.gpu_vram_mb,
            capabilities=tuple(handler.capability() for handler in handlers.values()),
            skills=(*self.skills, *self._peer_handlers.help),
        )
        journal = Journal(self._runtime, path_for(self._state_dir, self.id))
        dial, through = service.dial, self._through
        self._engine = Engine(
            who,
            handlers,
            dial if through is None else lambda: through(dial()),
            journal,
            self._runtime,
            grace=self._grace,
            peer_handlers=self._peer_handlers,
            fetch=service.fetch,
            bring=service.bring,
            middleware=self._middleware,
            give_up_after=self._give_up_after,
        )
        self._caller = service.caller
        try:
            async with nullcontext() if self._lifespan is None else self._lifespan(self), self._hooks():
                await self._engine.run()
        finally:
            self._engine = self._caller = None

    def stop(self) -> None:
        """Stop serving, from any thread: the agent takes no more tasks, and running ones may end."""
        engine = self._engine
        if engine is not None:
            engine.stop_soon()


def _check(id: Any, concurrency: Any, grace: Any) -> None:
    if not isinstance(id, str) or not NAME.fullmatch(id):
        raise Misconfigured(f"{id!r:.100} is no agent's id: {NAMES}")
    if not isinstance(concurrency, int) or concurrency < 1:
        raise Misconfigured(f"the concurrency of {id} is {concurrency!r}: give a whole number of at least 1")
    if not isinstance(grace, int | float) or not grace >= 0:
        raise Misconfigured(f"the grace of {id} is {grace!r}: give a number of seconds, 0 or more")


def seconds_of(name: str, id: str, value: Any) -> float | None:
    if value is not None and not (isinstance(value, int | float) and value >= 0):
        raise Misconfigured(f"the {name} of {id} is {value!r}: give a number of seconds, 0 or more, or None")
    return None if value is None else float(value)


def _check_megabytes(id: str, name: str, value: Any, *, least: int) -> None:
    if value is not None and (type(value) is not int or value < least):
        raise Misconfigured(f"the {name} of {id} is {value!r}: give a whole number of at least {least}, or None")

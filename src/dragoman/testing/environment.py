"""What runs on the loop of the hub's thread: the hub itself, the agents, the callers, and their connections.

    agent ──▶ link that can lose ──▶ its relay ──▶ the hub's port        (one relay for each agent)
    clients, people ───────────────▶ a relay ────▶ the hub's port        (one relay for HTTP, one for gRPC)

The hub is what `app/wiring.py` makes of its settings. The relays' ports stay the same over a restart, the hub's own do
not: so no port number is fixed, and none must be bound a second time.

Everything here is called on that loop, unless its docstring says otherwise.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import structlog
from structlog.typing import Processor

from dragoman.app.logs import blot_secrets, without_personal
from dragoman.app.metrics import Counters
from dragoman.app.settings import Settings, SettingsError, load
from dragoman.app.wiring import Running
from dragoman.app.wiring import hub as wired
from dragoman.core.commands import RemoveAgent, SetDomainPolicy
from dragoman.core.ids import ADMIN, SECOND, AgentId, TaskId
from dragoman.core.model.tasks import Question, Status
from dragoman.core.ports import Changes
from dragoman.sdk.address import parse
from dragoman.sdk.agent import Agent
from dragoman.sdk.calling.api import ApiClient
from dragoman.sdk.client import Client
from dragoman.sdk.errors import DragomanError, NotFound
from dragoman.sdk.services import TABLE as PROTOCOLS
from dragoman.sdk.work.signature import Handler
from dragoman.testing.clock import VirtualRuntime
from dragoman.testing.faults import Losses, LossyLink, Relay
from dragoman.testing.human import Human
from dragoman.testing.loop import LoopThread, Misused, Stuck
from dragoman.testing.scheduler import Scheduler

TRANSPORTS: Mapping[str, tuple[str, ...]] = {
    "chiffon": ("ws", "http"),
    "agentmsg": ("ws", "http"),
    "a2acp": ("ws", "http"),
    "forge": ("ws",),
    "coven": ("grpc",),
}
"""Protocol → its transports; the first is the default."""

STORES = ("memory", "sqlite")
DOMAIN = "tests"
"""The domain of an agent that names none, where the protocol needs one."""

CONNECT_SECONDS = 10.0
"""Seconds for an agent to connect."""


class Pass(NamedTuple):
    """An address and a token, for agents and clients that are not the SDK's."""

    url: str
    token: str


class AgentRunner:
    """A running agent."""

    def __init__(self, agent: Agent, protocol: str, relay: Relay) -> None:
        self.agent = agent
        self.protocol = protocol
        self.relay = relay
        self.losses = Losses(relay.cut)
        self.serving: asyncio.Task[None] | None = None
        self.on_leaving: Callable[[asyncio.Task[None]], None] = lambda task: None

    @property
    def id(self) -> AgentId:
        return AgentId(self.agent.id)


class QuestionWatch(Counters):
    """Sees questions come and go, in the commit that makes them."""

    def __init__(self, tell: Callable[[Question], None]) -> None:
        super().__init__()
        self._tell = tell

    def committed(self, changes: Changes, commands: int, seconds: float) -> None:
        super().committed(changes, commands, seconds)
        for row in (*changes.added, *changes.changed):
            if isinstance(row, Question):
                self._tell(row)


def settings_of(data: Path, store: str, wanted: Mapping[str, Any]) -> Settings:
    """A hub's settings, by dotted names. The environment has no part in it."""
    if store not in STORES:
        raise Misused(f"a hub for tests has the store {' or '.join(STORES)}, not {store!r}")
    fixed = {
        "data": str(data),
        "store.kind": store,
        "server.host": "127.0.0.1",
        "server.port": 0,
        "server.grpc_port": 0,
        "server.drain_seconds": 0.0,
        "coven.shutdown_seconds": 0.0,
    }
    taken = sorted(name for name in wanted if name in fixed)
    if taken:
        raise Misused(f"{', '.join(taken)} cannot be set here: a hub for tests chooses them itself (store= is its own)")
    try:
        return load(flags={**wanted, **fixed}).settings
    except SettingsError as error:
        raise Misused(f"the hub's settings are invalid: {error}") from None
    except KeyError as error:
        raise Misused(f"there is no setting {error}; `dragoman config show` lists them all") from None


class Environment:
    def __init__(self, settings: Settings, thread: LoopThread) -> None:
        self.settings = settings
        self.runtime = VirtualRuntime()
        self.people: Client
        self.running: Running
        self.hub_is_up = asyncio.Event()
        self.human = Human(thread, self)
        self.api: ApiClient
        self.scheduler = Scheduler(self, thread.listener)
        self._hub_context = AsyncExitStack()
        self._http_relay = Relay("")
        self._grpc_relay = Relay("")
        self._runners: dict[AgentId, AgentRunner] = {}
        self._errors: list[Exception] = []

    # --- its life ---

    async def open(self) -> None:
        await self._start()
        await self._http_relay.open()
        await self._grpc_relay.open()
        self.api = ApiClient(parse(self.url, self.running.admin_token), self.runtime)
        self.people = Client(backend=self.api, runtime=self.runtime)

    async def _start(self) -> None:
        watch = QuestionWatch(self.human.on_question)
        hub = wired(self.settings, clock=self.runtime.instant, counters=watch)
        self.running = await self._hub_context.enter_async_context(hub)
        for protocol, relay in self._relays():
            relay.connect_to(self._target(protocol))
        self.hub_is_up.set()

    def _relays(self) -> list[tuple[str, Relay]]:
        relays = [("chiffon", self._http_relay), ("coven", self._grpc_relay)]
        return relays + [(runner.protocol, runner.relay) for runner in self._runners.values()]

    def _target(self, protocol: str) -> str:
        return self.running.grpc if protocol == "coven" else self.running.serving.url.removeprefix("http://")

    async def restart(self) -> None:
        if self.settings.store.kind == "memory":
            raise Misused(
                "this hub has its store in memory and would lose everything: give the test a hub with a store on disk,"
                ' @pytest.mark.dragoman(store="sqlite")'
            )
        self.hub_is_up.clear()
        for _, relay in self._relays():
            relay.disconnect_target()
        await self._hub_context.aclose()
        await self._start()
        await asyncio.gather(*(self._wait_until_reachable(runner) for runner in self._runners.values()))

    async def close(self) -> None:
        for runner in list(self._runners.values()):
            await self._dismiss(runner)
        if hasattr(self, "people"):
            await self.people.__aexit__()
        await self._hub_context.aclose()
        for relay in (self._http_relay, self._grpc_relay):
            await relay.close()

    @property
    def url(self) -> str:
        return f"http://{self._http_relay.address}"

    # --- errors beside the test's own calls ---

    def note_error(self, error: Exception) -> None:
        self._errors.append(error)

    @property
    def has_errors(self) -> bool:
        return bool(self._errors)

    def raise_noted(self) -> None:
        """On any thread."""
        if self._errors:
            raise self._errors.pop(0)

    # --- what happens ---

    @property
    def has_other_threads(self) -> bool:
        """Whether gRPC's threads, or the store's process, have a part in what happens."""
        return self.settings.store.kind != "memory" or any(
            runner.protocol == "coven" for runner in self._runners.values()
        )

    @property
    def at_work(self) -> list[Handler]:
        """The handlers that run now."""
        return [handler for runner in self._runners.values() for handler in runner.agent.at_work]

    @property
    def is_busy(self) -> bool:
        """Whether something is under way that the loop does not see: the person is about to answer, or an agent waits
        for an fsync of its journal, which a thread does."""
        return self.human.is_answering or any(runner.agent.is_writing for runner in self._runners.values())

    async def in_flight(self) -> int:
        """How many tasks run for the hub and not for an agent, or the other way round: a message about them is on its
        way, or lost."""
        intake, count = self.running.intake, 0
        for runner in self._runners.values():
            active = [await intake.store.task(id) for id in intake.load_of(runner.id)]
            running = sum(task is not None and task.status is not Status.WAITING for task in active)
            count += abs(running - len(runner.agent.at_work))
        return count

    # --- agents ---

    async def let_in(self, id: str, protocol: str, transport: str | None = None, **fields: Any) -> Pass:
        """A fresh token for this agent; its former token ends."""
        scheme, there = self._scheme(protocol, transport), self.running.intake.agent(AgentId(id))
        if there is not None and there.protocol != protocol:
            raise Misused(f"{id!r} is here already, and speaks {there.protocol}: give the other one an id of its own")
        if PROTOCOLS[protocol].makes_contracts and fields.get("domain") is None:
            fields["domain"] = DOMAIN
        known = {name: value for name, value in fields.items() if value}
        try:
            token = await (self.api.add_agent(id, protocol, **known) if there is None else self.api.new_token(id))
        except DragomanError as error:
            raise Misused(f"the hub did not add {id!r}: {error}") from None
        return Pass(
            f"{scheme}://{self._grpc_relay.address if protocol == 'coven' else self._http_relay.address}", token
        )

    def _scheme(self, protocol: str, transport: str | None) -> str:
        known = TRANSPORTS.get(protocol)
        if known is None:
            raise Misused(f"there is no protocol {protocol!r}: {', '.join(TRANSPORTS)}")
        if transport not in (None, *known):
            raise Misused(f"{protocol} is spoken over {' or '.join(known)} here, not over {transport!r}")
        return "coven" if protocol == "coven" else f"{protocol}+{transport or known[0]}"

    async def allow(self, source: str, target: str) -> None:
        await self.running.intake.execute(SetDomainPolicy(principal=ADMIN, source=source, target=target))

    async def add(self, agent: Agent, protocol: str, transport: str | None, **fields: Any) -> None:
        if not isinstance(agent, Agent):
            raise Misused(
                f"add takes a dragoman.Agent, not {type(agent).__name__}; for other agents there is hub.let_in"
            )
        if AgentId(agent.id) in self._runners:
            raise Misused(f"{agent.id!r} is running already: remove it first, with hub.remove({agent.id!r})")
        scheme = self._scheme(protocol, transport)
        is_new = self.running.intake.agent(AgentId(agent.id)) is None
        mine = {"kind": agent.kind, "domain": agent.domain, "version": agent.version}
        _, token = await self.let_in(agent.id, protocol, transport, **mine, **fields)
        relay = Relay(self._target(protocol))
        await relay.open()
        runner = self._runners[AgentId(agent.id)] = AgentRunner(agent, protocol, relay)
        serving = agent.serve_in(
            self.runtime,
            parse(f"{scheme}://{relay.address}", token),
            state_dir=Path(self.settings.data) / "agents-of-tests",
            through=lambda link: LossyLink(link, runner.losses),
        )
        runner.serving = asyncio.create_task(serving, name=f"agent {agent.id}")
        try:
            await self._wait_until_reachable(runner)
        except BaseException:
            await self._dismiss(runner)
            if is_new:
                await self.running.intake.execute(RemoveAgent(principal=ADMIN, agent=runner.id))
            raise
        runner.on_leaving = lambda task: self._on_left(runner, task)
        runner.serving.add_done_callback(runner.on_leaving)

    async def _wait_until_reachable(self, runner: AgentRunner) -> None:
        """Wait until the hub can give the agent work."""
        assert runner.serving is not None
        loop = asyncio.get_running_loop()
        end = loop.time() + CONNECT_SECONDS
        while not self.running.intake.reachable(runner.id):
            if runner.serving.done():
                runner.serving.result()
            if runner.serving.done() or loop.time() > end:
                raise Stuck(
                    f"{runner.id} did not connect over {runner.protocol} within {CONNECT_SECONDS:g} s: its log says why"
                )
            await asyncio.sleep(0.001)
        await self.scheduler.settle()

    def _on_left(self, runner: AgentRunner, task: asyncio.Task[None]) -> None:
        if runner.id not in self._runners or task.cancelled():
            return
        why = task.exception()
        self.note_error(Misused(f"{runner.id} ended by itself: {why if why is not None else 'it was stopped'}"))

    async def remove(self, agent: str | Agent, *, kill: bool) -> None:
        runner = self.runner(agent)
        if not kill:
            await self._stop(runner)
        await self._dismiss(runner)
        await self.scheduler.settle()

    async def _stop(self, runner: AgentRunner) -> None:
        """Ask it to end, as SIGTERM does, and wait for its end; time passes meanwhile."""
        assert runner.serving is not None
        runner.serving.remove_done_callback(runner.on_leaving)
        runner.agent.stop()
        await self.scheduler.settle()
        while not runner.serving.done():
            await self.scheduler.advance(SECOND)

    async def _dismiss(self, runner: AgentRunner) -> None:
        """End it as if its process was killed."""
        del self._runners[runner.id]
        runner.relay.cut()
        if runner.serving is not None:
            runner.serving.cancel()
            await asyncio.gather(runner.serving, return_exceptions=True)
        await runner.relay.close()

    async def disconnect(self, runner: AgentRunner) -> None:
        runner.relay.cut()
        await self.scheduler.settle()

    def runner(self, agent: str | Agent) -> AgentRunner:
        """On any thread."""
        id = AgentId(agent if isinstance(agent, str) else agent.id)
        runner = self._runners.get(id)
        if runner is None:
            there = ", ".join(self._runners) or "nobody"
            raise Misused(
                f"there is no agent {id!r} running here (there is: {there}): hub.add(agent, protocol=…) first"
            )
        return runner

    # --- work ---

    async def submit(self, target: str | None, work: str, given: Mapping[str, Any], options: Mapping[str, Any]) -> str:
        named: dict[str, Any] = {}
        if target is not None:
            named["agent" if self.running.intake.agent(AgentId(target)) is not None else "kind"] = target
        return await self.api.submit(None, work, given, {**named, **options})

    async def last_event(self, task_id: str) -> int:
        """The number of a task's last event."""
        last, page = 0, [0]
        while page:
            page = [event.seq for event in await self.running.intake.store.events(TaskId(task_id), after=last)]
            last = page[-1] if page else last
        if not last:
            raise NotFound(f"there is no task {task_id}")
        return last


@contextmanager
def logs() -> Iterator[None]:
    """What the hub logs goes where the test's own logs go (`caplog`), unless the test has set that up itself."""
    if structlog.is_configured():
        yield
        return
    ours: list[Processor] = [
        structlog.stdlib.filter_by_level,
        without_personal,
        structlog.processors.format_exc_info,
        blot_secrets,
        _line,
    ]
    structlog.configure(
        processors=ours,
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
    )
    try:
        yield
    finally:
        if structlog.get_config()["processors"] is ours:
            structlog.reset_defaults()


def _line(_: Any, __: str, event: Any) -> str:
    fields: Sequence[str] = [f"{name}={value}" for name, value in event.items() if name != "event"]
    return " ".join((str(event.get("event", "")), *fields))

"""All children of the hub: starts them, knows their states, and leaves none at the end.

An agent is a child if its row has a spec (`spec.DETAIL` in its details). So the hub starts children again after its own
restart; it compares those of the configuration with what that declares now.

    hub starts     it kills processes left over from an earlier run, adds, changes or removes declared agents, and
                   starts all children
    hub stops      `drain`: it asks all children to end at once, then ends them
    hub is killed  the spawner kills everything (spawner.py)
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

import msgspec
import structlog

from dragoman import durable
from dragoman.core.commands import AddAgent, RemoveAgent
from dragoman.core.ids import ADMIN, AgentId, Instant, TaskId
from dragoman.core.model.agents import Agent, Offer, Profile
from dragoman.core.model.tasks import Task
from dragoman.core.ports import Intake, StoreFailed
from dragoman.messages.faults import Refused
from dragoman.server.forge.session import ForgeSession
from dragoman.server.session import Connection
from dragoman.supervisor.child import Child
from dragoman.supervisor.child_log import ChildLog, ChildLogs
from dragoman.supervisor.environment import EnvironmentFiles, Environments
from dragoman.supervisor.pipes import ThrottledPipes
from dragoman.supervisor.process import ChildContext, LogSink
from dragoman.supervisor.sandbox_policy import SandboxPolicy
from dragoman.supervisor.spawner_client import SpawnerClient
from dragoman.supervisor.spec import DETAIL, PROTOCOL, ChildSpec, SandboxRules, State, spec_of

log = structlog.get_logger("dragoman.children")

KILL_SECONDS = 5.0
"""How long a killed child may take to be gone."""


class ChildDeclaration(msgspec.Struct, frozen=True, kw_only=True):
    """An agent that the configuration or a person wants the hub to run. `env` are the values."""

    id: str
    spec: ChildSpec
    env: Mapping[str, str] = {}
    profile: Profile = Profile()
    offers: tuple[Offer, ...] = ()

    @property
    def digest(self) -> str:
        """A digest of everything but the values of its environment: a hash would help an attacker guess them."""
        plain = {
            "id": self.id,
            "recipe": self.spec,
            "env": dict.fromkeys(sorted(self.env), ""),
            **msgspec.structs.asdict(self.profile),
            **({"offers": self.offers} if self.offers else {}),
        }
        return hashlib.sha256(msgspec.json.encode(plain)).hexdigest()


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a child, for people. Of its environment it has only the names."""

    state: State
    since: Instant
    pid: int | None
    restarts: int
    last_end: str | None
    spec: ChildSpec
    sandbox: str | None
    """The level in force; None without a sandbox, also if the start was refused."""


class Supervisor:
    """`data` is the hub's data directory. `task` reads a task; `sandbox_rules` holds for untrusted agents."""

    def __init__(
        self,
        hub: Intake,
        *,
        data: Path,
        session: Callable[[AgentId, Connection, LogSink, bool], ForgeSession],
        task: Callable[[TaskId], Awaitable[Task | None]],
        sandbox_rules: SandboxRules | None = None,
        environ: Mapping[str, str] | None = None,
        environments: Environments | None = None,
        node: str = "",
    ) -> None:
        data = data.resolve()
        self._hub = hub
        self._node = node
        self._environments = environments or EnvironmentFiles(data / "vault")
        self.logs = ChildLogs(data / "logs")
        self.spawner = SpawnerClient(_mark(data))
        self._context = ChildContext(
            hub=hub,
            spawner=self.spawner,
            environments=self._environments,
            throttled=ThrottledPipes(),
            homes=data / "agents",
            session=session,
            environ=dict(os.environ if environ is None else environ),
            sandbox_policy=SandboxPolicy(data, sandbox_rules or SandboxRules()),
            task=task,
        )
        self._children: dict[AgentId, Child] = {}
        self._removals: set[asyncio.Task[None]] = set()
        self._stopping = False

    # -- the whole of them

    async def start(self, declared: Sequence[ChildDeclaration] = ()) -> None:
        """Start every child of this node, without waiting for each to be up."""
        if left := await self.spawner.sweep():
            log.warning("killed what an earlier hub left behind", processes=left)
        await self._reconcile(declared)
        specs = [(agent, spec) for agent in self._hub.agents() if (spec := spec_of(agent)) is not None]
        await self._environments.clear_out({spec.vault for _, spec in specs if spec.vault})
        for agent, spec in specs:
            if spec.origin != "demo" and spec.node == self._node:  # the demo starts its own
                self.add(agent)

    async def drain(self, seconds: float) -> None:
        """Ask all children to end, then end them. They have their grace period, or `seconds` if that is less."""
        self._stopping = True
        stops = [child.stop("Orchestrator stopping", seconds) for child in self._children.values()]
        for outcome in await asyncio.gather(*stops, *self._removals, return_exceptions=True):
            if isinstance(outcome, Exception):  # the others must still end in order
                log.error("a child could not be stopped in order", exc_info=outcome)

    async def stop(self) -> None:
        """Kill the remaining children, and end the spawner."""
        self._stopping = True
        for child in self._children.values():
            child.kill()
        for removal in list(self._removals):
            removal.cancel()
        await asyncio.gather(*(child.ended(KILL_SECONDS) for child in self._children.values()))
        await self.spawner.close()  # it kills every process that is left
        await asyncio.gather(*(child.ended(KILL_SECONDS) for child in self._children.values()))
        await self.logs.flushed()

    # -- one

    async def admit(self, wanted: ChildDeclaration) -> Agent:
        """Add a new agent durably, and start it. Raises `Refused` (its id is taken)."""
        profile = wanted.profile
        spec = msgspec.structs.replace(wanted.spec, untrusted=profile.untrusted, node=self._node)
        if wanted.env:
            spec = msgspec.structs.replace(spec, env=tuple(sorted(wanted.env)), vault=self._hub.mint())
            await self._environments.keep(wanted.env, spec.vault or "")
        if profile.max_concurrent is None:  # D14; and in a sandbox its time is counted from when it was given a task
            profile = msgspec.structs.replace(profile, max_concurrent=1)
        no_token = f"child:{wanted.id}"  # the hash of no token: a child needs none
        agent = profile.admitted(AgentId(wanted.id), PROTOCOL, at=self._hub.now(), token_hash=no_token)
        agent = msgspec.structs.replace(agent, details={DETAIL: spec.details()}, offers=wanted.offers)
        try:
            await self._hub.execute(AddAgent(principal=ADMIN, protocol=PROTOCOL, agent=agent))
        except Refused:
            if spec.vault:
                await self._environments.drop(spec.vault)
            raise
        self.add(agent)
        return agent

    def add(self, agent: Agent) -> None:
        """Start an agent that is registered. One that runs already is left alone."""
        spec = spec_of(agent)
        if spec is None or agent.id in self._children or self._stopping:
            return
        child = Child(agent.id, spec, self.logs.of(agent.id), self._context, on_removed=self._on_agent_removed)
        self._children[agent.id] = child
        child.start()

    async def remove(self, id: AgentId, *, reason: str = "this agent was removed from the hub") -> None:
        """Stop it and remove its files. The caller removes its row."""
        child = self._children.pop(id, None)
        if child is None:
            return
        await child.stop(reason)
        if child.spec.vault:
            await self._environments.drop(child.spec.vault)
        if id in self._children:
            return  # another agent of that name was added meanwhile; it continues the log
        await self.logs.forget(id)
        with contextlib.suppress(OSError):  # its files may belong to another user
            await asyncio.to_thread((self._context.homes / id).rmdir)

    def dismiss(self, id: AgentId) -> None:
        """`remove` without waiting; of an agent that is no child, only the log is removed."""
        leaving = self.remove(id) if id in self._children else self.logs.forget(id)
        removal = asyncio.get_running_loop().create_task(leaving)
        self._removals.add(removal)
        removal.add_done_callback(self._removals.discard)

    async def restart(self, id: AgentId) -> None:
        """Stop it and start it afresh, also one that has crashed for good."""
        child = self._children.get(id)
        if child is None:
            return
        await child.stop("restarted on request")
        agent = self._hub.agent(id)
        if agent is not None and self._children.get(id) is child:  # not removed meanwhile
            del self._children[id]
            self.add(agent)

    def _on_agent_removed(self, id: AgentId) -> None:
        if not self._stopping:
            self.dismiss(id)

    # -- what people ask

    def status(self, id: AgentId) -> State | None:
        """The state in forge's terms; None for an agent that is no child."""
        child = self._children.get(id)
        return None if child is None else child.state

    def report(self, id: AgentId) -> Report | None:
        child = self._children.get(id)
        if child is None:
            return None
        return Report(
            state=child.state,
            since=child.since,
            pid=child.pid,
            restarts=child.restarts,
            last_end=None if child.last_end is None else str(child.last_end),
            spec=child.spec,
            sandbox=child.sandbox,
        )

    def log_of(self, id: AgentId) -> ChildLog | None:
        child = self._children.get(id)
        return None if child is None else child.log

    # -- the configuration

    async def _reconcile(self, declared: Sequence[ChildDeclaration]) -> None:
        """Remove children that the configuration no longer declares or has changed, then add those that it declares.
        Tasks stay."""
        wanted = {one.id: one for one in declared}
        for agent in self._hub.agents():
            spec = spec_of(agent)
            if spec is None or spec.origin != "config" or spec.node != self._node:
                continue
            now = wanted.get(agent.id)
            if now is None or now.digest != spec.digest or not await self._same_values(spec, now):
                log.info("an agent of the configuration changed or is gone", agent=agent.id)
                await self._hub.execute(RemoveAgent(principal=ADMIN, protocol=PROTOCOL, agent=agent.id))
        for one in declared:
            there = self._hub.agent(AgentId(one.id))
            known = None if there is None else spec_of(there)
            if there is None:
                spec = msgspec.structs.replace(one.spec, origin="config", digest=one.digest)
                await self.admit(msgspec.structs.replace(one, spec=spec))
            elif known is None or known.origin != "config":
                log.error("an agent of the configuration cannot be added: its id is taken", agent=one.id)

    async def _same_values(self, spec: ChildSpec, now: ChildDeclaration) -> bool:
        try:
            return (await self._environments.fetch(spec.vault) if spec.vault else {}) == now.env
        except (OSError, ValueError, StoreFailed):
            return False


def _mark(data: Path) -> str:
    """The id by which a hub finds processes that an earlier hub of this data directory left over; made once. A damaged
    id finds none, so it is replaced."""
    file = data / "brood.id"
    durable.make_directory(data)
    with contextlib.suppress(FileNotFoundError):
        mark = file.read_bytes().decode("latin-1").strip()
        if mark.isascii() and mark.isalnum() and len(mark) >= 16:
            return mark
        log.warning("the id of this data directory's processes was damaged, and is made again", file=str(file))
    mark = os.urandom(12).hex()
    durable.write(file, mark.encode("ascii"))
    return mark

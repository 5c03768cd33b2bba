"""All children of the hub: which there are, where each stands, and that none is left at the end.

An agent is a child if its row says how it is started (`recipe.DETAIL` in its details). So children come back after a
restart of the hub, whoever added them; those of the configuration are held against what it says now.

    hub starts    leftovers of an earlier life are killed; declared agents are added, changed or removed; all start
    hub stops     `drain`: all are asked to end at once, and seen to
    hub is killed the nursery kills everything (nursery.py)
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
from dragoman.core.ports import Intake
from dragoman.messages.faults import Refused
from dragoman.supervisor.channel import Nursery
from dragoman.supervisor.child import Child
from dragoman.supervisor.logbook import Log, Logbook
from dragoman.supervisor.pipes import Crowd
from dragoman.supervisor.recipe import DETAIL, PROTOCOL, Recipe, State, Terms, recipe_of
from dragoman.supervisor.run import LogSink, Surroundings, Words
from dragoman.supervisor.vault import Vault
from dragoman.supervisor.walls import Walls

log = structlog.get_logger("dragoman.children")

KILL_SECONDS = 5.0
"""For a killed child to be gone."""


class Declared(msgspec.Struct, frozen=True, kw_only=True):
    """An agent to be run, as somebody asked for it. `env` are the values."""

    id: str
    recipe: Recipe
    env: Mapping[str, str] = {}
    profile: Profile = Profile()
    offers: tuple[Offer, ...] = ()

    @property
    def digest(self) -> str:
        """Of all but the values of its environment: a hash would help whoever guesses at them."""
        plain = {
            "id": self.id,
            "recipe": self.recipe,
            "env": dict.fromkeys(sorted(self.env), ""),
            **msgspec.structs.asdict(self.profile),
            **({"offers": self.offers} if self.offers else {}),
        }
        return hashlib.sha256(msgspec.json.encode(plain)).hexdigest()


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Where a child stands, for people. Of its environment only the names are told."""

    state: State
    since: Instant
    pid: int | None
    restarts: int
    last_end: str | None
    recipe: Recipe
    sandbox: str | None
    """The level in force; None outside of one, also for what was refused."""


class Supervisor:
    """`data` is the hub's data directory. `task` says how a task stands; `terms` is the policy for untrusted agents."""

    def __init__(
        self,
        hub: Intake,
        *,
        data: Path,
        tongue: Callable[[AgentId, LogSink, bool], Words],
        task: Callable[[TaskId], Awaitable[Task | None]],
        terms: Terms | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        data = data.resolve()
        self._hub = hub
        self._vault = Vault(data / "vault")
        self.logbook = Logbook(data / "logs")
        self.nursery = Nursery(_mark(data))
        self._around = Surroundings(
            hub=hub,
            nursery=self.nursery,
            vault=self._vault,
            crowd=Crowd(),
            homes=data / "agents",
            tongue=tongue,
            environ=dict(os.environ if environ is None else environ),
            walls=Walls(data, terms or Terms()),
            task=task,
        )
        self._children: dict[AgentId, Child] = {}
        self._farewells: set[asyncio.Task[None]] = set()
        self._stopping = False

    # -- the whole of them

    async def start(self, declared: Sequence[Declared] = ()) -> None:
        """Start every child there is, without waiting for each to be up."""
        if left := await self.nursery.sweep():
            log.warning("killed what an earlier hub left behind", processes=left)
        await self._reconcile(declared)
        recipes = [(agent, recipe) for agent in self._hub.agents() if (recipe := recipe_of(agent)) is not None]
        await asyncio.to_thread(self._vault.clear_out, {recipe.vault for _, recipe in recipes if recipe.vault})
        for agent, recipe in recipes:
            if recipe.origin != "demo":  # the demo starts its own, when it plays
                self.add(agent)

    async def drain(self, seconds: float) -> None:
        """Ask all children to end, and see to it. They have their grace period, or this long if that is less."""
        self._stopping = True
        stops = [child.stop("Orchestrator stopping", seconds) for child in self._children.values()]
        for outcome in await asyncio.gather(*stops, *self._farewells, return_exceptions=True):
            if isinstance(outcome, Exception):  # the others shall end in order all the same
                log.error("a child could not be stopped in order", exc_info=outcome)

    async def stop(self) -> None:
        """Kill what is left, and end the nursery."""
        self._stopping = True
        for child in self._children.values():
            child.kill()
        for farewell in list(self._farewells):
            farewell.cancel()
        await asyncio.gather(*(child.ended(KILL_SECONDS) for child in self._children.values()))
        await self.nursery.close()  # it kills what would not die; then all is over
        await asyncio.gather(*(child.ended(KILL_SECONDS) for child in self._children.values()))
        await self.logbook.flushed()

    # -- one

    async def admit(self, wanted: Declared) -> Agent:
        """A new agent, durably, and started. Raises `Refused` (its id is taken)."""
        profile = wanted.profile
        recipe = msgspec.structs.replace(wanted.recipe, untrusted=profile.untrusted)
        if wanted.env:
            recipe = msgspec.structs.replace(recipe, env=tuple(sorted(wanted.env)), vault=self._hub.mint())
            await asyncio.to_thread(self._vault.keep, wanted.env, recipe.vault or "")
        if profile.max_concurrent is None:  # D14; and in a sandbox its time is counted from when it was given a task
            profile = msgspec.structs.replace(profile, max_concurrent=1)
        no_token = f"child:{wanted.id}"  # no hash of anything: it needs no token, and nobody can have one
        agent = profile.admitted(AgentId(wanted.id), PROTOCOL, at=self._hub.now(), token_hash=no_token)
        agent = msgspec.structs.replace(agent, details={DETAIL: recipe.details()}, offers=wanted.offers)
        try:
            await self._hub.execute(AddAgent(principal=ADMIN, protocol=PROTOCOL, agent=agent))
        except Refused:
            if recipe.vault:
                await asyncio.to_thread(self._vault.drop, recipe.vault)
            raise
        self.add(agent)
        return agent

    def add(self, agent: Agent) -> None:
        """Start an agent whose row is there. One that runs already is left alone."""
        recipe = recipe_of(agent)
        if recipe is None or agent.id in self._children or self._stopping:
            return
        child = Child(agent.id, recipe, self.logbook.of(agent.id), self._around, gone=self._gone)
        self._children[agent.id] = child
        child.start()

    async def remove(self, id: AgentId, *, reason: str = "this agent was removed from the hub") -> None:
        """Stop it and forget what was kept for it. Its row is somebody else's to remove."""
        child = self._children.pop(id, None)
        if child is None:
            return
        await child.stop(reason)
        if child.recipe.vault:
            await asyncio.to_thread(self._vault.drop, child.recipe.vault)
        if id in self._children:
            return  # another of that name came meanwhile; it goes on with the log
        await self.logbook.forget(id)
        with contextlib.suppress(OSError):  # what it wrote there is its user's
            await asyncio.to_thread((self._around.homes / id).rmdir)

    def dismiss(self, id: AgentId) -> None:
        """`remove` without waiting; of an agent elsewhere there is only its log to forget."""
        leaving = self.remove(id) if id in self._children else self.logbook.forget(id)
        farewell = asyncio.get_running_loop().create_task(leaving)
        self._farewells.add(farewell)
        farewell.add_done_callback(self._farewells.discard)

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

    def _gone(self, id: AgentId) -> None:
        if not self._stopping:
            self.dismiss(id)

    # -- what people ask

    def status(self, id: AgentId) -> State | None:
        """In forge's words; None for an agent that is no child."""
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
            recipe=child.recipe,
            sandbox=child.sandbox,
        )

    def log_of(self, id: AgentId) -> Log | None:
        child = self._children.get(id)
        return None if child is None else child.log

    # -- the configuration

    async def _reconcile(self, declared: Sequence[Declared]) -> None:
        """What the configuration no longer says, or says otherwise, goes; then what it says comes. Tasks stay."""
        wanted = {one.id: one for one in declared}
        for agent in self._hub.agents():
            recipe = recipe_of(agent)
            if recipe is None or recipe.origin != "config":
                continue
            now = wanted.get(agent.id)
            if (
                now is None
                or now.digest != recipe.digest
                or not await asyncio.to_thread(self._same_values, recipe, now)
            ):
                log.info("an agent of the configuration changed or is gone", agent=agent.id)
                await self._hub.execute(RemoveAgent(principal=ADMIN, protocol=PROTOCOL, agent=agent.id))
        for one in declared:
            there = self._hub.agent(AgentId(one.id))
            known = None if there is None else recipe_of(there)
            if there is None:
                recipe = msgspec.structs.replace(one.recipe, origin="config", digest=one.digest)
                await self.admit(msgspec.structs.replace(one, recipe=recipe))
            elif known is None or known.origin != "config":
                log.error("an agent of the configuration cannot be added: its id is taken", agent=one.id)

    def _same_values(self, recipe: Recipe, now: Declared) -> bool:
        try:
            return (self._vault.fetch(recipe.vault) if recipe.vault else {}) == now.env
        except (OSError, ValueError):
            return False


def _mark(data: Path) -> str:
    """The id by which a hub finds processes that an earlier hub of this data directory left behind; made once. A
    damaged one finds none, so a new one is made: nothing is lost that was still there."""
    file = data / "brood.id"
    durable.make_directory(data)
    with contextlib.suppress(FileNotFoundError):
        mark = file.read_bytes().decode("latin-1").strip()
        if mark.isascii() and mark.isalnum() and len(mark) >= 16:
            return mark
        log.warning("the id of this data directory's processes was damaged, and is made anew", file=str(file))
    mark = os.urandom(12).hex()
    durable.write(file, mark.encode("ascii"))
    return mark

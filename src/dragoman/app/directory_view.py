"""What the hub knows in memory, as of the last commit: agents, the tasks they hold, what they share and agreed on. And
an event for callers that wait for a change.

Both intakes are one: that of a hub that decides (`app.intake`), which alone changes what is seen here, after each
commit; and that of a node that follows another (`app.cluster.link`), which sees a mirror.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import ClassVar

from dragoman.core.directory import Directory
from dragoman.core.ids import AgentId, Instant, TaskId
from dragoman.core.model.agents import Agent
from dragoman.core.model.audit import Newest
from dragoman.core.model.contracts import Contract
from dragoman.core.model.holdings import NOTHING, Holding
from dragoman.core.model.people import Person
from dragoman.core.model.policy import Policy
from dragoman.core.model.policy import default as default_policy
from dragoman.core.model.silence import Watched
from dragoman.core.model.state import Entity
from dragoman.core.model.tasks import Task
from dragoman.core.ports import Store
from dragoman.core.rules import Rules
from dragoman.server.forge.bus import Bus

CONTRACTS = 20_000
"""Contracts that are remembered."""


class DirectoryView:
    _directory: Directory
    """There from the start on: it is made of what the store recovers."""

    leads: ClassVar[bool] = True
    """False at a following node, which leaves what only one node may do to the leader."""

    def __init__(self, store: Store, rules: Rules, now: Callable[[], Instant]) -> None:
        self.store = store
        self.rules = rules
        self.now = now
        self._serving_since = Instant(0)
        self._watches: dict[TaskId, set[asyncio.Event]] = {}
        self._state_watches: set[asyncio.Event] = set()
        self._contracts: dict[str, Contract] = {}
        self._callback_changed: Callable[[AgentId], None] | None = None
        self.bus = Bus()
        """Publish and subscribe of this node's connections."""

    def agent_of(self, token_hash: str) -> Agent | None:
        id = self._directory.by_token.get(token_hash)
        return None if id is None else self._directory.agents.get(id)

    def agent(self, id: AgentId) -> Agent | None:
        return self._directory.agents.get(id)

    def agents(self) -> Sequence[Agent]:
        return list(self._directory.agents.values())

    @property
    def queued(self) -> int:
        """How many tasks wait in queues."""
        return sum(self._directory.backlog.values())

    @property
    def people(self) -> Mapping[str, Person]:
        return self._directory.people

    async def contract(self, id: str) -> Contract | None:
        """A contract as of the last commit. The ones that are used are remembered."""
        known = self._contracts.get(id)
        if known is None:
            known = await self.store.contract(id)
            if known is not None:
                if len(self._contracts) >= CONTRACTS:
                    self._contracts.clear()
                self._contracts[id] = known
        return known

    def load_of(self, id: AgentId) -> Sequence[TaskId]:
        return sorted(self._directory.active.get(id, ()))

    def holds(self, id: AgentId, task: TaskId) -> bool:
        return task in self._directory.active.get(id, ())

    def watched(self, task: Task) -> Watched:
        directory, owner = self._directory, task.owner
        return Watched(
            rules=self.rules,
            serving_since=self._serving_since,
            agent=None if owner is None else directory.agents.get(owner),
            link=None if task.attempt.session is None else directory.links.get(task.attempt.session),
            is_linked=owner in directory.links_of,
            seen_at=None if owner is None else directory.seen_at.get(owner),
        )

    def holding(self, id: AgentId) -> Holding:
        return self._directory.holdings.get(id, NOTHING)

    def reachable(self, id: AgentId) -> bool:
        if id in self._directory.links_of:
            return True
        polled = self._directory.polled_at.get(id)
        return polled is not None and self.now() - polled < self.rules.poll_presence

    @asynccontextmanager
    async def watch(self, task: TaskId) -> AsyncIterator[_Watch]:
        event = asyncio.Event()
        watchers = self._watches.setdefault(task, set())
        watchers.add(event)
        if len(watchers) == 1:
            self._subscribe(task, on=True)
        try:
            yield _Watch(event)
        finally:
            watchers.discard(event)
            if not watchers:
                self._watches.pop(task, None)
                self._subscribe(task, on=False)

    def _subscribe(self, about: str, *, on: bool) -> None:
        """The first watch of a task or question began, or the last one ended."""

    def _wake(self, about: str) -> None:
        """Something was committed about this task or question."""
        for event in self._watches.get(TaskId(about), ()):
            event.set()

    def _wake_state(self) -> None:
        for event in self._state_watches:
            event.set()

    @asynccontextmanager
    async def watch_state(self) -> AsyncIterator[_Watch]:
        event = asyncio.Event()
        self._state_watches.add(event)
        try:
            yield _Watch(event)
        finally:
            self._state_watches.discard(event)

    def watch_callbacks(self, changed: Callable[[AgentId], None] | None) -> None:
        self._callback_changed = changed

    def entity(self, id: str) -> Entity | None:
        return self._directory.entities.get(id)

    def entities(self) -> Sequence[Entity]:
        return list(self._directory.entities.values())

    @property
    def newest_audit(self) -> Newest:
        return Newest(self._directory.audit_seq, self._directory.audit_hash)

    @property
    def policy(self) -> Policy:
        return self._directory.policy or default_policy(self.rules)

    def seen_at(self, id: AgentId) -> Instant | None:
        return self._directory.seen_at.get(id)

    @property
    def state_cursor(self) -> int:
        return self._directory.state_cursor

    @property
    def links(self) -> int:
        return len(self._directory.links)


class _Watch:
    def __init__(self, event: asyncio.Event) -> None:
        self._event = event

    async def changed(self, timeout: float) -> bool:
        try:
            async with asyncio.timeout(timeout):
                await self._event.wait()
        except TimeoutError:
            return False
        self._event.clear()
        return True

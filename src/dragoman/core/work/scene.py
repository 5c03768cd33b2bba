"""Reading what the hub has in memory: who is there, how to reach them, and what keeps them busy.

The directory is what was committed; what this unit changed is laid over it.
"""

from __future__ import annotations

from collections.abc import Iterable

from dragoman.core.ids import AgentId, SessionId, TaskId
from dragoman.core.lookups import EntityById
from dragoman.core.model import policy
from dragoman.core.model.agent_status import Standing, standing_of
from dragoman.core.model.agents import Agent, Link
from dragoman.core.model.ratelimit import Key, Minute
from dragoman.core.model.state import Entity, Registry
from dragoman.core.model.tasks import Task
from dragoman.core.work.rows import Rows


class Scene(Rows):
    def agent(self, id: AgentId) -> Agent | None:
        entry = self._dirty[Agent].get(id)
        if entry is not None:
            return entry.row  # type: ignore[return-value]
        return self.directory.agents.get(id)

    def entity(self, registry: Registry, name: str) -> Entity | None:
        """Something that agents share. The policy is `core.state.changes.policy_entity`: it is there from the start."""
        id = f"{registry.value}/{name}"
        entry = self._dirty[Entity].get(id)
        if entry is not None:
            return entry.row  # type: ignore[return-value]
        return self.one(EntityById(id)) if registry is Registry.TASK else self.directory.entities.get(id)

    @property
    def policy(self) -> policy.Policy:
        """What is in force."""
        dirty = self._dirty[Entity]
        if dirty:
            entry = dirty.get(f"{Registry.POLICY.value}/{policy.NAME}")
            if entry is not None and isinstance(entry.row, Entity):
                return policy.read(entry.row.value)
        directory = self.directory
        if directory.policy is None:
            directory.policy = policy.default(self.rules)
        return directory.policy

    @property
    def reports(self) -> bool:
        """Whether any agent said how it is."""
        return bool(self.directory.standings or self._dirty[Entity])

    @property
    def limits(self) -> bool:
        """Whether anything limits what anybody may use."""
        return bool(self.directory.allotted or self._dirty[Entity]) or self.policy.limits

    def standing(self, agent: AgentId) -> Standing | None:
        """How an agent stands, if it ever said so."""
        dirty = self._dirty[Entity]
        if dirty:
            entry = dirty.get(f"{Registry.AGENT.value}/{agent}")
            if entry is not None:
                return standing_of(entry.row.value) if isinstance(entry.row, Entity) else None
        return self.directory.standings.get(agent)

    def allotted(self, agent: AgentId) -> bool:
        """Whether there may be allocations of an agent."""
        return agent in self.directory.allotted or bool(self._dirty[Entity])

    def agents_of_kind(self, kind: str) -> Iterable[Agent]:
        dirty = self._dirty[Agent]
        for id in self.directory.by_kind.get(kind, ()):
            if id not in dirty:
                yield self.directory.agents[id]
        for entry in dirty.values():
            if isinstance(entry.row, Agent) and entry.row.called == kind:
                yield entry.row

    def all_agents(self) -> Iterable[Agent]:
        dirty = self._dirty[Agent]
        for id, agent in self.directory.agents.items():
            if id not in dirty:
                yield agent
        for entry in dirty.values():
            if isinstance(entry.row, Agent):
                yield entry.row

    def is_offered(self, type: str) -> bool:
        """Whether anybody may have declared terms for such work."""
        return type in self.directory.offered or any(
            isinstance(entry.row, Agent) and entry.row.offer(type) for entry in self._dirty[Agent].values()
        )

    def links_to(self, agent: AgentId) -> list[Link]:
        """The ways to reach it. Requests that wait for an answer are none."""
        changed = self._links
        if not changed:
            return self.directory.links_to(agent)
        links = [link for link in self.directory.links_to(agent) if link.session not in changed]
        links += [link for link in changed.values() if link is not None and link.agent == agent and not link.awaits]
        return links

    def all_links_of(self, agent: AgentId) -> list[Link]:
        """Those, and its requests that wait."""
        changed = self._links
        links = [link for link in self.directory.links.values() if link.agent == agent and link.session not in changed]
        links += [link for link in changed.values() if link is not None and link.agent == agent]
        return links

    def link(self, session: SessionId) -> Link | None:
        return self._links[session] if session in self._links else self.directory.links.get(session)

    def load_of(self, agent: AgentId) -> int:
        """How many unfinished tasks it has."""
        return len(self.directory.active.get(agent, ())) + self._load.get(agent, 0)

    def tasks_of(self, agent: AgentId) -> list[TaskId]:
        dirty = self._dirty[Task]
        ids = [id for id in self.directory.active.get(agent, ()) if id not in dirty]
        ids += [id for id, entry in dirty.items() if isinstance(entry.row, Task) and entry.row.holder == agent]
        return ids

    def backlog(self, queue: str) -> int:
        return self.directory.backlog.get(queue, 0) + self._backlog.get(queue, 0)

    def minute(self, key: Key) -> Minute | None:
        """How much somebody said in the last minute."""
        return self._minutes.get(key) or self.directory.minutes.get(key)

    def passed(self, id: str) -> str | None:
        """The digest of a letter that left without a row, if it is remembered."""
        return self._passed.get(id) or self.directory.passed.get(id)

    def used(self, id: int) -> int | None:
        """The content that a message id stands for, if it is remembered (`policy.replay`)."""
        content = self._used.get(id)
        return self.directory.used.get(id) if content is None else content

    @property
    def anybody_queues(self) -> bool:
        return bool(self.directory.backlog or self._backlog)

    def queues(self) -> list[str]:
        """The queues in which somebody waits."""
        names = {**self.directory.backlog, **self._backlog}
        return [name for name in names if self.backlog(name) > 0]

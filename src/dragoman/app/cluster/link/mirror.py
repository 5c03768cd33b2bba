"""The mirror: what a following node knows of the leader's directory, so that it answers from memory what endpoints ask
at every message (whose token is this, which tasks has this agent).

    the leader's directory                        in the mirror
    --------------------------------------------  ------------------------------------------------------------------
    agents, people, entities of the shared state  as they are
    tasks that agents hold, unfinished holdings   as they are
    open links                                    whose, whether ordered, whether it vouches: nothing that each message
                                                  changes
    queues                                        how many tasks wait in all
    rates, allowances, ids of used messages       not there: only decisions read them, and decisions are the leader's

A node gets all of it when it connects (`snapshot`), then what each commit changed (`Changed.of`). Both are made of the
same struct, and take effect through the same function. The leader makes them only while a node is connected.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from dragoman.core.directory import Directory
from dragoman.core.ids import AgentId, Instant, SessionId, TaskId
from dragoman.core.model.agents import Agent, Link
from dragoman.core.model.contracts import Contract
from dragoman.core.model.deliveries import Delivery
from dragoman.core.model.holdings import NOTHING, Holding
from dragoman.core.model.people import Person
from dragoman.core.model.state import Entity, Registry
from dragoman.core.model.tasks import Task
from dragoman.core.ports import Recovered
from dragoman.core.work import Work

PAGE = 500
"""Agents, entities, links of one part of a snapshot."""


class Delta(msgspec.Struct, kw_only=True, omit_defaults=True, gc=False):
    """A change of the mirror. `contracts` are ids of contracts that changed: a node forgets what it remembers of
    them."""

    agents: list[Agent] = []
    agents_gone: list[AgentId] = []
    people: list[Person] = []
    people_gone: list[str] = []
    taken: list[tuple[AgentId, TaskId]] = []
    left: list[tuple[AgentId, TaskId]] = []
    holdings: dict[AgentId, Holding] = {}
    entities: list[Entity] = []
    entities_gone: list[Entity] = []
    links: list[Link] = []
    links_gone: list[SessionId] = []
    seen_at: dict[AgentId, Instant] = {}
    polled_at: dict[AgentId, Instant] = {}
    queued: int | None = None
    audit: tuple[int, str] | None = None
    state_cursor: int | None = None
    contracts: list[str] = []


class LeaderMirror:
    """The leader's side. It knows which links nodes know, so that one that opens and closes in a commit, as most polls
    do, is never sent."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._links: set[SessionId] = {*directory.links}
        self._queued = sum(directory.backlog.values())

    def snapshot(self) -> Iterator[Delta]:
        """All of it, as of the last commit, in parts."""
        directory = self._directory
        agents = list(directory.agents.values())
        for start in range(0, len(agents), PAGE):
            yield Delta(agents=agents[start : start + PAGE])
        entities = list(directory.entities.values())
        for start in range(0, len(entities), PAGE):
            yield Delta(entities=entities[start : start + PAGE])
        links = [_bare(directory.links[session]) for session in self._links if session in directory.links]
        for start in range(0, len(links), PAGE):
            yield Delta(links=links[start : start + PAGE])
        yield Delta(
            people=list(directory.people.values()),
            taken=[(agent, task) for agent, tasks in directory.active.items() for task in tasks],
            holdings=dict(directory.holdings),
            seen_at=dict(directory.seen_at),
            polled_at=dict(directory.polled_at),
            queued=self._queued,
            audit=(directory.audit_seq, directory.audit_hash),
            state_cursor=directory.state_cursor,
        )

    def changed_by(self, work: Work) -> Delta | None:
        """What this unit of work changed, after `work.settle()`; None if that is nothing."""
        directory, delta = self._directory, Delta()
        for id, entry in work.entries(Agent).items():
            if isinstance(entry.row, Agent):
                delta.agents.append(entry.row)
            elif entry.base is not None:
                delta.agents_gone.append(id)
        for name, entry in work.entries(Person).items():
            if isinstance(entry.row, Person):
                delta.people.append(entry.row)
            elif entry.base is not None:
                delta.people_gone.append(name)
        whose: set[AgentId] = set()
        for entry in work.entries(Task).values():
            self._note_task(delta, entry.base, entry.row, whose)
        for entry in work.entries(Delivery).values():
            for row in (entry.base, entry.row):
                if isinstance(row, Delivery) and row.direct_message is not None:
                    whose.add(row.direct_message.sender)
        for entry in work.entries(Entity).values():
            row = entry.row if isinstance(entry.row, Entity) else entry.base
            if isinstance(row, Entity) and row.registry is Registry.TASK:
                whose.add(row.created_by)
            elif isinstance(entry.row, Entity):
                delta.entities.append(entry.row)
            elif isinstance(entry.base, Entity):
                delta.entities_gone.append(entry.base)
        delta.holdings = {id: directory.holdings.get(id, NOTHING) for id in whose}
        delta.contracts = [contract.id for contract in map(_row, work.entries(Contract).values()) if contract]
        self._note_links(delta, work)
        for id in work.seen:
            if (at := directory.seen_at.get(id)) is not None:
                delta.seen_at[id] = at
        if work.queued:
            self._queued = delta.queued = self._queued + work.queued
        if work.audited:
            delta.audit = (directory.audit_seq, directory.audit_hash)
        if work.changed is not None:
            delta.state_cursor = directory.state_cursor
        return delta if delta != EMPTY else None

    def _note_task(self, delta: Delta, base: object, row: object, whose: set[AgentId]) -> None:
        was = base.holder if isinstance(base, Task) else None
        holder = row.holder if isinstance(row, Task) else None
        task = row if isinstance(row, Task) else base
        if not isinstance(task, Task):
            return
        if was != holder:
            if was is not None:
                delta.left.append((was, task.id))
            if holder is not None:
                delta.taken.append((holder, task.id))
        counted = isinstance(base, Task) and not base.final
        if counted is not (isinstance(row, Task) and not row.final):
            whose.add(task.origin.principal)

    def _note_links(self, delta: Delta, work: Work) -> None:
        directory, known = self._directory, self._links
        sessions = dict(work.links)
        for session, outgoing in work.outgoing_messages:
            if session not in directory.links:
                sessions[session] = None
            polled = directory.polled_at.get(outgoing.delivery.receiver)
            if polled == work.now:
                delta.polled_at[outgoing.delivery.receiver] = polled
        for session, link in sessions.items():
            if link is not None and directory.polled_at.get(link.agent) == work.now:
                delta.polled_at[link.agent] = work.now
            now = directory.links.get(session)
            if now is not None and session not in known:
                known.add(session)
                delta.links.append(_bare(now))
            elif now is None and session in known:
                known.discard(session)
                delta.links_gone.append(session)


EMPTY = Delta()


def _row(entry: object) -> Contract | None:
    row = getattr(entry, "row", None) or getattr(entry, "base", None)
    return row if isinstance(row, Contract) else None


def _bare(link: Link) -> Link:
    """A link without what each message changes."""
    return Link(session=link.session, agent=link.agent, ordered=link.ordered, vouches=link.vouches, awaits=link.awaits)


class Mirror:
    """A node's side: a directory that only deltas change."""

    def __init__(self) -> None:
        self.directory = Directory(Recovered())

    def apply(self, delta: Delta) -> None:
        directory = self.directory
        for id in delta.agents_gone:
            if (agent := directory.agents.get(id)) is not None:
                directory.drop_agent(agent)
        for agent in delta.agents:
            directory.put_agent(agent)
        for name in delta.people_gone:
            directory.put_person(name, None)
        for person in delta.people:
            directory.put_person(person.id, person)
        for owner, task in delta.left:
            held = directory.active.get(owner)
            if held is not None:
                held.pop(task, None)
                if not held:
                    del directory.active[owner]
        for owner, task in delta.taken:
            directory.active.setdefault(owner, {})[task] = None
        for id, holding in delta.holdings.items():
            if holding == NOTHING:
                directory.holdings.pop(id, None)
            else:
                directory.holdings[id] = holding
        for entity in delta.entities_gone:
            directory.drop_entity(entity)
        for entity in delta.entities:
            directory.put_entity(entity)
        for session in delta.links_gone:
            directory.drop_link(session)
        for link in delta.links:
            directory.put_link(link)
        directory.seen_at.update(delta.seen_at)
        directory.polled_at.update(delta.polled_at)
        if delta.queued is not None:
            directory.backlog = {"": delta.queued} if delta.queued else {}
        if delta.audit is not None:
            directory.audit_seq, directory.audit_hash = delta.audit
        if delta.state_cursor is not None:
            directory.state_cursor = delta.state_cursor

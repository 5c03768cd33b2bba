"""The directory: which agents are connected, and how busy they are, in memory.

It is derived from rows (agents, their tasks, the length of queues), or is about live connections, for which there are
no rows. The hub builds it at the start. Only `core.work` changes it, and only after a commit, so a failed commit leaves
it as it was.
"""

from __future__ import annotations

from collections import Counter
from itertools import islice
from typing import Any

from dragoman.core.ids import HUB, AgentId, Instant, SessionId
from dragoman.core.model import policy
from dragoman.core.model.agents import Agent, Link
from dragoman.core.model.holdings import NOTHING, Holding, holding_of
from dragoman.core.model.people import Person
from dragoman.core.model.ratelimit import Key, Minute
from dragoman.core.model.refusals import MOST_SENDERS, Allowance, RefusalCount, RefusalKey, rates_of
from dragoman.core.model.state import Entity, Registry, Standing, standing_of
from dragoman.core.ports import PASSED, USED, Recovered

MINUTES = 20_000
"""When there are so many, the empty ones are removed; then again at twice the number that was left."""


class Directory:
    """Read by decisions through `Work`, written only by `Work.settle`."""

    def __init__(self, recovered: Recovered) -> None:
        self.agents: dict[AgentId, Agent] = {agent.id: agent for agent in recovered.agents}
        self.by_token: dict[str, AgentId] = {agent.token_hash: agent.id for agent in recovered.agents}
        self.people: dict[str, Person] = {person.id: person for person in recovered.people}
        self.by_kind: dict[str, dict[AgentId, None]] = {}
        self.offered: Counter[str] = Counter()
        """How many agents declared terms for each type of work."""
        self.active = {owner: dict.fromkeys(ids) for owner, ids in recovered.active.items()}
        """The unfinished tasks of each agent, the oldest assignment first."""
        self.backlog: dict[str, int] = {queue: n for queue, n in recovered.backlog.items() if n}
        self.holdings: dict[AgentId, Holding] = dict(recovered.holdings)
        self.stopping = False
        """The hub is stopping: it assigns nothing any more, and closing a link is no failure of the agent. Agents keep
        their work and have time to come back after the start (`model.silence.back_by`), as if the hub had died."""
        self.links: dict[SessionId, Link] = {}
        self.links_of: dict[AgentId, dict[SessionId, None]] = {}
        self.polled_at: dict[AgentId, Instant] = {}
        self.passed: dict[str, str] = dict(recovered.passed)
        self.used: dict[int, int] = dict(recovered.used)
        """Message ids that were used, with their contents, the oldest first."""
        self.minutes: dict[Key, Minute] = {}
        self._many_minutes = MINUTES
        self.audit_seq = recovered.audit_seq
        self.audit_hash = recovered.audit_hash
        self.allowances: dict[str, Allowance] = {}
        self.refusal_counts: dict[RefusalKey, RefusalCount] = {}
        """Refusals that are counted and not recorded yet."""
        self.seen_at: dict[AgentId, Instant] = {}
        self.silent: set[AgentId] = set()
        self.conversing: set[AgentId] = set()
        self.entities: dict[str, Entity] = {}
        self.standings: dict[AgentId, Standing] = {}
        self.allotted: dict[AgentId, set[str]] = {}
        self.policy: policy.Policy | None = None
        self.state_cursor = recovered.state_cursor
        for agent in recovered.agents:
            self._enrol(agent)
        for entity in recovered.entities:
            self.put_entity(entity)

    def _enrol(self, agent: Agent) -> None:
        if agent.converses:
            self.conversing.add(agent.id)
        if agent.silent_since is not None:
            self.silent.add(agent.id)
        else:
            self.silent.discard(agent.id)
        self.by_kind.setdefault(agent.called, {})[agent.id] = None
        self.offered.update(offer.intent for offer in agent.offers)

    def put_agent(self, agent: Agent) -> None:
        old = self.agents.get(agent.id)
        if old is not None:
            self._strike(old)
        self.agents[agent.id] = agent
        self.by_token[agent.token_hash] = agent.id
        self._enrol(agent)

    def drop_agent(self, agent: Agent) -> None:
        self._strike(agent)
        self.agents.pop(agent.id, None)
        self.silent.discard(agent.id)
        self.conversing.discard(agent.id)
        self.seen_at.pop(agent.id, None)

    def put_person(self, name: str, person: Person | None) -> None:
        """None: the person was removed."""
        if person is None:
            self.people.pop(name, None)
        else:
            self.people[name] = person

    def _strike(self, agent: Agent) -> None:
        self.by_token.pop(agent.token_hash, None)
        for offer in agent.offers:
            self.offered[offer.intent] -= 1
            if not self.offered[offer.intent]:
                del self.offered[offer.intent]
        called = self.by_kind.get(agent.called)
        if called is not None:
            called.pop(agent.id, None)
            if not called:
                del self.by_kind[agent.called]

    def gave_work_to(self, id: AgentId) -> None:
        """Ask the other agents of its kind first next time: an agent that was chosen long ago is most likely idle, so
        the search for an idle one ends soon, however many there are."""
        agent = self.agents.get(id)
        kind = None if agent is None else self.by_kind.get(agent.called)
        if kind is not None and id in kind:
            del kind[id]
            kind[id] = None

    def note_holding(self, row: Any, times: int) -> None:
        """A row was added (1) or removed (-1)."""
        found = holding_of(row)
        if found is not None:
            id, holding = found
            left = self.holdings.get(id, NOTHING).plus(holding, times)
            if left == NOTHING:
                self.holdings.pop(id, None)
            else:
                self.holdings[id] = left

    def note_passed(self, direct_messages: dict[str, str]) -> None:
        """Remember the last direct messages that left without a row, to recognise them when they come again."""
        self.passed.update(direct_messages)
        if len(self.passed) > PASSED:
            for id in list(islice(self.passed, PASSED // 8)):
                del self.passed[id]

    def note_used(self, messages: dict[int, int]) -> None:
        self.used.update(messages)
        if len(self.used) > USED + USED // 8:
            for id in list(islice(self.used, USED // 8)):
                del self.used[id]

    def note_minutes(self, minutes: dict[Key, Minute], now: Instant) -> None:
        """How much each principal sent; empty minutes are removed."""
        self.minutes.update(minutes)
        if len(self.minutes) > self._many_minutes:
            self.minutes = {key: minute for key, minute in self.minutes.items() if minute.at(now).total}
            self._many_minutes = max(MINUTES, 2 * len(self.minutes))

    def note_allowances(self, allowances: dict[str, Allowance], now: Instant) -> None:
        """How many audit records senders have left. Full allowances are not kept, nor the oldest."""
        self.allowances.update(allowances)
        if len(self.allowances) > MOST_SENDERS:
            for name, allowance in list(self.allowances.items()):
                if allowance.now(rates_of(name)[0][1], now).left >= rates_of(name)[0][1].burst:
                    del self.allowances[name]
            for name in list(islice(self.allowances, max(0, len(self.allowances) - MOST_SENDERS))):
                del self.allowances[name]

    def put_entity(self, entity: Entity) -> None:
        """Keep an entity of the shared state, and what routing reads from it. Tasks stay in the store: they are
        many."""
        if entity.registry is Registry.TASK:
            return
        self.entities[entity.id] = entity
        if entity.registry is Registry.AGENT:
            self.standings[AgentId(entity.name)] = standing_of(entity.value)
        elif entity.registry is Registry.RESOURCE:
            self.allotted.setdefault(entity.value["agent_id"], set()).add(entity.value["resource_type"])
        else:
            self.policy = policy.read(entity.value)

    @property
    def totals_lapse_at(self) -> Instant | None:
        """When the next allocation for all agents together ends."""
        totals = (self.entities.get(f"{Registry.RESOURCE.value}/{HUB}:{kind}") for kind in self.allotted.get(HUB, ()))
        return min((entity.wake_at for entity in totals if entity and entity.wake_at is not None), default=None)

    def drop_entity(self, entity: Entity) -> None:
        self.entities.pop(entity.id, None)
        if entity.registry is Registry.AGENT:
            self.standings.pop(AgentId(entity.name), None)
        elif entity.registry is Registry.RESOURCE:
            self.allotted[entity.value["agent_id"]].discard(entity.value["resource_type"])

    def put_link(self, link: Link) -> None:
        self.links[link.session] = link
        if not link.awaits:
            self.links_of.setdefault(link.agent, {})[link.session] = None

    def drop_link(self, session: SessionId) -> None:
        link = self.links.pop(session, None)
        if link is not None and not link.awaits:
            sessions = self.links_of[link.agent]
            sessions.pop(session, None)
            if not sessions:
                del self.links_of[link.agent]

    def links_to(self, agent: AgentId) -> list[Link]:
        sessions = self.links_of.get(agent)
        return [self.links[session] for session in sessions] if sessions else []

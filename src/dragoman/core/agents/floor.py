"""Who is here, and how busy: the node's working memory.

Everything on the floor is either derived from rows (agents, who works on what, how long the queues are) or is
about live connections, which no row can promise anyway. It is rebuilt at start and only changed after a commit,
by `core.work`, so a failed commit leaves it as it was.
"""

from __future__ import annotations

import msgspec

from dragoman.core.agents.model import Agent
from dragoman.core.ids import AgentId, Instant, SessionId, TaskId
from dragoman.core.ports import Recovered


class Link(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A way to reach an agent now.

    `ordered`: what we send arrives in that order or the link breaks (WebSocket, stream); such a link holds its leases
    until it breaks. Otherwise it is one parked poll: it takes up to `credit` parcels of one unit of work and is gone.
    `window` bounds the unacknowledged notices on an ordered link whose peer acknowledges; None for one that does not.
    `vouches`: while the link stands its agent is alive (its process, or its stream, is watched).
    """

    session: SessionId
    agent: AgentId
    ordered: bool
    credit: int = 0
    window: int | None = None
    outstanding: int = 0
    vouches: bool = False

    @property
    def has_room(self) -> bool:
        if self.ordered:
            return self.window is None or self.outstanding < self.window
        return self.credit > 0


class Floor:
    """Read by decisions through `Work`, written only by `Work.settle`."""

    def __init__(self, recovered: Recovered) -> None:
        self.agents: dict[AgentId, Agent] = {agent.id: agent for agent in recovered.agents}
        self.by_token: dict[str, AgentId] = {agent.token_hash: agent.id for agent in recovered.agents}
        self.by_kind: dict[str, dict[AgentId, None]] = {}
        self.active: dict[AgentId, set[TaskId]] = {owner: set(ids) for owner, ids in recovered.active.items()}
        self.backlog: dict[str, int] = {queue: n for queue, n in recovered.backlog.items() if n}
        self.links: dict[SessionId, Link] = {}
        self.links_of: dict[AgentId, dict[SessionId, None]] = {}
        self.polled_at: dict[AgentId, Instant] = {}
        self.audit_seq = recovered.audit_seq
        self.audit_hash = recovered.audit_hash
        for agent in recovered.agents:
            self._enrol(agent)

    def _enrol(self, agent: Agent) -> None:
        self.by_kind.setdefault(agent.called, {})[agent.id] = None

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

    def _strike(self, agent: Agent) -> None:
        self.by_token.pop(agent.token_hash, None)
        called = self.by_kind.get(agent.called)
        if called is not None:
            called.pop(agent.id, None)
            if not called:
                del self.by_kind[agent.called]

    def gave_work_to(self, id: AgentId) -> None:
        """Let others of its kind be asked first next time: whoever was chosen long ago is most likely idle, so the
        search for an idle one ends soon, however many there are."""
        agent = self.agents.get(id)
        kind = None if agent is None else self.by_kind.get(agent.called)
        if kind is not None and id in kind:
            del kind[id]
            kind[id] = None

    def put_link(self, link: Link) -> None:
        self.links[link.session] = link
        self.links_of.setdefault(link.agent, {})[link.session] = None

    def drop_link(self, session: SessionId) -> None:
        link = self.links.pop(session, None)
        if link is not None:
            sessions = self.links_of[link.agent]
            sessions.pop(session, None)
            if not sessions:
                del self.links_of[link.agent]

    def links_to(self, agent: AgentId) -> list[Link]:
        sessions = self.links_of.get(agent)
        return [self.links[session] for session in sessions] if sessions else []

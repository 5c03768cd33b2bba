"""Which agent or caller a call is from, and whether an agent that connects may replace an older stream of its own.

A bearer token in the metadata says who it is. On loopback, in dev, an agent may come without one (D11). An agent whose
id has a token must bring it: being a guest is no way around a credential.

A stream that sent something within the keepalive interval is alive (D4). The server's own HTTP/2 pings test a silent
one: within one whole cycle of them a dead connection ends by itself. So a new stream waits that long for the old one to
end; if it does not, the old one answered, and the hub refuses the new one.
"""

from __future__ import annotations

import asyncio
import re
from typing import Protocol

from dragoman.core.commands import AdmitGuest
from dragoman.core.ids import ADMIN, AgentId
from dragoman.core.memory import STRANGERS
from dragoman.core.model.agents import Agent
from dragoman.core.ports import Intake
from dragoman.messages.faults import Fault, Kind, Refused, refuse
from dragoman.protocols.coven.mapping import PROTOCOL
from dragoman.protocols.coven.types import RegisterAgent
from dragoman.security import tokens
from dragoman.server.coven import inbound

GUEST_CALLER = AgentId("guest")
"""A caller without a token that gives no name."""

_name = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@+-]{0,127}").fullmatch
"""The ids that agents may be added under; a guest has no other."""


class Identity:
    """One for all of coven's services."""

    def __init__(self, hub: Intake, *, guests: bool, admin_hash: str | None = None) -> None:
        self._hub = hub
        self._guests = guests
        self._admin_hash = admin_hash

    def credential(self, metadata: dict[str, str]) -> AgentId | None:
        """Whose the credential is, None for a guest, before a registration is waited for; raises `Refused`."""
        token = token_in(metadata)
        if token is not None:
            return self._holder(token).id
        if not self._guests:
            raise _unauthenticated("no bearer token")
        return None

    def named(self, metadata: dict[str, str]) -> str:
        """Which agent's share of memory a call takes from, before it is read: guests and strangers share one."""
        token = token_in(metadata)
        agent = None if token is None else self._hub.agent_of(tokens.token_hash(token))
        return STRANGERS if agent is None else agent.id

    async def agent(self, metadata: dict[str, str], registration: RegisterAgent) -> Agent:
        """The agent behind a registration; raises `Refused`."""
        token = token_in(metadata)
        if token is None:
            return await self._guest(AgentId(registration.agent_id), registration.name or None)
        agent = self._holder(token)
        inbound.check_registration(agent, registration)
        return agent

    async def caller(self, metadata: dict[str, str], sender: str = "") -> AgentId:
        """The principal of a caller; raises `Refused`. What it calls itself must agree (all-D1)."""
        token = token_in(metadata)
        if token is None:
            return (await self._guest(AgentId(sender) if sender else GUEST_CALLER, None)).id
        if self._admin_hash is not None and tokens.same(tokens.token_hash(token), self._admin_hash):
            return ADMIN
        return self._holder(token).id

    def may_follow(self, principal: AgentId, metadata: dict[str, str], asked_by: AgentId) -> bool:
        """Whether a task of `asked_by` is there for this caller: its own, or, among guests, a guest's."""
        if principal in (ADMIN, asked_by):
            return True
        owner = self._hub.agent(asked_by)
        return self._guests and token_in(metadata) is None and owner is not None and owner.guest

    async def _guest(self, id: AgentId, name: str | None) -> Agent:
        if not self._guests:
            raise _unauthenticated("no bearer token")
        if not _name(id):
            what = "expected 1 to 128 letters, digits or . _ : @ + -, beginning with a letter or a digit"
            raise refuse(Kind.INVALID, what, field="agent_id")
        admitted: Agent = await self._hub.execute(AdmitGuest(principal=id, protocol=PROTOCOL, name=name))
        return admitted

    def _holder(self, token: str) -> Agent:
        agent = self._hub.agent_of(tokens.token_hash(token))
        if agent is None:
            raise _unauthenticated("nobody here has this token")
        return agent


def _unauthenticated(message: str) -> Refused:
    return Refused(Fault(kind=Kind.UNAUTHENTICATED, message=message, facts={"token_status": "missing or invalid"}))


def token_in(metadata: dict[str, str]) -> str | None:
    """The credential, or None if there is none. A broken one is no agent's token."""
    header = metadata.get("authorization")
    if header is None:
        return None
    return tokens.bearer(header.encode("latin-1", "replace")) or "-"


class ConnectedStream(Protocol):
    """A stream that is there."""

    last_message_at: float
    gone: asyncio.Event


class ConnectedAgents:
    """The streams by agent. `now` is the event loop's clock."""

    def __init__(self, *, keepalive_seconds: float, keepalive_timeout: float) -> None:
        self._interval = keepalive_seconds
        self._cycle = 1.1 * (keepalive_seconds + keepalive_timeout)  # the end must also be noticed
        self._here: dict[AgentId, ConnectedStream] = {}
        self._awaited: set[AgentId] = set()

    def __len__(self) -> int:
        return len(self._here)

    def __contains__(self, agent: AgentId) -> bool:
        return agent in self._here

    async def enter(self, agent: AgentId, stream: ConnectedStream) -> bool:
        """Connect the agent; False if an older stream of it is alive."""
        old = self._here.get(agent)
        if old is not None:
            silent = asyncio.get_running_loop().time() - old.last_message_at
            if silent < self._interval or agent in self._awaited:
                return False
            self._awaited.add(agent)
            try:
                async with asyncio.timeout(self._cycle):
                    await old.gone.wait()
            except TimeoutError:
                return False
            finally:
                self._awaited.discard(agent)
            if agent in self._here:
                return False
        self._here[agent] = stream
        return True

    def leave(self, agent: AgentId, stream: ConnectedStream) -> None:
        if self._here.get(agent) is stream:
            del self._here[agent]
        stream.gone.set()

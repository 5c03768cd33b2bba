"""Who is it? A bearer token in the metadata says so; on loopback, in dev, an agent may come without one (D11).

An agent whose id has a token must bring it: being a guest is no way around a credential.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any
from urllib.parse import unquote

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
        """Whose allowance of memory a call takes from, before it is read: guests and strangers share one."""
        token = token_in(metadata)
        agent = None if token is None else self._hub.agent_of(tokens.token_hash(token))
        return STRANGERS if agent is None else agent.id

    async def agent(self, metadata: dict[str, str], said: RegisterAgent) -> Agent:
        """The agent behind a registration; raises `Refused`."""
        token = token_in(metadata)
        if token is None:
            return await self._guest(AgentId(said.agent_id), said.name or None)
        agent = self._holder(token)
        inbound.check_registration(agent, said)
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


def metadata_of(pairs: Iterable[Any] | None) -> dict[str, str]:
    """The textual metadata of a call; the first value of a key counts."""
    found: dict[str, str] = {}
    for key, value in pairs or ():
        if isinstance(value, str):
            found.setdefault(key, value)
    return found


def token_in(metadata: dict[str, str]) -> str | None:
    """The credential, or None if there is none. A broken one is no token of anybody."""
    header = metadata.get("authorization")
    if header is None:
        return None
    return tokens.bearer(header.encode("latin-1", "replace")) or "-"


def address_of(context: Any) -> str | None:
    """Where a call comes from: gRPC says `ipv4:ADDRESS:PORT`, or `ipv6:[ADDRESS]:PORT`, some of it escaped."""
    kind, _, rest = unquote(context.peer() or "").partition(":")
    return rest.rpartition(":")[0].strip("[]") if kind in ("ipv4", "ipv6") else None

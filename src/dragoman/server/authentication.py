"""Whose bearer token it is, for the endpoints on the HTTP port. In memory: it costs no read."""

from __future__ import annotations

from dragoman.core.model.agents import Agent
from dragoman.core.ports import Intake
from dragoman.messages.faults import Fault, Kind, Refused, refuse
from dragoman.security import tokens
from dragoman.server.asgi import Scope, header

INSTANCE = b"dragoman-instance"
LONGEST_INSTANCE = 128
UNKNOWN = "unknown"
"""Whom an answer is addressed to when nobody knows who asked."""


def holder(hub: Intake, scope: Scope) -> Agent:
    """The agent of any protocol whose token came with the request; raises `Refused`."""
    token = tokens.bearer(header(scope, b"authorization"))
    agent = None if token is None else hub.agent_of(tokens.token_hash(token))
    if agent is None:
        status = "missing" if token is None else "invalid"
        message = "no bearer token" if token is None else "nobody here has this token"
        facts = {"agent_id": UNKNOWN, "token_status": status}
        raise Refused(Fault(kind=Kind.UNAUTHENTICATED, message=message, facts=facts))
    return agent


def speaker(hub: Intake, scope: Scope, protocol: str) -> Agent:
    """The same, if it was added to speak this protocol."""
    agent = holder(hub, scope)
    if agent.protocol != protocol:
        fault = Fault(
            kind=Kind.FORBIDDEN,
            message=f"{agent.id} was added to speak {agent.protocol}; use that protocol's endpoints",
            facts={"agent_id": agent.id, "token_status": "valid, but for another protocol"},
        )
        raise Refused(fault)
    return agent


def instance(scope: Scope) -> str | None:
    """Which process of the agent connects or polls, where it says so; raises `Refused`."""
    said = header(scope, INSTANCE)
    if said is None:
        return None
    if not 1 <= len(said) <= LONGEST_INSTANCE or not all(0x21 <= byte <= 0x7E for byte in said):
        what = f"expected 1 to {LONGEST_INSTANCE} visible ASCII characters, other ones for each start of the agent"
        raise refuse(Kind.INVALID, what, field="Dragoman-Instance", stage="shape")
    return said.decode()


def is_admin(scope: Scope, admin_hash: str | None) -> bool:
    """Whether it is the admin's. Hashes are compared, in constant time."""
    token = tokens.bearer(header(scope, b"authorization"))
    return bool(token and admin_hash and tokens.same(tokens.token_hash(token), admin_hash))

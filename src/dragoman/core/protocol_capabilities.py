"""What the core knows of each protocol: what its agents can do, and how the hub treats them.

One table. A protocol that is not in it has no capabilities of its own: its agents do tasks,
ask people, and hear notices.
"""

from __future__ import annotations

import msgspec

from dragoman.core.ids import ADMIN, HUB, NOBODY, AgentId


class ProtocolCapabilities(msgspec.Struct, frozen=True, kw_only=True):
    converses: bool = False
    """Its agents talk with each other: they hear direct messages, and are asked for help and to take tasks over."""
    reads_direct_messages: bool = False
    """It has a word for a message that is no task."""
    shakes_hands: bool = False
    """Its agents are asked whether they agree to a contract. Others agreed when they declared their terms."""
    seals: bool = False
    """Its agents are promised that personal data reaches them encrypted (a2acp-D13)."""
    limited: bool = False
    """Its messages are counted (a2acp-D16)."""
    answers_always: bool = False
    """What its agents ask and wait for has an answer in any case, also where the task ended first."""
    keeps_queued: bool = False
    """Its document has one answer to a task that is submitted: it is queued, for agents that come and claim it."""
    hub: str | None = None
    """What it calls the hub, where it has a name for it."""


PROTOCOL_CAPABILITIES = {
    "agentmsg": ProtocolCapabilities(converses=True, reads_direct_messages=True),
    "a2acp": ProtocolCapabilities(
        reads_direct_messages=True, shakes_hands=True, seals=True, limited=True, hub="protocol-broker-agent"
    ),
    "forge": ProtocolCapabilities(answers_always=True, keeps_queued=True),
}

CONVERSES = frozenset(name for name, of in PROTOCOL_CAPABILITIES.items() if of.converses)
READS_DIRECT_MESSAGES = frozenset(name for name, of in PROTOCOL_CAPABILITIES.items() if of.reads_direct_messages)
SHAKES_HANDS = frozenset(name for name, of in PROTOCOL_CAPABILITIES.items() if of.shakes_hands)
SEALS = frozenset(name for name, of in PROTOCOL_CAPABILITIES.items() if of.seals)
LIMITED = frozenset(name for name, of in PROTOCOL_CAPABILITIES.items() if of.limited)
ANSWERS_ALWAYS = frozenset(name for name, of in PROTOCOL_CAPABILITIES.items() if of.answers_always)
KEEPS_QUEUED = frozenset(name for name, of in PROTOCOL_CAPABILITIES.items() if of.keeps_queued)

RESERVED = frozenset(
    {HUB, ADMIN, NOBODY, AgentId("*"), *(AgentId(of.hub) for of in PROTOCOL_CAPABILITIES.values() if of.hub)}
)
"""The names that no agent may have."""

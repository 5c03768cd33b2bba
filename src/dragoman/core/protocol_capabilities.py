"""What the agents of each protocol can do, as far as the core treats them differently.

This is one table. A protocol that is not in it has none of these capabilities: its agents do tasks, ask people, and get
notices.
"""

from __future__ import annotations

import msgspec

from dragoman.core.ids import ADMIN, HUB, NOBODY, AgentId


class ProtocolCapabilities(msgspec.Struct, frozen=True, kw_only=True):
    converses: bool = False
    """Its agents talk with each other: they get direct messages, and are asked for help and to take tasks over."""
    reads_direct_messages: bool = False
    """It can carry a message that is no task."""
    shakes_hands: bool = False
    """Its agents are asked whether they agree to a contract. Agents of other protocols agree by declaring their
    terms."""
    seals: bool = False
    """Personal data must reach its agents encrypted (a2acp-D13)."""
    limited: bool = False
    """Its messages count for the rate limits (a2acp-D16)."""
    answers_always: bool = False
    """Every question that its agents wait for gets an answer, also if the task ends first."""
    keeps_queued: bool = False
    """Its document has one answer to a submitted task: it is queued, for agents that come and claim it."""
    hub: str | None = None
    """Its name for the hub, if it has one."""


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
"""Names that no agent may have."""

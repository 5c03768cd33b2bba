"""A2acp's spoke: its messages ⇄ the hub's commands and deliveries.

inbound    a message of an agent becomes a command        outbound   an outgoing message becomes a message
contracts  offers and contracts, and who offers what      failures   faults become errors, and back
names      what agents, tasks and messages are called     saying     a message being made, sealed or not
said       a message with what is known of it
"""

from dragoman.bindings.a2acp.contracts import capability_of, discovered, held_of, moment, offer_of, patience, terms_of
from dragoman.bindings.a2acp.failures import fault_of, refusal_of, refused, status_of
from dragoman.bindings.a2acp.inbound import command_of
from dragoman.bindings.a2acp.names import (
    PROTOCOL,
    delivery_named,
    domain_of,
    message_id,
    party_of,
    thread_of,
)
from dragoman.bindings.a2acp.outbound import (
    ends_in_pieces,
    failure_in,
    rotated,
    terminated,
    wanted,
    wire_of,
)
from dragoman.bindings.a2acp.said import Said
from dragoman.bindings.a2acp.saying import Voice

__all__ = [
    "PROTOCOL",
    "Said",
    "Voice",
    "capability_of",
    "command_of",
    "delivery_named",
    "discovered",
    "domain_of",
    "ends_in_pieces",
    "failure_in",
    "fault_of",
    "held_of",
    "message_id",
    "moment",
    "offer_of",
    "party_of",
    "patience",
    "refusal_of",
    "refused",
    "rotated",
    "status_of",
    "terminated",
    "terms_of",
    "thread_of",
    "wanted",
    "wire_of",
]

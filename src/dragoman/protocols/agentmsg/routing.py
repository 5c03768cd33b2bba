"""Which message goes first, and what its sender is promised: two tables and what follows from them.

    type                                                   priority   by
    -----------------------------------------------------  ---------  ---------
    ERROR_REPORT                                           critical   document
    TASK_*, HELP_*, save TASK_UPDATE                       high       document
    STATUS_UPDATE, TASK_UPDATE                             normal     document
    HEARTBEAT                                              low        document
    STATE_UPDATE                                           high       ours: a write that is lost is a lie
    STATE_QUERY, REGISTER, WELCOME                         normal     ours: the asker asks again
    ACK                                                    low        ours

The effective priority is the higher of the table's and the message's own (D3). An ACK is never acknowledged, whatever
priority it claims: two ends would thank each other for ever.
"""

from __future__ import annotations

import enum
from datetime import datetime, timedelta

from dragoman.protocols.agentmsg.records import Level, Priority
from dragoman.protocols.agentmsg.types import Message, MessageType


class Guarantee(enum.StrEnum):
    AT_LEAST_ONCE = "at_least_once"  # kept until it is acknowledged, and sent again until then
    AT_MOST_ONCE = "at_most_once"  # sent once; never delivered twice


ORDER: tuple[Priority, ...] = (Priority.LOW, Priority.NORMAL, Priority.HIGH, Priority.CRITICAL)
RANK: dict[Priority, int] = {priority: rank for rank, priority in enumerate(ORDER)}

PRIORITY: dict[MessageType, Priority] = {
    MessageType.ERROR_REPORT: Priority.CRITICAL,
    MessageType.TASK_ASSIGNMENT: Priority.HIGH,
    MessageType.TASK_HANDOFF: Priority.HIGH,
    MessageType.TASK_COMPLETE: Priority.HIGH,
    MessageType.TASK_FAILED: Priority.HIGH,
    MessageType.HELP_REQUEST: Priority.HIGH,
    MessageType.HELP_RESPONSE: Priority.HIGH,
    MessageType.STATUS_UPDATE: Priority.NORMAL,
    MessageType.TASK_UPDATE: Priority.NORMAL,
    MessageType.HEARTBEAT: Priority.LOW,
    MessageType.STATE_UPDATE: Priority.HIGH,
    MessageType.STATE_QUERY: Priority.NORMAL,
    MessageType.REGISTER: Priority.NORMAL,
    MessageType.WELCOME: Priority.NORMAL,
    MessageType.ACK: Priority.LOW,
}
GUARANTEE: dict[Priority, Guarantee] = {
    Priority.CRITICAL: Guarantee.AT_LEAST_ONCE,
    Priority.HIGH: Guarantee.AT_LEAST_ONCE,
    Priority.NORMAL: Guarantee.AT_MOST_ONCE,
    Priority.LOW: Guarantee.AT_MOST_ONCE,
}
#: How urgent a request for help is, as the priority of its message.
URGENCY: dict[Level, Priority] = {
    "low": Priority.LOW,
    "medium": Priority.NORMAL,
    "high": Priority.HIGH,
    "critical": Priority.CRITICAL,
}
#: Where a payload names its task. A type without a cell belongs to no lane.
TASK: dict[MessageType, tuple[str, ...]] = {
    MessageType.TASK_ASSIGNMENT: ("task", "task_id"),
    MessageType.TASK_HANDOFF: ("task_id",),
    MessageType.TASK_UPDATE: ("task_id",),
    MessageType.TASK_COMPLETE: ("task_id",),
    MessageType.TASK_FAILED: ("task_id",),
    MessageType.HELP_REQUEST: ("task_id",),
    MessageType.ERROR_REPORT: ("task_id",),
}


#: The effective priority (D3), by type and by the message's own.
EFFECTIVE: dict[tuple[MessageType, Priority], Priority] = {
    (kind, own): max(own, PRIORITY[kind], key=RANK.__getitem__) for kind in MessageType for own in Priority
}
#: What is kept until it is acknowledged, by the same.
KEPT = frozenset(
    case
    for case, effective in EFFECTIVE.items()
    if GUARANTEE[effective] is Guarantee.AT_LEAST_ONCE and case[0] is not MessageType.ACK
)


def priority(message: Message) -> Priority:
    """The effective priority (D3)."""
    return EFFECTIVE[message.type, message.metadata.priority]


def is_kept(message: Message) -> bool:
    """Whether it is kept until it is acknowledged (D4)."""
    return (message.type, message.metadata.priority) in KEPT


def task(message: Message) -> str | None:
    """The task a message belongs to, and so its lane (D5). The answers of handoffs and of help name none:
    they belong where the request they correlate with does."""
    value = message.payload
    for name in TASK.get(message.type, ("",)):
        value = getattr(value, name, None)
    return value if isinstance(value, str) else None


def expires_at(message: Message) -> datetime | None:
    """When its time to live is over, counted from when it was written; None if it lives as long as it must."""
    ttl = message.metadata.ttl_ms
    if ttl is None:
        return None
    try:
        return message.timestamp + timedelta(milliseconds=ttl)
    except OverflowError:  # beyond the end of the calendar is never
        return None


def is_expired(message: Message, now: datetime) -> bool:
    """Whether nobody is to be bothered with it any more (D6)."""
    end = expires_at(message)
    return end is not None and now >= end

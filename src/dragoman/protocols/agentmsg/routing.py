"""Which message goes first, what its sender is promised, and when it is sent again: tables and pure functions.

    type                                                   priority   by
    -----------------------------------------------------  ---------  ---------
    ERROR_REPORT                                           critical   document
    TASK_*, HELP_*, save TASK_UPDATE                       high       document
    STATUS_UPDATE, TASK_UPDATE                             normal     document
    HEARTBEAT                                              low        document
    STATE_UPDATE                                           high       ours: a write must not be lost
    STATE_QUERY, REGISTER, WELCOME                         normal     ours: the agent asks again
    ACK                                                    low        ours

The effective priority is the higher of the table's and the message's own (D3). An ACK is never acknowledged, whatever
its priority: two ends would acknowledge each other's ACKs for ever.

A message that is not acknowledged is sent again (D7), by default, before jitter:

    attempt                1      2      3      4
    milliseconds after     1000   2000   4000   8000, then it is a dead letter

With jitter a delay lies between its half and its whole, so that senders that failed together do not come back together.
A message may set some of it itself (`metadata.retry_config`), field by field; `max_retries` says how often it is sent.
"""

from __future__ import annotations

import enum
import math
from datetime import datetime, timedelta

from msgspec import structs

from dragoman.protocols.agentmsg.records import DEFAULT_RETRIES, Level, Priority, RetryConfig
from dragoman.protocols.agentmsg.types import Message, MessageMetadata, MessageType


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
URGENCY: dict[Level, Priority] = {
    "low": Priority.LOW,
    "medium": Priority.NORMAL,
    "high": Priority.HIGH,
    "critical": Priority.CRITICAL,
}
"""The urgency of a request for help, as the priority of its message."""
TASK: dict[MessageType, tuple[str, ...]] = {
    MessageType.TASK_ASSIGNMENT: ("task", "task_id"),
    MessageType.TASK_HANDOFF: ("task_id",),
    MessageType.TASK_UPDATE: ("task_id",),
    MessageType.TASK_COMPLETE: ("task_id",),
    MessageType.TASK_FAILED: ("task_id",),
    MessageType.HELP_REQUEST: ("task_id",),
    MessageType.ERROR_REPORT: ("task_id",),
}
"""Where a payload names its task. A type that is not here belongs to no lane."""

EFFECTIVE: dict[tuple[MessageType, Priority], Priority] = {
    (kind, own): max(own, PRIORITY[kind], key=RANK.__getitem__) for kind in MessageType for own in Priority
}
"""The effective priority (D3), by type and by the message's own."""
KEPT = frozenset(
    case
    for case, effective in EFFECTIVE.items()
    if GUARANTEE[effective] is Guarantee.AT_LEAST_ONCE and case[0] is not MessageType.ACK
)
"""What is kept until it is acknowledged, by the same."""


def priority(message: Message) -> Priority:
    """The effective priority (D3)."""
    return EFFECTIVE[message.type, message.metadata.priority]


def is_kept(message: Message) -> bool:
    """Whether it is kept until it is acknowledged (D4)."""
    return (message.type, message.metadata.priority) in KEPT


def task(message: Message) -> str | None:
    """The task a message belongs to, and so its lane (D5). Answers to handoffs and requests for help name none: they
    belong to the lane of their request."""
    value = message.payload
    for name in TASK.get(message.type, ("",)):
        value = getattr(value, name, None)
    return value if isinstance(value, str) else None


def expires_at(message: Message) -> datetime | None:
    """When its time to live is over, counted from its timestamp; None if it has no such time."""
    ttl = message.metadata.ttl_ms
    if ttl is None:
        return None
    try:
        return message.timestamp + timedelta(milliseconds=ttl)
    except OverflowError:  # beyond the end of the calendar is never
        return None


def is_expired(message: Message, now: datetime) -> bool:
    """Whether its time to live is over (D6)."""
    end = expires_at(message)
    return end is not None and now >= end


def retries(metadata: MessageMetadata, policy: RetryConfig = DEFAULT_RETRIES) -> RetryConfig:
    """How a message is sent again: its own count of retries, its own delays or else the policy's."""
    own = {} if metadata.retry_config is None else structs.asdict(metadata.retry_config)
    given = {name: value for name, value in own.items() if value is not None}
    return structs.replace(policy, **{**given, "max_attempts": metadata.max_retries + 1})


def delay(config: RetryConfig, attempt: int, chance: float) -> float:
    """Milliseconds to wait for an acknowledgment after the `attempt`th sending, which is counted from 1. The caller
    draws `chance`, from 0 up to 1."""
    whole = _whole(config, attempt)
    return whole * (1 + chance) / 2 if config.jitter else whole


def _whole(config: RetryConfig, attempt: int) -> float:
    if not config.base_delay_ms:
        return 0.0
    # In logarithms, because a power overflows long before retries end.
    steps = math.log(config.base_delay_ms) + (attempt - 1) * math.log(config.backoff_multiplier)
    if config.max_delay_ms <= config.base_delay_ms or steps >= math.log(config.max_delay_ms):
        return float(config.max_delay_ms)
    return min(float(config.base_delay_ms * config.backoff_multiplier ** (attempt - 1)), float(config.max_delay_ms))

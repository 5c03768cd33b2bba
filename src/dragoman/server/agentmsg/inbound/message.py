"""A message of an agentmsg agent, with what the hub knows of it: what every command is made from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import NamedTuple

import msgspec

from dragoman.core.commands import (
    Tell,
)
from dragoman.core.ids import EPOCH, AgentId, Instant, TaskId, instant
from dragoman.core.model.agents import Agent
from dragoman.core.model.deliveries import Backoff, DirectMessage
from dragoman.core.model.policy import backoff_in
from dragoman.core.model.tasks import Priority
from dragoman.messages.faults import Fault, Kind, new_fault
from dragoman.messages.tasks import Json
from dragoman.protocols.agentmsg import codec, records, routing
from dragoman.protocols.agentmsg.mapping import PROTOCOL
from dragoman.protocols.agentmsg.types import (
    Message,
)
from dragoman.server.agentmsg.ids import task_id
from dragoman.server.content import trace_id_in

Holds = Callable[[TaskId], bool]


PRIORITIES: Mapping[records.Priority, Priority] = {own: Priority(own.value) for own in records.Priority}


class Inbound(NamedTuple):
    """A message of an agent: decoded, as JSON, as bytes; and what the hub knows of it.

    `traceparent` is the transport's, `content` the `codec.fingerprint`, where it is known already. `holds` says whether
    the agent has a task now: an update means something else from a task's owner than from others. Without it, the
    sender counts as the owner, unless it cancels the task.
    """

    agent: Agent
    message: Message
    tree: Json
    data: bytes
    now: Instant
    traceparent: str | None = None
    content: bytes | None = None
    holds: Holds | None = None

    @property
    def payload(self) -> Json:
        """The payload with all its fields."""
        payload: Json = self.tree["payload"]
        return payload

    @property
    def trace_id(self) -> str | None:
        """The trace in the message, else the transport's (all-D7)."""
        return trace_id_in(self.message.metadata.traceparent, self.traceparent)

    @property
    def digest(self) -> str:
        return (self.content or codec.fingerprint(self.tree)).hex()

    @property
    def priority(self) -> Priority:
        """The effective one (D3)."""
        return PRIORITIES[routing.priority(self.message)]

    @property
    def retry(self) -> Backoff | None:
        """How it wants to be sent again, beside `max_retries`."""
        own = self.message.metadata.retry_config
        return None if own is None else backoff_in(msgspec.to_builtins(own))

    @property
    def expires_at(self) -> Instant | None:
        end = None if self.message.metadata.ttl_ms is None else routing.expires_at(self.message)
        return None if end is None else instant(end)

    def direct_message(self) -> DirectMessage:
        """The message as the hub delivers it to another agent: word for word."""
        message = self.message
        return DirectMessage(
            sender=self.agent.id,
            message_id=message.id,
            kind=message.type.value,
            digest=self.digest,
            raw=msgspec.Raw(self.data),
            protocol=PROTOCOL,
            once=not routing.is_kept(message),
            attempts=message.metadata.max_retries + 1,
            retry=self.retry,
            expires_at=self.expires_at,
        )

    def forward(self, to: AgentId, *, reports: bool = False, progress: bool = False) -> Tell:
        """Deliver it to another agent. `reports`, `progress`: it says how a task ended or how far it is, which only
        some agents may say."""
        about = routing.task(self.message)
        return Tell(
            principal=self.agent.id,
            protocol=PROTOCOL,
            direct_message=self.direct_message(),
            to=to,
            priority=self.priority,
            lane=None if about is None else task_id(about),
            reports=reports,
            progress=progress,
        )


def outlived(message: Message) -> Fault:
    """The time to live of a message was over before it could be delivered (D6)."""
    ttl = message.metadata.ttl_ms or 0
    return new_fault(
        Kind.TIMEOUT,
        f"{message.type.value} {message.id} was not delivered within its {ttl:g} ms",
        next="send it again, with more time",
        field="metadata.ttl_ms",
        facts={"message_id": message.id, "ttl_ms": ttl},
    )


def moment(now: Instant) -> datetime:
    """The instant as a datetime, for the protocol's own functions."""
    return EPOCH + timedelta(microseconds=now)

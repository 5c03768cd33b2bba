"""One message as the binding holds it, and what every kind of it has in common: its direct message, its priority, its
trace."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from dragoman.core.commands import Tell
from dragoman.core.ids import AgentId, Instant, instant
from dragoman.core.model.agents import Agent
from dragoman.core.model.deliveries import Backoff, DirectMessage
from dragoman.core.model.policy import backoff_in
from dragoman.core.model.tasks import Priority
from dragoman.protocols.agentmsg import codec, routing
from dragoman.protocols.agentmsg.records import Priority as Urgency
from dragoman.protocols.agentmsg.types import Message
from dragoman.server.agentmsg.names import PROTOCOL, task_id

PRIORITIES: Mapping[Urgency, Priority] = {urgency: Priority(urgency.value) for urgency in Urgency}

_trace = re.compile(r"00-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}").fullmatch


class Said(NamedTuple):
    """A message of an agent: as a value, as JSON, as bytes; and the transport's traceparent, if it has one."""

    agent: Agent
    message: Message
    tree: dict[str, Any]
    data: bytes
    traceparent: str | None
    now: Instant
    content: bytes | None = None

    @property
    def payload(self) -> dict[str, Any]:
        """The payload with all its fields, also those that nobody here knows."""
        payload: dict[str, Any] = self.tree["payload"]
        return payload

    @property
    def trace_id(self) -> str | None:
        """The trace it belongs to: its own word, else the transport's (all-D7)."""
        for text in (self.message.metadata.traceparent, self.traceparent):
            found = _trace(text) if text else None
            if found is not None and int(found[1], 16):
                return found[1]
        return None

    @property
    def digest(self) -> str:
        """What it says, in short: the same message again has the same."""
        return (self.content or codec.fingerprint(self.tree)).hex()

    def direct_message(self) -> DirectMessage:
        """The message as it is carried to somebody else: word for word."""
        message = self.message
        metadata = message.metadata
        return DirectMessage(
            sender=self.agent.id,
            message_id=message.id,
            kind=message.type.value,
            digest=self.digest,
            body=msgspec.Raw(self.data),
            protocol=PROTOCOL,
            once=not routing.is_kept(message),
            attempts=metadata.max_retries + 1,
            retry=self.retry,
            expires_at=self.expires_at,
        )

    @property
    def retry(self) -> Backoff | None:
        """What it says itself of how it is sent again, beside `max_retries`."""
        said = self.message.metadata.retry_config
        return None if said is None else backoff_in(builtin(said))

    @property
    def expires_at(self) -> Instant | None:
        end = None if self.message.metadata.ttl_ms is None else routing.expires_at(self.message)
        return None if end is None else instant(end)

    def tell(self, to: AgentId, *, reports: bool = False, progress: bool = False) -> Tell:
        """Carry it to another agent. `reports`: it says how a task goes, which only some may say; `progress`: or how
        far it is, which only some may say to whoever asked for it."""
        message = self.message
        about = routing.task(message)
        return Tell(
            principal=self.agent.id,
            protocol=PROTOCOL,
            direct_message=self.direct_message(),
            to=to,
            priority=effective(message),
            lane=None if about is None else task_id(about),
            reports=reports,
            progress=progress,
        )


def effective(message: Message) -> Priority:
    """How urgent a message is (D3)."""
    return PRIORITIES[routing.priority(message)]


def builtin(value: Any) -> Any:
    """A record of plain fields in JSON's own terms: every time in UTC."""
    return msgspec.to_builtins(value)

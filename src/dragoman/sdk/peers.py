"""What agents ask of each other and send each other: the values that handlers see.

    asked by          with                    answered by            with
    ----------------  ----------------------  ---------------------  -----------------------------------------------
    task.help(…)      HelpRequest             @agent.on_help         text, Help(…), or raise Unable(…), Escalate(…)
    task.handoff(…)   HandoffRequest          @agent.on_handoff      True, False, Accept(…), Reject("why")
    agent.tell(…)     DirectMessage           @agent.on_message      -
    client.call(…)    HandshakeRequest        @agent.on_handshake    True, False, Reject("why")

The first three are agentmsg's, the last is a2acp's; over another protocol they raise `NotSupported`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from typing import Any, Literal, TypeAlias

from msgspec import Struct, ValidationError, convert

from dragoman.sdk.errors import DragomanError

HelpKind: TypeAlias = Literal[
    "TECHNICAL_GUIDANCE", "DEBUGGING_ASSISTANCE", "CODE_REVIEW", "ARCHITECTURE_ADVICE", "RESOURCE_SHARING"
]
HandoffReason: TypeAlias = Literal["CAPABILITY_LIMIT", "RATE_LIMIT", "ERROR_RECOVERY", "ESCALATION", "LOAD_BALANCING"]
Urgency: TypeAlias = Literal["low", "medium", "high", "critical"]
State: TypeAlias = Literal["IDLE", "BUSY", "ERROR", "OFFLINE", "MAINTENANCE"]


class Resource(Struct, frozen=True):
    """Something worth looking at."""

    type: Literal["documentation", "code", "api", "example", "tool"]
    url: str
    title: str
    description: str | None = None


class Help(Struct, frozen=True):
    """An answer to a request for help. As a handler's answer, text alone is a Help with that content.

    `follow_up_required`: more will come for the same request, and `follow_ups` waits for it. `escalations`: the answers
    of agents that were asked first and passed the request on, each a Help of its own.
    """

    content: str
    response_type: str = "DIRECT_ANSWER"
    resources: tuple[Resource, ...] = ()
    follow_up_required: bool = False
    estimated_effort: float = 0
    responder: str = ""
    escalations: tuple[Help, ...] = ()
    _more: asyncio.Queue[Help] | None = None

    @property
    def helped(self) -> bool:
        """Whether an agent or a person could help."""
        return self.response_type != "UNABLE_TO_HELP"

    @property
    def follow_ups(self) -> AsyncIterator[Help]:
        """What comes after this one, until nothing more is to come."""
        return self._follow()

    async def _follow(self) -> AsyncIterator[Help]:
        more, last = self._more, self
        while more is not None and last.follow_up_required:
            last = await more.get()
            yield last


class HelpRequest(Struct, frozen=True, kw_only=True):
    """Another agent needs help."""

    id: str
    requester: str
    task_id: str
    help_type: str
    description: str
    context: dict[str, Any]
    """`current_state`, `attempted_solutions`, and `error_details` where there was an error."""
    urgency: str
    deadline: datetime | None = None
    escalations: tuple[Help, ...] = ()
    """The answers of agents that were asked before and passed the request on."""


class Unable(DragomanError):
    """Raised by a help handler that cannot help with this."""


class Escalate(DragomanError):
    """Raised by a help handler: another agent should look at this; in the end a person. The agent that asked, and the
    one that is asked next, get its text and its resources."""

    def __init__(self, content: str = "", resources: Sequence[Resource] = ()) -> None:
        super().__init__(content)
        self.resources = tuple(resources)


def as_help(escalate: Escalate) -> Help:
    """The answer of a handler that passes a request on."""
    words = str(escalate) or "another helper should look at this"
    return Help(words, "ESCALATION", resources=escalate.resources)


def escalations_in(value: Any) -> tuple[Help, ...]:
    """The escalations that came with a request for help, in the hub's form (`agent`) or in agentmsg's (`responder_id`).
    Other values are left out: a sender may use the name for anything."""
    found: list[Help] = []
    for one in value if isinstance(value, list | tuple) else ():
        if isinstance(one, dict) and isinstance(one.get("content"), str):
            resources = [resource for given in one.get("resources") or () if (resource := _resource(given)) is not None]
            responder = str(one.get("responder_id") or one.get("agent") or "")
            found.append(Help(one["content"], "ESCALATION", resources=tuple(resources), responder=responder))
    return tuple(found)


def _resource(given: Any) -> Resource | None:
    try:
        return convert(given, Resource)
    except ValidationError:
        return None


class Handoff(Struct, frozen=True, kw_only=True):
    """How an attempt to hand a task over ended. Accepted: it is `agent_id`'s now, and the handler should return."""

    accepted: bool
    agent_id: str | None = None
    error: str | None = None
    requirements: tuple[str, ...] = ()
    estimated_completion: datetime | None = None

    def __bool__(self) -> bool:
        return self.accepted


class HandoffRequest(Struct, frozen=True, kw_only=True):
    """Another agent wants this one to take over its task."""

    id: str
    task_id: str
    task_type: str
    from_agent: str
    reason: str
    context: dict[str, Any]
    history: tuple[dict[str, Any], ...]
    constraints: dict[str, Any]
    deadline: datetime


class Accept(Struct, frozen=True, kw_only=True):
    """Yes, on these terms."""

    estimated_completion: datetime | None = None
    requirements: tuple[str, ...] = ()


class HandshakeRequest(Struct, frozen=True, kw_only=True):
    """Another agent wants to ask this one for work of an intent. `contract` has the terms, as JSON."""

    id: str
    source: str
    domain: str
    version: str
    intent: str
    contract: dict[str, Any]


class Handover(Struct, frozen=True, kw_only=True):
    """How a task came from another agent. What that agent knew of it is in the task's `context` and `history`; the
    `error` that led to it is an ErrorReport, if there was one. `parts` are the tasks that former owners gave to others
    in its course, by their `task_id`; over agentmsg, the end of each arrives as a direct message."""

    from_agent: str
    reason: str
    error: dict[str, Any] | None = None
    recovery_attempts: tuple[dict[str, Any], ...] = ()
    parts: tuple[dict[str, Any], ...] = ()


class DirectMessage(Struct, frozen=True, kw_only=True):
    """A message that another agent sent to this one. `payload` is the JSON object as it came."""

    id: str
    at: datetime
    sender: str
    type: str
    payload: dict[str, Any]
    correlation_id: str | None = None

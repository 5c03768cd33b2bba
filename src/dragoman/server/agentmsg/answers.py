"""What the hub itself answers: to questions, to messages of a link, to questions about shared state.

somebody asked for                  is told by
----------------------------------  --------------------------------------------------------------------------
help, or a person's answer          HELP_RESPONSE; UNABLE_TO_HELP where nobody answered
somebody to take a task over        TASK_HANDOFF, with `accepted`
nothing: it sent a kept message     ACK, of one message or of many; with the new `version` after a STATE_UPDATE
nothing: it registered              WELCOME
shared state                        STATE_QUERY with `entities`, and STATE_UPDATE for every change that follows
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from dragoman.core.ids import Instant, rfc3339
from dragoman.core.model.agents import Agent
from dragoman.core.model.deliveries import Escalation
from dragoman.core.model.state import Change, Entity
from dragoman.core.model.tasks import Question, QuestionStatus, Task
from dragoman.protocols.agentmsg.records import ResourceReference, TaskConstraints
from dragoman.protocols.agentmsg.routing import PRIORITY
from dragoman.protocols.agentmsg.types import (
    HEARTBEAT_SECONDS,
    HUB,
    MAX_RETRIES,
    SUBPROTOCOL,
    HelpResponseType,
    MessageType,
)
from dragoman.server.agentmsg.names import PERSON, derived_v4, doer

_encode = msgspec.json.Encoder().encode
_HELP = frozenset({"content", "response_type", "resources", "answer"})
"""What has its own place in a response."""
_answers = frozenset(HelpResponseType) - {HelpResponseType.UNABLE_TO_HELP}


# -- to questions ------------------------------------------------------------------------------------------------


def help_response(question: Question) -> dict[str, Any]:
    """What came of a question or a request for help. Where nobody answered, its answer may say why."""
    answered = question.status is QuestionStatus.ANSWERED or question.has_default
    answer = question.answer
    given = answer if type(answer) is dict and type(answer.get("content")) is str else {}
    kind = given.get("response_type", HelpResponseType.DIRECT_ANSWER.value)
    if not answered:
        kind = HelpResponseType.UNABLE_TO_HELP.value
    told: dict[str, Any] = {
        "responder_id": _responder(question),
        "request_id": question.request_id or question.id,
        "response_type": kind if kind in _answers or not answered else HelpResponseType.UNABLE_TO_HELP.value,
        "content": _content(answer, given) if answered or given else "Nobody answered in time.",
        "follow_up_required": False,
        "estimated_effort": 0,
    }
    if answered and answer is not None and (not given or given.keys() - _HELP):
        told["answer"] = answer  # whatever a person said, as it was said
    elif "answer" in given:
        told["answer"] = given["answer"]
    if _fit(given.get("resources"), tuple[ResourceReference, ...]):
        told["resources"] = given["resources"]
    return told


def escalation_view(escalation: Escalation) -> dict[str, Any]:
    """What a helper said that passed a request on: those of a HelpResponse's fields that tell it."""
    told: dict[str, Any] = {"responder_id": doer(escalation.agent), "content": escalation.content}
    if escalation.resources and _fit(escalation.resources, tuple[ResourceReference, ...]):
        told["resources"] = escalation.resources
    return told


def _responder(question: Question) -> str:
    who = HUB if question.answered_by == HUB else question.asked_of or question.answered_by
    return PERSON if who is None else doer(who)


def _content(answer: Any, given: dict[str, Any]) -> str:
    if given:
        return str(given["content"])
    return answer if type(answer) is str else "" if answer is None else _encode(answer).decode()


def handoff_response(question: Question, task: Task | None) -> dict[str, Any]:
    """What came of asking somebody to take a task over. Who accepts names its terms (D8); of who has no word for them,
    as of a person, all that is known is that the task has its deadline."""
    answer = question.answer if type(question.answer) is dict else {}
    accepted = answer.get("accepted") is True
    told = {name: value for name, value in answer.items() if value is not None}
    told["accepted"] = accepted
    told["agent_id"] = str(answer.get("agent_id") or question.asked_of or HUB)
    if accepted:
        by = question.answered_at or question.created_at if task is None else task.deadline
        told.setdefault("estimated_completion", rfc3339(by))
        told.setdefault("requirements", [])
        if not _fit(told.get("constraints"), TaskConstraints):
            told["constraints"] = {"required_capabilities": []}
    else:
        told.setdefault("error", "Nobody took the task over; it stays with its owner.")
    return told


# -- to messages -------------------------------------------------------------------------------------------------


def acknowledgment(
    message_ids: Sequence[str], *, to: str, now: Instant, message_id: str, version: int | None = None
) -> bytes:
    """One ACK for messages that cannot be lost any more: the first is its correlation, all are named where they are
    several. `version` is what a StateUpdate led to."""
    payload: dict[str, Any] = {} if version is None else {"version": version}
    if len(message_ids) > 1:
        payload["message_ids"] = message_ids
    return frame(MessageType.ACK, payload, to=to, now=now, message_id=message_id, about=message_ids[0])


def welcome(
    agent: Agent,
    *,
    now: Instant,
    message_id: str,
    about: str | None = None,
    heartbeat_seconds: float = HEARTBEAT_SECONDS,
) -> bytes:
    """The answer to a REGISTER: what the hub knows of the agent now."""
    payload: dict[str, Any] = {
        "agent_id": agent.id,
        "heartbeat_interval_ms": int(heartbeat_seconds * 1000),
        "protocol": SUBPROTOCOL,
        "capabilities": list(agent.capabilities),
        "task_types": None if agent.work_types is None else list(agent.work_types),
        "max_concurrent": agent.max_concurrent,
    }
    return frame(MessageType.WELCOME, payload, to=agent.id, now=now, message_id=message_id, about=about)


# -- shared state ------------------------------------------------------------------------------------------------


def entity_view(entity: Entity) -> dict[str, Any]:
    return {
        "entity_type": entity.registry.value,
        "entity_id": entity.name,
        "version": entity.version,
        "value": entity.value,
    }


def state_answer(
    entities: Iterable[Entity],
    *,
    to: str,
    now: Instant,
    message_id: str,
    about: str | None,
    last_updated: Instant | str,
    cursor: int | None = None,
) -> bytes:
    """The answer to a STATE_QUERY; `about` is its id. `cursor` is where a watch goes on."""
    updated = last_updated if isinstance(last_updated, str) else rfc3339(last_updated)
    payload: dict[str, Any] = {"entities": list(map(entity_view, entities)), "last_updated": updated}
    if cursor is not None:
        payload["cursor"] = cursor
    return frame(MessageType.STATE_QUERY, payload, to=to, now=now, message_id=message_id, about=about)


def change_view(cursor: int, change: Change, at: Instant) -> dict[str, Any]:
    """A StateUpdate from the hub: `version` is the new one."""
    return {
        "operation": change.operation.value,
        "entity_type": change.registry.value,
        "entity_id": change.name,
        "changes": change.changes,
        "version": change.version,
        "timestamp": rfc3339(at),
        "cursor": cursor,
        "changed_by": change.by,
    }


def state_update(cursor: int, change: Change, at: Instant, *, to: str, about: str | None = None) -> bytes:
    """What has changed, to somebody who watches; `about` is the query that began the watch. The same change again is
    the same message."""
    id = derived_v4(f"state/{cursor}/{change.registry.value}/{change.name}/{change.version}/{to}")
    payload = change_view(cursor, change, at)
    # at most once: who missed something asks again from its last cursor
    return frame(MessageType.STATE_UPDATE, payload, to=to, now=at, message_id=id, about=about)


def frame(
    kind: MessageType, payload: dict[str, Any], *, to: str, now: Instant, message_id: str, about: str | None = None
) -> bytes:
    """A message of the hub's that belongs to the link and to no delivery."""
    metadata: dict[str, Any] = {"priority": PRIORITY[kind].value, "retry_count": 0, "max_retries": MAX_RETRIES}
    if about is not None:
        metadata["correlation_id"] = about
    return _encode(
        {
            "id": message_id,
            "timestamp": rfc3339(now),
            "from": HUB,
            "to": to,
            "type": kind.value,
            "payload": payload,
            "metadata": metadata,
        }
    )


def _fit(value: Any, form: Any) -> bool:
    if value is None:
        return False
    try:
        msgspec.convert(value, form)
    except msgspec.ValidationError:
        return False
    return True

"""The hub's own answers: to messages of a connection, to refused messages, to questions about shared state.

the agent sent                      the hub answers
----------------------------------  --------------------------------------------------------------------------
a message that is kept              ACK, of one message or of many; with the new `version` after a STATE_UPDATE
REGISTER                            WELCOME
STATE_QUERY                         STATE_QUERY with `entities`, and STATE_UPDATE for every change that follows
a message that is refused           ERROR_REPORT, or over HTTP its payload alone with a status
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from dragoman.core.ids import Instant, rfc3339
from dragoman.core.model.agents import Agent
from dragoman.core.model.state import Change, Entity
from dragoman.messages import error_table
from dragoman.messages.faults import Fault, Kind
from dragoman.messages.tasks import Json
from dragoman.protocols.agentmsg import errors
from dragoman.protocols.agentmsg.routing import PRIORITY
from dragoman.protocols.agentmsg.types import HEARTBEAT_SECONDS, HUB, MAX_RETRIES, SUBPROTOCOL, MessageType
from dragoman.server.agentmsg.ids import derived_v4, task_id
from dragoman.wire.errors import Stage

MALFORMED = frozenset({Stage.DEPTH, Stage.JSON, Stage.SHAPE})
"""Checks whose refusal means 400: the message cannot be read. One that can be read but makes no sense is 422."""
STATUS: Mapping[Kind, int] = {kind: row.agents for kind, row in error_table.TABLE.items()} | {Kind.FORBIDDEN: 403}

_encode = msgspec.json.Encoder().encode


def frame(
    kind: MessageType,
    payload: Mapping[str, Any],
    *,
    to: str,
    now: Instant,
    message_id: str,
    about: str | None = None,
) -> bytes:
    """A message of the hub that is no delivery; `about` is the id of the message that it answers. A refusal is not sent
    again: its reader sends the refused message again."""
    retries = 0 if kind is MessageType.ERROR_REPORT else MAX_RETRIES
    metadata: Json = {"priority": PRIORITY[kind].value, "retry_count": 0, "max_retries": retries}
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


def acknowledgment(message_ids: Sequence[str], version: int | None = None) -> Json:
    """An ACK for messages that cannot be lost any more: the first is its correlation, several are all named."""
    payload: Json = {} if version is None else {"version": version}
    if len(message_ids) > 1:
        payload["message_ids"] = message_ids
    return payload


def welcome(agent: Agent, heartbeat_seconds: float = HEARTBEAT_SECONDS) -> Json:
    """The answer to a REGISTER: what the hub knows of the agent now."""
    return {
        "agent_id": agent.id,
        "heartbeat_interval_ms": int(heartbeat_seconds * 1000),
        "protocol": SUBPROTOCOL,
        "capabilities": list(agent.capabilities),
        "task_types": None if agent.work_types is None else list(agent.work_types),
        "max_concurrent": agent.max_concurrent,
    }


# -- refusals ----------------------------------------------------------------------------------------------------


def error_report(
    fault: Fault,
    *,
    error_id: str,
    task: str | None = None,
    agent_id: str = HUB,
    refused: MessageType | None = None,
) -> Json:
    """A fault as an ErrorReport (`errors.report_out`); `task` is the name by which its reader knows the task."""
    known = None if task is None else task_id(task)
    return errors.report_out(
        fault, error_id=error_id, task_id=task, hub_task_id=known, agent_id=agent_id, refused=refused
    )


def status_of(fault: Fault) -> int:
    """The HTTP status of a refusal."""
    if fault.kind is Kind.INVALID and fault.facts.get("stage") in MALFORMED:
        return 400
    if fault.kind is Kind.UNAVAILABLE and fault.field == "to_agent":
        return 404  # no agent of that name is known
    if fault.kind is Kind.TIMEOUT and fault.field == "metadata.ttl_ms":
        return 422  # its time was over when it came: sent again as it is, it would be refused again
    if fault.kind is Kind.RESOURCES and not fault.retryable:
        return 422  # likewise: it asks for more than there is
    return STATUS[fault.kind]


# -- shared state ------------------------------------------------------------------------------------------------


def entity_view(entity: Entity) -> Json:
    return {
        "entity_type": entity.registry.value,
        "entity_id": entity.name,
        "version": entity.version,
        "value": entity.value,
    }


def state_answer(entities: Iterable[Entity], last_updated: Instant | str, cursor: int) -> Json:
    """The answer to a STATE_QUERY. `cursor` is where a watch goes on."""
    updated = last_updated if isinstance(last_updated, str) else rfc3339(last_updated)
    return {"entities": list(map(entity_view, entities)), "last_updated": updated, "cursor": cursor}


def change_view(cursor: int, change: Change, at: Instant) -> Json:
    """A StateUpdate of the hub: `version` is the new one."""
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
    """A change, to an agent that watches; `about` is the query that began the watch. The same change has the same
    message id. It is sent at most once: an agent that missed it asks again from its last cursor."""
    id = derived_v4(f"state/{cursor}/{change.registry.value}/{change.name}/{change.version}/{to}")
    return frame(MessageType.STATE_UPDATE, change_view(cursor, change, at), to=to, now=at, message_id=id, about=about)

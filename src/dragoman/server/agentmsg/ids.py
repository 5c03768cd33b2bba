"""The names of tasks, agents and messages in agentmsg ⇄ the hub's ids.

agentmsg                         the hub
-------------------------------  ------------------------------------------------------------------------------
a task_id that is a UUID         the task's id, in lower case
any other task_id                the task's id is derived from it; `Task.origin.called` keeps the name
`to: "hub"`, `to: "*"`           the hub chooses the agent
"person"                         a person with the admin token
the id of a message of the hub   the delivery's id, with the 7 of its version written as a 4: so it has the form
                                 that the document wants, and an ACK of it needs no memory
"""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache
from uuid import UUID, uuid5

from dragoman.core.ids import ADMIN, AgentId, DeliveryId, TaskId
from dragoman.core.model.tasks import Task
from dragoman.protocols.agentmsg.mapping import PERSON, PROTOCOL
from dragoman.protocols.agentmsg.types import ANYONE, HUB

TASKS = UUID("6d7b8a0e-2f7e-5d0c-9a57-64726167cccc")
"""Namespace of the ids of tasks whose callers gave them other names."""

is_uuid = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", re.IGNORECASE).fullmatch
_is_version_7 = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}").fullmatch
_is_version_4 = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}").fullmatch


@lru_cache(16384)
def task_id(name: str) -> TaskId:
    """The hub's id of the task that agents know by this name."""
    return TaskId(name.lower() if is_uuid(name) else str(uuid5(TASKS, name)))


def own_name(name: str) -> str | None:
    """The name, where it is not the task's id."""
    return None if is_uuid(name) else name


def task_name(task: Task) -> str:
    """The name by which agents know the task. The id does not follow from a name of another protocol."""
    return (task.origin.protocol == PROTOCOL and task.origin.called) or task.id


def agent_named(to: str) -> AgentId | None:
    """The agent that `to` names; None where the hub chooses."""
    return None if to in (HUB, ANYONE) else AgentId(to)


def agent_or_person(agent: str) -> str:
    return PERSON if agent == ADMIN else agent


def derived_v4(seed: str) -> str:
    """An id with the form of a version 4 UUID that follows from `seed`; that of a delivery can be turned back."""
    if _is_version_7(seed):
        return f"{seed[:14]}4{seed[15:]}"
    text = hashlib.sha256(seed.encode()).hexdigest()
    return f"{text[:8]}-{text[8:12]}-4{text[13:16]}-{'89ab'[int(text[16], 16) & 3]}{text[17:20]}-{text[20:32]}"


def delivery_of(message_id: str) -> DeliveryId:
    """The delivery of a message of the hub, or the one of that id. An agent's message leads to none."""
    return DeliveryId(f"{message_id[:14]}7{message_id[15:]}" if _is_version_4(message_id) else message_id)

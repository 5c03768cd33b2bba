"""What things are called on either side: tasks, and the messages that the hub makes itself.

    agentmsg                         the hub
    -------------------------------  ------------------------------------------------------------------------------
    a task_id that is a UUID         the task's id, in lower case
    any other task_id                the task's id is derived from it; `Task.origin.called` keeps the name
    `to: "hub"`, `to: "*"`           nobody in particular: the hub finds somebody
    the id of a message of ours      the delivery's id, with the 7 of its version written as a 4

An id of ours is a version 4 UUID by its form, as the document wants; that it can be turned back means that an ACK needs
nobody's memory, not even after a restart.
"""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache
from uuid import UUID, uuid5

from dragoman.core.ids import ADMIN, AgentId, DeliveryId, TaskId
from dragoman.core.model.tasks import Task
from dragoman.protocols.agentmsg.types import ANYONE, HUB

PROTOCOL = "agentmsg"
PERSON = "person"
"""Who answered, or did it, where it was whoever holds the admin token."""

TASKS = UUID("6d7b8a0e-2f7e-5d0c-9a57-64726167cccc")
"""Namespace of the ids of tasks whose callers gave them other names."""

_UUID = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
is_uuid = re.compile(_UUID, re.IGNORECASE).fullmatch
_is_version_7 = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}").fullmatch
_is_version_4 = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}").fullmatch


@lru_cache(16384)
def task_id(name: str) -> TaskId:
    """The hub's id of the task that agents call so."""
    return TaskId(name.lower() if is_uuid(name) else str(uuid5(TASKS, name)))


def name_to_keep(name: str) -> str | None:
    """What `Submit.called` must keep: the name, where it is not the id itself."""
    return None if is_uuid(name) else name


def called(task: Task) -> str:
    """What agents call the task. A name that its caller gave it in another protocol says nothing here: the id does not
    follow from it."""
    return (task.origin.protocol == PROTOCOL and task.origin.called) or task.id


def somebody(to: str) -> AgentId | None:
    """The agent that `to` names, or None where the choice is the hub's."""
    return None if to in (HUB, ANYONE) else AgentId(to)


def doer(agent: str) -> str:
    """A person who did it has the name that answers give them, not that of a token."""
    return PERSON if agent == ADMIN else agent


def derived_v4(seed: str) -> str:
    """An id with the form of a version 4 UUID that follows from `seed`; from a delivery's id it can be turned back."""
    if _is_version_7(seed):
        return f"{seed[:14]}4{seed[15:]}"
    text = hashlib.sha256(seed.encode()).hexdigest()
    return f"{text[:8]}-{text[8:12]}-4{text[13:16]}-{'89ab'[int(text[16], 16) & 3]}{text[17:20]}-{text[20:32]}"


def delivery_named(message_id: str) -> DeliveryId:
    """The delivery that a message of ours was, or that was named itself. Others' messages lead to one nobody knows."""
    return DeliveryId(f"{message_id[:14]}7{message_id[15:]}" if _is_version_4(message_id) else message_id)

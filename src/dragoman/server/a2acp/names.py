"""What things are called on either side: agents, tasks and messages.

a2acp                                the hub
-----------------------------------  ----------------------------------------------------------------------------
agent_id, domain, version            an agent; without a domain it is of `default`, without a version 1.0.0
the broker                           the hub itself, and the person who asks through it
correlation_id towards an agent      the caller's own, so that both sides write the same into their logs; the task's id
                                     where there is none, where the caller speaks something else, and where the agent
                                     works on another task of that name
correlation_id towards the caller    its own (`Task.origin.called`), or the id of its request
the id of a message of ours          the delivery's id, with the 7 of its version written as a 4
"""

from __future__ import annotations

import re

from dragoman.core.ids import DeliveryId
from dragoman.core.model.agents import Agent
from dragoman.core.model.tasks import Task
from dragoman.protocols.a2acp.types import SCHEMA_PATTERN, SEMVER_PATTERN
from dragoman.protocols.a2acp.types import Agent as Party

PROTOCOL = "a2acp"
DOMAIN = "default"
VERSION = "1.0.0"

_is_version = re.compile(SEMVER_PATTERN).match
_is_schema_version = re.compile(SCHEMA_PATTERN).match
_is_version_4 = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}").fullmatch


def domain_of(agent: Agent) -> str:
    return agent.domain or DOMAIN


def version_of(version: str | None) -> str:
    """As the document wants it; what other protocols call a version need not be one."""
    return version if version and _is_version(version) else VERSION


def schema_version_of(version: str | None) -> str:
    """The same of what a capability is called."""
    return version if version and _is_schema_version(version) else VERSION


def party_of(agent: Agent) -> Party:
    """An agent of any protocol, as a2acp's agents are told of it."""
    return Party(agent_id=agent.id, domain=domain_of(agent), version=version_of(agent.version))


def thread_of(task: Task) -> str:
    """The correlation id that a task's caller knows."""
    return task.origin.called or task.origin.request_id


def message_id(delivery: str) -> str:
    """The id of the message that carries a delivery: of version 4 by its form, and it can be turned back."""
    return f"{delivery[:14]}4{delivery[15:]}"


def delivery_named(message_id: str) -> DeliveryId:
    """The delivery that a message of ours was, or that was named itself."""
    return DeliveryId(f"{message_id[:14]}7{message_id[15:]}" if _is_version_4(message_id) else message_id)

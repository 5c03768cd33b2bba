"""Shared state as rows: entities with versions, and the log of what changed in which order.

Four registries. Who keeps their truth:

    registry   an entity is                            its row
    ---------  --------------------------------------  ------------------------------------------------------------
    TASK       a task of the hub                       the task itself (`Task.version`); no entity row
    TASK       a task agents keep among themselves     an entity
    AGENT      what an agent said of itself            an entity, named by the agent's id
    RESOURCE   an allocation, `agent_id:resource`      an entity
    POLICY     the one policy                          an entity, named `policy`
"""

from __future__ import annotations

import enum
from typing import Any

import msgspec

from dragoman.core.ids import HUB, AgentId, Instant
from dragoman.core.model.agent_status import moment_of


class Registry(enum.StrEnum):
    TASK = "TASK"
    AGENT = "AGENT"
    RESOURCE = "RESOURCE"
    POLICY = "POLICY"


class Operation(enum.StrEnum):
    CREATE = "CREATE"
    UPDATE = "UPDATE"
    DELETE = "DELETE"


class Entity(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """One shared thing. `version` counts its changes, from 1. `past` are its last few values, where that is of use."""

    registry: Registry
    name: str
    version: int
    value: dict[str, Any]
    created_at: Instant
    updated_at: Instant
    created_by: AgentId
    updated_by: AgentId
    past: tuple[dict[str, Any], ...] = ()

    @property
    def id(self) -> str:
        return f"{self.registry.value}/{self.name}"

    @property
    def wake_at(self) -> Instant | None:
        """When the hub must look at it again: the end of what is allotted to all together. What is allotted to one
        agent ends at one of that agent's times (`waking`)."""
        if self.registry is not Registry.RESOURCE or self.value.get("agent_id") != HUB:
            return None
        return moment_of(self.value.get("expires_at"))


class Change(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """What one entity became: `changes` is a merge patch onto what it was before. Of a task of the hub, `name` is the
    task's id and `ours` is 1. There is one for every step of every task, so it is kept as small as it can be."""

    operation: Operation
    registry: Registry
    name: str
    version: int
    changes: dict[str, Any]
    by: AgentId
    ours: int = 0


class Changed(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """All that one unit of work changed in the shared state: a row of the log.

    Changes are numbered one by one, without a gap; `cursor` is the number of the last one in here. So a reader can stop
    and go on anywhere, also in the middle of a row.
    """

    cursor: int
    at: Instant
    entries: tuple[Change, ...]

    @property
    def id(self) -> int:
        return self.cursor

    @property
    def first(self) -> int:
        """The number of its first change."""
        return self.cursor - len(self.entries) + 1

"""Shared state as rows: entities with versions, and the log of their changes in order.

There are four registries:

    registry   an entity is                            its row
    ---------  --------------------------------------  ------------------------------------------------------------
    TASK       a task of the hub                       the task itself (`Task.version`); no entity row
    TASK       a task agents keep among themselves     an entity
    AGENT      an agent's own report                   an entity, named by the agent's id
    RESOURCE   an allocation, `agent_id:resource`      an entity
    POLICY     the one policy                          an entity, named `policy`

`Standing` is an agent's status as far as routing needs it: read from its entry in the registry, and kept beside it in
memory. Agents that never reported have none. Changes are JSON merge patches (RFC 7396).
"""

from __future__ import annotations

import enum
from datetime import datetime
from typing import Any

import msgspec

from dragoman.core.ids import HUB, AgentId, Instant, instant


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
    """One shared value. `version` counts its changes, from 1. `past` are its last few values, where they are of use."""

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
        """When the hub must look at it again: the end of an allocation for all agents together. The allocation of one
        agent ends at one of that agent's wake times (`with_wake_time`)."""
        if self.registry is not Registry.RESOURCE or self.value.get("agent_id") != HUB:
            return None
        return moment_of(self.value.get("expires_at"))


class Change(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A change of one entity: `changes` is a merge patch. For a task of the hub, `name` is the task's id and `ours` is
    1. There is one for every step of every task, so it is as small as possible."""

    operation: Operation
    registry: Registry
    name: str
    version: int
    changes: dict[str, Any]
    by: AgentId
    ours: int = 0


class Changed(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """All changes of one unit of work in the shared state: a row of the log.

    Changes are numbered without a gap; `cursor` is the number of the last one in this row. So a reader can stop and go
    on anywhere, also in the middle of a row.
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


class AgentState(enum.StrEnum):
    IDLE = "IDLE"
    BUSY = "BUSY"
    ERROR = "ERROR"
    OFFLINE = "OFFLINE"
    MAINTENANCE = "MAINTENANCE"


AWAY = frozenset({AgentState.ERROR, AgentState.OFFLINE, AgentState.MAINTENANCE})
"""An agent in these states is given no work."""


class Standing(msgspec.Struct, frozen=True, gc=False):
    """`until`: the agent takes no work before, by its own report. `level` is how capable it is, 0 to 100."""

    away: bool = False
    until: Instant | None = None
    error_rate: float = 0.0
    level: float = 100.0


def standing_of(value: dict[str, Any]) -> Standing:
    return Standing(
        value.get("state") in AWAY,
        moment_of(value.get("next_available")),
        value.get("error_rate", 0.0),
        value.get("capability_level", 100.0),
    )


def moment_of(text: str | None) -> Instant | None:
    """A time in a shared value. It was checked when it was written."""
    return None if text is None else instant(datetime.fromisoformat(text))


def merged(target: Any, patch: Any) -> Any:
    """The target with the patch applied: null removes, objects are merged, anything else replaces."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = merged(result.get(name), value)
    return result


def difference(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """A patch that turns one value into the other. Inner objects that differ are given whole."""
    patch: dict[str, Any] = {name: None for name in old if name not in new}
    for name, value in new.items():
        before = old.get(name)
        if before == value:
            continue
        if isinstance(before, dict) and isinstance(value, dict):
            patch[name] = difference(before, value)
        else:
            patch[name] = value
    return patch

"""What a child is: the command, where and with what it runs, and when it is started again. Values only.

The environment of a child is made, not inherited:

    PATH HOME LANG LC_* TZ TERM TMPDIR USER LOGNAME SHELL   as the hub has them
    names in `pass_env`                                     likewise, but nothing of the hub's own (DRAGOMAN_*)
    `env`                                                   as given
    DRAGOMAN_AGENT_ID, DRAGOMAN_URL=stdio:                  who it is, and how to reach the hub
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from dragoman.core.agents.model import Agent
from dragoman.transports.stdio.restarts import Policy

PROTOCOL = "forge"
DETAIL = "child"
"""Where the recipe stands in an agent's details."""

INHERITED = frozenset({"PATH", "HOME", "LANG", "TZ", "TERM", "TMPDIR", "USER", "LOGNAME", "SHELL"})
OURS = "DRAGOMAN_"
MIB = 1024 * 1024

Word = Annotated[str, Meta(pattern="^[^\\x00]{0,65536}$(?!\\n)")]
Variable = Annotated[str, Meta(pattern="^[A-Za-z_][A-Za-z0-9_]{0,255}$(?!\\n)")]
Directory = Annotated[str, Meta(pattern="^/[^\\x00]{0,4000}$(?!\\n)")]
Amount = Annotated[int, Meta(ge=1, le=1 << 40)]


class State(enum.StrEnum):
    """Forge's words for where an agent stands (forge-D7)."""

    INITIALIZING = "initializing"  # about to be started, or started anew after a pause
    IDLE = "idle"
    BUSY = "busy"
    PAUSED = "paused"  # forge's word for what we do not do: tasks are paused here, not processes
    STOPPING = "stopping"
    STOPPED = "stopped"  # ended as it should, and not to be started again
    CRASHED = "crashed"  # ended as it should not, and not to be started again
    UNHEALTHY = "unhealthy"  # it runs, but reads nothing, or its breaker is open


class ChildLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What one process of it may use; the kernel sees to it."""

    open_files: Amount = 1024
    memory_mb: Amount | None = None
    """Address space."""
    cpu_seconds: Amount | None = None
    processes: Amount | None = None
    """Of its user, all together; not for root."""
    file_mb: Amount | None = None
    """The largest file it may write."""

    def for_the_kernel(self) -> dict[str, int]:
        wanted = {
            "core": 0,
            "open_files": self.open_files,
            "memory": None if self.memory_mb is None else self.memory_mb * MIB,
            "cpu_seconds": self.cpu_seconds,
            "processes": self.processes,
            "file_size": None if self.file_mb is None else self.file_mb * MIB,
        }
        return {name: most for name, most in wanted.items() if most is not None}


class Recipe(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`env` are names; their values lie in the vault under `vault`."""

    command: Annotated[tuple[Word, ...], Meta(min_length=1, max_length=1000)]
    cwd: str | None = None
    env: tuple[str, ...] = ()
    vault: str | None = None
    pass_env: tuple[str, ...] = ()
    restart: Policy = "on-failure"
    limits: ChildLimits = ChildLimits()
    grace_seconds: float = 10.0
    privileges: bool = False
    origin: Literal["api", "config", "demo"] = "api"
    digest: str | None = None
    """Of what the configuration said: whether it still says the same."""

    def details(self) -> dict[str, Any]:
        found: dict[str, Any] = msgspec.to_builtins(self)
        return found


def recipe_of(agent: Agent) -> Recipe | None:
    """None for an agent that comes by itself."""
    found = agent.details.get(DETAIL)
    if found is None or agent.protocol != PROTOCOL:
        return None
    try:
        return msgspec.convert(found, Recipe, strict=False)
    except msgspec.ValidationError:  # written by another version of us
        return None


def environment(recipe: Recipe, agent: str, values: Mapping[str, str], ours: Mapping[str, str]) -> dict[str, str]:
    """All that a child finds in its environment. `ours` is the hub's own."""
    passed = {name for name in recipe.pass_env if not name.startswith(OURS)}
    found = {
        name: value for name, value in ours.items() if name in INHERITED or name.startswith("LC_") or name in passed
    }
    return {**found, **values, "DRAGOMAN_AGENT_ID": agent, "DRAGOMAN_URL": "stdio:"}

"""The spec of a child: its command, directory, environment and limits, and when to restart it. Values, no effects."""

from __future__ import annotations

import enum
import os
from collections.abc import Sequence
from pathlib import PurePath
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from dragoman.core.ids import MINUTE, SECOND, Instant
from dragoman.core.model.agents import Agent
from dragoman.sandbox.model import Host, Level, Workload

PROTOCOL = "forge"
DETAIL = "child"
"""The key of the spec in an agent's details."""

MIB = 1024 * 1024

RestartPolicy = Literal["never", "on-failure", "always"]
Word = Annotated[str, Meta(pattern="^[^\\x00]{0,65536}$(?!\\n)")]
Variable = Annotated[str, Meta(pattern="^[A-Za-z_][A-Za-z0-9_]{0,255}$(?!\\n)")]
Directory = Annotated[str, Meta(pattern="^/[^\\x00]{0,4000}$(?!\\n)")]
Amount = Annotated[int, Meta(ge=1, le=1 << 40)]
Seconds = Annotated[float, Meta(gt=0, le=86_400)]
AllowedFile = Annotated[str, Meta(pattern="^/[^\\x00]{0,4000}$(?!\\n)")]
"""A file or a directory that the child may read; with `:rw` behind it also write."""
AllowedHost = Host
WRITABLE = ":rw"
MODULES = (".wasm", ".wat")
"""The endings of WebAssembly modules."""


class State(enum.StrEnum):
    """Forge's names for the state of an agent (forge-D7)."""

    INITIALIZING = "initializing"  # about to be started, or started again after a pause
    IDLE = "idle"
    BUSY = "busy"
    PAUSED = "paused"  # forge has it; this hub pauses tasks, not processes
    STOPPING = "stopping"
    STOPPED = "stopped"  # ended as it should, and not to be started again
    CRASHED = "crashed"  # ended as it should not, and not to be started again
    UNHEALTHY = "unhealthy"  # it runs, but reads nothing, has closed a pipe, or its breaker is open


class ChildLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What one process of it may use; the kernel sees to it."""

    open_files: Amount = 1024
    memory_mb: Amount | None = None
    """Address space."""
    cpu_seconds: Amount | None = None
    processes: Amount | None = None
    """Processes of its user, all together; not for root."""
    file_mb: Amount | None = None
    """The largest file it may write."""
    address_mb: Amount | None = None
    """In a sandbox: address space, for runtimes that map far more than they use (V8, Go, Java)."""
    task_seconds: Seconds | None = None
    """In a sandbox: how long it may work on one task (a2acp-D17)."""
    fuel: Amount | None = None
    """For a WebAssembly module: how many instructions a task may take, roughly."""

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


class SandboxRules(msgspec.Struct, frozen=True, kw_only=True):
    """The minimal sandbox for untrusted agents, and the limits of each unless its spec has others."""

    minimum: Level = Level.BUBBLEWRAP
    task_seconds: float = 60.0
    memory_mb: int = 1024
    processes: int = 64
    file_mb: int = 256
    scratch_mb: int = 64
    fuel: int | None = None


GRACE, IDLE_GRACE = 30.0, 10.0
"""Seconds between notify:shutdown and SIGTERM (D10). A child that has nothing to finish needs no half minute."""


class ChildSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`env` are names; their values are in the file `vault` (`environment.EnvironmentFiles`)."""

    command: Annotated[tuple[Word, ...], Meta(min_length=1, max_length=1000)]
    cwd: str | None = None
    env: tuple[str, ...] = ()
    vault: str | None = None
    pass_env: tuple[str, ...] = ()
    restart: RestartPolicy = "on-failure"
    limits: ChildLimits = ChildLimits()
    grace_seconds: float | None = None
    """How long it may take to end when it is asked to. None: `GRACE` with a task, `IDLE_GRACE` without."""
    privileges: bool = False
    untrusted: bool = False
    """It runs in a sandbox or not at all. This comes from the agent's row, not from the stored spec."""
    allow_files: tuple[AllowedFile, ...] = ()
    allow_hosts: tuple[AllowedHost, ...] = ()
    wasm: bool | None = None
    """Whether the command is a WebAssembly module. None: the file's name decides."""
    origin: Literal["api", "config", "demo"] = "api"
    digest: str | None = None
    """The digest of the declaration in the configuration, to notice changes."""
    node: str = ""
    """The node of a cluster that runs it; empty where there is one hub."""

    def grace(self, *, busy: bool) -> float:
        if self.grace_seconds is not None:
            return self.grace_seconds
        return GRACE if busy else IDLE_GRACE

    @property
    def workload(self) -> Workload:
        module = self.command[0].endswith(MODULES) if self.wasm is None else self.wasm
        return Workload.WASM if module else Workload.PROCESS

    @property
    def confined(self) -> bool:
        """Whether it runs in a sandbox; a module always does."""
        return self.untrusted or self.workload is Workload.WASM

    def details(self) -> dict[str, Any]:
        found: dict[str, Any] = msgspec.to_builtins(msgspec.structs.replace(self, untrusted=False))
        return found


def contradiction(spec: ChildSpec) -> tuple[str, str] | None:
    """A field that contradicts the others, and why; None if there is none."""
    if not spec.confined:
        for field in ("allow_files", "allow_hosts"):
            if getattr(spec, field):
                return field, f"{field} is for untrusted agents: any other may open what the hub's user may"
        for field in ("address_mb", "task_seconds", "fuel"):
            if getattr(spec.limits, field) is not None:
                return "limits", f"limits.{field} is for untrusted agents"
        return None
    if spec.privileges:
        return "privileges", "an untrusted agent may not gain privileges"
    allowed = [PurePath(place) for place, _ in allowed_files(spec)]
    cwd = None if spec.cwd is None else PurePath(os.path.normpath(spec.cwd))
    if cwd is not None and not any(cwd.is_relative_to(place) for place in allowed):
        return "cwd", "an untrusted agent runs in a directory of its own; to show it this one, allow it (allow_files)"
    if spec.workload is Workload.WASM:
        if spec.allow_hosts:
            return "allow_hosts", "a WebAssembly module has no network, so no hosts can be allowed"
        if not os.path.isabs(spec.command[0]):
            return "command", "the file of a WebAssembly module is named by its whole path"
    elif spec.limits.fuel is not None:
        return "limits", "limits.fuel is for WebAssembly modules"
    return None


def allowed_files(spec: ChildSpec) -> list[tuple[str, bool]]:
    """The files that it may open, each with whether it may write."""
    found = []
    for place in spec.allow_files:
        writable = place.endswith(WRITABLE)
        found.append((os.path.normpath(place.removesuffix(WRITABLE) if writable else place), writable))
    return found


def spec_of(agent: Agent) -> ChildSpec | None:
    """The spec of an agent; None if the hub does not start it."""
    found = agent.details.get(DETAIL)
    if found is None or agent.protocol != PROTOCOL:
        return None
    try:
        spec = msgspec.convert(found, ChildSpec, strict=False)
        return msgspec.structs.replace(spec, untrusted=agent.untrusted)
    except msgspec.ValidationError:  # written by another version
        return None


# --- restarts (forge-D11)
#
#     policy       clean exit (0)    any other end
#     ----------   ---------------   ----------------------------------------------------
#     never        stopped           crashed
#     on-failure   stopped           started again after a pause, at most 5 times in 10 minutes, then crashed
#     always       started again, likewise
#
# A child that could not be started at all, because there is no such program or directory, is crashed at once. The pause
# grows with the ends of the last ten minutes. A child that has run for longer than that begins afresh.

MOST_RESTARTS = 5
RESTARTS_WITHIN = 10 * MINUTE
PAUSES = (SECOND // 4, SECOND, 2 * SECOND, 5 * SECOND, 10 * SECOND)
"""Before the first restart, the second, …"""


class Exit(msgspec.Struct, frozen=True, kw_only=True):
    at: Instant
    clean: bool
    permanent: bool = False


class Restart(msgspec.Struct, frozen=True):
    """Start it at this moment. `number` counts the restarts of the last ten minutes, this one included."""

    at: Instant
    number: int


Decision = Restart | Literal["stopped", "crashed"]


def decide_restart(policy: RestartPolicy, exits: Sequence[Exit], now: Instant) -> Decision:
    """`exits` are this child's ends, the last one last; at least one."""
    last = exits[-1]
    if last.permanent:
        return "crashed"
    if policy == "never" or (policy == "on-failure" and last.clean):
        return "stopped" if last.clean else "crashed"
    recent = sum(now - exit.at < RESTARTS_WITHIN for exit in exits)
    if recent > MOST_RESTARTS:
        return "crashed"
    return Restart(Instant(now + PAUSES[max(0, recent - 1)]), max(1, recent))


def recent_exits(exits: Sequence[Exit], now: Instant) -> tuple[Exit, ...]:
    """Those that can still matter."""
    return tuple(exit for exit in exits if now - exit.at < RESTARTS_WITHIN)[-(MOST_RESTARTS + 1) :]

"""The options of `submit`, `call` and `stream`, typed: a misspelt one fails under mypy, and at run time before anything
is sent.

    option                                               management API  chiffon  coven  forge  agentmsg  a2acp
    ---------------------------------------------------  --------------  -------  -----  -----  --------  -----
    agent, priority                                      yes             yes      yes    yes    yes       agent
    dependencies, parent                                 yes             yes      -      yes    yes       -
    hints                                                yes             yes      -      yes    -         -
    thread                                               yes             -        yes    yes    yes       -
    name, description, required_capabilities             yes             -        -      yes    yes       -
    required_role                                        yes             -        -      yes    -         -
    files                                                -               -        yes    yes    -         -
    deadline                                             yes             -        -      -      yes       -
    kind, budget, attachments                            yes             -        -      -      -         -
    metadata, max_tokens, budget_usd, quality_threshold  -               -        -      -      yes       -
    mode, encrypt, retries                               -               -        -      -      -         yes

An option that the protocol of the address does not have is a `NotSupported`.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, Protocol, TypeAlias, TypedDict

from dragoman.sdk.errors import Misconfigured
from dragoman.sdk.messages import File

Priority: TypeAlias = Literal["low", "normal", "high", "critical"]
PRIORITIES: tuple[Priority, ...] = ("low", "normal", "high", "critical")


class Named(Protocol):
    """A handle of either client."""

    @property
    def id(self) -> str: ...


Handle: TypeAlias = Named | str
"""A task: its handle, or its id."""


class Hints(TypedDict, total=False):
    """What the caller expects of the work."""

    max_duration_seconds: int
    max_memory_mb: int
    max_gpu_vram_mb: int


class SubmitOptions(TypedDict, total=False):
    agent: str | None
    """The agent's id, or a kind of agent; without one, any agent that can."""
    kind: str
    priority: Priority
    dependencies: Sequence[Handle]
    """Tasks that must be done before."""
    parent: Handle | None
    """The task that this one is a part of. Inside a handler that is the handler's own task, unless this is given."""
    hints: Hints
    name: str
    description: str
    thread: str
    required_role: str
    required_capabilities: Sequence[str]
    deadline: datetime | str
    budget: float | Mapping[str, float]
    attachments: Sequence[str]
    """Ids of files that the hub has."""
    files: Sequence[File]
    metadata: Mapping[str, Any]
    max_tokens: float
    budget_usd: float
    quality_threshold: float
    mode: Literal["broker", "end-to-end"]
    encrypt: bool
    retries: int


def checked(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options as a backend takes them, tasks by their ids; raises `Misconfigured` for what no protocol has."""
    for name in options:
        if name not in SubmitOptions.__annotations__:
            close = difflib.get_close_matches(name, SubmitOptions.__annotations__, n=1)
            meant = f"; did you mean `{close[0]}`?" if close else ""
            raise Misconfigured(f"unknown option `{name}`{meant}")
    priority = options.get("priority")
    if isinstance(priority, str) and priority not in PRIORITIES:
        raise Misconfigured(f"there is no priority {priority!r}: use one of {', '.join(PRIORITIES)}")
    taken = dict(options)
    if taken.get("dependencies"):
        taken["dependencies"] = [str(task) for task in taken["dependencies"]]
    if taken.get("parent") is not None:
        taken["parent"] = str(taken["parent"])
    return taken

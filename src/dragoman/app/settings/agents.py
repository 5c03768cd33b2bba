"""The agents that the configuration declares: each `[[agents]]` of dragoman.toml is one that the hub runs itself.

[[agents]]
id = "reviewer"
command = ["node", "reviewer.js"]
cwd = "agents/reviewer"             # from the file's directory; a directory of its own if left out
role = "reviewer"
capabilities = ["typescript"]
restart = "on-failure"              # never, on-failure, always
env = { MODEL = "large" }           # values are never shown
pass_env = ["OPENAI_API_KEY"]       # from the hub's own environment
limits = { memory_mb = 512 }
untrusted = true                    # in a sandbox or not at all; then:
allow_files = ["agents/reviewer"]   # to read; "…:rw" to write as well
allow_hosts = ["api.example.com"]   # port 443 unless it says another
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from dragoman.supervisor.restarts import Policy
from dragoman.supervisor.spec import (
    MODULES,
    AllowedFile,
    AllowedHost,
    ChildLimits,
    ChildSpec,
    Variable,
    Word,
    contradiction,
)
from dragoman.wire.misfit import explain


class AgentSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """An agent that speaks forge over its standard streams."""

    id: Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:@+-]{0,127}$(?!\n)")]
    command: Annotated[tuple[Word, ...], Meta(min_length=1, max_length=1000)]
    cwd: str | None = None
    env: dict[Variable, Word] = {}
    pass_env: tuple[Variable, ...] = ()
    kind: str | None = None
    role: str | None = None
    name: str | None = None
    domain: str | None = None
    version: str | None = None
    capabilities: tuple[str, ...] = ()
    work_types: tuple[str, ...] | None = None
    untrusted: bool = False
    """Whether it runs in a sandbox or not at all."""
    allow_files: tuple[AllowedFile, ...] = ()
    allow_hosts: tuple[AllowedHost, ...] = ()
    wasm: bool | None = None
    """Whether the command is a WebAssembly module; by default, if it is called so."""
    max_concurrent: Annotated[int, Meta(ge=1, le=10_000)] | None = None
    restart: Policy = "on-failure"
    grace_seconds: Annotated[float, Meta(ge=0, le=3600)] | None = None
    """How long it may take to end when it is asked to; 30 with a task, 10 without."""
    privileges: bool = False
    """Whether it may gain privileges by programs such as sudo."""
    limits: ChildLimits = ChildLimits()

    def __post_init__(self) -> None:
        found = contradiction(self.spec())
        if found is not None:
            raise ValueError(found[1])

    def spec(self) -> ChildSpec:
        return ChildSpec(
            command=self.command,
            cwd=self.cwd,
            pass_env=self.pass_env,
            restart=self.restart,
            grace_seconds=self.grace_seconds,
            privileges=self.privileges,
            limits=self.limits,
            untrusted=self.untrusted,
            allow_files=self.allow_files,
            allow_hosts=self.allow_hosts,
            wasm=self.wasm,
            origin="config",
        )


def shown(agent: AgentSettings) -> dict[str, Any]:
    """For people: of its environment only the names, for the values may be secrets."""
    found: dict[str, Any] = msgspec.to_builtins(agent)
    return {**found, "env": sorted(agent.env)} if agent.env else found


def explain_misfit(error: msgspec.ValidationError) -> str:
    """What is wrong with the tables, and where, but none of their values."""
    what, field = explain(error)
    return f"{what[:1].lower()}{what[1:]}{f' ({field})' if field else ''}."


def relative_to(agents: Any, directory: Path) -> Any:
    """Relative directories, allowed files and modules are meant from the file's."""
    if not isinstance(agents, list):
        return agents
    return [_relative_to(one, directory) if isinstance(one, dict) else one for one in agents]


def _relative_to(agent: dict[str, Any], directory: Path) -> dict[str, Any]:
    def absolute(place: Any) -> Any:
        return str((directory / place).absolute()) if isinstance(place, str) else place

    found = dict(agent)
    if "cwd" in agent:
        found["cwd"] = absolute(agent["cwd"])
    if isinstance(agent.get("allow_files"), list):
        found["allow_files"] = [absolute(place) for place in agent["allow_files"]]
    command = agent.get("command")
    if isinstance(command, list) and command and isinstance(command[0], str) and command[0].endswith(MODULES):
        found["command"] = [absolute(command[0]), *command[1:]]
    return found

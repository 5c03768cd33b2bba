"""How an untrusted child is started: in the strongest sandbox this machine has, or not at all (a2acp-D17).

    what runs                  in
    a program                  bubblewrap; landlock+seccomp only where the policy's minimum is that
    a WebAssembly module       Wasmtime, one run for each task (`wasm_agent.py`)
    neither holds here         nothing is started; the refusal says what is missing and what to do

The child may open its own directory and what it was explicitly allowed, and never the hub's data directory. The hub
tests sandboxes once in its life, when the first such child starts; all others wait for the result.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

import msgspec

from dragoman import durable
from dragoman.sandbox.model import BelowPolicy, Level, Limits, Policy, Sandbox, Unavailable, Workload
from dragoman.supervisor import wasm_agent
from dragoman.supervisor.spawner_client import Launch
from dragoman.supervisor.spec import ChildSpec, SandboxRules, allowed_files

if TYPE_CHECKING:
    from dragoman.sandbox.levels import SandboxBackend, SandboxLevels

LAST_SECONDS = 5.0
"""A module's host stops it first; so many seconds later the hub stops the host."""


class Sandboxed(msgspec.Struct, frozen=True):
    """A sandboxed child: the level, how it is started, and how long it may work on one task."""

    level: Level
    launch: Launch
    task_seconds: float


class SandboxRefused(Exception):
    """The child must not be started; the message says why, and what to do about it."""


class SandboxPolicy:
    """`data` is the hub's data directory. The list of levels is made when it is first needed."""

    def __init__(
        self, data: Path, rules: SandboxRules, *, all_levels: Callable[[], SandboxLevels] | None = None
    ) -> None:
        self._data = data
        self._rules = rules
        self._make = all_levels or self._make_levels
        self._levels: SandboxLevels | None = None
        self._making = threading.Lock()
        self._backends: dict[Workload, asyncio.Task[SandboxBackend]] = {}

    async def start_plan(self, spec: ChildSpec, home: str, env: dict[str, str]) -> Sandboxed:
        """Raises `SandboxRefused`."""
        try:
            backend = await self._strongest(spec.workload)
            return await asyncio.to_thread(self._sandboxed, backend, spec, home, env)
        except BelowPolicy as below:
            raise SandboxRefused(f"refused: {below}") from None
        except Unavailable as missing:
            raise SandboxRefused(f"refused: {missing}. To do: {missing.remedy}") from None

    async def _strongest(self, workload: Workload) -> SandboxBackend:
        """The strongest backend for this workload. One thread tests them, however many children wait for it."""
        trying = self._backends.get(workload)
        if trying is None or (trying.done() and not isinstance(trying.exception(), BelowPolicy | None)):
            trying = asyncio.get_running_loop().create_task(asyncio.to_thread(self._try, workload))
            self._backends[workload] = trying
        return await asyncio.shield(trying)

    def _try(self, workload: Workload) -> SandboxBackend:
        with self._making:
            if self._levels is None:
                self._levels = self._make()
        return self._levels.strongest(Policy(workload=workload, least=self._rules.minimum))

    def _make_levels(self) -> SandboxLevels:
        from dragoman.sandbox.levels import all_levels  # only a hub with untrusted agents needs it

        cache = self._data / "modules"
        durable.make_directory(cache)
        return all_levels(cache=str(cache))

    def _sandboxed(self, backend: SandboxBackend, spec: ChildSpec, home: str, env: dict[str, str]) -> Sandboxed:
        sandbox = self._sandbox(spec, home, env)
        for place in (*sandbox.read, *sandbox.write):
            if not os.path.exists(place):
                raise Unavailable(backend.level, f"{place} is allowed, but is not there", "make it, or do not allow it")
        argv = backend.argv(sandbox, spec.command)
        spare = 0.0
        if backend.level is Level.WASM:
            argv, spare = wasm_agent.argv(argv), LAST_SECONDS
        launch = Launch(argv=argv, env=env, cwd="/", limits={"core": 0, "open_files": spec.limits.open_files})
        return Sandboxed(backend.level, launch, sandbox.limits.seconds + spare)

    def _sandbox(self, spec: ChildSpec, home: str, env: dict[str, str]) -> Sandbox:
        allowed = [(self._visible_path(place, home), writable) for place, writable in allowed_files(spec)]
        of, rules = spec.limits, self._rules
        return Sandbox(
            read=tuple(place for place, writable in allowed if not writable),
            write=(home, *(place for place, writable in allowed if writable)),
            cwd=spec.cwd or home,
            hidden=(str(self._data),),
            variables=tuple(env),
            hosts=spec.allow_hosts,
            limits=Limits(
                memory_mb=of.memory_mb or rules.memory_mb,
                address_mb=of.address_mb,
                processes=of.processes or rules.processes,
                open_files=of.open_files,
                file_mb=of.file_mb or rules.file_mb,
                scratch_mb=rules.scratch_mb,
                cpu_seconds=of.cpu_seconds,
                seconds=of.task_seconds or rules.task_seconds,
                fuel=of.fuel or rules.fuel,
            ),
        )

    def _visible_path(self, place: str, home: str) -> str:
        """The path at which the child sees an allowed file: the given one; but the real path of a directory that
        contains the hub's data, which must be hidden in it."""
        real = PurePath(os.path.realpath(place))
        if real.is_relative_to(self._data) and not real.is_relative_to(home):
            raise SandboxRefused(f"refused: {place} is the hub's own. To do: allow a copy of it that lies elsewhere")
        return str(real) if self._data.is_relative_to(real) else place

"""The list of levels: which levels stand on this machine, and the strongest that a policy accepts.

Self-tests run at most once in a process, when first asked for; what they found are values. Nothing below the policy is
ever taken instead: the refusal says what is missing and how to get it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Protocol

from dragoman.sandbox.hyperlight import Hyperlight
from dragoman.sandbox.model import RUNS, BelowPolicy, Level, Policy, Report, Sandbox
from dragoman.sandbox.processes import Bubblewrap, Landlock
from dragoman.sandbox.wasm import Wasm


class SandboxBackend(Protocol):
    """One way to hold code back.

    `self_test` attempts from inside everything that the level forbids, and passes only when all of it was refused; it
    raises nothing. `argv` gives the command line that runs a command (a program, a module's file, a file of source)
    inside: it starts nothing itself, passes on stdin, stdout and stderr and of the environment what the sandbox names,
    and when the sandbox cannot be built that command line ends with code 126 without having run anything. What it
    cannot enforce it does not build: `Unavailable`.
    """

    @property
    def level(self) -> Level: ...

    def self_test(self) -> Report: ...

    def argv(self, sandbox: Sandbox, command: tuple[str, ...]) -> tuple[str, ...]: ...


class NoSandbox:
    """No sandbox at all: what a policy of level `none` gets where nothing better stands."""

    level = Level.NONE

    def self_test(self) -> Report:
        return Report(level=self.level, available=True, passed=True)

    def argv(self, sandbox: Sandbox, command: tuple[str, ...]) -> tuple[str, ...]:
        return command


class SandboxLevels:
    def __init__(self, backends: Iterable[SandboxBackend]) -> None:
        self._backends = sorted(backends, key=lambda backend: -backend.level.strength)
        self._reports: dict[Level, Report] = {}
        self._one_at_a_time = threading.Lock()

    def reports(self) -> tuple[Report, ...]:
        """All levels, the strongest first."""
        return tuple(self.report(backend) for backend in self._backends)

    def report(self, backend: SandboxBackend) -> Report:
        with self._one_at_a_time:
            if backend.level not in self._reports:
                self._reports[backend.level] = backend.self_test()
            return self._reports[backend.level]

    def strongest(self, policy: Policy) -> SandboxBackend:
        """The strongest that runs such work and passed its self-test, or BelowPolicy."""
        failed: list[Report] = []
        for backend in self._backends:
            if policy.workload not in RUNS[backend.level]:
                continue
            if not backend.level.satisfies(policy.least):
                raise BelowPolicy(policy, tuple(failed), self._strongest_available(policy))
            report = self.report(backend)
            if report.passed:
                return backend
            failed.append(report)
        raise BelowPolicy(policy, tuple(failed), Level.NONE)

    def _strongest_available(self, policy: Policy) -> Level:
        able = (backend for backend in self._backends if policy.workload in RUNS[backend.level])
        return next((backend.level for backend in able if self.report(backend).passed), Level.NONE)


def all_levels(*, cache: str | None = None) -> SandboxLevels:
    """Every level that we know. `cache`: a directory of ours alone, for compiled modules."""
    return SandboxLevels((Hyperlight(), Wasm(cache), Bubblewrap(), Landlock(), NoSandbox()))

"""The ladder: which rungs stand on this machine, and the strongest that a policy accepts.

Self-tests run at most once in a process, when first asked for; what they found are values. Nothing below the policy is
ever taken instead: the refusal says what is missing and how to get it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Protocol

from dragoman.sandbox.bubblewrap import Bubblewrap
from dragoman.sandbox.hyperlight import Hyperlight
from dragoman.sandbox.landlock import Landlock
from dragoman.sandbox.model import RUNS, BelowPolicy, Level, Policy, Report, Sandbox
from dragoman.sandbox.wasm import Wasm


class Rung(Protocol):
    """One way to hold code back.

    `self_test` attempts from inside everything that the level forbids, and passes only when all of it was refused; it
    raises nothing. `argv` gives the command line that runs a command (a program, a module's file, a file of source)
    inside: it starts nothing itself, passes on stdin, stdout and stderr and of the environment what the sandbox names,
    and when the walls cannot be put up that command line ends with code 126 without having run anything. What it cannot
    enforce it does not build: `Unavailable`.
    """

    @property
    def level(self) -> Level: ...

    def self_test(self) -> Report: ...

    def argv(self, sandbox: Sandbox, command: tuple[str, ...]) -> tuple[str, ...]: ...


class Nothing:
    """No sandbox at all: what a policy of level `none` gets where nothing better stands."""

    level = Level.NONE

    def self_test(self) -> Report:
        return Report(level=self.level, available=True, passed=True)

    def argv(self, sandbox: Sandbox, command: tuple[str, ...]) -> tuple[str, ...]:
        return command


class Ladder:
    def __init__(self, rungs: Iterable[Rung]) -> None:
        self._rungs = sorted(rungs, key=lambda rung: -rung.level.strength)
        self._reports: dict[Level, Report] = {}
        self._one_at_a_time = threading.Lock()

    def reports(self) -> tuple[Report, ...]:
        """All rungs, the strongest first."""
        return tuple(self.report(rung) for rung in self._rungs)

    def rung(self, level: Level) -> Rung | None:
        """Whether it stands or not."""
        return next((rung for rung in self._rungs if rung.level is level), None)

    def report(self, rung: Rung) -> Report:
        with self._one_at_a_time:
            if rung.level not in self._reports:
                self._reports[rung.level] = rung.self_test()
            return self._reports[rung.level]

    def strongest(self, policy: Policy) -> Rung:
        """The strongest that runs such work and passed its self-test, or BelowPolicy."""
        failed: list[Report] = []
        for rung in self._rungs:
            if policy.workload not in RUNS[rung.level]:
                continue
            if not rung.level.satisfies(policy.least):
                raise BelowPolicy(policy, tuple(failed), self._best_of_the_rest(policy))
            report = self.report(rung)
            if report.passed:
                return rung
            failed.append(report)
        raise BelowPolicy(policy, tuple(failed), Level.NONE)

    def _best_of_the_rest(self, policy: Policy) -> Level:
        able = (rung for rung in self._rungs if policy.workload in RUNS[rung.level])
        return next((rung.level for rung in able if self.report(rung).passed), Level.NONE)


def ladder(*, cache: str | None = None) -> Ladder:
    """Every rung that we know. `cache`: a directory of ours alone, for compiled modules."""
    return Ladder((Hyperlight(), Wasm(cache), Bubblewrap(), Landlock(), Nothing()))

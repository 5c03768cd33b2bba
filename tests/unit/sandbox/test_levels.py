"""Which level is taken, and what is said when none is strong enough. Rungs that only pretend."""

from __future__ import annotations

import pytest

from dragoman.sandbox.levels import NoSandbox, SandboxLevels
from dragoman.sandbox.model import BelowPolicy, Level, Policy, Probe, Report, Sandbox, Workload


class Fake:
    def __init__(self, level: Level, *, passes: bool = True) -> None:
        self.level = level
        self.tests = 0
        self._passes = passes

    def self_test(self) -> Report:
        self.tests += 1
        if self._passes:
            return Report(level=self.level, available=True, passed=True)
        return Report.missing(self.level, f"{self.level} is broken", f"install {self.level}")

    def argv(self, sandbox: Sandbox, command: tuple[str, ...]) -> tuple[str, ...]:
        return (self.level, *command)


def test_the_strongest_that_passed_is_taken() -> None:
    found = SandboxLevels((NoSandbox(), Fake(Level.LANDLOCK), Fake(Level.BUBBLEWRAP)))
    assert found.strongest(Policy(least=Level.NONE)).level is Level.BUBBLEWRAP


@pytest.mark.parametrize(
    ("workload", "level"),
    [
        (Workload.PROCESS, Level.BUBBLEWRAP),
        (Workload.WASM, Level.WASM),
        (Workload.PYTHON, Level.HYPERLIGHT),
    ],
)
def test_a_rung_is_taken_only_for_what_it_can_run(workload: Workload, level: Level) -> None:
    found = SandboxLevels(Fake(each) for each in (Level.HYPERLIGHT, Level.WASM, Level.BUBBLEWRAP))
    assert found.strongest(Policy(workload=workload)).level is level


def test_below_the_policy_is_refused_with_what_is_missing_and_how_to_get_it() -> None:
    found = SandboxLevels((Fake(Level.BUBBLEWRAP, passes=False), Fake(Level.LANDLOCK), NoSandbox()))
    with pytest.raises(BelowPolicy) as caught:
        found.strongest(Policy(least=Level.BUBBLEWRAP))
    assert caught.value.strongest is Level.LANDLOCK
    assert [report.level for report in caught.value.reports] == [Level.BUBBLEWRAP]
    assert str(caught.value) == (
        "a process must run at level bubblewrap or above, the strongest here is landlock+seccomp"
        " (bubblewrap: bubblewrap is broken). To do: install bubblewrap"
    )


def test_hyperlight_is_never_shown_while_another_level_is_in_force() -> None:
    found = SandboxLevels((Fake(Level.HYPERLIGHT, passes=False), Fake(Level.BUBBLEWRAP)))
    with pytest.raises(BelowPolicy, match="must run at level hyperlight"):
        found.strongest(Policy(workload=Workload.PYTHON, least=Level.HYPERLIGHT))
    assert found.strongest(Policy(workload=Workload.PYTHON)).level is Level.BUBBLEWRAP


def test_no_rung_for_such_work_is_a_refusal_too() -> None:
    with pytest.raises(BelowPolicy, match="the strongest here is none"):
        SandboxLevels((Fake(Level.WASM),)).strongest(Policy(workload=Workload.PROCESS))


def test_a_self_test_runs_once() -> None:
    backend = Fake(Level.BUBBLEWRAP)
    found = SandboxLevels((backend,))
    for _ in range(3):
        found.strongest(Policy())
        found.reports()
    assert backend.tests == 1


def probe(name: str, *, refused: bool = True) -> Probe:
    return Probe(attempt=name, refused=refused, saw="EPERM" if refused else "got it")


def test_one_trial_that_was_not_refused_fails_the_level() -> None:
    report = Report.judged(
        Level.BUBBLEWRAP, "1", (probe("read"), probe("write", refused=False)), expected=2, remedy="mend it"
    )
    assert (report.passed, report.why_not, report.remedy) == (False, "not refused: write (got it)", "mend it")


def test_a_self_test_cut_short_proves_nothing() -> None:
    report = Report.judged(Level.BUBBLEWRAP, "1", (probe("read"),), expected=2, remedy="mend it")
    assert (report.passed, report.why_not) == (False, "only 1 of 2 probes were made")

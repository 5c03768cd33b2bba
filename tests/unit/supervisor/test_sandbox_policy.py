"""What is put around a child: a pure decision once the levels are known, tried once for all that wait."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from dragoman.sandbox.levels import SandboxLevels
from dragoman.sandbox.model import Level, Limits, Report, Sandbox
from dragoman.supervisor.environment import environment
from dragoman.supervisor.sandbox_policy import SandboxPolicy, SandboxRefused
from dragoman.supervisor.spec import ChildLimits, ChildSpec, SandboxRules, contradiction


class SandboxBackend:
    def __init__(self, level: Level, *, holds: bool = True) -> None:
        self.level = level
        self.holds = holds
        self.tried = 0
        self.asked: list[Sandbox] = []

    def self_test(self) -> Report:
        self.tried += 1
        return Report(level=self.level, available=True, passed=self.holds, why_not="broken", remedy="mend it")

    def argv(self, sandbox: Sandbox, command: tuple[str, ...]) -> tuple[str, ...]:
        self.asked.append(sandbox)
        return ("held", self.level, *command)


def sandbox_policy(data: Path, backends: Sequence[SandboxBackend], **terms: Any) -> SandboxPolicy:
    return SandboxPolicy(data, SandboxRules(**terms), all_levels=lambda: SandboxLevels(backends))


def untrusted(**more: Any) -> ChildSpec:
    return ChildSpec(command=("agent", "x"), untrusted=True, **more)


@pytest.fixture
def home(tmp_path: Path) -> str:
    place = tmp_path / "data" / "agents" / "a"
    place.mkdir(parents=True)
    return str(place)


async def test_the_strongest_is_taken_with_what_is_allowed_and_its_limits(tmp_path: Path, home: str) -> None:
    strong, weak = SandboxBackend(Level.BUBBLEWRAP), SandboxBackend(Level.LANDLOCK)
    (tmp_path / "shown").mkdir()
    spec = untrusted(
        allow_files=(f"{tmp_path}/shown", f"{tmp_path}:rw"), allow_hosts=("example.com",),
        limits=ChildLimits(memory_mb=5, task_seconds=7, open_files=9),
    )  # fmt: skip
    found = await sandbox_policy(tmp_path / "data", [weak, strong]).start_plan(spec, home, {"A": "secret"})
    assert (found.level, found.task_seconds) == (Level.BUBBLEWRAP, 7)
    assert found.launch.argv == ("held", "bubblewrap", "agent", "x")
    assert (found.launch.env, found.launch.cwd, found.launch.limits) == (
        {"A": "secret"},
        "/",
        {"core": 0, "open_files": 9},
    )
    assert strong.asked == [
        Sandbox(
            read=(f"{tmp_path}/shown",),
            write=(home, str(tmp_path)),
            cwd=home,
            hidden=(str(tmp_path / "data"),),
            variables=("A",),
            hosts=("example.com",),
            limits=Limits(memory_mb=5, open_files=9, seconds=7),
        )
    ]


async def test_what_is_below_the_minimum_is_never_taken(tmp_path: Path, home: str) -> None:
    backends = [SandboxBackend(Level.BUBBLEWRAP, holds=False), SandboxBackend(Level.LANDLOCK)]
    with pytest.raises(SandboxRefused, match=r"at level bubblewrap or above, the strongest here is landlock.*mend it"):
        await sandbox_policy(tmp_path, backends).start_plan(untrusted(), home, {})
    assert not backends[1].asked
    found = await sandbox_policy(tmp_path, backends, minimum=Level.LANDLOCK).start_plan(untrusted(), home, {})
    assert found.level is Level.LANDLOCK


async def test_a_level_is_tested_once_for_all_agents_that_wait(tmp_path: Path, home: str) -> None:
    backend = SandboxBackend(Level.BUBBLEWRAP, holds=False)
    start_plan = sandbox_policy(tmp_path, [backend])
    outcomes = await asyncio.gather(
        *(start_plan.start_plan(untrusted(), home, {}) for _ in range(20)), return_exceptions=True
    )  # fmt: skip
    assert {type(outcome) for outcome in outcomes} == {SandboxRefused}
    assert backend.tried == 1


async def test_a_file_that_is_not_there_cannot_be_allowed(tmp_path: Path, home: str) -> None:
    with pytest.raises(SandboxRefused, match="is not there"):
        await sandbox_policy(tmp_path / "data", [SandboxBackend(Level.BUBBLEWRAP)]).start_plan(
            untrusted(allow_files=(f"{tmp_path}/absent",)), home, {}
        )


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        (untrusted(), None),
        (untrusted(cwd="/srv/a/b", allow_files=("/srv/a",)), None),
        (untrusted(cwd="/srv/ab", allow_files=("/srv/a",)), "cwd"),
        (untrusted(cwd="/srv/a/../b", allow_files=("/srv/a",)), "cwd"),
        (untrusted(privileges=True), "privileges"),
        (ChildSpec(command=("a",), allow_files=("/srv",)), "allow_files"),
        (ChildSpec(command=("/a.wasm",), allow_files=("/srv",)), None),
        (ChildSpec(command=("a.wasm",)), "command"),
        (ChildSpec(command=("/a",), limits=ChildLimits(fuel=1)), "limits"),
    ],
)
def test_fields_that_make_no_sense_beside_each_other_are_named(spec: ChildSpec, field: str | None) -> None:
    found = contradiction(spec)
    assert (found and found[0]) == field


def test_in_a_sandbox_nothing_shows_the_hubs_user() -> None:
    ours = {"PATH": "/bin", "HOME": "/root", "USER": "root", "SHELL": "sh", "TMPDIR": "/x", "LC_ALL": "C", "KEY": "s"}
    assert environment(untrusted(pass_env=("KEY",)), "a", {"MINE": "m"}, ours, home="/own") == {
        "PATH": "/bin", "HOME": "/own", "TMPDIR": "/own", "LC_ALL": "C", "KEY": "s", "MINE": "m",
        "DRAGOMAN_AGENT_ID": "a", "DRAGOMAN_URL": "stdio:",
    }  # fmt: skip

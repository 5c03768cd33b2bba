"""What a child is started with."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from dragoman.core.ids import AgentId, Instant
from dragoman.core.model.agents import Agent
from dragoman.supervisor.environment import EnvironmentFiles, environment
from dragoman.supervisor.spec import DETAIL, ChildLimits, ChildSpec, spec_of

OURS = {
    "PATH": "/bin", "HOME": "/root", "LANG": "C", "LC_ALL": "C.UTF-8", "TZ": "UTC", "TERM": "xterm", "TMPDIR": "/tmp",
    "DRAGOMAN_TOKEN": "canary-token", "DRAGOMAN_URL": "http://hub", "DRAGOMAN_DATA": "/data", "SECRET": "canary",
    "OPENAI_API_KEY": "key", "LD_PRELOAD": "x.so", "PYTHONPATH": "/x", "SSH_AUTH_SOCK": "/s", "LCX": "no",
}  # fmt: skip


def test_a_child_finds_only_what_is_on_the_list() -> None:
    assert environment(ChildSpec(command=("x",)), "a1", {}, OURS) == {
        "PATH": "/bin", "HOME": "/root", "LANG": "C", "LC_ALL": "C.UTF-8", "TZ": "UTC", "TERM": "xterm",
        "TMPDIR": "/tmp", "DRAGOMAN_AGENT_ID": "a1", "DRAGOMAN_URL": "stdio:",
    }  # fmt: skip


def test_what_is_named_is_passed_on_but_nothing_of_the_hubs_own() -> None:
    spec = ChildSpec(command=("x",), pass_env=("OPENAI_API_KEY", "DRAGOMAN_TOKEN", "DRAGOMAN_DATA", "NOT_SET"))
    found = environment(spec, "a1", {"MINE": "1", "PATH": "/opt/bin", "DRAGOMAN_AGENT_ID": "spoofed"}, OURS)
    assert found["OPENAI_API_KEY"] == "key"
    assert (found["MINE"], found["PATH"], found["DRAGOMAN_AGENT_ID"]) == ("1", "/opt/bin", "a1")
    assert "canary" not in str(found)
    assert "NOT_SET" not in found


def test_a_recipe_survives_in_the_agents_row() -> None:
    spec = ChildSpec(
        command=("node", "a.js"), env=("A", "B"), vault="v", restart="always", limits=ChildLimits(memory_mb=64)
    )
    agent = Agent(
        id=AgentId("a"), protocol="forge", created_at=Instant(0), token_hash="", details={DETAIL: spec.details()}
    )
    assert spec_of(agent) == spec


@pytest.mark.parametrize(
    ("protocol", "details"),
    [
        ("forge", {}),
        ("chiffon", {DETAIL: {"command": ["x"]}}),
        ("forge", {DETAIL: {"command": []}}),
        ("forge", {DETAIL: 5}),
    ],
)
def test_an_agent_without_a_sound_recipe_is_no_child(protocol: str, details: dict[str, object]) -> None:
    agent = Agent(id=AgentId("a"), protocol=protocol, created_at=Instant(0), token_hash="", details=details)
    assert spec_of(agent) is None


def test_limits_in_the_kernels_units() -> None:
    assert ChildLimits().for_the_kernel() == {"core": 0, "open_files": 1024}
    assert ChildLimits(memory_mb=2, cpu_seconds=3, processes=4, file_mb=5, open_files=6).for_the_kernel() == {
        "core": 0, "open_files": 6, "memory": 2 << 20, "cpu_seconds": 3, "processes": 4, "file_size": 5 << 20,
    }  # fmt: skip


async def test_values_lie_in_a_file_for_the_hubs_user_alone(tmp_path: Path) -> None:
    vault = EnvironmentFiles(tmp_path / "vault")
    await vault.keep({"A": "canary"}, "one")
    await vault.keep({}, "two")
    assert await vault.fetch("one") == {"A": "canary"}
    assert stat.S_IMODE(os.stat(tmp_path / "vault" / "one").st_mode) == 0o600
    assert stat.S_IMODE(os.stat(tmp_path / "vault").st_mode) == 0o700
    with pytest.raises(FileExistsError):
        await vault.keep({}, "one")
    await vault.clear_out({"two"})
    with pytest.raises(FileNotFoundError):
        await vault.fetch("one")
    await vault.drop("two")
    await vault.drop("two")
    for name in ("", "../x", ".x", "a/b"):
        with pytest.raises(ValueError, match="name"):
            await vault.fetch(name)

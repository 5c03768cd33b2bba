"""How many bytes a process may still get, by the control group it is in: both versions of the kernel's files."""

from __future__ import annotations

from pathlib import Path

import pytest

from dragoman.app import free_memory

MIB = 1024 * 1024

TREES = {
    "version 2": ("0::/hub\n", "hub", {"memory.max": 512, "memory.current": 300}, "inactive_file"),
    "version 1": (
        "4:memory:/hub\n0::/\n",
        "memory/hub",
        {"memory.limit_in_bytes": 512, "memory.usage_in_bytes": 300},
        "total_inactive_file",
    ),
    "a container that sees its own group as the root": (
        "4:cpu,memory:/docker/4f1c\n",
        "memory",
        {"memory.limit_in_bytes": 512, "memory.usage_in_bytes": 300},
        "total_inactive_file",
    ),
}


def write(path: Path, group: str, figures: dict[str, int], droppable: str) -> None:
    (path / group).mkdir(parents=True)
    for name, mebibytes in figures.items():
        (path / group / name).write_text(f"{mebibytes * MIB}\n")
    (path / group / "memory.stat").write_text(f"cache 1\n{droppable} {100 * MIB}\nrss 3\n")


@pytest.mark.parametrize("tree", TREES)
def test_a_control_group_leaves_what_it_does_not_use_and_what_it_can_drop(tree: str, tmp_path: Path) -> None:
    named, group, figures, droppable = TREES[tree]
    (tmp_path / "cgroup").write_text(named)
    write(tmp_path / "fs", group, figures, droppable)
    found = free_memory.own_group(tmp_path / "cgroup", tmp_path / "fs")
    assert free_memory.free_in_group(found) == (512 - 300 + 100) * MIB


def test_without_a_limit_nothing_is_known(tmp_path: Path) -> None:
    (tmp_path / "cgroup").write_text("0::/hub\n")
    assert free_memory.own_group(tmp_path / "cgroup", tmp_path / "fs") is None
    (tmp_path / "fs" / "hub").mkdir(parents=True)
    (tmp_path / "fs" / "hub" / "memory.max").write_text("max\n")
    (tmp_path / "fs" / "hub" / "memory.current").write_text("1\n")
    found = free_memory.own_group(tmp_path / "cgroup", tmp_path / "fs")
    assert free_memory.free_in_group(found) is None
    assert free_memory.FreeMemory()() is not None  # the machine's own, at least

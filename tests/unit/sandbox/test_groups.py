"""Where a control group of our own could be made, in both versions and their mixture. The trees only pretend."""

from __future__ import annotations

from pathlib import Path

import pytest

from dragoman.sandbox import launcher

V1 = """30 25 0:26 / /cg/pids rw,relatime - cgroup cgroup rw,pids
31 25 0:27 /pod /cg/memory rw,relatime - cgroup cgroup rw,memory
32 25 0:28 / /cg/cpu rw,relatime - cgroup cgroup rw,cpu,cpuacct
33 25 0:29 / /cg/unified rw,relatime - cgroup2 cgroup2 rw
34 25 0:30 / /home rw,relatime - ext4 /dev/sda1 rw
"""
V2 = "30 25 0:26 / /cg rw,relatime - cgroup2 cgroup2 rw,nsdelegate\n"


def opened(monkeypatch: pytest.MonkeyPatch, **groups: set[str]) -> None:
    found = {f"/cg/{name}".rstrip("/"): names for name, names in groups.items()}
    monkeypatch.setattr(launcher, "_open_to_children", lambda group: found.get(group, set()))


def test_the_first_version_has_a_tree_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    opened(monkeypatch)
    own = "9:pids:/hub\n8:memory:/pod/hub\n1:cpu,cpuacct:/\n0::/\n"
    assert launcher.controllers(own, V1) == {"pids": ("/cg/pids/hub", 1), "memory": ("/cg/memory/hub", 1)}


def test_the_second_version_has_one_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    opened(monkeypatch, hub={"pids", "memory", "cpu"})
    assert launcher.controllers("0::/hub\n", V2) == {"pids": ("/cg/hub", 2), "memory": ("/cg/hub", 2)}


def test_a_group_with_processes_in_it_is_left_for_the_one_around_it(monkeypatch: pytest.MonkeyPatch) -> None:
    opened(monkeypatch, slice={"pids"})
    assert launcher.controllers("0::/slice/hub\n", V2) == {"pids": ("/cg/slice", 2)}


def test_where_none_can_be_made_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    opened(monkeypatch)
    assert launcher.controllers("0::/hub\n", V2) == {}


def test_groups_whose_process_has_ended_are_swept_away(tmp_path: Path) -> None:
    """A real group can be removed only when nobody is in it; here, when the directory is empty."""
    (tmp_path / "dragoman-1").mkdir()
    (tmp_path / "dragoman-2").mkdir()
    (tmp_path / "dragoman-2" / "cgroup.procs").write_text("2")
    (tmp_path / "another").mkdir()
    launcher._enter(str(tmp_path), 2, "pids", 7, "dragoman-3")
    assert {each.name for each in tmp_path.iterdir()} == {"dragoman-2", "dragoman-3", "another"}
    assert (tmp_path / "dragoman-3" / "pids.max").read_text() == "7"

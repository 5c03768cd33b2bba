"""Small files are whole and on the disk when their writer is told so: seen by what is asked of the system, in order."""

from __future__ import annotations

import ast
import os
from pathlib import Path
from typing import Any

import pytest

from dragoman import durable
from dragoman.core.ids import Instant
from dragoman.stores.files import DirectoryFiles
from dragoman.supervisor.environment import EnvironmentFiles

SOURCE = Path(durable.__file__).parent


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """What is synced, moved and linked, by name, while it happens as ever."""
    calls: list[tuple[str, str]] = []
    real = {name: getattr(os, name) for name in ("fsync", "replace", "rename", "link")}

    def fsync(file: int) -> None:
        calls.append(("sync", Path(os.readlink(f"/proc/self/fd/{file}")).name))
        real["fsync"](file)

    def moved(name: str) -> Any:
        def move(source: Any, target: Any, **how: Any) -> None:
            calls.append((f"{name} {Path(source).name}", Path(target).name))
            real[name](source, target, **how)

        return move

    monkeypatch.setattr(os, "fsync", fsync)
    for name in ("replace", "rename", "link"):
        monkeypatch.setattr(os, name, moved(name))
    return calls


@pytest.mark.parametrize(("replace", "move"), [(True, "replace"), (False, "link")])
def test_a_file_is_on_the_disk_before_it_is_in_its_place_and_its_name_before_the_call_returns(
    tmp_path: Path, asked: list[tuple[str, str]], replace: bool, move: str
) -> None:
    draft = tmp_path / "draft"
    durable.write(tmp_path / "file", b"a", b"b", replace=replace, draft=draft, modified_ns=1_000_000_000)
    assert asked == [("sync", "draft"), (f"{move} draft", "file"), ("sync", tmp_path.name)]
    found = (tmp_path / "file").stat()
    assert ((tmp_path / "file").read_bytes(), found.st_mode & 0o777, found.st_mtime_ns) == (b"ab", 0o600, 1_000_000_000)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


async def test_a_kept_file_and_a_childs_values_are_on_the_disk_before_they_can_be_referred_to(
    tmp_path: Path, asked: list[tuple[str, str]]
) -> None:
    id = "0192a3b4-0000-7000-8000-000000000001"
    files = DirectoryFiles(tmp_path / "files", lambda: id, now=lambda: Instant(1))
    files.prepare()
    await files.keep(b"data", name="x", mime_type="text/plain")
    assert asked == [
        ("sync", tmp_path.name),
        ("sync", f"{id}.part"),
        (f"replace {id}.part", id),
        ("sync", "files"),
    ]
    asked.clear()
    await EnvironmentFiles(tmp_path / "vault").keep({"A": "b"}, "x")
    assert [call if call.startswith("sync") else call.split()[0] for call, _ in asked] == [
        "sync",
        "sync",
        "link",
        "sync",
    ]
    assert (asked[0][1], asked[-1][1]) == (tmp_path.name, "vault")


def test_a_new_directory_is_known_to_the_one_above_it(tmp_path: Path, asked: list[tuple[str, str]]) -> None:
    durable.make_directory(tmp_path / "a" / "b")
    assert asked == [("sync", tmp_path.name), ("sync", "a")]
    assert (tmp_path / "a" / "b").stat().st_mode & 0o777 == 0o700
    durable.make_directory(tmp_path / "a" / "b")
    assert len(asked) == 2


def test_a_write_that_fails_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file"
    durable.write(file, b"old")

    def fails(_: int) -> None:
        raise OSError("the disk is gone")

    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(OSError, match="gone"):
        durable.write(file, b"new")
    assert file.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [file]


OTHERWISE = {
    "sandbox/launcher.py": "control files of the kernel",
    "sandbox/self_test.py": "a probe's, in a directory that is thrown away",
    "sandbox/probes.py": "a probe's, in a directory that is thrown away",
    "sandbox/wasm_probes.py": "a probe's, in a directory that is thrown away",
    "security/tls.py": "in memory",
    "stores/memory.py": "a store that keeps nothing",
    "stores/sqlite/writer_process.py": "what it says is for people; the lock itself is the kernel's",
    "stores/sqlite/sent_messages.py": "a ring, changed in place",
    "supervisor/child_log.py": "logs of children, which may lose their last lines",
    "supervisor/spawner.py": "a control file of the kernel",
    "sdk/work/journal.py": "a log, and synced as one",
    "cli/trace.py": "a picture for a person, who sees whether it is whole",
    "cli/scenarios/steps.py": "a log, in a directory that is thrown away",
    "durable.py": "the one way",
}
"""Files of ours that write otherwise, and why they may."""


def _writes(path: Path) -> bool:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute) and node.attr in ("write_text", "write_bytes", "touch", "O_CREAT"):
            return True
        if isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) in (
            "open",
            "fdopen",
        ):
            modes = [
                one.value
                for one in (*node.args, *(word.value for word in node.keywords))
                if isinstance(one, ast.Constant)
            ]
            if any(isinstance(mode, str) and mode and set(mode) <= set("wxabt+") for mode in modes):
                return True
    return False


def test_every_small_file_is_written_in_the_one_way_that_survives_a_cut() -> None:
    found = {str(path.relative_to(SOURCE)) for path in SOURCE.rglob("*.py") if _writes(path)}
    assert found == set(OTHERWISE)


def test_every_directory_that_must_last_is_made_in_the_one_way_that_survives_a_cut() -> None:
    """Homes, logs and caches of children may be gone: they are made again."""
    makers = {
        str(path.relative_to(SOURCE))
        for path in SOURCE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and node.attr in ("mkdir", "makedirs")
    }
    assert makers == {
        "durable.py",
        "sandbox/launcher.py",
        "sandbox/wasm_probes.py",
        "supervisor/child.py",
        "supervisor/child_log.py",
    }

"""WebAssembly modules as agents under a real hub: one run for each task, with the task's own fuel, memory and time."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dragoman.sandbox.model import Level
from dragoman.sandbox.wasm_probes import GROW, HUGE, SLEEP, SPIN
from tests.support.cli import dragoman
from tests.support.hubproc import HubProcess, running, until
from tests.support.kids import Kids
from tests.support.sandboxes import marked, must_hold

READ_AND_WRITE = """
  (import "wasi_snapshot_preview1" "fd_read" (func $read (param i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
  (memory (export "memory") 40)
"""
BEFORE = '{"type": "request:update-task", "id": "m", "timestamp": "2026-01-01T00:00:00Z", "payload": {"taskId": "'
AFTER = '", "status": "completed", "result": {"runs": 1}}}\n'
PLAIN = "a plain line\n"


def quoted(text: str) -> str:
    return "".join(f"\\{byte:02x}" for byte in text.encode())


def honest() -> str:
    """Reads all of its input, finds the task's id in it, says that the task is done; counts its runs in its memory."""
    begins = '"task":{"id":"'
    return f"""(module {READ_AND_WRITE}
  (data (i32.const 64) "{quoted(begins)}")
  (data (i32.const 1024) "{quoted(BEFORE)}")
  (data (i32.const 2048) "{quoted(AFTER)}")
  (data (i32.const 3000) "{quoted(PLAIN)}")
  (func $say (param $at i32) (param $long i32)
    (i32.store (i32.const 0) (local.get $at)) (i32.store (i32.const 4) (local.get $long))
    (drop (call $write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 16))))
  (func $fits (param $at i32) (result i32) (local $n i32)
    (loop $on
      (if (i32.ne (i32.load8_u (i32.add (local.get $at) (local.get $n)))
                  (i32.load8_u (i32.add (i32.const 64) (local.get $n)))) (then (return (i32.const 0))))
      (local.set $n (i32.add (local.get $n) (i32.const 1)))
      (br_if $on (i32.lt_u (local.get $n) (i32.const {len(begins)}))))
    (i32.const 1))
  (func (export "_start") (local $end i32) (local $at i32)
    (local.set $end (i32.const 4096))
    (loop $more
      (i32.store (i32.const 0) (local.get $end)) (i32.store (i32.const 4) (i32.const 65536))
      (drop (call $read (i32.const 0) (i32.const 0) (i32.const 1) (i32.const 16)))
      (local.set $end (i32.add (local.get $end) (i32.load (i32.const 16))))
      (br_if $more (i32.load (i32.const 16))))
    (call $say (i32.const 3000) (i32.const 13))
    (local.set $at (i32.const 4096))
    (loop $seek
      (if (call $fits (local.get $at))
        (then (call $say (i32.const 1024) (i32.const {len(BEFORE)}))
              (call $say (i32.add (local.get $at) (i32.const {len(begins)})) (i32.const 36))
              (call $say (i32.const 2048) (i32.const {len(AFTER)})) (return)))
      (local.set $at (i32.add (local.get $at) (i32.const 1)))
      (br_if $seek (i32.lt_u (local.get $at) (local.get $end))))))"""


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubProcess]:
    must_hold(Level.WASM)
    with running(tmp_path_factory.mktemp("hub"), DRAGOMAN_GRPC_PORT="0") as hub:
        yield hub


@pytest.fixture
def kids(hub: HubProcess) -> Kids:
    return Kids(hub)


def module(place: Path, source: str) -> str:
    file = place / "agent.wat"
    file.write_text(source)
    return str(file)


def outcome(kids: Kids, id: str, file: str, **more: Any) -> dict[str, Any]:
    kids.run(id, file, **more)
    return kids.done(kids.submit(id))


def test_a_module_does_tasks_one_run_each_and_the_level_is_shown(kids: Kids, tmp_path: Path) -> None:
    kids.run("m", module(tmp_path, honest()), untrusted=True)
    tasks = [kids.done(kids.submit("m", text="x" * 100_000)) for _ in range(3)]
    assert [(task["status"], task["result"]) for task in tasks] == [("completed", {"runs": 1})] * 3, kids.log("m")
    assert kids.look("m")["sandbox"] == "wasm"
    assert kids.printed("m") == ["a plain line"] * 3
    history = kids.hub.admin.get(f"/api/v1/tasks/{tasks[0]['id']}?history=1").json["history"]
    assert [event["body"]["sandbox"] for event in history if event["kind"] == "assigned"] == ["wasm"]


def test_a_module_runs_in_its_sandbox_even_if_it_is_trusted(kids: Kids, tmp_path: Path) -> None:
    file = tmp_path / "plain"
    file.write_text(honest())
    assert outcome(kids, "named", module(tmp_path, honest()))["status"] == "completed"
    assert kids.look("named")["sandbox"] == "wasm"
    assert outcome(kids, "said", str(file), wasm=True)["status"] == "completed"
    assert kids.look("said")["sandbox"] == "wasm"


def test_the_command_line_runs_a_module(hub: HubProcess, tmp_path: Path) -> None:
    file = os.path.relpath(module(tmp_path, honest()))
    assert dragoman("agent", "run", "--untrusted", "--id", "cli", "--detach", "--", file, hub=hub).code == 0
    done = dragoman("call", "cli", "work", "-o", "json", hub=hub)
    assert (done.code, done.json["result"]) == (0, {"runs": 1})


@pytest.mark.parametrize(
    ("name", "source", "limits", "why"),
    [
        ("spin-time", SPIN, {"task_seconds": 0.3}, "used up its time"),
        ("spin-fuel", SPIN, {"fuel": 100_000}, "used up its fuel"),
        ("sleep", SLEEP, {"task_seconds": 0.3}, "used up its time"),
        ("memory", HUGE, {"memory_mb": 16}, "could not be run"),
        ("grow", GROW, {"memory_mb": 16}, "without a result"),
        ("trap", '(module (memory (export "memory") 1) (func (export "_start") unreachable))', {}, "trapped"),
        ("mute", '(module (memory (export "memory") 1) (func (export "_start")))', {}, "exit code 0"),
        ("nonsense", "this is no module", {}, "could not be run"),
    ],
)
def test_attack_by_a_module_fails_its_task_and_not_the_agent(
    kids: Kids, tmp_path: Path, name: str, source: str, limits: dict[str, Any], why: str
) -> None:
    task = outcome(kids, name, module(tmp_path, source), untrusted=True, limits=limits)
    assert (task["status"], why in task["error"]["message"]) == ("failed", True), task
    until(lambda: kids.state(name) == "idle")
    assert kids.child(name)["restarts"] == 0
    assert kids.done(kids.submit(name))["status"] == "failed"  # it is there for the next one


def test_a_cancelled_run_is_ended(kids: Kids, tmp_path: Path) -> None:
    kids.run("cancelled", module(tmp_path, SPIN), untrusted=True)
    task = kids.submit("cancelled")
    until(lambda: len(marked(str(tmp_path))) == 2, "the host and its fork")
    assert kids.hub.admin.post(f"/api/v1/tasks/{task}/cancel", {}).status == 200
    until(lambda: len(marked(str(tmp_path))) == 1, "the fork is gone")
    until(lambda: kids.state("cancelled") == "idle")


def test_a_removed_module_and_a_killed_hub_leave_nothing(tmp_path: Path) -> None:
    must_hold(Level.WASM)
    with running(tmp_path / "hub", DRAGOMAN_GRPC_PORT="0") as hub:
        kids = Kids(hub)
        (tmp_path / "one").mkdir()
        (tmp_path / "two").mkdir()
        for name in ("one", "two"):
            kids.run(name, module(tmp_path / name, SPIN), untrusted=True, grace_seconds=0.1)
            kids.submit(name)
            until(lambda name=name: len(marked(f"{tmp_path}/{name}/")) == 2)  # type: ignore[misc]
        assert hub.admin.ask("DELETE", "/api/v1/agents/one").status == 204
        until(lambda: not marked(f"{tmp_path}/one/"))
        hub.kill()
        until(lambda: not marked(f"{tmp_path}/two/"))


def test_hosts_and_single_files_are_not_for_modules(kids: Kids, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    kids.run("filed", module(tmp_path, honest()), untrusted=True, allow_files=[f"{tmp_path}/file"])
    until(lambda: kids.state("filed") == "crashed")
    assert "modules are given those" in kids.child("filed")["last_end"]

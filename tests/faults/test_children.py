"""Children that work and children that misbehave, from outside: real programs under a real hub.

Whatever a child prints, or does not read, others work on. Who dies, and what is left then, is in `test_deaths`.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.children import (
    WORKER,
    program,
    runs,
    worker,
)
from tests.support.hubproc import HubProcess, until
from tests.support.kids import Kids

CANARY = "canary-5f1b9c"


def memory_of(pid: int) -> int:
    """Resident MiB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) // 1024
    raise AssertionError


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[HubProcess]:
    hub = HubProcess(tmp_path / "hub", DRAGOMAN_GRPC_PORT="0")
    try:
        yield hub.start()
    finally:
        hub.kill()


@pytest.fixture
def kids(hub: HubProcess) -> Kids:
    return Kids(hub)


# -- ordinary lives ---------------------------------------------------------------------------------------------


@pytest.mark.requirement("FG-BCK-2")
def test_a_program_that_speaks_forge_does_work(kids: Kids) -> None:
    kids.run("w", *worker)
    task = kids.done(kids.submit("w", a=1))
    assert (task["status"], task["result"], task["output"]) == ("completed", {"echo": {"a": 1}, "attempt": 1}, "half ")
    assert kids.printed("w") == ["working on work"]
    events = kids.hub.admin.get(f"/api/v1/tasks/{task['id']}?history=1").json["history"]
    said = [line["message"] for event in events if event["kind"] == "log" for line in event["body"]["lines"]]
    assert said == ["working on work"]  # kept with the task, too


def test_a_program_that_only_prints_is_an_agent_whose_lines_are_logged(kids: Kids) -> None:
    kids.run("plain", "sh", "-c", 'echo one; echo "two words" >&2; echo "{not json"; echo "[1, 2]"; sleep 600')
    until(lambda: len(kids.printed("plain")) == 4)
    assert {(line["stream"], line["level"], line["text"]) for line in kids.log("plain")} == {
        ("stdout", "info", "one"),
        ("stderr", "warn", "two words"),
        ("event", "info", "{not json"),
        ("event", "info", "[1, 2]"),
    }
    assert kids.state("plain") == "idle"


def test_a_process_that_ends_with_a_task_fails_the_attempt_and_the_next_one_succeeds(kids: Kids) -> None:
    kids.run("w", *worker, restart="on-failure")
    dies, others = kids.submit("w", die=1), [kids.submit("w", n=number) for number in range(3)]
    task = kids.done(dies)
    assert (task["status"], task["result"]["attempt"]) == ("completed", 2)
    assert [kids.done(other)["attempts"] for other in others] == [1, 1, 1]  # what it had not begun
    assert kids.child("w")["restarts"] == 1
    assert kids.child("w")["last_end"] == "exit code 9"


def test_a_child_may_begin_with_a_byte_order_mark(kids: Kids) -> None:
    kids.run("marked", *program("import os", r"os.write(1, b'\xef\xbb\xbf')", WORKER))
    kids.works("marked", 1)


def test_a_childs_last_messages_count_although_it_has_ended(kids: Kids) -> None:
    last = "print(json.dumps({'type': 'request:update-task', 'id': '1', 'timestamp': '2026-01-01T00:00:00Z',"
    kids.run(
        "once",
        *program(
            "import json, sys",
            "id = json.loads(sys.stdin.readline())['payload']['taskId']",
            "[print('line', n) for n in range(1000)]",
            f"{last} 'payload': {{'taskId': id, 'status': 'completed', 'result': 7}}}}))",
        ),
    )
    assert kids.done(kids.submit("once"))["result"] == 7
    until(lambda: kids.state("once") == "stopped")
    assert kids.printed("once")[-1] == "line 999"


@pytest.mark.parametrize(("code", "state"), [("0", "stopped"), ("3", "crashed")])
def test_a_child_that_ends_at_once(kids: Kids, code: str, state: str) -> None:
    kids.run("brief", "sh", "-c", f"exit {code}")
    until(lambda: kids.state("brief") == state)
    assert kids.child("brief")["last_end"] == f"exit code {code}"
    assert kids.hub.admin.post("/api/v1/agents/brief/restart", {}).status == 200
    until(lambda: kids.state("brief") == state)
    kids.run("nowhere", "no-such-program", restart="always")
    until(lambda: kids.state("nowhere") == "crashed")
    assert "No such file" in kids.child("nowhere")["last_end"]


@pytest.mark.requirement("forge-D10")
def test_a_removed_child_is_asked_to_end_and_leaves_nothing(kids: Kids, tmp_path: Path) -> None:
    kids.run("w", *worker, env={"SECRET": CANARY})
    pid = kids.pid("w")
    assert list((kids.hub.data / "vault").iterdir())
    assert kids.hub.admin.ask("DELETE", "/api/v1/agents/w").status == 204
    until(lambda: not runs(pid), "it ends by itself: it was told")
    until(lambda: not list((kids.hub.data / "vault").iterdir()))
    until(lambda: not list((kids.hub.data / "logs").glob("w.*")))
    kids.run("w", *worker)  # the name is free again


@pytest.mark.requirement("forge-D10")
def test_a_child_that_ignores_everything_is_killed(kids: Kids) -> None:
    ignore = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True)"
    kids.run("deaf", *program(ignore, "while True: time.sleep(60)"), grace_seconds=0.1)
    pid = kids.pid("deaf")
    until(lambda: kids.printed("deaf") == ["deaf"])
    kids.hub.admin.ask("DELETE", "/api/v1/agents/deaf")
    until(lambda: not runs(pid), "SIGKILL follows")


def test_a_child_finds_no_secret_of_the_hub_and_no_descriptor(tmp_path: Path) -> None:
    hub = HubProcess(
        tmp_path / "hub", DRAGOMAN_GRPC_PORT="0", SECRET=CANARY, DRAGOMAN_TOKEN=CANARY, PASSED="on", LC_TIME="C"
    )
    try:
        kids = Kids(hub.start())
        kids.run("env", "sh", "-c", "env; ls -l /proc/self/fd; pwd; ulimit -c; ulimit -n",
                 pass_env=["PASSED", "DRAGOMAN_TOKEN"],
                 env={"MINE": "yes"}, limits={"open_files": 77})  # fmt: skip
        until(lambda: kids.state("env") == "stopped")
        printed = kids.printed("env")
        assert CANARY not in "\n".join(printed)
        assert {"DRAGOMAN_AGENT_ID=env", "DRAGOMAN_URL=stdio:", "PASSED=on", "LC_TIME=C", "MINE=yes"} <= set(printed)
        assert sum(" -> " in line for line in printed) == 4  # the last is the listing's own
        assert printed[-3:] == [str(hub.data / "agents" / "env"), "0", "77"]
    finally:
        hub.kill()


def test_the_values_of_an_environment_are_nowhere_but_in_the_vault(kids: Kids) -> None:
    kids.run("w", *worker, env={"SECRET": CANARY})
    kids.works("w", 1)
    answers = [
        kids.look("w"),
        kids.log("w"),
        kids.hub.admin.get("/api/v1/agents").json,
        kids.hub.admin.get("/api/v1/audit").json,
    ]
    assert CANARY not in str(answers)
    assert kids.child("w")["env"] == ["SECRET"]
    kids.hub.stop()
    found = [
        path.parent.name for path in kids.hub.home.rglob("*") if path.is_file() and CANARY.encode() in path.read_bytes()
    ]
    assert found == ["vault"]


# -- children that misbehave --------------------------------------------------------------------------------------


def repeated(line: str, times: int) -> tuple[str, ...]:
    """Prints a line so often, a thousand at a time."""
    return (
        "import os",
        f"lines = {line.encode() + b'%c' % 10!r} * 1000",
        f"[os.write(1, lines) for _ in range({times // 1000})]",
    )


WHEN = '"id": "1", "timestamp": "2026-01-01T00:00:00Z"'
LOG = f'{{"type": "event:log", {WHEN}, "payload": {{"level": "info", "message": "m"}}}}'
QUERY = f'{{"type": "request:query-agents", {WHEN}, "payload": {{}}}}'
FLOODS = {
    "no newline for 100 MB": ("import os", "[os.write(1, b'x' * 65536) for _ in range(1600)]"),
    "a million lines": repeated("spam", 1_000_000),
    "a million events": repeated(LOG, 1_000_000),
    "a million requests": repeated(QUERY, 1_000_000),
    "grumbling on stderr": ("import os", "[os.write(2, b'grr\\n' * 10000) for _ in range(100)]"),
    "binary": ("import os", "[os.write(1, os.urandom(65536)) for _ in range(1600)]"),
}


@pytest.mark.parametrize("what", FLOODS)
def test_a_flood_does_not_hold_up_others(kids: Kids, what: str) -> None:
    kids.run("w", *worker)
    kids.works("w", 1)
    began = time.monotonic()
    kids.run("flood", *program(*FLOODS[what]))
    kids.pid("flood")
    before = memory_of(kids.hub.pid)
    kids.works("w", 10)
    kids.run("flood2", *program(*FLOODS[what]))
    kids.works("w", 10)
    assert memory_of(kids.hub.pid) < before + 60
    assert kids.state("flood") in ("idle", "busy", "unhealthy", "stopped")
    files = list((kids.hub.data / "logs").iterdir())
    assert sum(file.stat().st_size for file in files) < 17 * 1024 * 1024
    told = sum(file.read_bytes().count(b"came too fast") for file in files)
    assert told < 60 + 2 * (time.monotonic() - began)  # once a second, for each


def test_only_so_many_lines_are_kept_and_the_others_are_counted(kids: Kids) -> None:
    kids.run("chatty", *program(*repeated("spam", 20_000)))
    until(lambda: kids.state("chatty") == "stopped")
    log = kids.hub.data / "logs" / "chatty.jsonl"

    def counted() -> tuple[int, int]:
        written = log.read_bytes()
        return written.count(b"spam"), sum(map(int, re.findall(rb"(\d+) lines were not kept", written)))

    kept, _ = until(lambda: sum(counted()) == 20_000 and counted(), "every line is kept or counted")
    assert 2000 <= kept < 20_000


def test_a_line_beyond_the_limit_is_reported_and_the_next_is_read(kids: Kids) -> None:
    kids.run("long", *program("import os", "os.write(1, b'x' * (3 << 20) + b'\\nshort\\n')"))
    until(lambda: kids.state("long") == "stopped")
    dropped, short = kids.log("long")[:2]
    assert dropped["text"] == f"a line of {3 << 20} bytes was dropped; the most is 1 MiB"
    assert dropped["context"] == {"type": "event:error", "length": 3 << 20}  # forge-D1
    assert short["text"] == "short"


def test_a_child_that_never_reads_its_stdin_stalls_nobody(kids: Kids) -> None:
    kids.run("w", *worker)
    kids.run("mute", *program("import time", "while True: time.sleep(60)"), max_concurrent=60)
    owed = [kids.submit("mute", text="y" * 3000) for _ in range(60)]  # a larger task would not be told with its order
    until(lambda: kids.state("mute") == "unhealthy")
    kids.works("w", 10)
    for task in owed:
        assert kids.hub.admin.post(f"/api/v1/tasks/{task}/cancel", {}).status == 200
    kids.works("w", 1)


@pytest.mark.parametrize("pipe", [0, 1])
def test_a_child_that_closes_a_pipe_and_lives_on_gets_no_work(kids: Kids, pipe: int) -> None:
    kids.run("half", *program("import os, sys, time", "sys.stdin.readline()", f"os.close({pipe})", "time.sleep(600)"))
    first = kids.submit("half")  # told while it reads
    until(lambda: kids.state("half") == "unhealthy")
    error = until(lambda: kids.hub.task(first)["error"])
    assert error["message"] == f"half closed its {('stdin', 'stdout')[pipe]} while it had the task"
    (line,) = until(lambda: kids.log("half"))
    assert "gets no work until it is restarted" in line["text"]
    assert kids.child("half")["pid"]


def test_garbage_is_logged_and_the_work_goes_on(kids: Kids) -> None:
    noise = (
        "import os, sys, json",
        "os.write(1, bytes(range(256)) + b'\\n' + b'[' * 500000 + b'\\n' + b'{\"type\": \"event:nonsense\"}\\n')",
        'os.write(1, b\'{"type": "request:get-task", "id": "\\\\ud800"}\\n\' + b\'\\xff\\xfe\\n\')',
    )
    kids.run("noisy", *program(*noise, "id = json.loads(sys.stdin.readline())", "sys.stdin.read()"))
    until(lambda: len(kids.log("noisy")) >= 4)
    assert any("\\xff" in line["text"] for line in kids.log("noisy"))
    kids.run("w", *worker)
    kids.works("w", 2)
    assert kids.state("noisy") == "idle"

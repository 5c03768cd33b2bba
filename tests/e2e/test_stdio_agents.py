"""Agents that the hub runs itself, as people meet them: the command line and the API."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.support.children import runs, worker
from tests.support.cli import dragoman
from tests.support.hubproc import PATIENCE, HubProcess, running, until


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubProcess]:
    with running(tmp_path_factory.mktemp("children"), DRAGOMAN_GRPC_PORT="0") as hub:
        yield hub


def ask(hub: HubProcess, body: Any, expected: int, *, id: str = "x", protocol: str = "forge") -> dict[str, Any]:
    answer = hub.admin.post("/api/v1/agents", {"agent_id": id, "protocol": protocol, **body})
    assert answer.status == expected, answer
    return dict(answer.json)


# -- the API


@pytest.mark.parametrize(
    ("body", "protocol", "field"),
    [
        ({"command": ["cat"]}, "chiffon", "protocol"),
        ({"command": []}, "forge", "command"),
        ({"command": [""]}, "forge", "command"),
        ({"command": ["a\x00b"]}, "forge", "command[0]"),
        ({"command": "cat"}, "forge", "command"),
        ({"command": ["cat"], "cwd": "relative"}, "forge", "cwd"),
        ({"command": ["cat"], "env": {"A=B": "x"}}, "forge", "env"),
        ({"command": ["cat"], "env": {"A": "x\x00"}}, "forge", "env"),
        ({"command": ["cat"], "restart": "sometimes"}, "forge", "restart"),
        ({"command": ["cat"], "limits": {"memory": 5}}, "forge", "limits"),
        ({"command": ["cat"], "limits": {"memory_mb": 0}}, "forge", "limits.memory_mb"),
        ({"env": {"A": "b"}}, "forge", "env"),
        ({"cwd": "/"}, "chiffon", "cwd"),
        ({"restart": "never"}, "forge", "restart"),
    ],
)
def test_a_wish_that_makes_no_sense_is_refused_and_the_field_named(
    hub: HubProcess, body: Any, protocol: str, field: str
) -> None:
    problem = ask(hub, body, 422, protocol=protocol)
    assert field in (problem.get("field") or problem["detail"]), problem
    assert hub.admin.get("/api/v1/agents/x").status == 404


def test_command_and_environment_have_a_length(hub: HubProcess) -> None:
    ask(hub, {"command": ["cat", *["y" * 60_000] * 3]}, 413)


def test_a_taken_name_is_refused_and_its_secret_not_kept(hub: HubProcess) -> None:
    ask(hub, {"command": ["sleep", "600"], "env": {"A": "first"}}, 201, id="taken")
    before = sorted((hub.data / "vault").iterdir())
    ask(hub, {"command": ["sleep", "600"], "env": {"A": "second"}}, 409, id="taken")
    assert sorted((hub.data / "vault").iterdir()) == before


def test_a_child_has_no_token_and_gets_none(hub: HubProcess) -> None:
    assert ask(hub, {"command": ["sleep", "600"]}, 201, id="tokenless") == {"agent_id": "tokenless", "token": None}
    assert hub.admin.post("/api/v1/agents/tokenless/token", {}).status == 409


def test_only_a_child_can_be_restarted(hub: HubProcess) -> None:
    ask(hub, {}, 201, id="remote")
    assert hub.admin.post("/api/v1/agents/remote/restart", {}).status == 409
    assert "child" not in hub.admin.get("/api/v1/agents/remote").json
    ask(hub, {"command": ["sleep", "600"], "grace_seconds": 0}, 201, id="again")
    first = until(lambda: hub.admin.get("/api/v1/agents/again").json["child"]["pid"])
    assert hub.admin.post("/api/v1/agents/again/restart", {}).status == 200
    until(lambda: hub.admin.get("/api/v1/agents/again").json["child"]["pid"] not in (None, first), "another process")
    assert not runs(first)


def test_a_log_is_read_by_its_end_by_level_and_on_from_a_line(hub: HubProcess) -> None:
    script = "for i in 1 2 3; do echo out $i; done; echo bad >&2; sleep 600"
    ask(hub, {"command": ["sh", "-c", script]}, 201, id="talker")
    path = "/api/v1/agents/talker/logs"
    until(lambda: len(hub.admin.get(path).json["logs"]) == 4)
    assert [line["text"] for line in hub.admin.get(f"{path}?level=warn").json["logs"]] == ["bad"]
    lines = hub.admin.get(path).json["logs"]
    assert len(hub.admin.get(f"{path}?tail=2").json["logs"]) == 2
    on = hub.admin.get(f"{path}?after={lines[1]['seq']}&limit=1").json
    assert [line["seq"] for line in on["logs"]] == [lines[2]["seq"]]
    assert on["next"] == str(lines[2]["seq"])
    end = hub.admin.get(f"{path}?after={lines[3]['seq']}&wait=0.05").json
    assert end == {"logs": [], "next": str(lines[3]["seq"])}
    assert hub.admin.get(f"{path}?cursor=x").status == 422
    assert hub.admin.get(f"{path}?level=loud").status == 422


HASTY = """
import json, select, sys
def say(type, **payload):
    said = {'type': type, 'id': type, 'timestamp': '2026-01-01T00:00:00Z', 'payload': payload}
    print(json.dumps(said), flush=True)
id = json.loads(sys.stdin.readline())['payload']['taskId']
say('request:get-task', taskId=id)
select.select([0], [], [])
say('request:update-task', taskId=id, status='completed', result='done')
"""


def test_a_childs_messages_count_though_it_ended_before_it_read_a_long_answer(hub: HubProcess) -> None:
    ask(hub, {"command": [sys.executable, "-c", HASTY], "restart": "never"}, 201, id="hasty")
    task = hub.admin.post("/api/v1/tasks", {"type": "x", "agent": "hasty", "input": {"long": "y" * 500_000}}).json["id"]
    until(lambda: hub.admin.get("/api/v1/agents/hasty").json["child"]["state"] == "stopped")
    assert hub.status(task) == "completed"


STEADY = """
import json, sys
for line in sys.stdin:
    heard = json.loads(line)
    if heard['type'] == 'notify:shutdown':
        break
    if heard['type'] == 'notify:task-assigned':
        task = heard['payload']['task']
        if task['payload'].get('until'):
            open(task['payload']['until']).read()
        done = {'taskId': task['id'], 'status': 'completed'}
        said = {'type': 'request:update-task', 'id': task['id'], 'timestamp': '2026-01-01T00:00:00Z', 'payload': done}
        print(json.dumps(said), flush=True)
"""


def test_a_child_that_was_asked_to_end_finishes_what_it_has_and_is_given_nothing_more(
    hub: HubProcess, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "go on")
    ask(hub, {"command": [sys.executable, "-c", STEADY]}, 201, id="steady")

    def give(**input: str) -> str:
        return str(hub.admin.post("/api/v1/tasks", {"type": "x", "agent": "steady", "input": input}).json["id"])

    def tries(task: str) -> tuple[str, int]:
        found = hub.admin.get(f"/api/v1/tasks/{task}").json
        return found["status"], found["attempts"]

    first = give(until=str(tmp_path / "go on"))
    until(lambda: tries(first) == ("assigned", 1))
    with ThreadPoolExecutor() as others:
        restarted = others.submit(dragoman, "agent", "restart", "steady", hub=hub)
        until(lambda: hub.admin.get("/api/v1/agents/steady").json["status"] == "stopping")
        second = give()
        assert tries(second) == ("queued", 0)
        with open(tmp_path / "go on", "w"):
            pass
        until(lambda: hub.status(first) == hub.status(second) == "completed")
        assert tries(first) == tries(second) == ("completed", 1)
        assert restarted.result().code == 0


# -- the command line


def test_run_shows_what_a_program_prints_and_ends_with_it(hub: HubProcess, tmp_path: Path) -> None:
    said = dragoman(
        "agent", "run", "--id", "brief", "--env", "GREETING=hello", "--cwd", str(tmp_path), "--",
        "sh", "-c", "echo $GREETING; pwd; printf '\\033[31mred\\n' >&2; sleep 0.1", hub=hub,
    )  # fmt: skip
    assert said.code == 0, said
    printed = [line.split(" ", 1)[1] for line in said.out.splitlines()]
    assert {"  hello", f"  {tmp_path}", "! \\e[31mred", "• exit code 0; not started again"} == set(printed)
    assert "✓ agent brief ended: exit code 0" in said.err
    assert hub.admin.get("/api/v1/agents/brief").status == 404


def test_run_fails_when_the_program_does(hub: HubProcess) -> None:
    said = dragoman("agent", "run", "--restart", "never", "--", "sh", "-c", "exit 4", hub=hub)
    assert (said.code, "exit code 4" in said.err) == (1, True)
    said = dragoman("agent", "run", "--", "no-such-program", hub=hub)
    assert (said.code, "No such file" in said.err) == (1, True)
    said = dragoman("agent", "run", hub=hub)
    assert said.code == 2
    said = dragoman("agent", "run", "--env", "NOT_SET_ANYWHERE", "--", "cat", hub=hub)
    assert said.code == 2


def test_a_detached_agent_works_is_looked_at_and_put_out(hub: HubProcess) -> None:
    said = dragoman(
        "agent", "run", "--id", "w", "--kind", "code", "--role", "worker", "--capability", "python",
        "--restart", "always", "--detach", "--", *worker, hub=hub,
    )  # fmt: skip
    assert (said.code, said.out.strip()) == (0, "w")
    done = dragoman("call", "w", "review", "file=a.py", "-o", "json", hub=hub)
    assert (done.code, done.json["result"]) == (0, {"echo": {"file": "a.py"}, "attempt": 1})
    shown = dragoman("agent", "show", "w", "-o", "json", hub=hub).json
    assert (shown["role"], shown["capabilities"], shown["child"]["restart"]) == ("worker", ["python"], "always")
    assert "process" in dragoman("agent", "show", "w", hub=hub).out
    assert "working on review" in dragoman("agent", "logs", "w", hub=hub).out
    assert dragoman("agent", "logs", "w", "-o", "json", hub=hub).json["logs"][-1]["text"] == "working on review"
    assert dragoman("agent", "restart", "w", hub=hub).code == 0
    until(lambda: hub.admin.get("/api/v1/agents/w").json["child"]["state"] == "idle", "it is back")
    assert dragoman("agent", "rm", "w", hub=hub).code == 0
    assert dragoman("agent", "logs", "w", hub=hub).code == 3


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_stops_and_removes_it(hub: HubProcess, number: signal.Signals) -> None:
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("DRAGOMAN_")}
    command = [sys.executable, "-m", "dragoman.cli", "agent", "run", "--id", "held", "-o", "jsonl", "--", *worker]
    process = subprocess.Popen(
        command, env={**inherited, "DRAGOMAN_DATA": str(hub.data)}, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    try:
        pid = until(lambda: (hub.admin.get("/api/v1/agents/held").json.get("child") or {}).get("pid"))
        task = hub.admin.post("/api/v1/tasks", {"type": "shout", "agent": "held", "input": {}}).json["id"]
        until(lambda: hub.status(task) == "completed")
        assert process.stdout is not None
        line = json.loads(process.stdout.readline())
        assert (line["stream"], line["text"], line["task_id"]) == ("stdout", "working on shout", task)
        process.send_signal(number)
        assert process.wait(PATIENCE) == 130
        assert hub.admin.get("/api/v1/agents/held").status == 404
        until(lambda: not runs(pid))
    finally:
        process.kill()
        process.communicate()


DOCUMENTED = """
// Send request
const request = {
  type: 'request:query-tasks',
  id: randomUUID(),
  timestamp: new Date().toISOString(),
  payload: { status: 'queued' }
};
console.log(JSON.stringify(request));

// Listen for response
process.stdin.on('data', (data) => {
  const message = JSON.parse(data.toString());
  if (message.correlationId === request.id) {
    // Handle response
    console.error('Received response:', message.payload);
  }
});
"""
"""The document's usage example, word for word."""


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_the_documents_own_example_runs_as_a_child(hub: HubProcess, tmp_path: Path) -> None:
    (tmp_path / "agent.mjs").write_text("import { randomUUID } from 'node:crypto';\n" + DOCUMENTED)
    ask(hub, {"command": ["node", "agent.mjs"], "cwd": str(tmp_path)}, 201, id="documented")
    lines = until(lambda: hub.admin.get("/api/v1/agents/documented/logs").json["logs"])
    assert (lines[0]["stream"], lines[0]["text"]) == ("stderr", "Received response: { tasks: [] }")
    assert hub.admin.get("/api/v1/agents/documented").json["child"]["state"] == "idle"

"""The command line against a real hub, as a person types it: what it prints, and its exit codes (INTERFACE.md)."""

from __future__ import annotations

import json
import re
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

from tests.support.chiffon import Worker, error, task_of, work_result, work_status
from tests.support.cli import dragoman
from tests.support.hubproc import HubProcess, running, until

OK, FAILED, USAGE, NOT_FOUND, NOT_ALLOWED, UNREACHABLE, TIMEOUT = range(7)


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubProcess]:
    with running(tmp_path_factory.mktemp("hub"), DRAGOMAN_RULES__RETRY_DELAYS_SECONDS="0,0.05") as hub:
        yield hub


class Diligent:
    """An agent that does whatever comes, in the background: `fail` fails, `wait` waits for `go`."""

    def __init__(self, worker: Worker) -> None:
        self.go = threading.Event()
        self._worker = worker
        self._link = worker.websocket()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while True:
                work = self._link.recv(60)
                if work["type"] != "work_request":
                    continue
                type, parameters = work["payload"]["work_type"], work["payload"]["parameters"]
                self._link.send(work_status(work, 50, output="half way\n"))
                if type == "wait":
                    self.go.wait(60)
                code = 3 if type == "fail" else 0
                said = json.dumps(parameters, sort_keys=True)
                self._link.send(work_result(work, output=f"{type} {said}", exit_code=code))
        except Exception:
            return

    def close(self) -> None:
        self.go.set()
        self._link.close()
        self._thread.join(5)


@pytest.fixture(scope="module")
def deployer(hub: HubProcess) -> Iterator[Diligent]:
    added = dragoman("agent", "add", "deployer", "--protocol", "chiffon", "--kind", "infra", "-o", "json", hub=hub)
    assert added.code == OK, added
    assert set(added.json) >= {"agent_id", "token"}
    assert re.fullmatch("[0-9a-f]{32}", added.json["token"])
    worker = Worker(hub.url, added.json["token"], "deployer", "infra")
    assert worker.register(work_types=["run", "fail", "wait"], limits={"max_concurrent": 20}).status == 200
    agent = Diligent(worker)
    yield agent
    agent.close()


def test_agents_are_added_listed_shown_and_removed(hub: HubProcess) -> None:
    assert dragoman("agent", "add", "x1", "--protocol", "chiffon", "--kind", "code", hub=hub).code == OK
    assert dragoman("agent", "add", "x1", "--protocol", "chiffon", hub=hub).code == NOT_ALLOWED
    listed = dragoman("agent", "ls", "-o", "json", hub=hub)
    assert "x1" in listed.out
    shown = dragoman("agent", "show", "x1", "-o", "json", hub=hub)
    assert (shown.code, shown.json["id"], shown.json["kind"]) == (OK, "x1", "code")
    assert "token" not in shown.json
    first = dragoman("agent", "token", "x1", "-o", "json", hub=hub)
    assert (first.code, len(first.json["token"])) == (OK, 32)
    assert dragoman("agent", "rm", "x1", hub=hub).code == OK
    assert dragoman("agent", "show", "x1", hub=hub).code == NOT_FOUND


def test_a_call_waits_for_its_result(hub: HubProcess, deployer: Diligent) -> None:
    said = dragoman("call", "deployer", "run", "playbook=x.yml", "count=3", hub=hub)
    assert said.code == OK, said
    assert 'run {"count": 3, "playbook": "x.yml"}' in said.out
    by_kind = dragoman("call", "infra", "run", "-", "-o", "json", hub=hub, stdin='{"a": [1]}')
    assert (by_kind.code, by_kind.json["status"]) == (OK, "completed")


@pytest.mark.parametrize("via", ["chiffon", "coven", "forge", "agentmsg", "a2acp"])
def test_a_call_over_any_protocol_leaves_nothing_behind(hub: HubProcess, deployer: Diligent, via: str) -> None:
    said = dragoman("call", "deployer", "run", "playbook=x.yml", "--via", via, "-o", "json", hub=hub)
    assert (said.code, said.json["status"], said.json["protocol_in"]) == (OK, "completed", via), said
    assert said.json["input"]["playbook"] == "x.yml"
    for left in ("agent", "dlq"):
        assert "cli-" not in dragoman(left, "ls", "-o", "json", hub=hub).out
    assert said.err.splitlines()[-1].startswith("  next: ")


def test_calls_end_with_the_code_of_what_happened(hub: HubProcess, deployer: Diligent) -> None:
    failed = dragoman("call", "deployer", "fail", hub=hub)
    assert failed.code == FAILED
    assert "next:" in failed.out + failed.err
    assert dragoman("call", "nobody", "run", hub=hub).code == NOT_FOUND
    assert dragoman("call", "deployer", "dance", hub=hub).code == USAGE
    assert dragoman("call", "deployer", "wait", "--timeout", "0.3", hub=hub).code == TIMEOUT
    deployer.go.set()
    assert dragoman("call", "deployer", hub=hub).code == USAGE
    assert dragoman("task", "ls", hub=hub, DRAGOMAN_TOKEN="0" * 32, DRAGOMAN_URL=hub.url).code == NOT_ALLOWED
    assert dragoman("task", "ls", DRAGOMAN_URL="http://127.0.0.1:9", DRAGOMAN_TOKEN="0" * 32).code == UNREACHABLE


def detached(hub: HubProcess, *call: str) -> str:
    said = dragoman("call", *call, "--detach", "-o", "json", hub=hub)
    assert said.code == OK, said
    return str(said.json["id"])


def test_a_task_is_listed_shown_explained_and_followed(hub: HubProcess, deployer: Diligent) -> None:
    id = detached(hub, "deployer", "run", "n=1")
    until(lambda: hub.status(id) == "completed", "it is done")
    listed = dragoman("task", "ls", "-o", "jsonl", hub=hub)
    assert id in [json.loads(line)["id"] for line in listed.out.splitlines()]
    assert dragoman("task", "ls", "--status", "completed", hub=hub).code == OK
    shown = dragoman("task", "show", id[:18], hub=hub)
    assert shown.code == OK
    assert "run" in shown.out
    assert dragoman("task", "show", id, "-o", "json", hub=hub).json["status"] == "completed"
    logs = dragoman("task", "logs", id, hub=hub)
    assert logs.code == OK
    assert "half way" in logs.out
    why = dragoman("task", "why", id, hub=hub)
    assert (why.code, bool(why.out.strip())) == (OK, True)
    assert dragoman("task", "show", "00000000-0000-0000-0000-000000000000", hub=hub).code == NOT_FOUND


def test_parts_of_ids_since_and_the_newest_first_hold_at_a_real_hub(hub: HubProcess, deployer: Diligent) -> None:
    id = detached(hub, "deployer", "run", "n=2")
    until(lambda: hub.status(id) == "completed", "it is done")
    for part in (id[-8:], f"…{id[-8:]}"):
        assert dragoman("--data", str(hub.data), "task", "show", part, "-o", "json").json["id"] == id
    assert id in [one["id"] for one in dragoman("task", "ls", "--since", "1h", "-o", "json", hub=hub).json["tasks"]]
    assert dragoman("task", "ls", "--since", "0s", "-o", "json", hub=hub).json["tasks"] == []
    records = dragoman("audit", "query", "--limit", "5", "-o", "json", hub=hub).json["records"]
    seqs = [record["seq"] for record in records]
    assert seqs == sorted(seqs, reverse=True)
    subjects = dragoman("audit", "query", "--subject", id, "-o", "json", hub=hub).json["records"]
    assert subjects[-1]["action"] == "task.submit"


def test_a_task_is_cancelled_and_retried(hub: HubProcess, deployer: Diligent) -> None:
    boss = hub.orchestrator()
    hub.token("absent", "absent")
    request, _ = boss.submit(to_agent="absent")
    id = task_of(request)
    assert dragoman("task", "pause", id, hub=hub).code == OK
    assert dragoman("task", "resume", id, hub=hub).code == OK
    assert dragoman("task", "cancel", id, hub=hub).code == OK
    assert hub.status(id) == "cancelled"
    assert dragoman("task", "cancel", id, hub=hub).code == NOT_ALLOWED
    assert dragoman("task", "retry", id, hub=hub).code == OK
    assert hub.status(id) == "queued"
    assert dragoman("task", "retry", id, hub=hub).code == NOT_ALLOWED
    failed = detached(hub, "deployer", "fail")
    until(lambda: hub.status(failed) == "failed", "it failed")
    assert dragoman("task", "retry", failed, hub=hub).code == OK
    until(lambda: hub.status(failed) == "failed", "and failed again")
    assert dragoman("task", "cancel", id, hub=hub).code == OK


def dead_letter(hub: HubProcess) -> tuple[str, dict[str, Any]]:
    """A task that every agent refused for want of resources, until the hub gave up."""
    boss, worker = hub.orchestrator(), hub.worker("poor", "poor")
    request, _ = boss.submit(to_agent="poor")
    for _ in range(2):
        worker.send(error(worker.work(), 5005, limit_name="gpu_vram_mb", available=1, required=2))
    until(lambda: hub.status(task_of(request)) == "failed", "it is given up")
    letters = dragoman("dlq", "ls", "-o", "json", hub=hub).json["deadletters"]
    (letter,) = [one for one in letters if one["task_id"] == task_of(request)]
    return task_of(request), letter


def test_dead_letters_are_listed_shown_redriven_and_discarded(hub: HubProcess) -> None:
    task, letter = dead_letter(hub)
    shown = dragoman("dlq", "show", letter["id"], hub=hub)
    assert shown.code == OK
    assert dragoman("dlq", "redrive", letter["id"], hub=hub).code == OK
    worker = hub.worker("poor", "poor")
    worker.send(work_result(worker.work()))
    assert hub.status(task) == "completed"
    _, other = dead_letter(hub)
    assert dragoman("dlq", "discard", other["id"], hub=hub).code == OK
    assert dragoman("dlq", "show", other["id"], hub=hub).code == NOT_FOUND


def test_the_audit_record_is_whole(hub: HubProcess) -> None:
    hub.orchestrator().submit(to_agent="nobody-of-this-kind")
    verified = dragoman("audit", "verify", hub=hub)
    assert verified.code == OK, verified
    records = dragoman("audit", "query", "--outcome", "refused", "-o", "jsonl", hub=hub)
    assert records.code == OK
    assert all(json.loads(line)["outcome"] == "refused" for line in records.out.splitlines())


def test_a_backup_is_a_database_that_a_hub_can_start_from(hub: HubProcess, tmp_path: Path) -> None:
    boss = hub.orchestrator()
    hub.token("kept", "kept")
    request, _ = boss.submit(to_agent="kept")
    copy = tmp_path / "copy"
    copy.mkdir(mode=0o700)
    assert dragoman("backup", str(copy / "hub.sqlite"), hub=hub).code == OK
    assert dragoman("backup", str(copy / "hub.sqlite"), hub=hub).code != OK  # never over another file
    assert apsw.Connection(str(copy / "hub.sqlite")).pragma("integrity_check") == "ok"
    if (hub.data / "keys").exists():  # other tests have sealed something: such a copy opens with its key only
        shutil.copytree(hub.data / "keys", copy / "keys")
    with running(tmp_path / "other", data=copy) as other:
        assert other.status(task_of(request)) == "queued"
        assert dragoman("audit", "verify", hub=other).code == OK


def test_the_doctor_finds_nothing_wrong_and_says_what_it_looked_at(hub: HubProcess) -> None:
    said = dragoman("doctor", hub=hub)
    assert said.code == OK, said
    assert len(said.out.splitlines()) > 3


def test_settings_say_where_they_came_from(hub: HubProcess) -> None:
    said = dragoman("config", "show", "--origin", "-o", "json", hub=hub, DRAGOMAN_PORT="9999")
    assert said.code == OK
    assert "DRAGOMAN_PORT" in said.out
    wrong = dragoman("config", "show", hub=hub, DRAGOMAN_RULES__IDLE_SECNDS="3")
    assert wrong.code == USAGE
    assert "DRAGOMAN_RULES__IDLE_SECONDS" in wrong.err  # did you mean


def test_a_busy_port_is_a_sentence(hub: HubProcess, tmp_path: Path) -> None:
    port = hub.url.rpartition(":")[2]
    said = dragoman("dev", "--port", port, "--data", str(tmp_path / "d"))
    assert said.code == USAGE
    assert port in said.err
    assert "--port" in said.err
    assert "Traceback" not in said.err

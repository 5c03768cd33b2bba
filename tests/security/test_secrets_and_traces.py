"""What must never be found anywhere: tokens. And what must not do anything where it is shown: hostile names."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import apsw
import pytest

from tests.support.chiffon import HttpClient, kinds, task_of, work_request, work_result, work_status
from tests.support.cli import dragoman
from tests.support.hubproc import HubProcess, until

HOSTILE = (
    "<img src=x onerror=alert(1)>\r\n2026-01-01 [error] forged \x1b[31mred\x1b[0m \u202eevil\u2066 javascript:alert(1)"
)


def everything_kept(hub: HubProcess) -> dict[str, bytes]:
    """Every byte the hub wrote, but for the two files whose purpose is to hold the admin's token."""
    files = [path for path in hub.data.rglob("*") if path.is_file() and path.name not in ("hub.json", "admin.token")]
    return {str(path): path.read_bytes() for path in [*files, hub.log]}


@pytest.mark.requirement("CH-AUT-2")
@pytest.mark.requirement("all-D4")
def test_no_token_is_found_in_any_log_row_or_answer(hub: HubProcess) -> None:
    boss, worker = hub.orchestrator("canary-boss"), hub.worker("canary", "canary")
    wrong = "feedfacefeedfacefeedfacefeedface"
    HttpClient(hub.url, wrong).post("/api/agent/message", work_request())
    HttpClient(hub.url, wrong).get(f"/api/v1/tasks?token={wrong}")
    HttpClient(hub.url).get(f"/api/agent/messages?access_token={wrong}&token={boss.token}")
    rotated = hub.admin.post("/api/v1/agents/canary/token").json["token"]
    old, worker.token = worker.token, rotated
    assert worker.register().status == 200
    seen: list[object] = []

    # A whole session, with the token also where MQ clients put it (chiffon-D10).
    request = work_request(to_agent="canary", x_custom_fields={"token": boss.token, "kept": 1})
    assert boss.send(request).status == 202
    work = worker.work()
    seen.append(work)
    assert work["x_custom_fields"]["kept"] == 1
    worker.send(work_status(work, x_custom_fields={"token": rotated}))
    worker.send(work_result(work, x_custom_fields={"token": rotated}))
    until(lambda: seen.extend(boss.take(1)) or len(seen) >= 3, "status and result")
    with worker.websocket() as link:
        link.send(work_status(work, x_custom_fields={"token": rotated}))
        seen.append(link.recv())  # refused: the task is over
    for path in (
        f"/api/v1/tasks/{task_of(request)}?history=1&raw=1",
        f"/api/v1/tasks/{task_of(request)}/events?raw=1",
        "/api/v1/agents",
        "/api/v1/agents/canary",
        "/api/v1/agents/canary/logs",
        "/api/v1/audit?limit=500",
        "/api/v1/deadletters",
        "/metrics",
        "/openapi.json",
        "/",
    ):
        answer = hub.admin.get(path)
        assert answer.status == 200, path
        seen.append(answer.body.decode())
    for command in (("agent", "ls", "-o", "json"), ("doctor",), ("audit", "query", "-o", "json"), ("config", "show")):
        said = dragoman(*command, hub=hub)
        seen += [said.out, said.err]

    secrets = [str(boss.token), str(old), rotated, hub.ready["admin_token"], wrong]
    text = json.dumps(seen)
    assert [secret for secret in secrets if secret in text] == []
    for place, data in everything_kept(hub).items():
        assert [secret for secret in secrets if secret.encode() in data] == [], place
    for private in (hub.data, *hub.data.iterdir()):
        assert private.stat().st_mode & 0o077 == 0, private  # nobody else may read any of it


def test_hostile_names_are_data_wherever_they_are_shown(hub: HubProcess) -> None:
    boss, worker = hub.orchestrator("hostile-boss"), hub.worker("hostile", "hostile")
    assert hub.admin.post("/api/v1/agents", {"agent_id": HOSTILE, "protocol": "chiffon"}).status == 422
    for id in ("a\nb", "a\r", "\u202eadmin", "<b>", "a b", "", "a" * 200, "../../etc/passwd"):
        assert hub.admin.post("/api/v1/agents", {"agent_id": id, "protocol": "chiffon"}).status == 422, id
    request = work_request({HOSTILE: HOSTILE}, work_type=HOSTILE, to_agent="hostile")
    assert boss.send(request).status == 202
    work = worker.work()
    assert work["payload"]["work_type"] == HOSTILE  # it travels as it is
    worker.send(work_status(work, output=HOSTILE))
    worker.send(work_result(work, output=HOSTILE))
    boss.send(work_request(to_agent=HOSTILE))  # refused, and written down
    boss.get(f"/api/tasks/{'x' * 100}%0d%0aforged/cancel")
    assert kinds(boss.take()) == ["work_status", "work_result"]

    page = hub.admin.get("/")
    assert page.status == 200
    assert b"onerror" not in page.body
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    for path in (f"/api/v1/tasks/{task_of(request)}?history=1", "/api/v1/tasks", "/api/v1/audit?limit=500"):
        answer = hub.admin.get(path)
        assert answer.headers["content-type"] == "application/json", path
        assert answer.headers["x-content-type-options"] == "nosniff", path
    for command in (
        ("task", "ls"),
        ("task", "show", task_of(request)),
        ("task", "logs", task_of(request)),
        ("audit", "query"),
    ):
        said = dragoman(*command, hub=hub)
        assert said.code == 0, said
        for bad in ("\x1b", "\u202e", "\u2066", "\r"):
            assert bad not in said.out, (command, bad)
    log = hub.log.read_text("utf-8")
    for bad in ("\x1b", "\u202e", "\u2066", "\r"):
        assert bad not in log
    assert not any(line.startswith("2026-01-01 [error] forged") for line in log.splitlines())


@pytest.mark.parametrize("harm", ["edited", "removed", "inserted"])
def test_a_changed_audit_record_is_named(hub: HubProcess, tmp_path: Path, harm: str) -> None:
    """On a copy of the hub's store: the chain is walked by `dragoman audit verify`, with and without a hub."""
    boss = hub.orchestrator("audit-boss")
    hub.worker("audited", "audited")
    for _ in range(5):
        boss.submit(to_agent="audited")
    assert dragoman("audit", "verify", hub=hub).code == 0
    copy = tmp_path / "copy"
    copy.mkdir(mode=0o700)
    assert dragoman("backup", str(copy / "hub.sqlite"), hub=hub).code == 0
    database = apsw.Connection(str(copy / "hub.sqlite"))
    ours: Any = database.execute("SELECT seq FROM audit WHERE principal = 'audit-boss' ORDER BY seq DESC").fetchall()
    (broken,), (last,) = ours[2], database.execute("SELECT max(seq) FROM audit").fetchone()  # type: ignore[misc]
    if harm == "edited":
        database.execute("UPDATE audit SET body = replace(body, 'audit-boss', 'somebody') WHERE seq = ?", (broken,))
    elif harm == "removed":
        database.execute("DELETE FROM audit WHERE seq = ?", (broken,))
    else:
        columns = "principal, subject, outcome, body"
        copied = f"INSERT INTO audit (seq, {columns}) SELECT seq + 1, {columns} FROM audit WHERE seq = ?"
        database.execute(copied, (last,))
        broken = last + 1
    assert database.changes() == 1
    database.close()
    said = dragoman("audit", "verify", "--data", str(copy))
    if said.code == 5:  # it only walks the chain of a hub that runs
        other = HubProcess(tmp_path / "other", data=copy)
        try:
            other.start()
            said = dragoman("audit", "verify", hub=other)
        finally:
            other.kill()
    assert said.code == 1, said
    assert f"record {broken}" in said.out + said.err, said


def test_floods_of_refusals_do_not_stop_the_work(hub: HubProcess) -> None:
    boss, worker = hub.orchestrator("flood-boss"), hub.worker("flooded", "flooded")
    stop = threading.Event()

    def flood() -> None:
        client = HttpClient(hub.url, "0" * 32, keep=True)
        while not stop.is_set():
            client.post("/api/agent/message", {})

    threads = [threading.Thread(target=flood, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(20):
            boss.submit(to_agent="flooded")
            worker.send(work_result(worker.work()))
            assert kinds(boss.take()) == ["work_result"]
    finally:
        stop.set()
        for thread in threads:
            thread.join(5)

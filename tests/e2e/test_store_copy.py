"""A hub with work in it moves from SQLite to PostgreSQL: its agents, its tasks, its files and its people go on."""

from __future__ import annotations

import shutil
import urllib.request
from pathlib import Path

from tests.support import s3
from tests.support.chiffon import Orchestrator, Worker, task_of, work_result, work_status
from tests.support.cli import dragoman
from tests.support.cluster import Node
from tests.support.hubproc import HubProcess, running, until
from tests.support.postgres import shared_url

REALM = "moved"


def upload(hub: HubProcess, data: bytes) -> None:
    asked = urllib.request.Request(f"{hub.url}/api/v1/files?name=a.txt", data=data, method="POST")
    asked.add_header("Authorization", f"Bearer {hub.ready['admin_token']}")
    with urllib.request.urlopen(asked, timeout=30) as answer:
        assert answer.status == 201


def test_what_was_under_way_goes_on_over_postgresql(tmp_path: Path) -> None:
    url = shared_url()
    with running(tmp_path / "one") as hub:
        boss, worker = hub.orchestrator(), hub.worker(limits={"max_concurrent": 1})
        done, _ = boss.submit()
        request = worker.work()
        worker.send(work_result(request, output="before the move"))
        begun, _ = boss.submit()
        connection = worker.websocket()
        half = connection.recv()
        assert worker.send(work_status(half, 40, output="half of it")).status == 202
        waiting, _ = boss.submit()
        upload(hub, b"a file of before")
        files = hub.admin.get("/api/v1/files").json["files"]
        login = dragoman("user", "add", "erika", "--role", "viewer", "-o", "json", hub=hub)
        assert login.code == 0, login
        token, tokens = hub.ready["admin_token"], hub.tokens
        assert hub.stop() == 0
        connection.close()

        bucket = s3.make_bucket("moved-files")
        given = ("--from", str(hub.data), "--to", url, "--realm", REALM, "--files", bucket)
        copied = dragoman("store", "copy", *given, "-o", "json", **s3.CREDENTIALS)
        assert copied.code == 0, copied
        assert (copied.json["tables"]["task"], copied.json["files"]) == (3, 1)
        assert dragoman("store", "copy", *given).code == 4
        assert list(s3.objects("moved-files")) == [f"{REALM}/{files[0]['id']}"]

    # The agent of after the move says nothing of the work that was begun: it is assigned again when this clock ran out.
    settings = {"DRAGOMAN_FILES__URL": bucket, "DRAGOMAN_RULES__IDLE_SECONDS": "2", **s3.CREDENTIALS}
    node = Node(tmp_path / "two", url, "n1", realm=REALM, **settings)
    node.launch()
    assert node.died() == 4
    assert "and this node has none: give all nodes of a realm the same key" in node.log.read_text()
    shutil.copytree(hub.data / "keys", node.data / "keys")
    node.start()
    try:
        until(lambda: node.is_ready, "the node leads")
        assert node.ready["admin_token"] == token
        assert node.status(task_of(done)) == "completed"
        assert "before the move" in str(node.task(task_of(done))["output"])
        assert node.admin.get("/api/v1/files").json["files"] == files
        upload(node, b"a file of after")
        assert len(s3.objects("moved-files")) == 2
        assert [one["name"] for one in node.admin.get("/api/v1/users").json["users"]] == ["erika"]

        worker = Worker(node.url, tokens["i1"], "i1", "infra")
        assert worker.register().status == 200
        left = {task_of(begun), task_of(waiting)}
        while left:
            request = worker.work()
            worker.send(work_result(request, output="after the move"))
            left.discard(task_of(request))
        until(lambda: {one["status"] for one in node.tasks()} == {"completed"}, "all of it is done")
        boss = Orchestrator(node.url, tokens["boss"])
        repeated = boss.send(done)
        assert repeated.status == 202
        assert len(node.tasks()) == 3  # the same request is no new work
        verdict = dragoman("audit", "verify", hub=node)
        assert verdict.code == 0, verdict
    finally:
        assert node.stop() == 0

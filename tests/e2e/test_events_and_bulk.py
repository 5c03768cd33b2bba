"""The API as a stranger uses it: the stream of all events over killed hubs, and many tasks changed by one request."""

from __future__ import annotations

import http.client
import socket
import threading
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.support import chiffon
from tests.support.hubproc import PATIENCE, HubProcess, running, until
from tests.support.sse import frames

KILLS = 2
BETWEEN = 150
"""Tasks that are accepted between two kills."""


class Follower:
    """Reads all events as the document asks: what it has of a commit counts when the commit's id came."""

    def __init__(self, last: int = 1) -> None:
        self.last = last
        self.seen: list[tuple[str, int]] = []
        self.submitted: set[str] = set()

    def read(self, url: str, token: str, until_task: str | None) -> bool:
        """Until that task was submitted (true), the connection broke, or it took too long (heartbeats keep it open)."""
        connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=PATIENCE)
        headers = {"Authorization": f"Bearer {token}", "Last-Event-ID": str(self.last)}
        held: list[dict[str, Any]] = []
        with suppress(OSError, http.client.HTTPException), ExitStack() as stack:
            connection.request("GET", "/api/v1/events", None, headers)
            timer = threading.Timer(PATIENCE, connection.sock.shutdown, (socket.SHUT_RDWR,))
            timer.start()
            stack.callback(timer.cancel)
            for event in frames(connection.getresponse()):
                held.append(event.data)
                if event.id is None:
                    continue
                self.last = event.id
                self.seen += [(one["task_id"], one["seq"]) for one in held]
                self.submitted |= {one["task_id"] for one in held if one["kind"] == "submitted"}
                held.clear()
                if until_task in self.submitted:
                    connection.close()
                    return True
        connection.close()
        return False


def queue_for_nobody(hub: HubProcess, count: int) -> list[str]:
    hub.token("idle-1", "idle")
    return [hub.admin.post("/api/v1/tasks", {"type": "wait", "kind": "idle"}).json["id"] for _ in range(count)]


def test_the_stream_of_all_events_resumes_over_killed_hubs_without_gap_or_double(tmp_path: Path) -> None:
    accepted: list[str] = []
    over, ended = threading.Event(), threading.Event()
    follower = Follower()
    with running(tmp_path) as hub:
        hub.token("idle-1", "idle")

        def send() -> None:
            while not over.is_set():
                with suppress(OSError, http.client.HTTPException):
                    answer = hub.admin.post("/api/v1/tasks", {"type": "wait", "kind": "idle"})
                    if answer.status == 202:
                        accepted.append(answer.json["id"])

        def follow() -> None:
            while not ended.is_set():
                follower.read(hub.url, hub.ready["admin_token"], None)

        threads = [threading.Thread(target=send), threading.Thread(target=send), threading.Thread(target=follow)]
        for thread in threads:
            thread.start()
        for turn in range(1, KILLS + 1):
            until(lambda turn=turn: len(accepted) >= turn * BETWEEN, "tasks were accepted")
            hub.kill()
            if turn == KILLS:
                over.set()
                ended.set()
            hub.return_to_its_port()
        for thread in threads[:2]:
            thread.join(PATIENCE)
        last = hub.admin.post("/api/v1/tasks", {"type": "wait", "kind": "idle"}).json["id"]
        hub.kill()  # the follower's connection, too
        threads[2].join(PATIENCE)
        hub.return_to_its_port()
        assert follower.read(hub.url, hub.ready["admin_token"], last)
        truth = Follower()
        assert truth.read(hub.url, hub.ready["admin_token"], last)
    assert set(accepted) <= follower.submitted
    assert follower.submitted == truth.submitted
    assert len(follower.seen) == len(set(follower.seen))


def test_a_bulk_change_says_of_each_task_what_became_of_it_and_repeats_without_effect(tmp_path: Path) -> None:
    with running(tmp_path) as hub:
        ids = queue_for_nobody(hub, 60)
        body = {"action": "cancel", "ids": [*ids, ids[0], "no-such-task"]}
        hub.admin.post("/api/v1/users", {"name": "vera", "role": "viewer"})
        viewer = chiffon.HttpClient(hub.url, hub.admin.post("/api/v1/users/vera/token").json["token"])
        refused = viewer.post("/api/v1/bulk/tasks", body)
        assert (refused.status, {hub.status(id) for id in ids}) == (403, {"queued"})
        first = hub.admin.post("/api/v1/bulk/tasks", body).json
        assert first["done"] == ids
        assert [(one["id"], one["problem"]["status"]) for one in first["failed"]] == [("no-such-task", 404)]
        events = [len(hub.admin.get(f"/api/v1/tasks/{id}/wire").json["messages"]) for id in ids]
        again = hub.admin.post("/api/v1/bulk/tasks", body).json
        assert (again["done"], len(again["failed"])) == ([], len(ids) + 1)
        assert {one["problem"]["kind"] for one in again["failed"]} == {"conflict", "not_found"}
        assert [len(hub.admin.get(f"/api/v1/tasks/{id}/wire").json["messages"]) for id in ids] == events
        many = hub.admin.post("/api/v1/bulk/tasks", {"action": "cancel", "ids": [str(n) for n in range(501)]})
        assert (many.status, many.json["field"]) == (422, "ids")


def test_dead_letters_that_are_redriven_twice_are_sent_once(tmp_path: Path) -> None:
    with running(tmp_path) as hub:
        worker = hub.worker("press-1", "press")
        tasks = [hub.admin.post("/api/v1/tasks", {"type": "print", "agent": "press-1"}).json["id"] for _ in range(3)]
        while any(hub.status(id) != "failed" for id in tasks):
            for message in worker.take(0.2):
                worker.send(chiffon.error(message, 5005, "the ink is out"))
        letters = sorted(one["id"] for one in hub.admin.get("/api/v1/deadletters").json["deadletters"])
        assert len(letters) == 3
        first = hub.admin.post("/api/v1/bulk/deadletters", {"action": "redrive", "ids": [*letters, "no-such"]}).json
        assert (sorted(first["done"]), [one["id"] for one in first["failed"]]) == (letters, ["no-such"])
        again = hub.admin.post("/api/v1/bulk/deadletters", {"action": "redrive", "ids": letters}).json
        assert (again["done"], len(again["failed"])) == ([], 3)
        got = [worker.next() for _ in tasks]
        for message in got:
            worker.send(chiffon.work_result(message))
        until(lambda: {hub.status(id) for id in tasks} == {"completed"}, "all tasks are completed")
        assert worker.take(0.2) == []

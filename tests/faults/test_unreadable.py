"""The disk gives nothing back for a while: every endpoint says that it may pass, in its own words, and goes on
afterwards.

The hub is a process whose read-only connections fail, as SQLite says it, as long as a file is there. Its cache is cold,
so that what is asked for must be read.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from tests.conformance.a2acp.plain import BROKER, Pair, error_of
from tests.conformance.a2acp.plain import Plain as Contracted
from tests.conformance.agentmsg.plain import Plain
from tests.support.chiffon import new_id, task_of, work_status
from tests.support.forge import ForgeClient
from tests.support.hubproc import HubProcess, until

from dragoman.protocols.coven import codec
from dragoman.protocols.coven.types import FOLLOW, FollowRequest

UNREADABLE = """
import os
import apsw

class Unreadable(apsw.Connection):
    def __init__(self, *args, flags=None, **kwargs):
        self.reads = flags == apsw.SQLITE_OPEN_READONLY
        super().__init__(*args, **({} if flags is None else {"flags": flags}), **kwargs)

    def execute(self, *args, **kwargs):
        if self.reads and os.path.exists(os.environ["UNREADABLE"]):
            raise apsw.IOError("disk I/O error")
        return super().execute(*args, **kwargs)

apsw.Connection = Unreadable
"""


class Hub(HubProcess):
    def __init__(self, home: Path) -> None:
        (home / "spoilt").mkdir(parents=True)
        (home / "spoilt" / "sitecustomize.py").write_text(UNREADABLE)
        self.flag = home / "unreadable"
        super().__init__(home, wrap=("env", f"PYTHONPATH={home / 'spoilt'}"), UNREADABLE=str(self.flag))

    @contextmanager
    def unreadable(self) -> Iterator[None]:
        self.flag.touch()
        try:
            yield
        finally:
            self.flag.unlink()


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    hub = Hub(tmp_path / "hub")
    try:
        hub.start()
        yield hub
    finally:
        hub.kill()


def test_a_store_that_cannot_be_read_is_a_503_at_every_endpoint_and_nothing_is_lost(hub: Hub) -> None:
    boss, worker = hub.orchestrator(), hub.worker()
    request, _ = boss.submit()
    task = task_of(request)
    worker.work()
    made = hub.admin.post("/api/v1/agents", {"agent_id": "planner", "protocol": "forge", "role": "planner"})
    ada, una = Plain(hub, "ada"), Contracted(hub, "una")
    hub.restart()  # now nothing of it is in memory
    for party in (boss, worker):
        party.url = hub.url
    forge = ForgeClient(hub.url, "planner", made.json["token"])
    token = una.token(BROKER["agent_id"])

    def at_the_api() -> list[int]:
        places = ("/api/v1/tasks", f"/api/v1/tasks/{task}", f"/api/v1/tasks/{task}/events", "/api/v1/questions")
        return [hub.admin.ask("GET", place, timeout=5).status for place in places]

    def over_chiffon() -> tuple[int, Any]:
        answer = worker.send(work_status(request, 1))
        return answer.status, None if answer.status == 202 else answer.code

    def a_file() -> int:
        return worker.get(f"/api/agent/files/0192a3b4-0000-7000-8000-000000000001?task_id={task}").status

    def over_forge() -> dict[str, Any]:
        return dict(forge.ask("query-tasks", {}))

    def over_agentmsg() -> int:
        return ada.get("/state/TASK/plan").status

    def over_a2acp() -> tuple[int, str]:
        about = {"collaboration_id": new_id(), "public_key": Pair().public_key}
        asked = una.message("request", BROKER, "rotate_key", about, token=token)
        answer = una.send(asked, later=True)
        return answer.status, error_of(answer)["code"]

    def over_grpc() -> grpc.StatusCode:
        metadata = (("authorization", f"Bearer {boss.token}"),)
        with grpc.insecure_channel(hub.ready["grpc"]) as channel:
            call = channel.unary_stream(FOLLOW)(
                codec.encode_follow(FollowRequest(task_id=task)), metadata=metadata, timeout=30
            )
            try:
                next(iter(call))
            except grpc.RpcError as error:
                return error.code()
        return grpc.StatusCode.OK

    with hub.unreadable():
        assert at_the_api() == [503, 503, 503, 503]
        assert over_chiffon() == (503, 5002)
        assert a_file() == 503
        refusal = over_forge()
        assert (refusal["details"]["reason"], refusal["details"]["retryable"]) == ("overloaded", True)
        assert over_agentmsg() == 503
        assert over_grpc() is grpc.StatusCode.UNAVAILABLE
        assert over_a2acp() == (503, "INTERNAL_ERROR")
        assert hub.admin.get("/livez").status == 200
        assert hub.admin.get("/metrics").status == 200
    assert "Traceback" not in hub.log.read_text()
    assert hub.admin.get(f"/api/v1/tasks/{task}").status == 200
    until(lambda: over_chiffon() == (202, None), "the worker is heard again")
    assert a_file() == 404
    assert "tasks" in over_forge()
    assert over_agentmsg() == 404
    assert over_grpc() is grpc.StatusCode.OK
    assert hub.status(task) == "running"

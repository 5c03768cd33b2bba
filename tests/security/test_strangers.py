"""Callers without a credential that try for ever, at every endpoint: counted, not recorded one by one."""

from __future__ import annotations

from collections.abc import Iterator

import grpc
import pytest
import websockets.sync.client
from websockets.exceptions import InvalidStatus

from dragoman.core.model.refusals import ADDRESS
from tests.support.chiffon import HttpClient
from tests.support.hubproc import HubProcess, running

TIMES = 60
REQUESTS = (
    ("POST", "/api/agent/message"),
    ("GET", "/api/agent/messages"),
    ("POST", "/agentmsg/messages"),
    ("GET", "/agentmsg/state"),
    ("GET", "/a2acp/messages"),
    ("POST", "/auth/token"),
    ("GET", "/api/v1/tasks"),
    ("POST", "/api/v1/tasks"),
)
SOCKETS = ("/api/agent/ws", "/agentmsg/ws", "/a2acp/ws", "/forge/ws")


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubProcess]:
    home = tmp_path_factory.mktemp("hub")
    with running(home) as hub:
        yield hub


def test_strangers_at_all_endpoints_leave_a_bounded_number_of_records_and_their_count(hub: HubProcess) -> None:
    stranger = HttpClient(hub.url, "f" * 32, keep=True)
    for method, path in REQUESTS:
        for _ in range(TIMES):
            assert stranger.ask(method, path, b"{}" if method == "POST" else None).status == 401
    for path in SOCKETS:
        for _ in range(5):
            with pytest.raises(InvalidStatus, match="401"):
                websockets.sync.client.connect(hub.url.replace("http", "ws") + path, proxy=None)
    with grpc.insecure_channel(hub.ready["grpc"]) as channel:
        stream = channel.stream_stream("/coven.CovenControl/AgentStream")
        for _ in range(5):
            with pytest.raises(grpc.RpcError) as refused:
                next(stream(iter(()), timeout=60, metadata=(("authorization", "Bearer " + "f" * 32),)))
            assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
    found = hub.admin.get("/api/v1/audit?principal=anonymous&limit=500").json["records"]
    assert len(found) <= ADDRESS.burst + 5  # and some whose time has come meanwhile
    assert hub.stop() == 0
    hub.start()
    found = hub.admin.get("/api/v1/audit?principal=anonymous&limit=500").json["records"]
    counted = [record["reason"] for record in found if "more were refused from 127.0.0.1" in record["reason"]]
    each = [record for record in found if record["reason"] not in counted]
    knocks = sum(int(reason.partition(" ")[0]) for reason in counted) + len(each)
    assert knocks == TIMES * len(REQUESTS) + 5 * len(SOCKETS) + 5
    assert len(found) < 60
    assert hub.admin.get("/api/v1/audit/verify").json["ok"]

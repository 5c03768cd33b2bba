"""Web pages and other users who reach for a hub on loopback: by a name of theirs, by its metrics, by its memory."""

from __future__ import annotations

import resource
import secrets
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import websockets.sync.client
from websockets.exceptions import InvalidStatus

from tests.support.chiffon import HttpClient
from tests.support.hubproc import HubProcess, running

READS_METRICS = secrets.token_hex(16)


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubProcess]:
    home = tmp_path_factory.mktemp("hub")
    token = home / "metrics.token"
    token.touch(mode=0o600)
    token.write_text(READS_METRICS + "\n")
    settings = {
        "DRAGOMAN_SERVER__ALLOWED_HOSTS": "hub.example",
        "DRAGOMAN_SERVER__METRICS_TOKEN": str(token),
    }
    with running(home, **settings) as hub:
        yield hub


def port(hub: HubProcess) -> str:
    return hub.url.rpartition(":")[2]


@pytest.mark.parametrize("path", ["/livez", "/api/v1/agents", "/api/agent/message", "/auth/token", "/"])
def test_a_name_that_leads_here_but_is_not_ours_is_not_answered(hub: HubProcess, path: str) -> None:
    people = HttpClient(hub.url, hub.ready["admin_token"])
    for name in ("evil.example", f"evil.example:{port(hub)}", "127.0.0.1.evil.example", "localhost.evil.example", "x"):
        answer = people.ask("GET", path, headers={"Host": name})
        assert (answer.status, answer.json["kind"]) == (421, "invalid"), name


@pytest.mark.parametrize(
    "name", ["localhost", "LOCALHOST:{port}", "a.localhost", "127.0.0.1:{port}", "[::1]:{port}", "hub.example:443"]
)
def test_its_own_names_addresses_and_the_allowed_names_are_answered(hub: HubProcess, name: str) -> None:
    answer = HttpClient(hub.url).ask("GET", "/livez", headers={"Host": name.format(port=port(hub))})
    assert answer.status == 200


@pytest.mark.parametrize("path", ["/api/agent/ws", "/agentmsg/ws", "/a2acp/ws", "/forge/ws"])
def test_a_page_of_another_site_opens_no_websocket(hub: HubProcess, path: str) -> None:
    url = hub.url.replace("http", "ws") + path
    for origin in ("https://evil.example", "null", "http://127.0.0.1.evil.example"):
        with pytest.raises(InvalidStatus, match="403"):
            websockets.sync.client.connect(url, origin=origin, proxy=None)  # type: ignore[arg-type]
    for origin in (hub.url, "https://hub.example", None):
        with pytest.raises(InvalidStatus, match="401"):  # it has no token, but may ask
            websockets.sync.client.connect(url, origin=origin, proxy=None)  # type: ignore[arg-type]


def test_metrics_need_their_token_where_one_is_set(hub: HubProcess) -> None:
    refused = HttpClient(hub.url).get("/metrics")
    assert (refused.status, "server.metrics_token" in refused.json["detail"]) == (401, True)
    assert HttpClient(hub.url, "f" * 32).get("/metrics").status == 401
    for token in (READS_METRICS, hub.ready["admin_token"]):
        assert HttpClient(hub.url, token).get("/metrics").status == 200
    assert HttpClient(hub.url, READS_METRICS).get("/api/v1/agents").status == 401
    assert HttpClient(hub.url).get("/livez").status == 200


def test_the_hub_and_its_writer_leave_no_core_dumps(hub: HubProcess) -> None:
    (writer,) = Path(f"/proc/{hub.pid}/task/{hub.pid}/children").read_text().split()
    for pid in (hub.pid, int(writer)):
        assert resource.prlimit(pid, resource.RLIMIT_CORE) == (0, 0)


def test_a_process_that_leaves_no_dumps_cannot_be_inspected_either() -> None:
    """`PR_GET_DUMPABLE`, which a process is told only of itself."""
    said = "from dragoman.security.private import leave_no_dumps as go; import ctypes; c = ctypes.CDLL(None)"
    told = subprocess.run(
        [sys.executable, "-c", f"{said}; before = c.prctl(3); go(); print(before, c.prctl(3))"],
        capture_output=True,
        timeout=60,
        check=True,
    )
    assert told.stdout.split() == [b"1", b"0"]

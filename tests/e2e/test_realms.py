"""Several realms on one PostgreSQL behind one address: every protocol reaches a node of its realm, and no other."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import asyncpg
import pytest
from websockets.exceptions import ConnectionClosed

from dragoman import Agent, Client
from tests.e2e.at_work import online, soon
from tests.support.chiffon import HttpClient, Orchestrator, Worker, task_of, work_result
from tests.support.cluster import Cluster, Node, cluster
from tests.support.fleet import BROKEN
from tests.support.front import FrontProcess, front
from tests.support.hubproc import PATIENCE, until
from tests.support.postgres import Server, need_postgres, private_directory
from tests.support.sse import Reader

WAYS = ("chiffon+ws", "chiffon+http", "forge+ws", "agentmsg+ws", "agentmsg+http", "a2acp+ws", "a2acp+http", "coven")


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    need_postgres()
    server = Server(private_directory("realms")).start()
    yield server
    server.remove()


@pytest.fixture(scope="module")
def store(server: Server) -> str:
    return server.create_database("realms")


@pytest.fixture(scope="module")
def ours(store: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """The realm `default`."""
    with cluster(tmp_path_factory.mktemp("default"), store, "a") as hub:
        yield hub


@pytest.fixture(scope="module")
def team(store: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Another realm, of two nodes."""
    with cluster(tmp_path_factory.mktemp("team"), store, "ab", realm="team_a") as hub:
        yield hub


@pytest.fixture(scope="module")
def at(store: str, ours: Cluster, team: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FrontProcess]:
    with front(tmp_path_factory.mktemp("front") / "log", store) as made:
        until(lambda: made.get("/readyz").json["detail"].startswith("2 of 2"), "both realms are ready")
        yield made


def let_in(hub: Cluster, id: str, protocol: str) -> str:
    made = hub.admin.post("/api/v1/agents", {"agent_id": id, "protocol": protocol, "kind": id})
    assert made.status == 201, made
    return str(made.json["token"])


@pytest.mark.parametrize("way", WAYS)
async def test_work_goes_through_one_address_in_every_protocol(
    way: str, at: FrontProcess, ours: Cluster, team: Cluster
) -> None:
    """By the realm that the tokens name: at both realms, agents of the same names."""
    protocol = way.partition("+")[0]
    name = way.replace("+", "-")
    address = f"coven://{at.grpc}" if way == "coven" else at.url.replace("http", way, 1)
    for realm, hub in (("default", ours), ("team_a", team)):
        agent = Agent(name, token=let_in(hub, name, protocol), kind=name)

        @agent.on("whose")
        async def whose(n: int, realm: str = realm) -> str:
            return f"{realm} {n}"

        serving = asyncio.ensure_future(agent.serve(address))
        try:
            await online(hub, name)
            caller = f"{name}-caller"
            async with Client(address, id=caller, token=let_in(hub, caller, protocol)) as client:
                assert await soon(client.call(name, "whose", n=7)) == f"{realm} 7"
        finally:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)


def test_a_host_name_says_which_realm_pages_and_the_api_are_of(at: FrontProcess, ours: Cluster, team: Cluster) -> None:
    let_in(ours, "ours-only", "chiffon")
    let_in(team, "theirs-only", "chiffon")
    for host, hub, id in (("team-a.localhost", team, "theirs-only"), ("localhost", ours, "ours-only")):
        answer = at.get("/api/v1/agents", token=hub.ready["admin_token"], host=host)
        ids = {agent["id"] for agent in answer.json["agents"]}
        assert {"ours-only", "theirs-only"} & ids == {id}
        assert at.get("/", host=host).status == 200
    assert at.get("/api/v1/agents", token=ours.ready["admin_token"], host="team-a.localhost").status == 401


def test_a_token_opens_nothing_under_the_name_of_another_realm(at: FrontProcess, ours: Cluster, team: Cluster) -> None:
    token = let_in(team, "carl", "chiffon")
    assert token.startswith("team_a~")
    assert HttpClient(at.url, token).get("/api/agent/messages?wait=0").status == 200
    assert HttpClient(at.url, token.partition("~")[2]).get("/api/agent/messages?wait=0").status == 401
    forged = HttpClient(at.url, f"team_b~{token.partition('~')[2]}").get("/api/agent/messages?wait=0")
    assert (forged.status, forged.json["kind"]) == (421, "not_found")
    assert "REALM.hub.example" in forged.json["message"]


def test_events_of_a_task_flow_while_it_runs(at: FrontProcess, team: Cluster) -> None:
    made = team.admin.post("/api/v1/users", {"name": "ann", "role": "operator"})
    assert made.status == 201
    ann = team.admin.post("/api/v1/users/ann/token", {}).json["token"]
    boss = Orchestrator(at.url, let_in(team, "orchestrator", "chiffon"), "orchestrator")
    worker = Worker(at.url, let_in(team, "streamer", "chiffon"), "streamer", "streamer")
    assert worker.register().status == 200
    request, answer = boss.submit(to_agent="streamer")
    assert answer.status == 202, answer
    stream = Reader(task_of(request))
    assert stream.read(at.url, ann, most=1).seen
    assert worker.send(work_result(worker.work())).status == 202
    assert stream.read(at.url, ann).ended


def ask(line: socket.socket, host: str) -> bytes:
    line.sendall(f"GET /livez HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
    got = b""
    while b"}" not in got:
        more = line.recv(65536)
        if not more:
            break
        got += more
    return got


def test_a_second_realm_on_one_connection_is_sent_to_a_connection_of_its_own(at: FrontProcess, team: Cluster) -> None:
    host, _, port = at.url.removeprefix("http://").rpartition(":")
    with socket.create_connection((host, int(port)), timeout=PATIENCE) as line:
        for _ in range(2):
            assert ask(line, "team-a.localhost").startswith(b"HTTP/1.1 200 ")
        assert ask(line, "localhost").startswith(b"HTTP/1.1 421 Misdirected Request")
        assert line.recv(1) == b""


def test_what_is_no_request_is_refused_and_a_silent_client_costs_nothing(at: FrontProcess) -> None:
    host, _, port = at.url.removeprefix("http://").rpartition(":")
    for sent, says in ((b"\x16\x03\x01 hello", b"400"), (b"GET / HTTP/1.1\r\nx: " + b"y" * 70_000, b"431")):
        with socket.create_connection((host, int(port)), timeout=PATIENCE) as line:
            line.sendall(sent)
            assert line.recv(65536).split(b" ")[1] == says
    with socket.create_connection((host, int(port)), timeout=PATIENCE):
        assert at.get("/livez").status == 200


def test_another_node_of_the_realm_takes_over_when_one_dies(
    store: str, server: Server, at: FrontProcess, tmp_path: Path
) -> None:
    """A WebSocket ends with its node. The next request finds the other one, and the realms beside it notice nothing."""
    with cluster(tmp_path, store, "ab", realm="mortal") as hub:
        token = let_in(hub, "mort", "chiffon")
        agent = Worker(at.url, token, "mort", "mort")
        until(lambda: agent.register().status == 200, "the front knows the new realm")
        with agent.websocket() as line:
            until(lambda: holder(hub), "only the WebSocket is left").kill()
            with pytest.raises(ConnectionClosed):
                line.recv()
        until(lambda: agent.register().status == 200, "the other node answers")
    answer = HttpClient(at.url, token).get("/api/agent/messages?wait=0")
    assert (answer.status, answer.headers["retry-after"]) == (503, "1")
    assert at.get("/livez", host="team-a.localhost").status == 200


def holder(hub: Cluster) -> Node | None:
    """The one node that has a connection."""
    held = [node for node in hub.nodes.values() if connections(node)]
    return held[0] if len(held) == 1 else None


def connections(node: Node) -> int:
    """How many the node itself has; every node of a realm knows the agents of the others."""
    port = f":{int(node.url.rpartition(':')[2]):04X}"
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(local.endswith(port) and state == "01" for _, local, _, state, *_ in rows)


async def test_a_realm_whose_commits_stand_still_leaves_the_others_alone(
    store: str, at: FrontProcess, ours: Cluster, team: Cluster
) -> None:
    """The row that every commit of the one writes is locked, until the other has done a hundred tasks."""
    stalled = Orchestrator(at.url, let_in(ours, "stalled", "chiffon"), "stalled")
    boss = Orchestrator(at.url, let_in(team, "swift", "chiffon"), "swift")
    worker = Worker(at.url, let_in(team, "hand", "chiffon"), "hand", "hand")
    idle = Worker(at.url, let_in(ours, "hand", "chiffon"), "hand", "hand")
    assert (worker.register().status, idle.register().status) == (200, 200)
    locking = await asyncpg.connect(store)
    try:
        async with locking.transaction():
            await locking.execute("SELECT 1 FROM dragoman_default.lease FOR UPDATE")
            waits = asyncio.ensure_future(asyncio.to_thread(stalled.submit, from_agent="stalled", to_agent="hand"))
            for _ in range(100):
                _, answer = await asyncio.to_thread(boss.submit, from_agent="swift", to_agent="hand")
                assert answer.status == 202
                done = await asyncio.to_thread(worker.work)
                assert (await asyncio.to_thread(worker.send, work_result(done))).status == 202
            is_answered = waits.done() and waits.exception() is None
            assert not is_answered
        with suppress(*BROKEN):  # a leader that could not renew its lease for too long ends without a word
            await waits
    finally:
        await locking.close()

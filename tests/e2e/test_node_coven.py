"""An agent that shares nothing with us, not even the language: Node's own gRPC client and the document's protobuf text.

Its packages are installed once into the tests' cache; without node, npm or a registry these tests are skipped.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import queue
import re
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.chiffon import task_of, work_request
from tests.support.coven import document_proto
from tests.support.hubproc import PATIENCE, HubProcess, until
from tests.support.sse import Reader

NODE = Path(__file__).parents[1] / "support" / "node"
INVALID_ARGUMENT, ALREADY_EXISTS, PERMISSION_DENIED, UNAUTHENTICATED = 3, 6, 7, 16
ANSWER = "Hello, it is noon: 正午 🕛"
_libc = ctypes.CDLL(None)


@pytest.fixture(scope="session")
def modules(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The installed packages; several test processes take turns."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("node and npm are needed for a client that is not ours")
    cache = getattr(request.config, "cache", None)  # there is none under `-p no:cacheprovider`
    place = tmp_path_factory.mktemp("node") if cache is None else cache.mkdir("node")
    with (place / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        wanted = (NODE / "package.json").read_bytes()
        if not (place / "node_modules").is_dir() or (place / "package.json").read_bytes() != wanted:
            shutil.rmtree(place / "node_modules", ignore_errors=True)
            (place / "package.json").write_bytes(wanted)
            command = ("npm", "install", "--no-package-lock", "--no-audit", "--no-fund", "--ignore-scripts")
            quick = ("--fetch-retries=1", "--fetch-timeout=30000")
            try:
                said = subprocess.run((*command, *quick), cwd=place, capture_output=True, text=True, timeout=180)
                why = said.stderr.strip()[-200:] if said.returncode else None
            except subprocess.TimeoutExpired as late:  # as where packets to the registry are dropped
                why = str(late)
            if why is not None:
                shutil.rmtree(place / "node_modules", ignore_errors=True)
                pytest.skip(f"npm could not install @grpc/grpc-js: {why}")
    return place / "node_modules"


class NodeAgent:
    """The process, and what it printed."""

    def __init__(self, modules: Path, **given: Any) -> None:
        self._lines: queue.Queue[dict[str, Any]] = queue.Queue()
        self.process = subprocess.Popen(
            ["node", str(NODE / "coven_agent.cjs"), json.dumps(given)],
            env={**os.environ, "NODE_PATH": str(modules)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            preexec_fn=lambda: _libc.prctl(1, signal.SIGKILL) and None,
        )
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(json.loads(line))

    def next(self, what: str) -> Any:
        """The next line, which must be of this kind."""
        line = self._lines.get(timeout=PATIENCE)
        assert list(line) == [what], line
        return line[what]

    def end(self) -> None:
        self.process.kill()
        self.process.wait(PATIENCE)


Start = Callable[..., NodeAgent]


@pytest.fixture
def node(hub: HubProcess, modules: Path, tmp_path: Path) -> Iterator[Start]:
    """Starts agents that end with the test."""
    proto = tmp_path / "coven.proto"
    proto.write_text(document_proto(), "utf-8")
    started: list[NodeAgent] = []

    def start(agent_id: str = "", **given: Any) -> NodeAgent:
        agent = NodeAgent(modules, address=hub.ready["grpc"], proto=str(proto), agentId=agent_id, **given)
        started.append(agent)
        assert agent.next("headers") is True
        return agent

    yield start
    for agent in started:
        agent.end()


def welcomed(hub: HubProcess, node: Start, id: str, **given: Any) -> NodeAgent:
    """An agent that is registered, and that the hub has seen."""
    agent = node(id, **given)
    welcome = agent.next("welcome")
    assert welcome["agent_id"] == id
    assert re.fullmatch("dragoman-[0-9a-f]{12}", welcome["server_id"])  # which hub it is
    until(lambda: hub.admin.get(f"/api/v1/agents/{id}").json["status"] == "idle", "the agent is there")
    return agent


def test_work_from_the_api_is_streamed_back_by_node(hub: HubProcess, node: Start) -> None:
    agent = welcomed(hub, node, "node-api", name="Node", capabilities=["chat"])
    wish = {"type": "chat", "agent": "node-api", "input": {"content": "What time is it?"}, "thread": "a-thread"}
    task = hub.admin.post("/api/v1/tasks", wish).json["id"]
    request = agent.next("request")
    assert (request["content"], request["thread_id"], request["sender"]) == ("What time is it?", "a-thread", "admin")
    done = hub.admin.get(f"/api/v1/tasks/{task}?wait=60&history=1").json
    assert (done["status"], done["output"], done["attempts"]) == ("completed", ANSWER, 1)
    told = Reader(task).read(hub.url, hub.ready["admin_token"])
    assert told.ended
    bodies = [event.body for event in told.seen if event.kind == "progress"]
    said = [*bodies[0], *(next(iter(body.keys() - {"status"})) for body in bodies[1:] if "output" not in body)]
    assert said == ["status", "thinking", "tool_use", "tool_result", "file"]
    assert told.text == ANSWER
    file = next(body["file"] for body in bodies if "file" in body)
    assert (file["name"], file["mime_type"], file["size"]) == ("noon.txt", "text/plain", 5)


def test_work_from_a_chiffon_orchestrator_over_websocket(hub: HubProcess, node: Start) -> None:
    agent = welcomed(hub, node, "node-chiffon", capabilities=["chat"])
    boss = hub.orchestrator("node-boss")
    with boss.websocket() as link:
        sent = work_request({"content": "What time is it?"}, x_custom_fields={"agent_id": "node-chiffon"})
        link.send(sent)
        assert agent.next("request")["content"] == "What time is it?"
        heard: list[dict[str, Any]] = []
        while not heard or heard[-1]["type"] != "work_result":
            heard.append(link.recv())
            link.ack(heard[-1])
    assert {task_of(message) for message in heard} == {task_of(sent)}
    assert {message["type"] for message in heard[:-1]} == {"work_status"}
    assert heard[-1]["payload"]["status"] == "success"
    assert heard[-1]["payload"]["output"] == ANSWER


def test_the_second_request_comes_when_the_first_is_done_and_a_killed_agents_comes_again(
    hub: HubProcess, node: Start
) -> None:
    agent = welcomed(hub, node, "node-killed", hold=True)
    wishes = [{"type": "chat", "agent": "node-killed", "input": {"content": str(n)}} for n in range(2)]
    tasks = [hub.admin.post("/api/v1/tasks", wish).json["id"] for wish in wishes]
    first = agent.next("request")
    assert first["content"] == "0"
    assert agent.next("holding") is True
    agent.end()  # kill -9 in the middle of the stream
    again = welcomed_again(node, "node-killed")
    assert [again.next("request")["request_id"], again.next("request")["content"]] == [first["request_id"], "1"]
    for task, attempts in zip(tasks, (2, 1), strict=True):
        done = hub.admin.get(f"/api/v1/tasks/{task}?wait=60").json
        assert (done["status"], done["attempts"]) == ("completed", attempts)
        assert done["output"] == ANSWER  # what the first attempt had said is no part of the answer


def welcomed_again(node: Start, id: str) -> NodeAgent:
    agent = node(id)
    assert agent.next("welcome")["agent_id"] == id
    return agent


def test_without_an_agent_id_is_invalid_argument(node: Start) -> None:
    status = node("").next("status")
    assert status["code"] == INVALID_ARGUMENT
    assert "agent_id" in status["details"]


def test_a_second_stream_of_the_same_agent_is_already_exists(hub: HubProcess, node: Start) -> None:
    first = welcomed(hub, node, "node-twice")
    status = node("node-twice").next("status")
    assert status["code"] == ALREADY_EXISTS
    assert "node-twice" in status["details"]
    hub.admin.post("/api/v1/tasks", {"type": "chat", "agent": "node-twice", "input": {"content": "still there?"}})
    assert first.next("request")["content"] == "still there?"


@pytest.mark.parametrize("with_token", [True, False])
def test_an_id_that_has_a_token_is_not_given_to_anybody_else(hub: HubProcess, node: Start, with_token: bool) -> None:
    mine, theirs = (
        hub.admin.post("/api/v1/agents", {"agent_id": f"{name}-{with_token}", "protocol": "coven"}).json
        for name in ("node-mine", "node-theirs")
    )
    thief = node(theirs["agent_id"], **({"token": mine["token"]} if with_token else {}))
    status = thief.next("status")
    assert status["code"] in (PERMISSION_DENIED, UNAUTHENTICATED)
    assert mine["token"] not in status["details"]
    owner = welcomed(hub, node, theirs["agent_id"], token=theirs["token"])
    assert owner.process.poll() is None


def test_a_hub_that_stops_asks_the_agent_to_leave(modules: Path, tmp_path: Path) -> None:
    hub = HubProcess(tmp_path / "own")
    proto = tmp_path / "coven.proto"
    proto.write_text(document_proto(), "utf-8")
    try:
        hub.start()
        agent = NodeAgent(modules, address=hub.ready["grpc"], proto=str(proto), agentId="leaves")
        assert agent.next("headers") is True
        assert agent.next("welcome")["agent_id"] == "leaves"
        assert hub.stop() == 0
        assert agent.next("shutdown")["reason"]
        assert agent.next("status")["code"] == 0
        agent.end()
    finally:
        hub.kill()

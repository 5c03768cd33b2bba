"""As `test_questions_over_restarts.py`, with real agents and real signals: processes that are killed or stopped while
they wait for a person, and the hub under them.

The hub's idle clock is set to ten minutes: nothing but the new process itself can bring its task on in time. A few
cells are in every run, all of them in the long runs: each starts two or three processes.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.support import rabbitmq
from tests.support.hubproc import HubProcess, running, until
from tests.support.nest import die_with_parent

ADDRESSES = (
    "chiffon+ws",
    "chiffon+http",
    "agentmsg+ws",
    "agentmsg+http",
    "forge+ws",
    "a2acp+ws",
    "a2acp+http",
    "coven",
    *(("chiffon+amqp",) if rabbitmq.installed() else ()),
)
ENDS = ("kill", "stop", "hub_too")
ANSWERED = ("away", "back")
ALWAYS: tuple[tuple[str, str, str], ...] = (
    ("forge+ws", "kill", "away"),
    ("a2acp+http", "stop", "back"),
    ("agentmsg+ws", "hub_too", "away"),
)
if rabbitmq.installed():
    ALWAYS = (*ALWAYS, ("chiffon+amqp", "hub_too", "away"))

AGENT = """
import sys
from dragoman import Agent, Task

agent = Agent("deployer")

@agent.on("deploy")
async def deploy(task: Task, place: str) -> dict:
    return {"place": place, "said": await task.ask(f"Deploy to {place}?")}

agent.run(sys.argv[1])
"""


class Deployer:
    """The agent's process, under one token."""

    def __init__(self, hub: HubProcess, address: str) -> None:
        self._hub = hub
        self._address = address
        protocol = address.partition("+")[0]
        wanted = {"agent_id": "deployer", "protocol": protocol}
        made = hub.admin.post("/api/v1/agents", wanted | ({"domain": "tests"} if protocol == "a2acp" else {}))
        assert made.status == 201, made
        self._token = made.json["token"]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        broker = self._hub.settings.get("DRAGOMAN_AMQP") or ""
        place = self._hub.ready["grpc"] if self._address == "coven" else self._hub.url.removeprefix("http://")
        place = broker.removeprefix("amqp://") or place
        self._process = subprocess.Popen(
            [sys.executable, "-c", AGENT, f"{self._address}://{place}"],
            cwd=self._hub.home,
            env={"DRAGOMAN_TOKEN": self._token, "PATH": ""},
            stdin=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=die_with_parent,
        )
        here = "/api/v1/agents/deployer"
        until(lambda: self._hub.admin.get(here).json["status"] in ("idle", "busy"), "the agent is there")

    def end(self, how: signal.Signals = signal.SIGKILL) -> None:
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(60)
            self._process = None


@pytest.fixture
def hub(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[HubProcess]:
    with ExitStack() as held:
        settings = {"DRAGOMAN_RULES__IDLE_SECONDS": "600"}
        if request.node.callspec.params["address"] == "chiffon+amqp":
            settings["DRAGOMAN_AMQP"] = held.enter_context(rabbitmq.host()).url
        yield held.enter_context(running(tmp_path, **settings))


def questions(hub: HubProcess) -> list[dict[str, Any]]:
    return list(hub.admin.get("/api/v1/questions").json["questions"])


def answer(hub: HubProcess) -> None:
    [asked] = questions(hub)
    assert hub.admin.post(f"/api/v1/questions/{asked['id']}/answer", {"answer": "yes"}).status == 200


@pytest.mark.parametrize(("address", "end", "answered"), ALWAYS, ids=["-".join(one) for one in ALWAYS])
def test_a_question_outlives_the_process_that_asked(hub: HubProcess, address: str, end: str, answered: str) -> None:
    asked_and_restarted(hub, address, end, answered)


@pytest.mark.soak
@pytest.mark.parametrize("answered", ANSWERED)
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("address", ADDRESSES)
def test_so_it_is_over_every_address(hub: HubProcess, address: str, end: str, answered: str) -> None:
    asked_and_restarted(hub, address, end, answered)


def asked_and_restarted(hub: HubProcess, address: str, end: str, answered: str) -> None:
    deployer = Deployer(hub, address)
    deployer.start()
    try:
        wanted = {"type": "deploy", "agent": "deployer", "input": {"place": "prod"}}
        task = hub.admin.post("/api/v1/tasks", wanted).json["id"]
        until(lambda: questions(hub), "the question")
        deployer.end(signal.SIGTERM if end == "stop" else signal.SIGKILL)
        if end == "hub_too":
            hub.restart()
        if answered == "away":
            answer(hub)
        deployer.start()
        if answered == "back":
            answer(hub)
        until(lambda: hub.status(task) == "completed", "the task", 30)
        done = hub.task(task)
        assert (done["result"], done["attempts"]) == ({"place": "prod", "said": "yes"}, 1)
        assert len(questions(hub)) == 1
    finally:
        deployer.end()

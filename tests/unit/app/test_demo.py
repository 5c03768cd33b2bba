"""The demo of `make run`, for real: a hub process, its children, the SDK beside them, and their end."""

from __future__ import annotations

import ast
import asyncio
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest
from tests.support.children import command_of
from tests.support.world import World

import dragoman.demo
from dragoman import Client, TaskFailed
from dragoman.app import demo
from dragoman.core.commands import AddAgent, RemoveAgent
from dragoman.core.ids import ADMIN, AgentId
from dragoman.demo import code, infra, planner
from dragoman.demo.roster import AGENTS, SCRIBE
from dragoman.security.tokens import token_hash

PATIENCE = 60.0
MAY_IMPORT = ("dragoman", "dragoman.demo", "dragoman.demo.roster", "dragoman.demo.editor", "dragoman.demo.research")
COMERS = [member for member in AGENTS if member is not SCRIBE]
"""The agents that connect; the scribe is the hub's own child."""


# -- without processes ------------------------------------------------------------------------------------------


def test_the_demo_is_built_on_nothing_but_what_users_have() -> None:
    for file in Path(dragoman.demo.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for name in names:
                assert name in MAY_IMPORT or not name.startswith("dragoman")


def test_every_request_of_the_demo_has_an_agent_that_does_it() -> None:
    parts = {member.address for member in AGENTS}
    errands = [*planner.OPENING, *planner.ROUND, planner.RELEASE, planner.DEPLOY]
    assert {job.target for job in errands} < parts
    assert {job.input["playbook"] for job in errands if job.work == "run_playbook"} <= set(infra.PLAYBOOKS)
    assert {job.input["suite"] for job in errands if job.work == "run_tests"} <= set(code.SUITES)
    assert [name for name, book in infra.PLAYBOOKS.items() if book.asks] == ["upgrade_postgres.yml"]
    assert planner.HANGS.input["host"] in infra.SILENT
    assert infra.PLAYBOOKS[planner.CERTS.input["playbook"]].breaks


def test_the_stream_of_work_slows_down() -> None:
    pauses = list(islice(planner.pauses(), 400))
    assert pauses == sorted(pauses)
    assert (pauses[0], pauses[100], pauses[-1]) == (3.0, 10.0, planner.SLOWEST)
    assert planner.STILL_OPEN > infra.ANSWER_WITHIN


@pytest.mark.parametrize(
    ("http", "agents"),
    [
        ("http://127.0.0.1:8420", "chiffon+ws://127.0.0.1:8420"),
        ("http://0.0.0.0:80", "chiffon+ws://127.0.0.1:80"),
        ("http://[::]:1", "chiffon+ws://[::1]:1"),
        ("https://hub.lan:443", "chiffon+wss://hub.lan:443"),
    ],
)
def test_agents_beside_the_hub_find_it(http: str, agents: str) -> None:
    assert demo.address("chiffon", http, "") == agents


def test_agents_beside_the_hub_find_its_grpc_port() -> None:
    assert demo.address("coven", "http://[::]:1", "[::]:50051") == "coven://[::1]:50051"


def test_commands_are_shown_as_they_must_be_typed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    there = tmp_path / ".venv/bin/dragoman"
    there.parent.mkdir(parents=True)
    there.touch(mode=0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(there), "dev"])
    monkeypatch.setenv("PATH", "/nowhere")
    assert ".venv/bin/dragoman ask ls\n" in demo.next_commands(Path(".dragoman"), "http://x/login/1")
    monkeypatch.setenv("PATH", str(there.parent))
    assert "  dragoman ask ls --data 'other place'\n" in demo.next_commands(Path("other place"), "http://x/login/1")


async def test_every_start_makes_new_tokens_for_the_same_agents() -> None:
    world = World()
    await world.start()
    running: Any = SimpleNamespace(intake=world.intake)
    first, second = await demo.add_agents(running), await demo.add_agents(running)
    assert set(first) == set(second) == {member.id for member in COMERS}
    known = {member.id: (member.domain, member.protocol) for member in COMERS}
    assert not set(first.values()) & set(second.values())
    for id, token in second.items():
        agent = world.intake.agent_of(token_hash(token))
        assert agent is not None
        assert (agent.id, (agent.domain, agent.protocol)) == (id, known[id])
    assert [world.intake.agent_of(token_hash(token)) for token in first.values()] == [None] * len(COMERS)
    await world.intake.stop()


async def test_an_agent_of_the_same_id_that_is_not_ours_keeps_its_token() -> None:
    world = World()
    await world.start()
    running: Any = SimpleNamespace(intake=world.intake)
    await demo.add_agents(running)
    theirs = world.intake.agent(AgentId("planner"))
    assert theirs is not None
    await world.intake.execute(RemoveAgent(principal=ADMIN, agent=theirs.id))
    real = type(theirs)(id=theirs.id, protocol="chiffon", created_at=world.time, token_hash="theirs")
    await world.intake.execute(AddAgent(principal=ADMIN, agent=real))
    before = world.intake.agents()
    with pytest.raises(demo.DemoRefused, match="'planner' that is not the demo's"):
        await demo.add_agents(running)
    assert world.intake.agents() == before
    await world.intake.stop()


# -- with processes ---------------------------------------------------------------------------------------------


class Hub:
    """`dragoman dev --demo` in a process of its own."""

    def __init__(self, data: Path) -> None:
        environ = {name: value for name, value in os.environ.items() if not name.startswith("DRAGOMAN_")}
        next_commands = ["dev", "--demo", "--port", "0", "--grpc-port", "0", "--data", str(data), "--ready-json"]
        self.err = (data.parent / "stderr").open("w+")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "dragoman.cli", *next_commands], stdout=subprocess.PIPE, stderr=self.err, env=environ
        )
        assert self.process.stdout is not None
        assert select.select([self.process.stdout], [], [], PATIENCE)[0], "the hub did not say that it serves"
        self.ready = json.loads(self.process.stdout.readline())

    def client(self) -> Client:
        return Client(self.ready["http"], token=self.ready["admin_token"])

    def children(self) -> dict[int, list[str]]:
        """The demo's processes by number, with their arguments. (The store's writer is a child too.)"""
        found = {}
        for task in Path(f"/proc/{self.process.pid}/task").iterdir():
            for pid in (task / "children").read_text().split():
                next_commands = command_of(int(pid)).decode().split("\0")
                if "dragoman.demo" in next_commands:
                    found[int(pid)] = next_commands
        return found

    def end(self, number: int) -> int:
        self.process.send_signal(number)
        return self.process.wait(PATIENCE)

    def said(self) -> str:
        self.err.flush()
        self.err.seek(0)
        return self.err.read()


@contextmanager
def playing(home: Path) -> Iterator[Hub]:
    hub = Hub(home / "data")
    try:
        yield hub
    finally:
        if hub.process.poll() is None:
            hub.process.kill()
            hub.process.wait(PATIENCE)
        assert hub.process.stdout is not None
        hub.process.stdout.close()
        hub.err.close()


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    """One demo for the tests that watch it; it stops as it does for a person who presses Ctrl-C."""
    with playing(tmp_path_factory.mktemp("demo")) as hub:
        yield hub
        children = hub.children()
        assert sorted(arguments[-3] for arguments in children.values()) == sorted(member.id for member in COMERS)
        assert hub.end(signal.SIGTERM) == 0
        assert gone(list(children), 0.0), "children outlive the hub"
        assert "the demo plays" in hub.said()
        assert "Traceback" not in hub.said()
        assert "never retrieved" not in hub.said()


def gone(pids: list[int], seconds: float = PATIENCE) -> bool:
    """Whether all of these processes end in time. Some may have ended already."""
    for pid in pids:
        try:
            watched = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            if not select.select([watched], [], [], seconds)[0]:
                return False
        finally:
            os.close(watched)
    return True


async def eventually(look: Callable[[], Any], seconds: float = PATIENCE) -> Any:
    """What `look` finds, as soon as it finds something."""
    async with asyncio.timeout(seconds):
        while not (found := await look()):
            await asyncio.sleep(0.05)
    return found


@pytest.mark.long
async def test_a_fresh_start_shows_a_question_and_a_failure_and_the_next_command_works(hub: Hub) -> None:
    async with hub.client() as people:
        [question] = await eventually(people.questions)
        assert (question.agent, question.options) == ("infra-1", ("yes", "no"))
        certs, site, tests, report = await asyncio.gather(
            people.call("infra-1", "run_playbook", playbook="renew_certs.yml"),
            people.call("infra-1", "run_playbook", playbook="site.yml"),
            people.call("code-1", "run_tests", suite="unit"),
            people.call("scribe", "write_report", topic="backups"),
            return_exceptions=True,
        )
        assert isinstance(certs, TaskFailed)
        assert "the certificate authority refused" in str(certs)
        assert (site["steps"], tests["failed"], report["words"]) == (5, 0, 17)

        await people.answer(question.id, "yes")
        async for event in people.events(question.task_id):
            last = event
        assert last.kind == "completed"


@pytest.mark.long
async def test_a_release_is_one_trace_over_all_agents_with_a_handoff_a_contract_and_a_retry(hub: Hub) -> None:
    headers = {"Authorization": f"Bearer {hub.ready['admin_token']}"}
    async with (
        hub.client() as people,
        httpx2.AsyncClient(base_url=hub.ready["http"], headers=headers, verify=False) as api,
    ):

        async def shipped() -> Any:
            for question in await people.questions():
                await people.answer(question.id, "yes")
            found = (await api.get("/api/v1/tasks", params={"type": "ship_release"})).json()["tasks"]
            return [task for task in found if task["status"] == "completed"]

        [row] = await eventually(shipped)
        release = (await api.get(f"/api/v1/tasks/{row['id']}")).json()
        assert release["result"]["deploy"] == "Deployed."
        sequence = (await api.get(f"/api/v1/tasks/{release['id']}/sequence")).json()
        dead = (await api.get("/api/v1/deadletters")).json()["deadletters"]
        agents = (await api.get("/api/v1/agents")).json()["agents"]
    spoken = {one["id"]: one["protocol"] for one in sequence["participants"]}
    assert set(spoken) == {member.id for member in AGENTS} | {"hub", "person"}
    assert set(spoken.values()) == {"chiffon", "coven", "forge", "agentmsg", "a2acp", None}
    kinds = {step["kind"] for step in sequence["steps"]}
    assert {"handed_over", "asked", "answered", "attempt_failed", "completed"} <= kinds
    assert [(one["receiver"], one["error"]["kind"]) for one in dead] == [("infra-1", "timeout")]
    assert {agent["status"] for agent in agents} <= {"idle", "busy"}


async def test_children_end_with_a_hub_that_is_killed(tmp_path: Path) -> None:
    with playing(tmp_path) as hub:

        async def all_there() -> bool:
            return len(hub.children()) == len(COMERS)

        await eventually(all_there)
        children = list(hub.children())
        hub.end(signal.SIGKILL)
        assert gone(children)

"""kill -9 of a coven agent, and of the hub under it, in every state of a stream. Judged from outside.

state of the stream     what is open             after the kill of either
----------------------  -----------------------  ------------------------------------------------------------
unregistered            nothing                  nothing happened
idle                    nothing                  the next task waits for the agent, and is its first attempt
unanswered              a request, sent          the same request again, under the same id
streaming               a request, half said     the same request again; the answer is the second one's alone
file                    a file on its way        as above; no half of it is left, and what is listed can be read
done                    `done` on its way        finished, or the same request again: one outcome either way
shutting down           a request, Shutdown      as above
"""

from __future__ import annotations

import base64
import queue
import signal
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.faults.coven_agents import Memory, connected
from tests.faults.killing import HAPPENED
from tests.support.coven_process import AgentProcess
from tests.support.fleet import BROKEN
from tests.support.hubproc import PATIENCE, HubProcess, running, until
from tests.support.sse import Reader

STATES = ("unregistered", "idle", "unanswered", "streaming", "file", "done")
FIRST_ATTEMPT = ("unregistered", "idle")
LARGE = base64.b64encode(bytes(range(256)) * 20_000).decode()
"""Five megabytes: still on their way when the kill comes."""
PIECES = [f"piece {n}, " for n in range(5)]
ANSWER = "".join(PIECES)


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubProcess]:
    with running(tmp_path_factory.mktemp("hub"), DRAGOMAN_RULES__IDLE_SECONDS="20") as hub:
        yield hub
        assert "Traceback" not in hub.log.read_text()


def submit(hub: HubProcess, id: str, key: str) -> str:
    wish = {"type": "chat", "agent": id, "input": {"content": "go on"}}
    made = hub.admin.post("/api/v1/tasks", wish, **{"Idempotency-Key": key})
    assert made.status == 202, made
    return str(made.json["id"])


def submit_to_nobody(hub: HubProcess, state: str, id: str) -> str:
    """A task for an agent whose stream is gone: on one that is about to be, it would be a first attempt."""
    if state == "unregistered":
        connected(hub, id).kill()  # the id is free, and now the hub knows it
    offline(hub, id)
    return submit(hub, id, id)


def offline(hub: HubProcess, id: str) -> None:
    until(lambda: hub.admin.get(f"/api/v1/agents/{id}").json["status"] == "offline", "its stream is gone")


def answer(agent: AgentProcess, request: Mapping[str, Any]) -> None:
    for piece in PIECES:
        agent.respond(dict(request), text=piece)
    agent.respond(dict(request), file={"filename": "a.bin", "mime_type": "a/b", "data": "AAECAw=="})
    agent.respond(dict(request), done={})


def brought_to(state: str, hub: HubProcess, id: str) -> tuple[AgentProcess, str | None, str | None]:
    """An agent whose stream is in this state, its task, and the request it was sent."""
    if state == "unregistered":
        return AgentProcess(hub.ready["grpc"]), None, None
    agent = connected(hub, id)
    if state == "idle":
        return agent, None, None
    task = submit(hub, id, id)
    request = agent.work()
    if state != "unanswered":
        agent.respond(request, text="half of ")
        until(lambda: hub.task(task)["output"] == "half of ", "the text is there")
    if state == "file":
        agent.respond(request, file={"filename": "large", "mime_type": "a/b", "data": LARGE})
    if state == "done":
        agent.respond(request, done={"full_response": ANSWER})
    return agent, task, request["request_id"]


def judge(hub: HubProcess, state: str, task: str, request: str | None, memory: Memory, watching: Reader) -> None:
    done = hub.task(task)
    assert (done["status"], done["output"]) == ("completed", ANSWER)
    if state in FIRST_ATTEMPT:
        assert done["attempts"] == 1
    elif state != "done":
        assert done["attempts"] <= 2  # one, if the hub died before it knew that the request had arrived
        assert list(memory.effects) == [request]  # the same id again, so that an agent can know it
    assert set(memory.effects.values()) <= {1}
    # Who reads along, over the kill or from the beginning, misses nothing and hears nothing twice.
    until(lambda: watching.read(hub.url, hub.ready["admin_token"]).ended, "the end of the events")
    afresh = Reader(task).read(hub.url, hub.ready["admin_token"])
    assert watching.seen == afresh.seen
    assert afresh.numbers == list(range(1, len(afresh.numbers) + 1))
    assert [told.kind for told in afresh.seen].count("completed") == 1
    for file in hub.admin.get(f"/api/v1/tasks/{task}/files").json["files"]:
        assert len(hub.admin.get(f"/api/v1/tasks/{task}/files/{file['id']}").body) == file["size"]
    assert not list((hub.data / "files").glob("*.part"))
    until(lambda: hub.pending == 0, "nothing is pending")


def finish(hub: HubProcess, id: str, task: str, memory: Memory) -> None:
    """A new process of the agent does what there is to do."""
    again = connected(hub, id)
    try:
        work(hub, again, task, memory)
    finally:
        again.kill()


def work(hub: HubProcess, agent: AgentProcess, task: str, memory: Memory) -> None:
    """Whatever is asked, until the task is done: what was said before a kill may still be on its way, and suffice."""

    def done() -> bool:
        if hub.status(task) == "completed":
            return True
        request = agent.maybe_work()
        if request is not None:
            memory.does(request)
            answer(agent, request)
        return False

    until(done, "the task is done")


def watched(hub: HubProcess, task: str) -> tuple[Reader, threading.Thread]:
    reader = Reader(task)
    thread = threading.Thread(target=reader.read, args=(hub.url, hub.ready["admin_token"]), daemon=True)
    thread.start()
    return reader, thread


def ended(thread: threading.Thread) -> None:
    thread.join(PATIENCE)
    assert not thread.is_alive()


@pytest.mark.parametrize("state", STATES)
def test_a_kill_of_the_agent_loses_and_doubles_nothing(hub: HubProcess, state: str) -> None:
    id, memory = f"agent-{state}", Memory()
    agent, task, request = brought_to(state, hub, id)
    if request is not None:
        memory.effects[request] += 1
    reader, thread = watched(hub, task) if task else (None, None)
    agent.kill()
    if task is None:
        task = submit_to_nobody(hub, state, id)
    finish(hub, id, task, memory)
    if thread is not None:
        ended(thread)
    judge(hub, state, task, request, memory, reader or Reader(task))


@pytest.mark.parametrize(
    "state", [pytest.param(state, marks=pytest.mark.soak) if state in FIRST_ATTEMPT else state for state in STATES]
)
def test_a_kill_of_the_hub_loses_and_doubles_nothing(hub: HubProcess, state: str) -> None:
    id, memory = f"hub-{state}", Memory()
    agent, task, request = brought_to(state, hub, id)
    reader, thread = watched(hub, task) if task else (None, None)
    if request is not None:
        memory.effects[request] += 1
    if reader is not None:
        until(lambda: reader.seen, "the reader reads")
    hub.restart()
    assert agent.ended() == "UNAVAILABLE"
    agent.kill()
    if thread is not None:
        ended(thread)
    if task is None:
        task = submit_to_nobody(hub, state, id)
    finish(hub, id, task, memory)
    judge(hub, state, task, request, memory, reader or Reader(task))


# -- stopping


def test_a_kill_of_the_agent_while_the_hub_stops_gives_the_work_back(tmp_path: Path) -> None:
    with running(tmp_path) as hub:
        agent, task, request = brought_to("streaming", hub, "leaves")
        assert hub.process is not None
        hub.process.send_signal(signal.SIGTERM)
        assert agent.hear("shutdown")["reason"]
        agent.kill()
        assert hub.died() == 0  # it waited for this agent, and for no longer
        hub.start()
        memory = Memory()
        assert task is not None
        finish(hub, "leaves", task, memory)
        judge(hub, "streaming", task, request, memory, Reader(task))


def test_a_kill_of_the_hub_while_it_stops_loses_no_message(tmp_path: Path) -> None:
    with running(tmp_path) as hub:
        agent, task, request = brought_to("streaming", hub, "stays")
        assert hub.process is not None
        assert task is not None
        hub.process.send_signal(signal.SIGTERM)
        assert agent.hear("shutdown")["reason"]
        agent.respond({"request_id": request}, text="the other half")
        agent.respond({"request_id": request}, done={})
        assert agent.process.poll() is None
        hub.restart()
        agent.kill()
        memory = Memory()
        if hub.status(task) == "completed":
            assert hub.task(task)["output"] == "half of the other half"
        else:
            finish(hub, "stays", task, memory)
            judge(hub, "streaming", task, request, memory, Reader(task))


def test_a_second_ctrl_c_ends_a_hub_that_waits_for_its_agents(tmp_path: Path) -> None:
    with running(tmp_path) as hub:
        agent, task, _ = brought_to("streaming", hub, "lingers")
        assert hub.process is not None
        hub.process.send_signal(signal.SIGINT)
        assert agent.hear("shutdown")["reason"]
        hub.process.send_signal(signal.SIGINT)
        assert hub.died() == 130
        said = hub.log.read_text()
        assert "lingers" in said.partition("stopping")[2]  # for whom it waits
        assert "ended at once; what was accepted is kept and goes on at the next start" in said
        agent.kill()
        hub.start()
        finish(hub, "lingers", str(task), Memory())


def test_the_result_of_an_agent_that_finishes_while_the_hub_stops_counts(tmp_path: Path) -> None:
    with running(tmp_path) as hub:
        agent, task, request = brought_to("streaming", hub, "finishes")
        assert hub.process is not None
        hub.process.send_signal(signal.SIGTERM)
        agent.hear("shutdown")
        agent.respond({"request_id": request}, text="it")
        agent.respond({"request_id": request}, done={})
        agent.close()
        assert hub.died() == 0
        hub.start()
        done = hub.task(str(task))
        assert (done["status"], done["output"], done["attempts"]) == ("completed", "half of it", 1)


# -- at every named step of the road


def play(hub: HubProcess, memory: Memory, readers: list[Reader]) -> None:
    """From nothing to a finished task; may be begun again at any point."""
    task = submit_when_known(hub)
    readers[:] = readers or [Reader(task)]
    threads = [threading.Thread(target=readers[0].read, args=(hub.url, hub.ready["admin_token"]), daemon=True)]
    threads[0].start()
    agent = connected(hub, "walker")
    try:
        work(hub, agent, task, memory)
    finally:
        agent.kill()
        ended(threads[0])


def submit_when_known(hub: HubProcess) -> str:
    if hub.admin.get("/api/v1/agents/walker").status == 404:
        connected(hub, "walker").kill()
        offline(hub, "walker")
    return submit(hub, "walker", "the-one-task")


def walk(home: Path, step: str) -> bool:
    """Whether the hub came by this step, and died of it."""
    hub, memory, readers = HubProcess(home), Memory(), list[Reader]()
    try:
        hub.start()
        hub.restart(DRAGOMAN_CRASH_AT=step)
        try:
            play(hub, memory, readers)
            killed = False
        except (*BROKEN, AssertionError, queue.Empty):
            assert hub.died() == -signal.SIGKILL, step
            killed = True
        hub.restart()
        play(hub, memory, readers)
        (task,) = hub.tasks()
        judge(hub, "done", task["id"], None, memory, readers[0])
        assert task["attempts"] <= 2
        return killed
    finally:
        hub.kill()


@pytest.mark.parametrize(
    "step",
    [
        "before_commit:5",
        "after_send",
        pytest.param("after_commit:7", marks=pytest.mark.soak),
        pytest.param("writer:after_commit:6", marks=pytest.mark.soak),
        pytest.param("before_send", marks=pytest.mark.soak),
        pytest.param("before_ack:5", marks=pytest.mark.soak),
    ],
)
def test_nothing_is_lost_or_doubled_by_a_kill_at(step: str, tmp_path: Path) -> None:
    assert walk(tmp_path, step)


@pytest.mark.soak
@pytest.mark.parametrize("step", HAPPENED)
def test_nothing_is_lost_or_doubled_by_a_kill_at_any_commit(step: str, tmp_path: Path) -> None:
    """At the first, the second, …, until there is no such commit on the whole road."""
    kills = 0
    while walk(tmp_path / str(kills), f"{step}:{kills + 1}"):
        kills += 1
    assert kills > 5

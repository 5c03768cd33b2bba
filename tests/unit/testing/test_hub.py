"""The hub for tests, tested: every protocol over its real endpoint, time, people, faults, and errors."""

from __future__ import annotations

import asyncio
import gc
import re
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from dragoman import Agent, Client, File, NotFound, RequestRefused, Task, TaskFailed
from dragoman.sdk.work.journal import Journal
from dragoman.testing import Hub, Misused, Stuck

PROTOCOLS = ("chiffon", "coven", "forge", "agentmsg", "a2acp")


class Deployer(Agent):
    """Counts what it did."""

    def __init__(self, id: str = "deployer", **given: Any) -> None:
        super().__init__(id, version="1.2.3", **given)
        self.runs: list[str] = []
        self.on("run_playbook", timeout=300)(self.run_playbook)
        self.on("restart")(self.restart)

    async def run_playbook(self, task: Task, playbook: str) -> dict[str, Any]:
        self.runs.append(playbook)
        await task.progress(50, "configure", output="3 monitors added\n")
        return {"playbook": playbook, "attempt": len(self.runs)}

    async def restart(self, task: Task, host: str = "prod") -> str:
        if await task.ask(f"Restart {host}?", options=["yes", "no"], timeout=300, default="no") == "no":
            raise task.reject("declined by a person")
        return f"{host} restarted"


def bare(result: Any) -> Any:
    """A2acp's results are objects: what an agent returns that is none comes in one."""
    return result["result"] if isinstance(result, dict) else result


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_work_is_done_once_whatever_is_lost_on_the_way(hub: Hub, protocol: str) -> None:
    agent = Deployer()
    hub.add(agent, protocol=protocol)
    assert hub.call("deployer", "run_playbook", playbook="a") == {"playbook": "a", "attempt": 1}
    hub.faults.drop_response("deployer", times=2)
    assert hub.call("deployer", "run_playbook", playbook="b") == {"playbook": "b", "attempt": 2}
    hub.faults.drop_request(agent)
    assert hub.call("deployer", "run_playbook", playbook="c") == {"playbook": "c", "attempt": 3}
    hub.faults.disconnect("deployer")
    assert hub.call("deployer", "run_playbook", playbook="d") == {"playbook": "d", "attempt": 4}
    assert agent.runs == ["a", "b", "c", "d"]
    assert hub.faults.dropped("deployer") == {"request": 1, "response": 2}


@pytest.mark.parametrize("protocol", ["chiffon", "agentmsg", "a2acp"])
def test_agents_that_poll(hub: Hub, protocol: str) -> None:
    agent = Deployer()
    hub.add(agent, protocol=protocol, transport="http")
    hub.faults.drop_response("deployer")
    assert hub.call("deployer", "run_playbook", playbook="a") == {"playbook": "a", "attempt": 1}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_callers_of_every_protocol(hub: Hub, protocol: str) -> None:
    agent = Deployer(domain="tests")
    hub.add(agent, protocol="a2acp" if protocol == "a2acp" else "chiffon")
    with hub.sync_client(protocol, domain="tests", version="1.0.0") as client:
        assert client.call("run_playbook", {"playbook": "a"}, agent="deployer")["playbook"] == "a"


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_file_comes_with_the_work_over_every_protocol(hub: Hub, protocol: str) -> None:
    reader = Agent("reader")

    @reader.on("read")
    async def read(task: Task, page: int) -> list[str]:
        return [f"{page} {file.name} {file.data.decode()}" for file in task.files]

    hub.add(reader, protocol=protocol)
    with hub.sync_client("forge", "boss") as boss:
        task = boss.submit("reader", "read", {"page": 7}, files=[File("notes.txt", "text/plain", b"hello")])
        assert bare(boss.result(task)) == ["7 notes.txt hello"]


@pytest.mark.parametrize("protocol", ["chiffon", "coven", "forge"])
def test_a_file_comes_out_of_the_work_where_the_protocol_has_a_place_for_it(hub: Hub, protocol: str) -> None:
    painter = Agent("painter")

    @painter.on("draw")
    async def draw(task: Task) -> str:
        await task.send_file("a plan.png", b"\x00\xff", "image/png")
        return "drawn"

    hub.add(painter, protocol=protocol)
    with hub.sync_client("coven", "boss") as boss:
        files = [event.data["file"] for event in boss.stream("painter", "draw") if "file" in event.data]
    assert [(file["name"], file["mime_type"], file["data"]) for file in files] == [
        ("a plan.png", "image/png", b"\x00\xff")
    ]


@pytest.mark.parametrize("protocol", ["chiffon", "coven", "forge", "agentmsg"])
def test_a_client_that_leaves_without_asking_how_it_ended_says_nothing(
    hub: Hub, protocol: str, caplog: pytest.LogCaptureFixture
) -> None:
    hub.add(Deployer())
    with hub.sync_client(protocol, "boss") as boss:
        boss.submit("deployer", "restart", {"host": "web"})  # it waits for a person
    gc.collect()
    assert [record.getMessage() for record in caplog.records if record.name == "asyncio"] == []


@pytest.mark.parametrize("protocol", ["chiffon", "coven", "forge", "agentmsg", None])
def test_a_caller_reads_the_same_sentence_over_every_protocol(hub: Hub, protocol: str | None) -> None:
    hub.add(Deployer())
    with hub.sync_client(*([protocol, "boss"] if protocol else [])) as boss:
        with pytest.raises(RequestRefused, match="ask for what is done") as refused:
            boss.call("deployer", "dance")
        with pytest.raises(RequestRefused, match="nobody") as unknown:
            boss.call("nobody", "dance")
        with pytest.raises(TaskFailed) as failed:
            boss.call("deployer", "run_playbook", playbook=3)
    kinds = refused.value.kind, unknown.value.kind, failed.value.kind
    assert kinds == ("unsupported_work", "unavailable", "invalid")


def test_agents_of_several_protocols_work_together(hub: Hub) -> None:
    planner = Agent("planner")

    @planner.on("plan")
    async def plan(steps: int) -> list[str]:
        async with Client() as client:  # DRAGOMAN_URL is the hub of the test
            return [(await client.call("deployer", "run_playbook", playbook=str(n)))["playbook"] for n in range(steps)]

    hub.add(planner, protocol="coven")
    hub.add(Deployer(), protocol="agentmsg")
    hub.faults.drop_response("deployer")
    assert hub.call("planner", "plan", steps=2) == ["0", "1"]


def test_domains_contracts_and_their_time(hub: Hub) -> None:
    records = Agent("records", domain="clinic", version="2.1.0")

    @records.task("read_record", pii=True, requires=("read:records",), timeout=20)
    async def read_record(patient: str) -> dict[str, str]:
        return {"patient": patient}

    hub.add(records, protocol="a2acp")
    hub.allow("research", "clinic")
    with hub.sync_client("a2acp", "lab", domain="research", capabilities=("read:records",)) as lab:
        first = lab.contract("read_record", agent="records")
        assert lab.call("read_record", {"patient": "Jane Roe"}, agent="records") == {"patient": "Jane Roe"}
        hub.clock.advance(timedelta(hours=25))  # contract and token are over by then
        assert lab.call("read_record", {"patient": "Jane Roe"}, agent="records") == {"patient": "Jane Roe"}
        assert lab.contract("read_record", agent="records").contract_id != first.contract_id


# --- people ---


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_person_answers(hub: Hub, protocol: str) -> None:
    hub.add(Deployer(), protocol=protocol)
    hub.human.answers("yes")
    hub.human.answers("no", to="Restart db?")
    assert bare(hub.call("deployer", "restart", host="web")) == "web restarted"
    with pytest.raises(TaskFailed, match="declined by a person"):
        hub.call("deployer", "restart", host="db")
    assert [(one.question, one.options, one.answer) for one in hub.human.asked] == [
        ("Restart web?", ("yes", "no"), "yes"),
        ("Restart db?", ("yes", "no"), "no"),
    ]


def test_a_person_who_says_nothing_costs_no_time(hub: Hub) -> None:
    hub.add(Deployer())
    began = hub.clock.now
    with pytest.raises(TaskFailed, match="declined"):
        hub.call("deployer", "restart")
    assert hub.clock.now - began == timedelta(seconds=300)


def test_answers_in_turn_by_pattern_and_by_function(hub: Hub) -> None:
    hub.add(Deployer())
    hub.human.answers("no", "yes")
    hub.human.answers(lambda question: question.options[0], to=re.compile(r"db-\d"))
    for host, works in (("a", False), ("db-7", True), ("b", True), ("c", True)):
        if works:
            assert hub.call("deployer", "restart", host=host) == f"{host} restarted"
        else:
            with pytest.raises(TaskFailed, match="declined"):
                hub.call("deployer", "restart", host=host)


def test_a_question_can_be_looked_at_before_it_is_answered(hub: Hub) -> None:
    hub.add(Deployer())
    task = hub.submit("deployer", "restart", {"host": "web"})
    assert [one.status for one in hub.human.asked] == ["open"]
    assert hub.task(task).status == "waiting"
    hub.human.answers("yes")
    assert hub.result(task) == "web restarted"
    kinds = [event.kind for event in hub.events(task)]
    assert (kinds[-1], "asked" in kinds) == ("completed", True)


def test_an_answer_that_is_no_option_fails_the_test(hub: Hub) -> None:
    hub.add(Deployer())
    hub.human.answers("perhaps")
    with pytest.raises(Misused, match=r"refused the person's answer to 'Restart prod\?'"):
        hub.call("deployer", "restart")


# --- time ---


def test_time_stands_still_until_it_is_moved(hub: Hub) -> None:
    began = hub.clock.now
    agent = Agent("slow")

    @agent.on("wait", timeout=60)
    async def wait(seconds: float) -> str:
        await hub.clock.sleep(seconds)
        return "done"

    hub.add(agent)
    task = hub.submit("slow", "wait", {"seconds": 50})
    hub.clock.advance(49)
    assert hub.task(task).status in ("assigned", "running")
    hub.clock.advance(timedelta(seconds=1))
    assert hub.task(task).status == "completed"
    assert hub.clock.now - began == timedelta(seconds=50)
    late = hub.submit("slow", "wait", {"seconds": 70})
    hub.clock.advance(62)
    assert (hub.task(late).status, hub.task(late).exit_code) == ("failed", 124)
    assert hub.call("slow", "wait", seconds=20) == "done"  # nothing else happens, so time passes


def test_retries_and_dead_letters_cost_no_time(hub: Hub) -> None:
    agent = Deployer()
    hub.add(agent)
    hub.remove(agent)
    task = hub.submit("deployer", "run_playbook", {"playbook": "a"})
    assert hub.task(task).status == "queued"
    with pytest.raises(TaskFailed) as failed:
        hub.result(task)
    assert failed.value.facts["attempts"] == 4
    assert agent.runs == []


def test_an_agent_that_is_removed_and_comes_back_goes_on(hub: Hub, tmp_path: Path) -> None:
    agent = Deployer(state_dir=tmp_path / "not used")
    hub.add(agent)
    hub.remove("deployer")
    task = hub.submit("deployer", "run_playbook", {"playbook": "a"})
    hub.add(agent)
    assert hub.result(task) == {"playbook": "a", "attempt": 1}
    assert not (tmp_path / "not used").exists()


def test_plain_functions_at_work_are_waited_for(hub: Hub) -> None:
    agent, may_end = Agent("plain"), threading.Event()

    @agent.on("work")
    def work() -> str:
        return "done" if may_end.wait(60) else "late"

    hub.add(agent, protocol="coven")
    began = hub.clock.now
    threading.Timer(0.1, may_end.set).start()
    assert hub.call("plain", "work") == "done"
    assert hub.clock.now == began


# --- restarts ---


@pytest.mark.dragoman(store="sqlite")
@pytest.mark.parametrize("protocol", ["chiffon", "coven"])
def test_a_hub_that_restarts_has_lost_nothing(hub: Hub, protocol: str) -> None:
    agent = Deployer()
    hub.add(agent, protocol=protocol)
    asked = hub.submit("deployer", "restart", {"host": "web"})
    hub.faults.restart_hub()
    assert hub.task(asked).status == "waiting"
    assert hub.call("deployer", "run_playbook", playbook="a") == {"playbook": "a", "attempt": 1}
    hub.human.answers("yes")
    assert hub.result(asked) == "web restarted"


@pytest.mark.dragoman(store="sqlite")
async def test_a_client_that_waits_for_a_result_waits_over_a_restart(hub: Hub) -> None:
    agent, may_end = Agent("slow"), threading.Event()

    @agent.on("work")
    async def work() -> str:
        await asyncio.to_thread(may_end.wait)
        return "done"

    hub.add(agent, protocol="forge")
    waiting = [asyncio.ensure_future(hub.aio.call("slow", "work"))]
    async with hub.client() as client:
        waiting.append(asyncio.ensure_future(client.call("slow", "work")))
        await hub.aio.settle()
        await asyncio.to_thread(hub.faults.restart_hub)
        may_end.set()
        assert await asyncio.gather(*waiting) == ["done", "done"]


# --- tests with a loop of their own ---


async def test_a_test_that_goes_on_meanwhile(hub: Hub) -> None:
    loop = asyncio.get_running_loop()
    agent = Agent("caller")

    @agent.on("call_back")
    async def call_back() -> str:
        done = asyncio.run_coroutine_threadsafe(asyncio.sleep(0, "heard"), loop)  # only if this loop runs
        return await asyncio.wrap_future(done)

    hub.add(agent)
    assert await hub.aio.call("caller", "call_back") == "heard"
    task = await hub.aio.submit("caller", "call_back")
    await hub.aio.advance(5)
    await hub.aio.settle()
    assert await hub.aio.result(task) == "heard"
    async with hub.client() as people, hub.client("forge", "boss") as boss:
        assert await people.call("caller", "call_back") == "heard"
        assert await boss.call("caller", "call_back") == "heard"


# --- what a test is told ---


MISUSES: tuple[tuple[Callable[[Hub], Any], str], ...] = (
    (lambda hub: hub.add(Deployer(), protocol="smtp"), r"no protocol 'smtp': chiffon, agentmsg, a2acp, forge, coven"),
    (lambda hub: hub.add(Deployer(), protocol="forge", transport="http"), r"spoken over ws here, not over 'http'"),
    (lambda hub: hub.add("deployer"), r"takes a dragoman.Agent, not str"),  # type: ignore[arg-type]
    (lambda hub: hub.faults.disconnect("nobody"), r"no agent 'nobody' running here \(there is: nobody\)"),
    (lambda hub: [hub.add(Deployer()), hub.add(Deployer())], r"is running already.*hub.remove\('deployer'\)"),
    (lambda hub: hub.faults.drop_request("deployer", times=0), r"at least 1"),
    (lambda hub: [hub.let_in("x", "coven"), hub.let_in("x", "forge")], r"'x' is here already, and speaks coven"),
    (lambda hub: hub.let_in("a b"), r"did not add 'a b'"),
    (lambda hub: hub.clock.advance(-1), r"time only goes forward"),
    (lambda hub: hub.human.answers(), r"say what the person answers"),
    (lambda hub: hub.faults.restart_hub(), r'would lose everything.*dragoman\(store="sqlite"\)'),
    (lambda hub: hub.client(kind="infra"), r"only for a client that speaks a protocol"),
    (lambda hub: Hub(store="paper"), r"memory or sqlite, not 'paper'"),
    (lambda hub: Hub(settings={"server.port": 1}), r"server.port cannot be set here"),
    (lambda hub: Hub(settings={"rules.idle": 1}), r"no setting 'rules.idle'"),
    (lambda hub: Hub(settings={"rules.idle_seconds": "x"}), r"'x' does not do"),
    (lambda hub: Hub().add(Deployer()), r"with Hub\(…\) as hub"),
    (lambda hub: hub.__enter__(), r"has been started already"),
)


def test_misuse_is_an_error_that_says_what_to_do(hub: Hub) -> None:
    for misuse, told in MISUSES:
        with pytest.raises(Misused, match=told):
            misuse(hub)


def test_an_agent_that_cannot_work_says_why_at_once(hub: Hub) -> None:
    with pytest.raises(Exception, match="does nothing: declare a function"):
        hub.add(Agent("idle"))
    with pytest.raises(RequestRefused, match="idle"):
        hub.call("idle", "anything")
    with pytest.raises(NotFound):
        hub.result("00000000-0000-4000-8000-000000000000")


def test_a_handler_cannot_wait_for_its_own_thread(hub: Hub) -> None:
    agent = Agent("eager")

    @agent.on("advance")
    async def advance() -> None:
        hub.clock.advance(1)

    hub.add(agent)
    with pytest.raises(TaskFailed, match=r"the hub's own thread"):
        hub.call("eager", "advance")


def test_a_task_that_never_ends_says_why(hub: Hub) -> None:
    agent = Agent("curious")

    @agent.on("ask")
    async def ask(task: Task) -> str:
        return str(await task.ask("How long?"))

    @agent.on("hang")
    async def hang() -> None:
        await asyncio.Event().wait()

    hub.add(agent)
    with pytest.raises(Stuck, match=r"nothing is due.*it is waiting\..*How long\?.*hub\.human\.answers"):
        hub.call("curious", "ask")
    hub.patience = 2
    with pytest.raises(Stuck, match=r"after 2 s \(hub\.patience\).*A handler is at work.*hub\.clock\.advance"):
        hub.call("curious", "hang")


def test_no_time_passes_while_an_agent_waits_for_its_disk(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under load an fsync of the agent's journal takes longer than the silence after which time passes."""
    write, never = Journal._write, threading.Event()

    def slow(journal: Journal, lines: list[bytes], snapshot: list[bytes] | None) -> None:
        never.wait(1.0)
        write(journal, lines, snapshot)

    hub.add(Deployer(state_dir="state"))
    hub.human.answers("yes")
    before = hub.clock.now
    monkeypatch.setattr(Journal, "_write", slow)
    assert hub.call("deployer", "restart") == "prod restarted"
    assert hub.clock.now - before < timedelta(seconds=1)

"""Nothing is done twice and no result is lost: repetitions, broken connections, restarts."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.unit.sdk.harness import PATIENCE, FakeHub, FakeRuntime, Running, settle

from dragoman import Agent, Misconfigured, Task
from dragoman.sdk.runtime import backoff


def counting(agent: Agent) -> list[int]:
    """An agent with one handler; the list has an entry for each run of it."""
    runs: list[int] = []

    @agent.on("count")
    async def count(n: int = 0) -> dict[str, int]:
        runs.append(n)
        return {"run": len(runs)}

    return runs


@pytest.mark.requirement("CH-IDM-1", "CH-IDM-2", "all-D5")
async def test_the_same_request_twice_is_one_run_and_the_same_result_twice(agent: Agent, hub: FakeHub) -> None:
    runs = counting(agent)
    async with Running(agent, hub):
        first = hub.request("count", {"n": 1})
        one = await hub.next("work_result")
        hub.request("count", {"n": 1}, task_id=first.payload.task_id, request_id=first.request_id)
        two = await hub.next("work_result")
    assert runs == [1]
    assert one == two


@pytest.mark.requirement("CH-IDM-2")
async def test_a_repetition_joins_the_run_under_way_and_gets_a_sign_of_life(agent: Agent, hub: FakeHub) -> None:
    gate = asyncio.Event()
    runs = []

    @agent.on("wait")
    async def wait() -> str:
        runs.append(1)
        await gate.wait()
        return "done"

    async with Running(agent, hub):
        first = hub.request("wait")
        await settle()
        again = hub.request("wait", task_id=first.payload.task_id, request_id=first.request_id)
        status = await hub.next()
        gate.set()
        await hub.next("work_result")
        await settle()
    assert status.type == "work_status"
    assert again.x_custom_fields["delivery_id"] in hub.acked
    assert (len(runs), hub.count("work_result")) == (1, 1)


@pytest.mark.requirement("all-D5")
async def test_one_request_id_with_two_contents_is_declined(agent: Agent, hub: FakeHub) -> None:
    runs = counting(agent)
    async with Running(agent, hub):
        first = hub.request("count", {"n": 1})
        await hub.next("work_result")
        hub.request("count", {"n": 2}, task_id=first.payload.task_id, request_id=first.request_id)
        error = await hub.next("error")
    assert error.payload.error_context["field_name"] == "request_id"
    assert runs == [1]


@pytest.mark.requirement("all-D5")
async def test_an_error_is_not_remembered(agent: Agent, hub: FakeHub) -> None:
    counting(agent)
    async with Running(agent, hub):
        first = hub.request("count", {"bad": 1})
        await hub.next("error")
        hub.request("count", {"bad": 1}, task_id=first.payload.task_id, request_id=first.request_id)
        assert (await hub.next()).type == "error"


@pytest.mark.requirement("CH-IDM-3")
async def test_a_result_without_receipt_is_sent_again_after_the_reconnection(agent: Agent, hub: FakeHub) -> None:
    runs = counting(agent)
    async with Running(agent, hub):
        hub.accepts = False
        hub.request("count")
        lost = await hub.next("work_result")
        hub.cut()
        hub.accepts = True
        await hub.runtime.advance(1)
        again = await hub.next("work_result")
        await settle()
        hub.cut()
        await hub.runtime.advance(5)
    assert again == lost
    assert runs == [0]
    assert hub.count("work_result") == 2


async def test_an_accepted_result_is_not_sent_again(agent: Agent, hub: FakeHub) -> None:
    counting(agent)
    async with Running(agent, hub):
        hub.request("count")
        await hub.next("work_result")
        await settle()
        hub.cut()
        await hub.runtime.advance(5)
        assert hub.dialled == 2
    assert hub.count("work_result") == 1


async def test_a_split_result_that_broke_off_begins_again_under_fresh_ids(agent: Agent, hub: FakeHub) -> None:
    agent.on("dump")(lambda: "x" * 1_500_000)
    async with Running(agent, hub):
        hub.accepts = False
        hub.request("dump")
        first = [await hub.next("work_result") for _ in range(6)]
        hub.cut()
        hub.accepts = True
        await hub.runtime.advance(1)
        second = [await hub.next("work_result") for _ in range(6)]
        await settle()
        hub.cut()
        await hub.runtime.advance(1)
    assert [m.payload for m in first] == [m.payload for m in second]
    assert not {m.message_id for m in first} & {m.message_id for m in second}
    assert hub.count("work_result") == 12


async def test_after_a_reconnection_running_work_shows_at_once_that_it_lives(agent: Agent, hub: FakeHub) -> None:
    @agent.on("wait")
    async def wait() -> None:
        await asyncio.Event().wait()

    async with Running(agent, hub):
        request = hub.request("wait")
        await settle()
        hub.cut()
        await hub.runtime.advance(0.2)
        status = await hub.next()
    assert (status.type, status.request_id) == ("work_status", request.request_id)


async def test_output_sent_while_the_connection_was_down_arrives_afterwards_in_order(
    agent: Agent, hub: FakeHub
) -> None:
    gate = asyncio.Event()

    @agent.on("talk")
    async def talk(task: Task) -> str:
        await gate.wait()
        for n in range(20):
            await task.log(f"line {n}")
        return "end"

    async with Running(agent, hub):
        hub.request("talk")
        await settle()
        hub.is_down = True
        hub.cut()
        await settle()
        gate.set()
        await hub.runtime.advance(30)
        hub.is_down = False
        await hub.runtime.advance(20)
        await hub.next("work_result")
    outputs = [m.payload.step.output for m in hub.said if m.type == "work_status" and m.payload.step]  # type: ignore[union-attr]
    assert outputs == [f"line {n}\n" for n in range(20)]


async def test_the_agent_comes_back_with_growing_pauses(agent: Agent, hub: FakeHub) -> None:
    counting(agent)
    hub.is_down = True
    async with Running(agent, hub):
        await hub.runtime.advance(10)
        tries = hub.dialled
        await hub.runtime.advance(60)
        assert hub.dialled - tries < 10
        hub.is_down = False
        await hub.runtime.advance(15)
        hub.request("count")
        await hub.next("work_result")


def test_pauses_double_up_to_a_limit_and_are_jittered() -> None:
    assert [backoff(n, 1.0) for n in range(4)] == [0.1, 0.2, 0.4, 0.8]
    assert backoff(50, 1.0) == 15.0
    assert backoff(50, 0.0) == 7.5


# --- restarts ---


def restarted(runtime: FakeRuntime, state: Path) -> Agent:
    return Agent("worker", runtime=runtime, state_dir=state)


async def test_a_result_survives_a_restart_of_the_agent(runtime: FakeRuntime, hub: FakeHub, tmp_path: Path) -> None:
    before = restarted(runtime, tmp_path)
    runs = counting(before)
    async with Running(before, hub):
        request = hub.request("count", {"n": 1})
        first = await hub.next("work_result")
        await settle()
    after = restarted(runtime, tmp_path)
    later_runs = counting(after)
    async with Running(after, hub):
        hub.request("count", {"n": 1}, task_id=request.payload.task_id, request_id=request.request_id)
        again = await hub.next("work_result")
    assert again == first
    assert (runs, later_runs) == ([1], [])


async def test_a_result_that_never_reached_the_hub_is_offered_after_a_restart(
    runtime: FakeRuntime, hub: FakeHub, tmp_path: Path
) -> None:
    before = restarted(runtime, tmp_path)
    counting(before)
    hub.accepts = False
    async with Running(before, hub):
        hub.request("count")
        first = await hub.next("work_result")
    after = restarted(runtime, tmp_path)
    runs = counting(after)
    hub.accepts = True
    async with Running(after, hub):
        again = await hub.next("work_result")
    assert (again, runs) == (first, [])


@pytest.mark.parametrize("result", [None, {"a": 1}], ids=["no result", "a result"])
async def test_output_that_never_reached_the_hub_is_in_the_result_after_a_restart(
    runtime: FakeRuntime, hub: FakeHub, tmp_path: Path, result: dict[str, int] | None
) -> None:
    """The pieces died with the process, and the task ended without a word."""
    before = restarted(runtime, tmp_path)

    @before.on("talk")
    async def talk(task: Task) -> dict[str, int] | None:
        await task.text("one ")
        await task.text("two")
        return result

    hub.accepts = False
    async with Running(before, hub), asyncio.timeout(PATIENCE):
        hub.request("talk")
        while '"done"' not in (tmp_path / "worker.journal").read_text():
            await settle()
    while not hub.nothing_more():  # what the first process said, perhaps with its result
        await hub.next()
    hub.accepts = True
    after = restarted(runtime, tmp_path)
    counting(after)
    async with Running(after, hub):
        again = await hub.next("work_result")
    assert (again.payload.output, again.x_custom_fields.get("result")) == ("one two", result)


@pytest.mark.requirement("CH-IDM-1", "all-D5")
async def test_results_are_remembered_for_a_day(runtime: FakeRuntime, hub: FakeHub, tmp_path: Path) -> None:
    agent = restarted(runtime, tmp_path)
    runs = counting(agent)
    async with Running(agent, hub):
        first = hub.request("count")
        await hub.next("work_result")
        await runtime.advance(24 * 3600 + 1)
        hub.request("count")
        await hub.next("work_result")
        hub.request("count", task_id=first.payload.task_id, request_id=first.request_id)
        await hub.next("work_result")
    assert len(runs) == 3


async def test_two_processes_cannot_share_a_state_directory(runtime: FakeRuntime, hub: FakeHub, tmp_path: Path) -> None:
    first, second = restarted(runtime, tmp_path), restarted(runtime, tmp_path)
    counting(first)
    counting(second)
    async with Running(first, hub):
        with pytest.raises(Misconfigured, match="in use by another process"):
            await second.serve_over(hub.dial)


async def test_a_torn_last_line_of_the_journal_is_forgotten(runtime: FakeRuntime, hub: FakeHub, tmp_path: Path) -> None:
    agent = restarted(runtime, tmp_path)
    counting(agent)
    async with Running(agent, hub):
        request = hub.request("count")
        await hub.next("work_result")
        await settle()
    with (tmp_path / "worker.journal").open("ab") as file:
        file.write(b'{"type":"done","outco')
    again = restarted(runtime, tmp_path)
    runs = counting(again)
    async with Running(again, hub):
        hub.request("count", task_id=request.payload.task_id, request_id=request.request_id)
        await hub.next("work_result")
    assert runs == []


# --- questions ---


def asking(agent: Agent) -> list[str]:
    history: list[str] = []

    @agent.on("deploy")
    async def deploy(task: Task, where: str) -> dict[str, str]:
        history.append("begun")
        first = await task.ask("Restart?", options=["yes", "no"], timeout=300, default="no")
        history.append(first)
        second = await task.ask("Really?")
        history.append(second)
        return {"first": first, "second": second}

    return history


async def test_a_question_pauses_the_work_and_its_answer_lets_it_go_on(agent: Agent, hub: FakeHub) -> None:
    history = asking(agent)
    async with Running(agent, hub):
        request = hub.request("deploy", {"where": "prod"})
        asked = await hub.next()
        assert (asked.type, asked.payload.status) == ("work_status", "paused")
        assert asked.x_custom_fields["question"] == {
            "question": "Restart?",
            "options": ["yes", "no"],
            "timeout_seconds": 300,
            "default": "no",
        }
        await hub.runtime.advance(3600)
        assert hub.nothing_more()  # no sign of life while a person thinks
        task_id = request.payload.task_id
        second = hub.request("deploy", {"where": "prod", "answer": "yes"}, task_id=task_id)
        asked = await hub.next()
        assert asked.x_custom_fields["question"] == {"question": "Really?"}
        assert asked.request_id == second.request_id
        third = hub.request("deploy", {"where": "prod", "answer": "sure"}, task_id=task_id)
        result = await hub.next("work_result")
    assert result.request_id == third.request_id
    assert result.x_custom_fields["result"] == {"first": "yes", "second": "sure"}
    assert history == ["begun", "yes", "sure"]


async def test_time_spent_waiting_for_a_person_is_not_the_handlers(agent: Agent, hub: FakeHub) -> None:
    @agent.on("deploy", timeout=10)
    async def deploy(task: Task) -> str:
        return str(await task.ask("Restart?"))

    async with Running(agent, hub):
        request = hub.request("deploy")
        await hub.next()
        await hub.runtime.advance(3600)
        hub.request("deploy", {"answer": "yes"}, task_id=request.payload.task_id)
        result = await hub.next("work_result")
    assert result.payload.output == "yes"


async def test_an_agent_restarted_while_it_waits_gets_every_answer_at_its_place(
    runtime: FakeRuntime, hub: FakeHub, tmp_path: Path
) -> None:
    before = restarted(runtime, tmp_path)
    asking(before)
    async with Running(before, hub):
        request = hub.request("deploy", {"where": "prod"})
        await hub.next()
        hub.request("deploy", {"where": "prod", "answer": "yes"}, task_id=request.payload.task_id)
        await hub.next()
    after = restarted(runtime, tmp_path)
    history = asking(after)
    async with Running(after, hub):
        last = hub.request("deploy", {"where": "prod", "answer": "sure"}, task_id=request.payload.task_id)
        result = await hub.next("work_result")
    assert result.request_id == last.request_id
    assert result.x_custom_fields["result"] == {"first": "yes", "second": "sure"}
    assert history == ["begun", "yes", "sure"]


async def test_an_answer_repeated_by_the_hub_counts_once(agent: Agent, hub: FakeHub) -> None:
    history = asking(agent)
    async with Running(agent, hub):
        request = hub.request("deploy", {"where": "prod"})
        await hub.next()
        answer = {"where": "prod", "answer": "yes"}
        second = hub.request("deploy", answer, task_id=request.payload.task_id)
        await hub.next()
        hub.request("deploy", answer, task_id=request.payload.task_id, request_id=second.request_id)
        await settle()
    assert history == ["begun", "yes"]


async def test_a_person_who_retries_the_task_is_asked_again(agent: Agent, hub: FakeHub) -> None:
    history = asking(agent)
    async with Running(agent, hub):
        request = hub.request("deploy", {"where": "prod"})
        await hub.next()
        hub.request("deploy", {"where": "prod", "answer": "yes"}, task_id=request.payload.task_id)
        await hub.next()
        hub.request("deploy", {"where": "prod"}, task_id=request.payload.task_id)
        asked = await hub.next()
    assert asked.x_custom_fields["question"]["question"] == "Restart?"
    assert history == ["begun", "yes", "begun"]


async def test_an_open_question_is_asked_again_only_if_the_hub_has_not_got_it(agent: Agent, hub: FakeHub) -> None:
    asking(agent)
    async with Running(agent, hub):
        hub.accepts = False
        hub.request("deploy", {"where": "prod"})
        first = await hub.next()
        hub.cut()
        hub.accepts = True
        await hub.runtime.advance(1)
        again = await hub.next()
        await settle()
        hub.cut()
        await hub.runtime.advance(1)
        assert hub.nothing_more()
    assert again == first


async def test_an_agent_that_waits_for_a_person_does_not_hold_up_a_stop(runtime: FakeRuntime, hub: FakeHub) -> None:
    agent = Agent("worker", runtime=runtime, grace=30)
    asking(agent)
    async with Running(agent, hub) as running:
        hub.request("deploy", {"where": "prod"})
        await hub.next()
        await settle()
        agent.stop()
        await runtime.advance(1)
        assert running.serving.done()


TASK, REQUEST = "5c3b1f0e-0000-4000-8000-0000000000a1", "5c3b1f0e-0000-4000-8000-0000000000b1"
OLD_JOURNAL = (
    '{"type":"done","outcome":{"id":"5c3b1f0e-0000-4000-8000-000000000001","at":"2026-01-19T00:16:40Z","errand":'
    f'{{"task_id":"{TASK}","request_id":"{REQUEST}","trace_id":"0af76519-16cd-43dd-8448-eb211c80319c",'
    f'"sender":"orchestrator","about":{{}}}},"exit_code":0,"output":"done before"}},"print":"x",'
    f'"requests":["{REQUEST}"]}}\n'
)


async def test_a_journal_of_the_version_before_is_read(hub: FakeHub, runtime: FakeRuntime, tmp_path: Path) -> None:
    (tmp_path / "worker.journal").write_text(OLD_JOURNAL)
    agent = Agent("worker", runtime=runtime, state_dir=tmp_path)
    agent.on("say")(lambda: "hello")
    async with Running(agent, hub):
        result = await hub.next("work_result")
    assert (result.payload.task_id, result.request_id, result.payload.output) == (TASK, REQUEST, "done before")
    assert b'"errand":{' in (tmp_path / "worker.journal").read_bytes()

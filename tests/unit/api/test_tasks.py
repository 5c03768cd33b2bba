"""Tasks over the API: submitting, listing, reading whole outputs, steering, asking why."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from tests.support.heads import changed

from dragoman.api.bodies import TaskIn
from dragoman.core.commands import Cancel, Lineage, Pause, Resume, Retry, Routing, Submit, Timing
from dragoman.core.ids import ADMIN, HOUR, SECOND, AgentId, Instant
from dragoman.core.model.agents import Breaker, BreakerState
from dragoman.core.model.tasks import EventKind, Origin, Priority, Question, Status, Waiting
from dragoman.core.routing.routes import Route
from dragoman.messages.faults import Fault, Kind
from dragoman.messages.tasks import Request

API = "/api/v1/tasks"
replace = msgspec.structs.replace


async def test_a_submitted_task_is_accepted_and_returned(world: Any, make: Any) -> None:
    task = make.task(seq=1)
    await world.put(task, make.event(task, 1, EventKind.SUBMITTED, {"input": {"playbook": "x.yml"}}))
    world.intake.script[Submit] = task
    answer = await world.client.post(
        API,
        json={
            "type": "run_playbook", "name": "deploy", "input": {"playbook": "x.yml"}, "kind": "infra",
            "priority": "high", "required_role": "ops", "required_capabilities": ["k8s"], "budget": 1.5,
            "deadline": "2026-01-19T05:21:04+01:00", "thread": "t", "hints": {"max_duration_seconds": 600},
            "colour": "blue",
        },
        headers={"Idempotency-Key": "k-1", "traceparent": f"00-{'a' * 32}-{'b' * 16}-01"},
    )  # fmt: skip
    assert answer.status_code == 202
    assert answer.headers["location"] == f"{API}/{task.id}"
    assert answer.json()["id"] == task.id
    assert answer.json()["input"] == {"playbook": "x.yml"}
    [command] = world.intake.asked
    assert msgspec.to_builtins(command.content) == {
        "input": {"playbook": "x.yml"},
        "hints": {"max_duration_seconds": 600.0},
        "extra": {"colour": "blue"},
    }
    assert replace(command, content=Request(), digest="") == Submit(
        principal=ADMIN,
        protocol="api",
        request_id="k-1",
        digest="",
        type="run_playbook",
        content=Request(),
        name="deploy",
        priority=Priority.HIGH,
        constraints={"required_role": "ops", "budget_usd": 1.5},
        routing=Routing(kind="infra", required_capabilities=("k8s",)),
        timing=Timing(deadline=Instant(make.now), firm=True, idle_seconds=600.0, total_seconds=600.0),
        lineage=Lineage(trace_id="a" * 32, thread="t"),
    )


async def test_null_in_an_optional_field_is_the_same_as_no_field(world: Any, make: Any) -> None:
    world.intake.script[Submit] = make.task()
    optional = [name for name in TaskIn.__struct_fields__ if name != "type"]
    for body in ({"type": "a"}, {"type": "a", **dict.fromkeys(optional)}):
        assert (await world.client.post(API, json=body)).status_code == 202
    first, second = (replace(command, digest="", request_id="") for command in world.intake.asked)
    assert first == second


async def test_a_deadline_alone_says_how_long_it_may_take(world: Any, make: Any) -> None:
    world.intake.script[Submit] = make.task()
    await world.client.post(API, json={"type": "a", "deadline": "2026-01-20T04:21:04Z"})
    [command] = world.intake.asked
    assert (command.timing.deadline - make.now, command.timing.total_seconds) == (24 * HOUR, 24 * 3600)


async def test_a_budget_is_money_or_an_amount_of_each(world: Any, make: Any) -> None:
    world.intake.script[Submit] = make.task()
    for budget in (2, {"budget_usd": 0.5, "max_tokens": 1000, "cpu": 2}, {"budget_usd": 1, "colour": "blue"}):
        assert (await world.client.post(API, json={"type": "a", "budget": budget})).status_code == 202
    assert [command.constraints for command in world.intake.asked] == [
        {"budget_usd": 2},
        {"budget_usd": 0.5, "max_tokens": 1000, "cpu": 2},
        {"budget_usd": 1, "budget": {"budget_usd": 1, "colour": "blue"}},
    ]
    for wrong in (-1, "much", {"max_tokens": -1}):
        refused = await world.client.post(API, json={"type": "a", "budget": wrong})
        assert (refused.status_code, refused.json()["field"].partition(".")[0]) == (422, "budget")


async def test_the_digest_is_of_the_content_not_of_its_spelling(world: Any, make: Any) -> None:
    world.intake.script[Submit] = make.task()
    for text in ('{"type":"a","input":{"x":1,"y":2}}', '{ "input": {"y": 2, "x": 1}, "type": "a" }', '{"type":"b"}'):
        await world.client.post(API, content=text)
    one, same, other = (command.digest for command in world.intake.asked)
    assert one == same != other
    assert len({command.request_id for command in world.intake.asked}) == 3


async def test_a_key_reused_for_other_content_is_a_conflict(world: Any) -> None:
    world.intake.script[Submit] = Fault(kind=Kind.MISMATCH, message="the same request id came with other content")
    answer = await world.client.post(API, json={"type": "a"}, headers={"Idempotency-Key": "k"})
    assert answer.status_code == 409
    assert answer.json()["kind"] == "mismatch"
    assert "new Idempotency-Key" in answer.json()["detail"]


async def test_dependencies_may_be_shortened(world: Any, make: Any) -> None:
    first = make.task(1)
    await world.put(first)
    world.intake.script[Submit] = make.task(2)
    whole = make.task(3).id
    answer = await world.client.post(API, json={"type": "a", "dependencies": [first.id[:18], whole], "agent": "x"})
    assert answer.status_code == 202
    assert world.intake.asked[0].lineage.dependencies == (first.id, whole)
    assert world.intake.asked[0].routing.pinned == "x"
    missing = await world.client.post(API, json={"type": "a", "parent": "ffffffff"})
    assert (missing.status_code, missing.json()["field"]) == (404, "parent")


@pytest.mark.requirement("CH-LRG-4")
async def test_the_whole_output_of_a_running_task_is_its_pieces_in_order(world: Any, make: Any) -> None:
    task = make.task(status=Status.RUNNING, owner="mux-1", progress=50, step="configure", attempts=1, seq=6)
    world.know(make.agent())
    piece = {"status": "running", "percent": 50}
    await world.put(
        task,
        make.event(task, 1, EventKind.SUBMITTED, {"input": {"a": 1}}),
        make.event(task, 2, EventKind.ASSIGNED, {"agent": "mux-1", "attempt": 1}),
        make.event(task, 3, EventKind.PROGRESS, {**piece, "output": "one\n"}),
        make.event(task, 4, EventKind.PROGRESS, {**piece, "output": "tw", "chunk": [0, 2, 4], "stream": "step-2"}),
        make.event(task, 5, EventKind.PROGRESS, {**piece, "output": "three"}),
        make.event(task, 6, EventKind.PROGRESS, {**piece, "output": "o\n", "chunk": [2, 4, 4], "stream": "step-2"}),
    )
    told = (await world.client.get(f"{API}/{task.id}")).json()
    assert told["output"] == "one\ntwo\nthree"
    assert (told["status"], told["progress"], told["step"], told["agent"]) == ("running", 50, "configure", "mux-1")
    assert (told["protocol_in"], told["protocol_out"]) == ("chiffon", "chiffon")
    assert told["input"] == {"a": 1}
    assert told["result"] is None
    assert told["created_at"] == "2026-01-19T04:21:05Z"


async def test_an_output_of_many_events_is_read_page_by_page(world: Any, make: Any) -> None:
    task = make.task(status=Status.RUNNING, seq=1201, output_bytes=1200)
    pieces = [make.event(task, n + 2, EventKind.PROGRESS, {"output": f"{n}\n"}) for n in range(1200)]
    await world.put(task, make.event(task, 1, EventKind.SUBMITTED, {"input": {}}), *pieces)
    sizes: list[int] = []
    events = world.store.events

    async def counted(id: Any, *, after: int = 0, limit: int = 1000) -> Any:
        page = await events(id, after=after, limit=limit)
        sizes.append(len(page))
        return page

    world.store.events = counted
    told = (await world.client.get(f"{API}/{task.id}")).json()
    assert told["output"] == "".join(f"{n}\n" for n in range(1200))
    assert max(sizes) <= 500
    world.store._tables[type(task)][task.id] = changed(task, output_bytes=1 << 26)
    sizes.clear()
    assert (await world.client.get(f"{API}/{task.id}")).json()["output"] == told["output"]
    assert max(sizes) <= 16


async def test_a_result_with_output_replaces_the_pieces_and_costs_two_reads(world: Any, make: Any) -> None:
    task = make.task(status=Status.COMPLETED, owner="mux-1", attempts=1, seq=30)
    await world.put(
        task,
        make.event(task, 1, EventKind.SUBMITTED, {"input": {"a": 1}}),
        *(make.event(task, n, EventKind.PROGRESS, {"output": f"{n}"}) for n in range(2, 30)),
        make.event(
            task, 30, EventKind.COMPLETED,
            {"result": {"url": "https://kuma"}, "output": "all done", "exit_code": 0, "usage": {"cpu_time_ms": 5}},
        ),
    )  # fmt: skip
    reads = 0
    events = world.store.events

    async def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal reads
        reads += 1
        return await events(*args, **kwargs)

    world.store.events = counted
    told = (await world.client.get(f"{API}/{task.id}")).json()
    assert (told["output"], told["result"], told["exit_code"]) == ("all done", {"url": "https://kuma"}, 0)
    assert (told["usage"], told["input"], told["progress"]) == ({"cpu_time_ms": 5}, {"a": 1}, 100)
    assert reads == 2


async def test_a_failure_of_the_hub_carries_its_facts_and_keeps_the_output(world: Any, make: Any) -> None:
    fault = Fault(kind=Kind.UNAVAILABLE, message="the agent is gone", facts={"agent_id": "mux-1"}, retryable=True)
    task = make.task(status=Status.FAILED, fault=fault, attempts=4, seq=3)
    await world.put(
        task,
        make.event(task, 1, EventKind.SUBMITTED, {"input": {}}),
        make.event(task, 2, EventKind.PROGRESS, {"output": "half"}),
        make.event(task, 3, EventKind.FAILED, {"fault": {"kind": "unavailable", "message": "the agent is gone"}}),
    )
    told = (await world.client.get(f"{API}/{task.id}")).json()
    assert told["error"] == {
        "kind": "unavailable",
        "message": "the agent is gone",
        "facts": {"agent_id": "mux-1"},
        "field": None,
        "retryable": True,
    }
    assert (told["output"], told["attempts"]) == ("half", 4)


async def test_history_and_raw_messages_are_returned_when_asked_for(world: Any, make: Any) -> None:
    task = make.task(seq=1)
    await world.put(task, make.event(task, 1, EventKind.SUBMITTED, {"input": {}}, protocol="chiffon", raw=b'{"a":1}'))
    assert "history" not in (await world.client.get(f"{API}/{task.id}")).json()
    told = (await world.client.get(f"{API}/{task.id}?history=1&raw=1")).json()
    assert told["history"] == [
        {
            "task_id": task.id, "seq": 1, "at": "2026-01-19T04:21:04.000001Z", "kind": "submitted", "agent": None,
            "protocol": "chiffon", "body": {"input": {}}, "raw": '{"a":1}',
        }
    ]  # fmt: skip
    assert told["history_next"] is None


async def test_a_long_history_says_where_it_goes_on(world: Any, make: Any) -> None:
    task = make.task(seq=1500)
    await world.put(task, *(make.event(task, n, EventKind.PROGRESS, {}) for n in range(1, 1501)))
    told = (await world.client.get(f"{API}/{task.id}?history=true")).json()
    assert (len(told["history"]), told["history_next"]) == (1000, 1000)


async def test_a_task_is_found_by_an_unambiguous_prefix(world: Any, make: Any) -> None:
    one = make.task(1, id="7f3a0000-0000-4000-8000-000000000001")
    two = make.task(2, id="7f3b0000-0000-4000-8000-000000000002")
    await world.put(one, two)
    assert (await world.client.get(f"{API}/7f3a")).json()["id"] == one.id
    assert (await world.client.get(f"{API}/7F3B0000")).json()["id"] == two.id
    third = make.task(3, id="7f3a1111-0000-4000-8000-000000000003")
    await world.put(third)
    answer = await world.client.get(f"{API}/7f3a")
    assert answer.status_code == 422
    assert answer.json()["facts"] == {"matches": [one.id, third.id]}
    assert (await world.client.get(f"{API}/7f3")).status_code == 404
    assert (await world.client.get(f"{API}/beef")).status_code == 404


async def test_tasks_are_listed_by_statuses_protocol_age_and_words(world: Any, make: Any) -> None:
    old = make.task(1, status=Status.FAILED, name="invoice", created_at=Instant(make.now - 2 * HOUR))
    new = make.task(2, status=Status.QUEUED, name="invoice backup", created_at=Instant(make.now - SECOND))
    await world.put(old, new)

    async def ids(**params: str) -> list[str]:
        answer = (await world.client.get(API, params=params)).json()
        assert (answer["total"], answer["searched"]) == (len(answer["tasks"]), None)
        return [task["id"] for task in answer["tasks"]]

    assert await ids(status="failed,queued") == [new.id, old.id]
    assert await ids(status="failed, cancelled") == [old.id]
    assert await ids(protocol=new.origin.protocol) == [new.id, old.id]
    assert await ids(protocol="nobody-speaks-it") == []
    assert await ids(q="invo") == [new.id, old.id]
    assert await ids(q="backup invoice") == [new.id]
    for params, field in (({"status": "failed,odd"}, "status"), ({"since": "soon"}, "since"), ({"q": "--"}, "q")):
        refused = await world.client.get(API, params=params)
        assert (refused.status_code, refused.json()["field"]) == (422, field)


async def test_lists_go_on_with_a_cursor_and_leave_contents_out(world: Any, make: Any) -> None:
    tasks = [make.task(n) for n in range(1, 6)]
    await world.put(*tasks)
    seen, cursor = [], None
    while True:
        page = (await world.client.get(API, params={"limit": 2} | ({"cursor": cursor} if cursor else {}))).json()
        seen += [task["id"] for task in page["tasks"]]
        assert all("output" not in task and "input" not in task for task in page["tasks"])
        cursor = page["next"]
        if cursor is None:
            break
    assert seen == [task.id for task in reversed(tasks)]
    full = (await world.client.get(API, params={"limit": 1, "full": "1"})).json()
    assert full["tasks"][0]["output"] == ""


@pytest.mark.parametrize(
    ("query", "found"),
    [("status=failed", [2]), ("type=other", [3]), ("agent=mux-1", [2]), ("principal=planner&limit=1", [3]),
     ("status=completed", []), ("parent=p", [1])],
)  # fmt: skip
async def test_lists_are_filtered(world: Any, make: Any, query: str, found: list[int]) -> None:
    tasks = {
        1: make.task(1, parent="p"),
        2: make.task(2, status=Status.FAILED, owner="mux-1"),
        3: make.task(3, type="other"),
    }
    await world.put(*tasks.values())
    listed = (await world.client.get(f"{API}?{query}")).json()["tasks"]
    assert [task["id"] for task in listed] == [tasks[n].id for n in found]


@pytest.mark.parametrize(
    ("query", "field"),
    [("limit=0", "limit"), ("limit=501", "limit"), ("limit=x", "limit"), ("status=nope", "status"),
     ("state=failed", "state"), ("cursor=nonsense", "cursor")],
)  # fmt: skip
async def test_a_wrong_query_names_the_parameter(world: Any, query: str, field: str) -> None:
    answer = await world.client.get(f"{API}?{query}")
    assert answer.status_code == 422
    assert answer.json()["field"] == field


async def test_a_long_poll_returns_when_the_task_is_final(world: Any, make: Any) -> None:
    task = make.task(status=Status.RUNNING, seq=1)
    await world.put(task, make.event(task, 1, EventKind.SUBMITTED, {"input": {}}))
    waiting = asyncio.create_task(world.client.get(f"{API}/{task.id}?wait=30"))
    async with asyncio.timeout(60):
        await world.intake.parked.wait()
    done = replace(task, status=Status.COMPLETED, seq=2)
    await world.change(done, added=[make.event(task, 2, EventKind.COMPLETED, {"output": "ok", "result": 7})])
    async with asyncio.timeout(60):
        told = (await waiting).json()
    assert (told["status"], told["output"], told["result"]) == ("completed", "ok", 7)
    assert world.intake.watching == 0


async def test_a_long_poll_ends_when_its_time_is_up_and_when_the_hub_drains(world: Any, make: Any) -> None:
    task = make.task(status=Status.RUNNING)
    await world.put(task)
    async with asyncio.timeout(60):
        assert (await world.client.get(f"{API}/{task.id}?wait=0.01")).json()["status"] == "running"
        waiting = asyncio.create_task(world.client.get(f"{API}/{task.id}?wait=300"))
        await world.intake.parked.wait()
        world.context.waiters.close()
        assert (await waiting).json()["status"] == "running"
    assert (await world.client.get(f"{API}/{task.id}?wait=301")).status_code == 422


@pytest.mark.parametrize(
    ("verb", "body", "status", "command"),
    [
        ("cancel", None, 200, Cancel(principal=ADMIN, protocol="api", task_id="T")),
        ("cancel", {"reason": "no"}, 200, Cancel(principal=ADMIN, protocol="api", task_id="T", reason="no")),
        ("retry", {}, 202, Retry(principal=ADMIN, protocol="api", task_id="T")),
        ("retry", {"input": {"b": 2}}, 202, Retry(principal=ADMIN, protocol="api", task_id="T", input=b'{"b":2}')),
        ("pause", None, 200, Pause(principal=ADMIN, protocol="api", task_id="T")),
        ("resume", {}, 200, Resume(principal=ADMIN, protocol="api", task_id="T")),
        ("resume", {"answer": None}, 200, Resume(principal=ADMIN, protocol="api", task_id="T", has_answer=True)),
    ],
)
async def test_a_task_is_steered(world: Any, make: Any, verb: str, body: Any, status: int, command: Any) -> None:
    task = make.task(id="7f3a0000-0000-4000-8000-000000000001")
    await world.put(task)
    world.intake.script[type(command)] = replace(task, status=Status.CANCELLED)
    answer = await world.client.post(f"{API}/7f3a/{verb}", **({} if body is None else {"json": body}))
    assert answer.status_code == status
    assert answer.json()["status"] == "cancelled"
    assert world.intake.asked == [replace(command, task_id=task.id)]


@pytest.mark.parametrize("verb", ["cancel", "retry", "pause", "resume"])
async def test_steering_is_refused_for_what_is_not_there_or_not_possible(world: Any, make: Any, verb: str) -> None:
    assert (await world.client.post(f"{API}/{make.task().id}/{verb}")).status_code == 404
    task = make.task()
    await world.put(task)
    command = {"cancel": Cancel, "retry": Retry, "pause": Pause, "resume": Resume}[verb]
    world.intake.script[command] = Fault(kind=Kind.CONFLICT, message="the task is completed")
    answer = await world.client.post(f"{API}/{task.id}/{verb}")
    assert (answer.status_code, answer.json()["kind"]) == (409, "conflict")
    misspelt = await world.client.post(f"{API}/{task.id}/{verb}", json={"inptu": {}})
    assert (misspelt.status_code, misspelt.json()["field"]) == (422, "inptu")


async def test_why_names_the_agents_that_could_do_a_queued_task_and_why_none_does(world: Any, make: Any) -> None:
    queue = Route("run_playbook", "infra").queue
    ahead, task = make.task(1, queue=queue), make.task(2, queue=queue, attempts=1)
    await world.put(ahead, task, make.task(3, queue="other"))
    world.know(make.agent("away", last_seen_at=make.now), make.agent("coder", kind="code"), linked=False)
    until = Instant(make.now + 60 * SECOND)
    breaker = Breaker(state=BreakerState.OPEN, failures=5, until=until)
    world.know(make.agent("tripped", breaker=breaker), make.agent("full", max_concurrent=1))
    world.know(make.agent("narrow", work_types=("other",)))
    world.intake.loads["full"] = ["t"]
    told = (await world.client.get(f"{API}/{task.id}/why")).json()
    assert {one["agent"]: [reason["code"] for reason in one["reasons"]] for one in told["candidates"]} == {
        "away": ["offline"], "tripped": ["breaker_open"], "full": ["busy"], "narrow": ["lacks_work_type"],
        "coder": ["other_kind", "offline"],
    }  # fmt: skip
    assert (told["queue"]["ahead"], told["queue"]["ahead_exact"], told["attempts"]) == (1, True, 1)
    assert "busy 1/1" in told["summary"]
    assert "until 2026-01-19T04:22:04Z" in told["summary"]
    assert "attempts so far: 1" in told["summary"].lower()


async def test_why_names_what_a_task_waits_for(world: Any, make: Any) -> None:
    other = make.task(1, status=Status.RUNNING)
    blocked = make.task(2, status=Status.WAITING, waiting=Waiting.DEPENDENCY, blocked_by=(other.id,))
    asking = make.task(3, status=Status.WAITING, waiting=Waiting.PERSON, owner="mux-1", question="q")
    question = Question(id="q", task=asking.id, agent="mux-1", question="Restart prod?", created_at=make.now)
    retry_at = Instant(make.now + 2 * SECOND)
    retried = make.task(4, attempts=2, wake_at=retry_at, fault=Fault(kind=Kind.TIMEOUT, message="silent for 30 s"))
    await world.put(other, blocked, asking, question, retried)
    assert other.id in (await world.client.get(f"{API}/{blocked.id}/why")).json()["summary"]
    assert "Restart prod?" in (await world.client.get(f"{API}/{asking.id}/why")).json()["summary"]
    told = (await world.client.get(f"{API}/{retried.id}/why")).json()
    assert told["next_retry_at"] == "2026-01-19T04:21:06Z"
    assert told["last_error"]["kind"] == "timeout"
    assert (await world.client.get(f"{API}/{make.task(9).id}/why")).status_code == 404


async def test_a_trace_is_found_from_any_of_its_tasks(world: Any, make: Any) -> None:
    def task(n: int, asker: str, owner: str, **changes: Any) -> Any:
        origin = Origin(principal=AgentId(asker), protocol="chiffon", request_id=f"r-{n}", digest="d")
        done = Instant(make.now + (20 - n) * SECOND)
        fields = {"status": Status.COMPLETED, "finished_at": done, "owner": AgentId(owner), "seq": 1, **changes}
        return make.task(n, origin=origin, **fields)

    root = task(1, "planner", "lab", has_children=True)
    child = task(2, "lab", "mux-1", parent=root.id)
    asked = task(3, "lab", "records")  # by nothing but its trace
    below = task(4, "records", "mux-1")
    other = task(5, "lab", "records", trace_id="f" * 32)
    everything = (root, child, asked, below, other)
    await world.put(*everything, *(make.event(one, 1, EventKind.SUBMITTED, {"input": {}}) for one in everything))
    world.know(make.agent("lab", protocol="a2acp"))
    for one in (root, child, asked, below):
        told = (await world.client.get(f"{API}/{one.id}/trace")).json()
        assert (told["task_id"], told["trace_id"], told["left_out"]) == (one.id, one.lineage.trace_id, 0)
        assert [(got["id"], got["cause"]) for got in told["tasks"]] == [
            (root.id, None),
            (child.id, root.id),
            (asked.id, root.id),
            (below.id, asked.id),
        ]
        assert [got["steps"][0]["source"] for got in told["tasks"]] == ["planner", "lab", "lab", "records"]
    alone = (await world.client.get(f"{API}/{other.id}/trace")).json()
    assert [got["id"] for got in alone["tasks"]] == [other.id]
    assert (await world.client.get(f"{API}/{make.task(9).id}/trace")).status_code == 404

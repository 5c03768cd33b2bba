"""From the request to the result: which agent gets a task, in which order, and what the hub accepts from it."""

from __future__ import annotations

import itertools
import json

import msgspec
import pytest
from tests.support.world import World

from dragoman.core.commands import Cancel, Finish, ReportFault, ReportProgress, Span
from dragoman.core.ids import ADMIN, AgentId
from dragoman.core.model.tasks import Priority, Status
from dragoman.core.ports import StoreFailed
from dragoman.core.queries.transcript import Transcript
from dragoman.core.rules import Rules
from dragoman.messages.faults import Fault, Kind, Refused
from dragoman.messages.tasks import read_progress, read_result
from dragoman.stores.memory import MemoryStore


@pytest.mark.requirement("all-D8")
async def test_a_task_goes_to_an_agent_and_its_result_back_to_the_caller(world):
    await world.add("i1", "infra")
    boss, i1 = await world.connect("boss"), await world.connect("i1")
    task = await world.submit()
    assert (task.status, task.owner, task.attempt.count) == (Status.ASSIGNED, "i1", 1)
    [order] = i1.take()
    assert (order.delivery.kind, bytes(order.content.body)) == ("work", b'{"input":{"n":1}}')
    await world.progress("i1", task.id)
    await world.finish("i1", task.id)
    assert [p.delivery.kind for p in boss.inbox] == ["progress", "result"]
    assert (await world.task(task.id)).status is Status.COMPLETED
    assert await world.history(task.id) == ["submitted", "assigned", "progress", "completed"]
    assert [d.kind for d in await world.store.deliveries()] == ["progress", "result"]
    await boss.ack(boss.inbox[-1])  # on a link that keeps order an acknowledgment covers what went before it
    assert list(await world.store.deliveries()) == []


async def test_a_task_waits_for_an_agent_that_is_not_there_yet(world):
    await world.add("i1", "infra")
    task = await world.submit()
    assert (task.status, task.queue is not None) == (Status.QUEUED, True)
    i1 = await world.connect("i1")
    assert i1.work == [task.id]


async def test_unknown_kind_and_unsupported_work_are_refused_at_once(world):
    fault = await world.refused(world.request("desktop"))
    assert fault.kind is Kind.UNAVAILABLE
    await world.add("i1", "infra", work_types=("run_playbook",))
    fault = await world.refused(world.request(type="paint"))
    assert (fault.kind, fault.facts["supported_types"]) == (Kind.UNSUPPORTED_WORK, ["run_playbook"])
    fault = await world.refused(world.request(required_role="chief", required_capabilities=("gpu",)))
    assert fault.message == "no agent infra does 'run_playbook' as chief with gpu; add an agent that does"


async def test_the_same_request_again_gets_the_first_task(world):
    await world.add("i1", "infra")
    i1 = await world.connect("i1")
    request = world.request()
    first = await world.ask(request)
    again = await world.ask(request)
    assert again.id == first.id
    assert len(i1.inbox) == 1
    await world.finish("i1", first.id)
    boss = await world.connect("boss")
    await boss.ack(*boss.take())
    await world.ask(request)
    assert [p.delivery.kind for p in boss.inbox] == ["result"]  # the first outcome again


@pytest.mark.requirement("all-D5")
async def test_an_error_is_not_remembered_so_the_same_request_is_done_again(world):
    await world.add("i1", "infra")
    i1, boss = await world.connect("i1"), await world.connect("boss")
    request = world.request(forgets_errors=True)
    task = await world.ask(request)
    [order] = i1.take()
    await world.fault("i1", task.id, Kind.INVALID)
    assert [p.delivery.kind for p in boss.take()] == ["failure"]
    again = await world.ask(request)
    assert (again.id, again.status, again.request_id) == (task.id, "assigned", task.request_id)
    [second] = i1.take()
    assert second.event == order.event  # the request itself, word for word
    await world.finish("i1", task.id)
    assert [p.delivery.kind for p in boss.take()] == ["result"]
    await world.ask(request)
    assert not i1.inbox  # a result is remembered


@pytest.mark.requirement("all-D5")
@pytest.mark.parametrize("kind", [Kind.WORK_FAILED, Kind.CANCELLED])
async def test_failed_work_and_cancelled_work_are_not_done_again_by_repeating(world, kind):
    await world.add("i1", "infra")
    i1 = await world.connect("i1")
    request = world.request(forgets_errors=True)
    task = await world.ask(request)
    i1.take()
    if kind is Kind.CANCELLED:
        await world.ask(Cancel(principal="boss", task_id=task.id))
        i1.take()
    else:
        await world.finish("i1", task.id, fault=Fault(kind=kind, message="boom"))
    assert (await world.ask(request)).final
    assert not i1.inbox


@pytest.mark.requirement("all-D5")
async def test_what_depends_on_failed_work_is_not_done_by_repeating(world):
    await world.add("i1", "infra")
    i1 = await world.connect("i1")
    first = await world.submit()
    request = world.request(forgets_errors=True, dependencies=(first.id,))
    await world.ask(request)
    await world.finish("i1", first.id, fault=Fault(kind=Kind.WORK_FAILED, message="boom"))
    i1.take()
    assert (await world.ask(request)).status is Status.FAILED
    assert not i1.inbox


async def test_the_same_request_id_with_other_content_is_refused(world):
    await world.add("i1", "infra")
    request = world.request()
    await world.ask(request)
    import msgspec

    fault = await world.refused(msgspec.structs.replace(request, digest="other"))
    assert fault.kind is Kind.MISMATCH


async def test_the_same_result_twice_is_accepted_and_another_one_refused(world):
    await world.add("i1", "infra")
    await world.connect("i1")
    task = await world.submit()
    await world.finish("i1", task.id, digest="r1")
    await world.finish("i1", task.id, digest="r1")
    from dragoman.core.commands import Finish

    fault = await world.refused(Finish(principal=AgentId("i1"), task_id=task.id, digest="r2"))
    assert fault.kind is Kind.CONFLICT
    assert await world.history(task.id) == ["submitted", "assigned", "completed"]


@pytest.mark.requirement("chiffon-D8")
async def test_idle_agents_are_chosen_first_then_the_least_loaded(world):
    for name in ("i1", "i2", "i3"):
        await world.add(name, "infra", concurrent=3)
        await world.connect(name)
    owners = [(await world.submit()).owner for _ in range(9)]
    assert sorted(owners[:3]) == sorted(owners[3:6]) == sorted(owners[6:]) == ["i1", "i2", "i3"]
    assert (await world.submit()).status is Status.QUEUED


async def test_a_free_seat_goes_to_the_highest_priority_and_nobody_starves(world):
    await world.add("i1", "infra", concurrent=1)
    i1 = await world.connect("i1")
    first = await world.submit()
    low = await world.submit(priority=Priority.LOW)
    await world.advance(10)
    high = await world.submit(priority=Priority.HIGH)
    i1.take()
    await world.finish("i1", first.id)
    assert i1.work == [high.id]
    await world.advance(20)
    await world.progress("i1", high.id)
    late = [await world.submit(priority=Priority.NORMAL)]
    await world.advance(20)
    await world.progress("i1", high.id)
    await world.advance(20)
    late.append(await world.submit(priority=Priority.NORMAL))
    i1.take()
    await world.finish("i1", high.id)
    assert i1.work == [late[0].id]  # 30 s behind the low one, with a minute's head start
    i1.take()
    await world.finish("i1", late[0].id)
    assert i1.work == [low.id]  # 70 s older than the last one: it aged past it


async def test_a_used_message_id_with_other_content_is_refused(world):
    await world.add("i1", "infra")
    await world.connect("i1")
    task = await world.submit()

    async def refused(said):
        fault = await world.refused(said)
        return (fault.kind, fault.field)

    def status(digest, **fields):
        return ReportProgress(principal=AgentId("i1"), task_id=task.id, message_id="m1", digest=digest, **fields)

    await world.ask(status("one"))
    assert (await world.ask(status("one"))).seq == (await world.task(task.id)).seq
    piece = {"output": "abc", "stream": "step-1", "span": Span(0, 3, 6)}
    for said in (status("two"), status("two", **piece)):
        assert await refused(said) == (Kind.MISMATCH, "id")
    result = Finish(principal=AgentId("i1"), task_id=task.id, digest="r1", message_id="m1")
    assert await refused(result) == (Kind.MISMATCH, "id")
    assert (await world.finish("i1", task.id, message_id="m2")).status is Status.COMPLETED


async def test_an_agents_report_of_its_work_is_marked_as_its_own(world):
    await world.add("i1", "infra")
    await world.connect("i1")
    said, ours = await world.submit(), await world.submit()
    fault = Fault(kind=Kind.UNAUTHENTICATED, message="no access to the vault")
    for task, protocol in ((said, "chiffon"), (ours, None)):
        await world.ask(ReportFault(principal=AgentId("i1"), protocol=protocol, task_id=task.id, fault=fault))
    found = [(await world.task(task.id)).outcome.fault for task in (said, ours)]
    assert [(one.message, one.reported) for one in found] == [(fault.message, True), (fault.message, False)]


async def test_output_in_pieces_must_follow_each_other(world):
    await world.add("i1", "infra")
    await world.connect("i1")
    task = await world.submit()

    async def piece(start, end, total=6):
        await world.progress("i1", task.id, output="x" * (end - start), stream="step-1", span=Span(start, end, total))

    async def misfit(start, end, total=6):
        with pytest.raises(Refused) as refused:
            await piece(start, end, total)
        assert refused.value.fault.field == "step.output_chunk"

    await piece(0, 3)
    await piece(5, 6)  # a gap: it waits for what is missing
    await misfit(4, 6)  # it overlaps what waits
    await piece(0, 3)  # what came before it was dropped
    await misfit(2, 6)  # an overlap
    await piece(0, 3)
    await misfit(3, 7, 7)  # another total
    await piece(0, 2, 4)
    await piece(0, 3)  # begun anew, also with another total
    await piece(3, 6)
    await misfit(0, 3, world.rules.output_quota + 1)  # at once, and not when so much has come


PIECES = {0: "abc", 3: "def", 6: "ghi", 9: "jkl"}


@pytest.mark.requirement("chiffon-D4")
@pytest.mark.parametrize("order", list(itertools.permutations(PIECES)))
@pytest.mark.parametrize("stream", ["step-1", "result"])
async def test_pieces_that_come_in_any_order_are_delivered_in_theirs(world, order, stream):
    """As long as there is a gap what came beyond it is kept and not told; the last piece of a result may come first. A
    hub that dies in between has all of it, and what comes twice counts once."""
    await world.add("i1", "infra")
    await world.connect("i1")
    boss = await world.connect("boss")
    task = await world.submit()

    def said(start):
        body = {"output": PIECES[start], "chunk": [start, start + 3, 12], "stream": stream}
        fields = {"principal": AgentId("i1"), "task_id": task.id, "output": PIECES[start],
                  "span": Span(start, start + 3, 12)}  # fmt: skip
        if stream == "result" and start == 9:
            return Finish(digest="r1", content=read_result(msgspec.json.encode(body | {"exit_code": 0})), **fields)
        return ReportProgress(
            stream=stream, message_id=f"m{start}", content=read_progress(msgspec.json.encode(body)), **fields
        )

    for number, start in enumerate(order):
        await world.ask(said(start))
        if number == 1:
            await world.restart()
            boss = await world.connect("boss")
            await world.connect("i1")
        if number < 3:
            await world.ask(said(start))  # said again: its answer got lost
            assert (await world.task(task.id)).status is Status.RUNNING or stream == "result"
    if stream == "step-1":
        await world.finish("i1", task.id)
    done = await world.task(task.id)
    assert (done.status, done.output.streams, done.output.bytes) == (Status.COMPLETED, (), 12)
    transcript = Transcript()
    for event in await world.store.events(task.id):
        transcript.feed(event)
    assert transcript.account.output == "abcdefghijkl"
    told = [json.loads(bytes(p.content.body)).get("output", "") for p in boss.take()]
    assert "".join(told) == "abcdefghijkl"


async def test_what_waits_for_a_missing_piece_is_bounded_by_the_quota():
    world = await World(rules=Rules(output_quota=10)).start()
    await world.add("boss", "orchestrator")
    await world.add("i1", "infra")
    await world.connect("i1")
    task = await world.submit()
    await world.progress("i1", task.id, output="x" * 6, stream="step-1", span=Span(1, 7))
    more = ReportProgress(principal=AgentId("i1"), task_id=task.id, output="xxxxx", stream="step-1", span=Span(7, 12))
    assert (await world.refused(more)).field == "step.output_chunk"
    assert (await world.task(task.id)).output.streams == ()  # the buffer is freed
    await world.intake.stop()


async def test_a_result_before_its_outputs_pieces_is_refused_and_drops_them(world):
    """chiffon-D4: a set that never completes is refused, and the buffer is freed."""
    await world.add("i1", "infra")
    await world.connect("i1")
    task = await world.submit()
    await world.progress("i1", task.id, output="abc", stream="step-1", span=Span(0, 3, 6))
    assert (await world.refused_finish("i1", task.id)).field == "step.output_chunk"
    assert (await world.finish("i1", task.id)).status is Status.COMPLETED


async def test_an_attempt_that_failed_leaves_nothing_of_its_output_to_the_next(world):
    """Half of a set would keep the next result out, or be continued by somebody who never sent the first half; and
    what is read of the task begins anew with each attempt."""
    await world.add("i1", "infra")
    await world.connect("i1")
    task = await world.submit()
    half = {"output": "abc", "stream": "step-1", "span": Span(0, 3, 6), "message_id": "m1"}
    rest = {"output": "def", "stream": "step-1", "span": Span(3, 6, 6), "message_id": "m2"}
    await world.progress("i1", task.id, **half)
    await world.fault("i1", task.id, Kind.RESOURCES)
    await world.advance(1)
    await world.progress("i1", task.id, **rest)
    assert (await world.task(task.id)).output.streams[0].received == 0  # it waits for the first half of this attempt
    for piece in (half, half, rest):  # the same messages again, of which one repeats itself
        await world.progress("i1", task.id, **piece)
    await world.progress("i1", task.id, **half | {"message_id": "m3"})
    await world.fault("i1", task.id, Kind.RESOURCES)
    await world.advance(2)
    assert (await world.finish("i1", task.id)).status is Status.COMPLETED


async def test_every_attempt_may_use_the_whole_quota_of_output(world):
    await world.add("i1", "infra")
    await world.connect("i1")
    task = await world.submit()
    most = "x" * world.rules.output_quota
    await world.progress("i1", task.id, output=most)
    with pytest.raises(Refused):
        await world.progress("i1", task.id, output="x")
    await world.fault("i1", task.id, Kind.RESOURCES)
    await world.advance(1)
    await world.progress("i1", task.id, output=most)


async def test_a_failed_commit_refuses_everybody_and_changes_nothing(world):
    await world.add("i1", "infra")
    i1 = await world.connect("i1")
    world.store.fail_next_commit(StoreFailed("disk full"))
    request = world.request()
    fault = await world.refused(request)
    assert (fault.kind, fault.retryable) == (Kind.OVERLOADED, True)
    assert i1.inbox == []
    assert world.intake.load_of(AgentId("i1")) == []
    task = await world.ask(request)
    assert i1.work == [task.id]


async def test_the_audit_chain_holds_and_names_a_changed_record(world):
    import msgspec

    from dragoman.core.model.audit import verify

    await world.add("i1", "infra")
    await world.connect("i1")
    task = await world.submit()
    await world.refused(world.request("nobody"))
    await world.finish("i1", task.id)
    records = list(await world.store.audit())
    assert [(r.action, r.outcome) for r in records[-3:]] == [
        ("task.submit", "accepted"),
        ("task.submit", "refused"),
        ("task.finish", "accepted"),
    ]
    assert verify(records)[2] is None
    records[3] = msgspec.structs.replace(records[3], principal="mallory")
    assert verify(records)[2].seq == records[3].seq


async def test_tasks_that_came_together_are_done_in_the_order_in_which_they_came(world):
    await world.add("i1", "infra", concurrent=1)
    requests = [world.request() for _ in range(20)]
    tasks = [await future for future in [world.intake.enqueue(request) for request in requests]]
    i1 = await world.connect("i1")
    for task in tasks:
        assert i1.work == [task.id]
        i1.take()
        await world.finish("i1", task.id)


async def test_a_task_for_anybody_where_nobody_is_says_so():
    world = await World(MemoryStore()).start()
    fault = await world.refused(world.request(kind=None, principal=ADMIN))
    assert fault.message == "no agent is here; add one with `dragoman agent add`"
    await world.intake.stop()


async def test_tasks_that_make_tasks_without_end_are_stopped(world):
    """Each asks for the next: after eight it looks like a loop."""
    await world.add("i1", "infra", concurrent=100)
    await world.connect("i1")
    task = await world.submit()
    for _ in range(world.rules.hop_limit):
        task = await world.submit(principal=AgentId("i1"), parent=task.id)
    fault = await world.refused(world.request(principal=AgentId("i1"), parent=task.id))
    assert (fault.kind, fault.field, "loop" in fault.message) == (Kind.CONFLICT, "parent", True)


async def test_a_task_that_makes_very_many_fills_a_queue_and_no_more():
    world = await World(rules=Rules(max_backlog=3)).start()
    await world.add("boss", "orchestrator")
    await world.add("i1", "infra")
    for _ in range(3):
        await world.submit()
    fault = await world.refused(world.request())
    assert (fault.kind, fault.retryable) == (Kind.OVERLOADED, True)
    agent = await world.connect("i1")
    assert len(agent.work) == 3
    await world.submit()
    await world.intake.stop()


async def test_a_part_of_a_task_is_in_its_trace_unless_its_caller_says_another(world):
    await world.add("i1", "infra")
    await world.connect("i1")
    whole = await world.submit(trace_id="ab" * 16)
    part = await world.submit(principal=AgentId("i1"), parent=whole.id)
    other = await world.submit(principal=AgentId("i1"), parent=whole.id, trace_id="cd" * 16)
    assert [task.lineage.trace_id for task in (whole, part, other)] == ["ab" * 16, "ab" * 16, "cd" * 16]

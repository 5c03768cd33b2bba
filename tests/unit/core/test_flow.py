"""The road of a task through the hub, step by step, under a clock that only moves when told."""

from __future__ import annotations

import pytest
from tests.support.world import World

from dragoman.core.agents.model import BreakerState
from dragoman.core.commands import Answer, Ask, Cancel, Discard, Pause, Redrive, RemoveAgent, Resume, Retry, Span
from dragoman.core.errors import Fault, Kind, Refused
from dragoman.core.ids import ADMIN, SECOND, AgentId
from dragoman.core.ports import StoreFailed, TaskFilter
from dragoman.core.tasks.model import Priority, QuestionStatus, Status, Waiting
from dragoman.stores.memory import MemoryStore


@pytest.fixture(params=[True, False], ids=["embedded", "over a wire"])
async def world(request):
    """Every flow twice: decisions that see the store at once, and decisions that are run again for what they lack."""
    world = await World(MemoryStore(immediate=request.param)).start()
    await world.add("boss", "orchestrator")
    yield world
    await world.intake.stop()


@pytest.mark.requirement("all-D8")
async def test_a_task_goes_to_an_agent_and_its_result_back_to_whoever_asked(world):
    await world.add("i1", "infra")
    boss, i1 = await world.connect("boss"), await world.connect("i1")
    task = await world.submit()
    assert (task.status, task.owner, task.attempts) == (Status.ASSIGNED, "i1", 1)
    [order] = i1.take()
    assert (order.delivery.cargo, bytes(order.event.body)) == ("work", b'{"input":{"n":1}}')
    await world.progress("i1", task.id)
    await world.finish("i1", task.id)
    assert [p.delivery.cargo for p in boss.inbox] == ["progress", "result"]
    assert (await world.task(task.id)).status is Status.COMPLETED
    assert await world.story(task.id) == ["submitted", "assigned", "progress", "completed"]
    assert [d.cargo for d in await world.store.deliveries()] == ["progress", "result"]
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
    assert [p.delivery.cargo for p in boss.inbox] == ["result"]  # the first outcome again


async def test_the_same_request_id_with_other_content_is_refused(world):
    await world.add("i1", "infra")
    request = world.request()
    await world.ask(request)
    import msgspec

    fault = await world.refused(msgspec.structs.replace(request, digest="other"))
    assert fault.kind is Kind.MISMATCH


@pytest.mark.requirement("CH-TMO-1")
@pytest.mark.requirement("CH-RTY-1")
async def test_a_silent_agent_times_out_and_the_task_is_tried_four_times_then_dead_lettered(world):
    await world.add("i1", "infra")
    i1, boss = await world.connect("i1"), await world.connect("boss")
    task = await world.submit()
    times = []
    for delay in (1, 2, 4, 0):
        assert i1.work == [task.id]
        i1.take()
        await world.advance(30)
        times.append((await world.task(task.id)).status)
        await world.advance(delay)
    assert times == [Status.QUEUED, Status.QUEUED, Status.QUEUED, Status.FAILED]
    final = await world.task(task.id)
    assert final.fault.kind is Kind.TIMEOUT
    assert final.fault.facts["attempted_retries"] == 3
    [letter] = await world.store.dead_letters()
    assert (letter.task, letter.attempts, letter.reason.kind) == (task.id, 4, Kind.TIMEOUT)
    assert [p.delivery.cargo for p in boss.inbox] == ["failure"]


@pytest.mark.requirement("CH-RTY-1")
async def test_retries_come_after_one_two_and_four_seconds(world):
    await world.add("i1", "infra")
    i1 = await world.connect("i1")
    task = await world.submit()
    waits = []
    for _ in range(3):
        i1.take()
        await world.fault("i1", task.id, Kind.RESOURCES)
        waits.append(((await world.task(task.id)).wake_at - world.time) / SECOND)
        await world.advance(waits[-1])
        assert i1.work == [task.id]
    assert waits == [1, 2, 4]
    await world.fault("i1", task.id, Kind.RESOURCES)
    assert (await world.task(task.id)).status is Status.FAILED


@pytest.mark.requirement("chiffon-D6")
async def test_a_sign_of_life_restarts_the_idle_clock_and_the_deadline_ends_it_all(world):
    await world.add("i1", "infra")
    await world.connect("i1")
    task = await world.submit(total_seconds=100)
    for _ in range(4):
        await world.advance(24)
        await world.progress("i1", task.id)
    assert (await world.task(task.id)).status is Status.RUNNING
    await world.advance(5)
    final = await world.task(task.id)
    assert (final.status, final.fault.kind) == (Status.FAILED, Kind.TIMEOUT)


@pytest.mark.requirement("CH-TMO-2")
@pytest.mark.requirement("chiffon-D6")
async def test_a_hint_raises_both_clocks(world):
    await world.add("i1", "infra")
    await world.connect("i1")
    task = await world.submit(total_seconds=600, idle_seconds=600)
    await world.advance(599)
    assert (await world.task(task.id)).status is Status.ASSIGNED
    await world.advance(2)
    assert (await world.task(task.id)).status is not Status.ASSIGNED


@pytest.mark.requirement("CH-RTY-4")
async def test_an_error_that_is_not_retryable_ends_the_task(world):
    await world.add("i1", "infra")
    boss = await world.connect("boss")
    await world.connect("i1")
    task = await world.submit()
    await world.fault("i1", task.id, Kind.UNSUPPORTED_WORK)
    assert (await world.task(task.id)).status is Status.FAILED
    assert [p.delivery.cargo for p in boss.inbox] == ["failure"]
    assert list(await world.store.dead_letters()) == []


@pytest.mark.requirement("CH-BRK-1")
@pytest.mark.requirement("CH-BRK-3")
async def test_five_timeouts_open_the_breaker_and_an_answered_health_check_closes_it(world):
    await world.add("i1", "infra")
    i1 = await world.connect("i1")
    tasks = [await world.submit() for _ in range(5)]
    await world.advance(30)
    agent = world.intake.agent(AgentId("i1"))
    assert agent.breaker.state is BreakerState.OPEN
    i1.take()
    await world.advance(10)
    assert i1.take() == []  # the retries stay away
    await world.advance(51)
    [probe] = i1.take()
    assert probe.task.type == "health_check"
    await world.finish("i1", probe.task.id)
    assert world.intake.agent(AgentId("i1")).breaker.state is BreakerState.CLOSED
    await world.settle()
    assert set(i1.work) == {task.id for task in tasks}


async def test_a_failed_health_check_opens_the_breaker_again(world):
    await world.add("i1", "infra")
    i1 = await world.connect("i1")
    for _ in range(5):
        await world.submit()
    await world.advance(30 + 60)
    assert i1.inbox[-1].task.type == "health_check"
    await world.advance(30)
    assert world.intake.agent(AgentId("i1")).breaker.state is BreakerState.OPEN


async def test_work_of_a_broken_link_is_given_out_again_after_the_grace_time(world):
    await world.add("i1", "infra")
    await world.add("i2", "infra")
    i1 = await world.connect("i1")
    task = await world.submit()
    i2 = await world.connect("i2")
    await i1.close()
    await world.advance(4)
    assert i2.work == []
    await world.advance(2.1)  # grace 5 s, then the first retry after 1 s
    assert i2.work == [task.id]
    assert (await world.task(task.id)).attempts == 2


async def test_an_agent_that_comes_back_and_shows_life_keeps_its_work(world):
    await world.add("i1", "infra")
    i1 = await world.connect("i1")
    task = await world.submit()
    await world.progress("i1", task.id, 10)
    await i1.close()
    await world.advance(2)
    i1 = await world.connect("i1")
    await world.progress("i1", task.id, 20)
    await world.advance(20)
    assert (await world.task(task.id)).attempts == 1
    await world.finish("i1", task.id)
    assert (await world.task(task.id)).status is Status.COMPLETED


async def test_a_result_of_an_attempt_given_up_is_still_welcome_while_nobody_else_has_the_task(world):
    await world.add("i1", "infra")
    await world.connect("i1")
    task = await world.submit()
    await world.advance(30)
    assert (await world.task(task.id)).status is Status.QUEUED
    await world.finish("i1", task.id)
    assert (await world.task(task.id)).status is Status.COMPLETED


async def test_a_stale_owner_is_refused_once_somebody_else_has_the_task(world):
    await world.add("i1", "infra")
    await world.add("i2", "infra")
    i1 = await world.connect("i1")
    task = await world.submit()
    await i1.close()
    await world.connect("i2")
    await world.advance(10)
    from dragoman.core.commands import Finish

    fault = await world.refused(Finish(principal=AgentId("i1"), task_id=task.id, digest="r"))
    assert fault.kind is Kind.NOT_FOUND


async def test_the_same_result_twice_is_accepted_and_another_one_refused(world):
    await world.add("i1", "infra")
    await world.connect("i1")
    task = await world.submit()
    await world.finish("i1", task.id, digest="r1")
    await world.finish("i1", task.id, digest="r1")
    from dragoman.core.commands import Finish

    fault = await world.refused(Finish(principal=AgentId("i1"), task_id=task.id, digest="r2"))
    assert fault.kind is Kind.CONFLICT
    assert await world.story(task.id) == ["submitted", "assigned", "completed"]


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


async def test_a_poll_takes_notices_and_work_and_leases_them(world):
    await world.add("i1", "infra")
    task = await world.submit()
    [order] = await world.poll("i1")
    assert (order.delivery.cargo, order.delivery.task) == ("work", task.id)
    assert await world.poll("i1") == []
    await world.finish("i1", task.id)
    [result] = await world.poll("boss")
    assert await world.poll("boss") == []
    await world.advance(31)
    [again] = await world.poll("boss")
    assert (again.delivery.id, again.delivery.attempt) == (result.delivery.id, 2)


async def test_only_the_head_of_a_lane_leaves_by_polls(world):
    await world.add("i1", "infra")
    await world.connect("i1")
    task = await world.submit()
    await world.progress("i1", task.id, 10)
    await world.progress("i1", task.id, 20)
    await world.finish("i1", task.id)
    seen = []
    for _ in range(3):
        [parcel] = await world.poll("boss")
        seen.append(parcel.delivery.event)
        from dragoman.core.commands import Acknowledge

        await world.ask(Acknowledge(principal=AgentId("boss"), deliveries=(parcel.delivery.id,)))
    assert seen == [3, 4, 5]
    assert await world.poll("boss") == []


async def test_unacknowledged_notices_leave_again_over_the_next_link_in_order(world):
    await world.add("i1", "infra")
    await world.connect("i1")
    boss = await world.connect("boss")
    task = await world.submit()
    await world.progress("i1", task.id, 10)
    await world.finish("i1", task.id)
    assert [p.delivery.event for p in boss.take()] == [3, 4]
    await boss.close()
    boss = await world.connect("boss")
    assert [p.delivery.event for p in boss.take()] == [3, 4]


async def test_a_notice_nobody_acknowledges_becomes_a_dead_letter_and_can_be_redriven(world):
    await world.add("i1", "infra")
    await world.connect("i1")
    task = await world.submit()
    await world.finish("i1", task.id)
    for _ in range(8):
        assert len(await world.poll("boss")) == 1
        await world.advance(31)
    assert await world.poll("boss") == []
    [letter] = await world.store.dead_letters()
    await world.ask(Redrive(principal=ADMIN, letter=letter.id))
    assert [p.delivery.cargo for p in await world.poll("boss")] == ["result"]
    assert list(await world.store.dead_letters()) == []


async def test_somebody_elses_acknowledgment_changes_nothing(world):
    await world.add("i1", "infra")
    await world.connect("i1")
    boss = await world.connect("boss")
    task = await world.submit()
    await world.finish("i1", task.id)
    from dragoman.core.commands import Acknowledge

    stolen = Acknowledge(principal=AgentId("i1"), deliveries=(boss.inbox[0].delivery.id,))
    assert await world.ask(stolen) == 0
    assert len(await world.store.deliveries()) == 1


async def test_a_dead_letter_can_be_edited_and_redriven_or_discarded(world):
    await world.add("i1", "infra")
    i1 = await world.connect("i1")
    task = await world.submit()
    await world.advance(140)
    [letter] = await world.store.dead_letters()
    i1.take()
    await world.ask(Redrive(principal=ADMIN, letter=letter.id, input=b'{"n":2}'))
    await world.advance(70)
    again = [p for p in i1.inbox if p.delivery.task == task.id] or pytest.fail("it was not sent again")
    assert bytes(again[0].event.body) == b'{"input":{"n":2}}'
    await world.advance(4000)
    [letter] = await world.store.dead_letters()
    await world.ask(Discard(principal=ADMIN, letter=letter.id))
    assert list(await world.store.dead_letters()) == []


async def test_cancel_reaches_the_agent_and_every_child(world):
    await world.add("i1", "infra")
    await world.add("c1", "code")
    i1, c1, boss = await world.connect("i1"), await world.connect("c1"), await world.connect("boss")
    parent = await world.submit()
    child = await world.submit("code", principal=AgentId("i1"), parent=parent.id)
    grandchild = await world.submit(principal=AgentId("c1"), parent=child.id)
    await world.ask(Cancel(principal=AgentId("boss"), task_id=parent.id))
    statuses = [(await world.task(t.id)).status for t in (parent, child, grandchild)]
    assert statuses == [Status.CANCELLED] * 3
    assert [p.delivery.task for p in i1.inbox if p.delivery.cargo == "cancel"] == [parent.id, grandchild.id]
    assert [p.delivery.task for p in c1.inbox if p.delivery.cargo == "cancel"] == [child.id]
    assert [p.delivery.cargo for p in boss.inbox] == ["failure"]
    fault = await world.refused(Cancel(principal=AgentId("boss"), task_id=parent.id))
    assert fault.kind is Kind.CONFLICT


async def test_another_agents_task_cannot_be_cancelled_or_seen(world):
    await world.add("i1", "infra")
    await world.add("spy", "infra")
    task = await world.submit()
    fault = await world.refused(Cancel(principal=AgentId("spy"), task_id=task.id))
    assert fault.kind is Kind.NOT_FOUND


async def test_dependents_wait_and_are_released_or_fail(world):
    await world.add("i1", "infra")
    i1 = await world.connect("i1")
    first, second = await world.submit(), await world.submit()
    both = await world.submit(dependencies=(first.id, second.id))
    assert (both.status, both.waiting) == (Status.WAITING, Waiting.DEPENDENCY)
    await world.finish("i1", first.id)
    assert both.id not in i1.work
    await world.finish("i1", second.id)
    assert both.id in i1.work
    third = await world.submit()
    after_third = await world.submit(dependencies=(third.id,))
    await world.finish("i1", third.id, fault=Fault(kind=Kind.WORK_FAILED, message="exit 1"))
    failed = await world.task(after_third.id)
    assert (failed.status, failed.fault.kind) == (Status.FAILED, Kind.DEPENDENCY)


async def test_a_dependency_that_does_not_exist_is_refused(world):
    await world.add("i1", "infra")
    fault = await world.refused(world.request(dependencies=(world.uuid(),)))
    assert (fault.kind, fault.field) == (Kind.NOT_FOUND, "dependencies")


async def test_a_paused_task_stops_its_clocks_and_resumes(world):
    await world.add("i1", "infra")
    i1 = await world.connect("i1")
    task = await world.submit()
    await world.progress("i1", task.id)
    await world.ask(Pause(principal=AgentId("boss"), task_id=task.id))
    await world.advance(10_000)
    assert (await world.task(task.id)).status is Status.WAITING
    await world.ask(Resume(principal=AgentId("boss"), task_id=task.id))
    assert [p.delivery.cargo for p in i1.inbox] == ["work", "pause", "resume"]
    await world.finish("i1", task.id)
    assert (await world.task(task.id)).status is Status.COMPLETED


async def test_a_question_is_answered_once_and_the_answer_goes_back_as_work(world):
    await world.add("i1", "infra")
    i1 = await world.connect("i1")
    task = await world.submit()
    i1.take()
    await world.progress("i1", task.id, paused=True, ask=Ask(question="Restart?", options=("yes", "no")))
    [question] = await world.store.questions(status=QuestionStatus.OPEN)
    await world.restart()
    i1 = await world.connect("i1")
    assert (await world.refused(Answer(principal=ADMIN, question=question.id, answer="maybe"))).kind is Kind.INVALID
    await world.ask(Answer(principal=ADMIN, question=question.id, answer="no"))
    [order] = i1.take()
    assert bytes(order.event.body) == b'{"input":{"n":1},"answer":"no"}'
    assert order.task.request_id != task.origin.request_id
    assert (await world.refused(Answer(principal=ADMIN, question=question.id, answer="yes"))).kind is Kind.CONFLICT


async def test_a_question_nobody_answers_takes_its_default(world):
    await world.add("i1", "infra")
    i1 = await world.connect("i1")
    task = await world.submit()
    i1.take()
    ask = Ask(question="Restart?", timeout_seconds=300, default="no", has_default=True)
    await world.progress("i1", task.id, paused=True, ask=ask)
    await world.advance(299)
    assert i1.inbox == []
    await world.advance(1)
    assert bytes(i1.take()[0].event.body) == b'{"input":{"n":1},"answer":"no"}'


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
    await misfit(5, 6)  # a gap
    await misfit(3, 6)  # what came before it is dropped
    await piece(0, 3)
    await misfit(2, 6)  # an overlap
    await piece(0, 3)
    await misfit(3, 7, 7)  # another total
    await piece(0, 2, 4)
    await piece(0, 3)  # begun anew, also with another total
    await piece(3, 6)
    await misfit(0, 3, world.rules.output_quota + 1)  # at once, and not when so much has come


async def test_a_result_before_its_outputs_pieces_is_refused_and_drops_them(world):
    """chiffon-D4: a set that never completes is refused, and the buffer is freed."""
    await world.add("i1", "infra")
    await world.connect("i1")
    task = await world.submit()
    await world.progress("i1", task.id, output="abc", stream="step-1", span=Span(0, 3, 6))
    assert (await world.refused_finish("i1", task.id)).field == "step.output_chunk"
    assert (await world.finish("i1", task.id)).status is Status.COMPLETED


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


async def test_after_a_restart_agents_have_a_fresh_idle_clock_and_pending_work_goes_on(world):
    await world.add("i1", "infra", concurrent=2)
    await world.connect("i1")
    running = await world.submit()
    tasks = [await world.submit() for _ in range(5)]
    world.time += 3600 * SECOND // 2
    await world.restart()
    await world.settle()
    assert (await world.task(running.id)).status is Status.ASSIGNED
    await world.finish("i1", running.id)
    i1 = await world.connect("i1")
    await world.advance(31)
    for _ in range(20):
        for id in dict.fromkeys(i1.work):
            if not (await world.task(id)).final:
                await world.finish("i1", id)
        await world.advance(5)
    rows, _ = await world.store.tasks(TaskFilter(), after=None, limit=100)
    assert {t.id: t.status for t in rows} == {t.id: Status.COMPLETED for t in (running, *tasks)}


async def test_retry_begins_a_new_round_with_a_new_request_id(world):
    await world.add("i1", "infra")
    i1 = await world.connect("i1")
    task = await world.submit()
    await world.finish("i1", task.id, fault=Fault(kind=Kind.WORK_FAILED, message="exit 1"))
    i1.take()
    again = await world.ask(Retry(principal=ADMIN, task_id=task.id))
    assert (again.status, again.round, i1.work) == (Status.ASSIGNED, 1, [task.id])
    await world.finish("i1", task.id)
    assert (await world.task(task.id)).status is Status.COMPLETED


async def test_nobody_connected_for_long_is_unavailable_after_its_attempts(world):
    await world.add("i1", "infra")
    boss = await world.connect("boss")
    task = await world.submit()
    await world.advance(30 * 4 + 7 + 1)
    final = await world.task(task.id)
    assert (final.status, final.fault.kind) == (Status.FAILED, Kind.UNAVAILABLE)
    assert [p.delivery.cargo for p in boss.inbox] == ["failure"]


async def test_busy_agents_are_not_unavailable(world):
    await world.add("i1", "infra", concurrent=1)
    await world.connect("i1")
    busy = await world.submit(total_seconds=1000, idle_seconds=1000)
    waiting = await world.submit()
    for _ in range(30):
        await world.advance(20)
        await world.progress("i1", busy.id)
    assert (await world.task(waiting.id)).status is Status.QUEUED


async def test_the_audit_chain_holds_and_names_a_changed_record(world):
    import msgspec

    from dragoman.core.audit.chain import verify

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


async def test_a_removed_agents_work_goes_to_others(world):
    from dragoman.core.commands import RemoveAgent

    await world.add("i1", "infra")
    i1 = await world.connect("i1")
    task = await world.submit()
    await world.add("i2", "infra")
    i2 = await world.connect("i2")
    await world.ask(RemoveAgent(principal=ADMIN, agent=AgentId("i1")))
    assert i1.hung_up
    await world.advance(1)
    assert i2.work == [task.id]


@pytest.mark.requirement("CH-BRK-2")
async def test_work_under_way_goes_on_while_the_breaker_is_open(world):
    await world.add("i1", "infra")
    await world.connect("i1")
    kept = await world.submit(total_seconds=900, idle_seconds=900)
    for _ in range(5):
        await world.submit()
    await world.advance(30)
    assert world.intake.agent(AgentId("i1")).breaker.state is BreakerState.OPEN
    await world.finish("i1", kept.id)
    assert (await world.task(kept.id)).status is Status.COMPLETED
    assert world.intake.agent(AgentId("i1")).breaker.state is BreakerState.OPEN  # only a health check closes it


@pytest.mark.requirement("CH-RTY-2")
async def test_every_attempt_has_the_request_id_of_the_first(world):
    await world.add("i1", "infra")
    i1 = await world.connect("i1")
    task = await world.submit()
    await world.advance(140)
    orders = [p for p in i1.inbox if p.delivery.task == task.id]
    assert [p.task.attempts for p in orders] == [1, 2, 3, 4]
    assert {p.task.request_id for p in orders} == {task.origin.request_id}
    assert len({p.delivery.id for p in orders}) == 4  # an acknowledgment of an old one is worth nothing


@pytest.mark.requirement("chiffon-D7")
async def test_faults_of_the_work_or_of_the_caller_never_open_the_breaker(world):
    await world.add("i1", "infra")
    await world.connect("i1")
    for kind in (Kind.RESOURCES, Kind.UNSUPPORTED_WORK, Kind.INVALID, Kind.WORK_FAILED) * 3:
        task = await world.submit()
        await world.fault("i1", task.id, kind)
    assert world.intake.agent(AgentId("i1")).breaker.state is BreakerState.CLOSED


@pytest.mark.requirement("chiffon-D7")
async def test_an_answer_in_between_starts_the_count_of_failures_anew(world):
    await world.add("i1", "infra")
    await world.connect("i1")
    for _ in range(3):
        for _ in range(4):
            task = await world.submit()
            await world.fault("i1", task.id, Kind.UNAVAILABLE)
        await world.finish("i1", (await world.submit()).id)
    assert world.intake.agent(AgentId("i1")).breaker.state is BreakerState.CLOSED


async def test_a_work_order_that_died_with_the_hub_leaves_again_over_the_next_link(world):
    await world.add("i1", "infra")
    await world.connect("i1")
    task = await world.submit(idle_seconds=600, total_seconds=600)
    await world.restart()
    i1 = await world.connect("i1")
    assert i1.work == [task.id]  # at once, not when the idle clock runs out ten minutes later
    assert (await world.task(task.id)).attempts == 1
    await world.finish("i1", task.id)
    assert (await world.task(task.id)).status is Status.COMPLETED


async def test_work_that_a_poll_took_is_not_sent_again_over_a_link(world):
    await world.add("i1", "infra")
    task = await world.submit()
    [order] = await world.poll("i1")
    i1 = await world.connect("i1")
    assert (order.delivery.task, i1.work) == (task.id, [])


async def test_one_broken_link_is_one_failure_however_much_work_was_on_it(world):
    await world.add("i1", "infra")
    i1 = await world.connect("i1")
    for _ in range(7):
        await world.submit()
    await i1.close()
    await world.advance(6)
    assert world.intake.agent(AgentId("i1")).breaker.failures == 1


async def test_tasks_that_came_together_are_done_in_the_order_in_which_they_came(world):
    await world.add("i1", "infra", concurrent=1)
    requests = [world.request() for _ in range(20)]
    tasks = [await future for future in [world.intake.post(request) for request in requests]]
    i1 = await world.connect("i1")
    for task in tasks:
        assert i1.work == [task.id]
        i1.take()
        await world.finish("i1", task.id)


async def test_what_a_dead_link_held_behind_a_poll_leaves_when_the_head_is_acknowledged(world):
    from dragoman.core.commands import Acknowledge

    await world.add("i1", "infra")
    await world.connect("i1")
    boss = await world.connect("boss")
    task = await world.submit()
    await world.progress("i1", task.id)
    await world.finish("i1", task.id)
    await boss.close()  # holds both
    [head] = await world.poll("boss")
    boss = await world.connect("boss")
    assert boss.inbox == []  # the poll holds the head
    await world.ask(Acknowledge(principal=AgentId("boss"), deliveries=(head.delivery.id,)))
    assert [p.delivery.cargo for p in boss.inbox] == ["result"]


async def test_a_queued_task_whose_clock_is_set_again_is_still_first_in_its_queue(world):
    await world.add("i1", "infra", concurrent=1)
    i1 = await world.connect("i1")
    silent = await world.submit()
    waiting = await world.submit()
    i1.take()
    await world.advance(30)  # in one unit the attempt fails and the waiting one's clock is set again
    assert i1.work == [waiting.id]
    assert (await world.task(silent.id)).status is Status.QUEUED


async def test_an_agent_that_takes_a_removed_ones_name_does_not_hear_of_its_tasks():
    world = await World().start()
    await world.add("boss", "orchestrator")
    await world.add("i1", "infra")
    i1 = await world.connect("i1")
    task = await world.submit()
    await world.ask(RemoveAgent(principal=ADMIN, agent=AgentId("boss")))
    await world.advance(1)
    await world.add("boss", "orchestrator")
    boss = await world.connect("boss")
    await world.finish("i1", task.id)
    assert i1.work == [task.id]
    assert boss.take() == []
    await world.intake.stop()


async def test_a_task_for_anybody_where_nobody_is_says_so():
    world = await World(MemoryStore()).start()
    fault = await world.refused(world.request(kind=None, principal=ADMIN))
    assert fault.message == "no agent is here; add one with `dragoman agent add`"
    await world.intake.stop()

"""An attempt fails, by silence, by an error or by a broken link: what is tried again, when, and by whom."""

from __future__ import annotations

import msgspec
import pytest

from dragoman.core.commands import Cancel, PartLink, RemoveAgent, ReportFault, ReportProgress, Retry
from dragoman.core.ids import ADMIN, SECOND, AgentId, rfc3339
from dragoman.core.model.tasks import Status
from dragoman.messages.faults import Fault, Kind
from dragoman.messages.files import FileRef


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
    assert final.outcome.fault.kind is Kind.TIMEOUT
    assert final.outcome.fault.facts["attempted_retries"] == 3
    [letter] = await world.store.dead_letters()
    assert (letter.task, letter.attempts, letter.reason.kind) == (task.id, 4, Kind.TIMEOUT)
    assert [p.delivery.kind for p in boss.inbox] == ["failure"]


@pytest.mark.requirement("CH-RTY-1")
async def test_retries_come_after_one_two_and_four_seconds(world):
    await world.add("i1", "infra")
    i1 = await world.connect("i1")
    task = await world.submit()
    waits = []
    for _ in range(3):
        i1.take()
        await world.fault("i1", task.id, Kind.RESOURCES)
        due = (await world.task(task.id)).wake_at
        waits.append((due - world.time) / SECOND)
        [*_, told] = await world.store.events(task.id)
        assert msgspec.json.decode(told.body)["retry_at"] == rfc3339(due)  # a time as everybody writes one
        await world.advance(waits[-1])
        assert i1.work == [task.id]
    assert waits == [1, 2, 4]
    await world.fault("i1", task.id, Kind.RESOURCES)
    assert (await world.task(task.id)).status is Status.FAILED


@pytest.mark.parametrize(("said", "waited"), [(9, 9), (2.5, 2.5), (0.2, 1), (-5, 1), ("soon", 1), (True, 1), (None, 1)])
async def test_an_agent_that_wants_to_be_left_alone_for_longer_is(world, said, waited):
    await world.add("i1", "infra")
    await world.connect("i1")
    task = await world.submit()
    await world.fault("i1", task.id, Kind.RESOURCES, facts={"retry_after": said})
    assert (await world.task(task.id)).wake_at - world.time == waited * SECOND


@pytest.mark.parametrize("said", [3600, 10**18, 1e300])
async def test_one_that_wants_to_be_left_alone_beyond_the_deadline_is_not_waited_for(world, said):
    await world.add("i1", "infra")
    await world.connect("i1")
    task = await world.submit()
    await world.fault("i1", task.id, Kind.RESOURCES, facts={"retry_after": said})
    assert (await world.task(task.id)).status is Status.FAILED


async def test_files_of_an_attempt_that_failed_stay_and_count_no_more(world):
    await world.add("i1", "infra")
    i1 = await world.connect("i1")
    task = await world.submit()
    most = world.intake.rules.files_per_task

    def plots(attempt):
        return tuple(
            FileRef(id=f"{attempt}-{number}", name="plot.png", mime_type="image/png", size=1, sha256="s")
            for number in range(most)
        )

    for attempt in (1, 2):
        i1.take()
        await world.progress("i1", task.id, files=plots(attempt))
        await world.fault("i1", task.id, Kind.RESOURCES)
        await world.advance(2)
    await world.ask(Cancel(principal=ADMIN, task_id=task.id))
    await world.ask(Retry(principal=ADMIN, task_id=task.id))
    assert i1.take()
    held = (await world.progress("i1", task.id, files=plots(3))).output.files
    assert held == (*plots(1), *plots(2), *plots(3))
    one_more = ReportProgress(principal=AgentId("i1"), task_id=task.id, files=plots(4)[:1])
    assert (await world.refused(one_more)).kind is Kind.TOO_LARGE


async def test_a_repeated_error_ends_no_other_attempt(world):
    await world.add("i1", "infra")
    i1 = await world.connect("i1")
    task = await world.submit()
    i1.take()
    fault = Fault(kind=Kind.RESOURCES, message="full")
    said = ReportFault(principal=AgentId("i1"), request_id=task.request_id, fault=fault, message_id="m1", digest="d1")
    await world.ask(said)
    await world.advance(1)
    assert i1.work == [task.id]
    await world.ask(said)
    assert ((await world.task(task.id)).status, (await world.task(task.id)).attempt.count) == (Status.ASSIGNED, 2)
    assert (await world.refused(msgspec.structs.replace(said, digest="d2"))).kind is Kind.MISMATCH
    await world.ask(msgspec.structs.replace(said, message_id="m2"))
    assert (await world.task(task.id)).status is Status.QUEUED


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
    assert (final.status, final.outcome.fault.kind, final.outcome.fault.retryable) == (
        Status.FAILED,
        Kind.TIMEOUT,
        True,
    )


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
    assert [p.delivery.kind for p in boss.inbox] == ["failure"]
    assert list(await world.store.dead_letters()) == []


async def test_work_of_a_broken_connection_is_assigned_again_after_the_grace_time(world):
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
    assert (await world.task(task.id)).attempt.count == 2


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
    assert (await world.task(task.id)).attempt.count == 1
    await world.finish("i1", task.id)
    assert (await world.task(task.id)).status is Status.COMPLETED


@pytest.mark.parametrize("vouches", [True, False])
async def test_an_agent_that_came_back_is_missed_when_it_goes_again(world, vouches):
    """Its work hangs on the link over which it was heard last, which vouches for it if links of its kind do."""
    await world.add("i1", "infra")
    i1 = await world.connect("i1", vouches=vouches)
    task = await world.submit()
    await i1.close()
    i1 = await world.connect("i1", vouches=vouches)
    await world.progress("i1", task.id)
    await world.advance(100 if vouches else 20)
    assert (await world.task(task.id)).attempt.count == 1
    await i1.close()
    i1 = await world.connect("i1", vouches=vouches)
    await world.advance(5.9)  # it came back and says nothing: grace 5 s, then the first retry after 1 s
    assert i1.work == []
    await world.advance(0.2)
    assert i1.work == [task.id]
    assert (await world.task(task.id)).attempt.count == 2


async def test_a_result_of_an_attempt_given_up_is_still_welcome_while_nobody_else_has_the_task(world):
    await world.add("i1", "infra")
    await world.connect("i1")
    task = await world.submit()
    await world.advance(30)
    assert (await world.task(task.id)).status is Status.QUEUED
    await world.finish("i1", task.id)
    assert (await world.task(task.id)).status is Status.COMPLETED


async def test_a_stale_owner_is_refused_once_another_agent_has_the_task(world):
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


async def test_retry_begins_a_new_round_with_a_new_request_id(world):
    await world.add("i1", "infra")
    i1 = await world.connect("i1")
    task = await world.submit()
    await world.finish("i1", task.id, fault=Fault(kind=Kind.WORK_FAILED, message="exit 1"))
    i1.take()
    again = await world.ask(Retry(principal=ADMIN, task_id=task.id))
    assert (again.status, again.attempt.round, i1.work) == (Status.ASSIGNED, 1, [task.id])
    await world.finish("i1", task.id)
    assert (await world.task(task.id)).status is Status.COMPLETED


async def test_nobody_connected_for_long_is_unavailable_after_its_attempts(world):
    await world.add("i1", "infra")
    boss = await world.connect("boss")
    task = await world.submit()
    await world.advance(30 * 4 + 7 + 1)
    final = await world.task(task.id)
    assert (final.status, final.outcome.fault.kind) == (Status.FAILED, Kind.UNAVAILABLE)
    assert [p.delivery.kind for p in boss.inbox] == ["failure"]


async def test_busy_agents_are_not_unavailable(world):
    await world.add("i1", "infra", concurrent=1)
    await world.connect("i1")
    busy = await world.submit(total_seconds=1000, idle_seconds=1000)
    waiting = await world.submit()
    for _ in range(30):
        await world.advance(20)
        await world.progress("i1", busy.id)
    assert (await world.task(waiting.id)).status is Status.QUEUED


async def test_a_removed_agents_work_goes_to_others(world):

    await world.add("i1", "infra")
    i1 = await world.connect("i1")
    task = await world.submit()
    await world.add("i2", "infra")
    i2 = await world.connect("i2")
    await world.ask(RemoveAgent(principal=ADMIN, agent=AgentId("i1")))
    assert i1.hung_up
    await world.advance(1)
    assert i2.work == [task.id]


@pytest.mark.requirement("CH-RTY-2")
async def test_every_attempt_has_the_request_id_of_the_first(world):
    await world.add("i1", "infra")
    i1 = await world.connect("i1")
    task = await world.submit()
    await world.advance(140)
    orders = [p for p in i1.inbox if p.delivery.task == task.id]
    assert [p.task.attempt.count for p in orders] == [1, 2, 3, 4]
    assert {p.task.request_id for p in orders} == {task.origin.request_id}
    assert len({p.delivery.id for p in orders}) == 4  # an acknowledgment of an old one is worth nothing


async def test_work_that_a_poll_took_is_not_sent_again_over_a_connection(world):
    await world.add("i1", "infra")
    task = await world.submit()
    [order] = await world.poll("i1")
    i1 = await world.connect("i1")
    assert (order.delivery.task, i1.work) == (task.id, [])


async def test_a_queued_task_whose_clock_is_set_again_is_still_first_in_its_queue(world):
    await world.add("i1", "infra", concurrent=1)
    i1 = await world.connect("i1")
    silent = await world.submit()
    waiting = await world.submit()
    i1.take()
    await world.advance(30)  # in one unit the attempt fails and the waiting one's clock is set again
    assert i1.work == [waiting.id]
    assert (await world.task(silent.id)).status is Status.QUEUED


@pytest.mark.requirement("CH-ERR-4")
async def test_an_agent_that_is_gone_was_last_seen_when_it_last_spoke(world):
    await world.add("i1", "infra")
    await world.connect("i1")
    task = await world.submit()
    gone = {"agent_id": "i1", "last_heartbeat": None}  # all that an endpoint knows
    task = await world.fault("i1", task.id, Kind.UNAVAILABLE, retryable=True, facts=gone)
    agent = world.intake.agent(AgentId("i1"))
    assert task.outcome.fault.facts == gone | {"last_heartbeat": rfc3339(agent.last_seen_at)}


@pytest.mark.requirement("CH-ERR-4")
async def test_an_agent_that_polled_was_last_seen_when_it_polled(world):
    """Its row is written every fifteen seconds at most: 5002 told the poll that was in it."""
    await world.add("i1", "infra")
    await world.poll("i1")
    await world.advance(10)
    await world.poll("i1")
    polled = world.time
    await world.advance(120)
    task = await world.submit()
    await world.advance(300)
    fault = (await world.task(task.id)).outcome.fault
    assert (fault.kind, fault.facts["last_heartbeat"]) == (Kind.UNAVAILABLE, rfc3339(polled))


async def test_the_last_attempt_is_when_it_was_begun(world):
    await world.add("i1", "infra")
    await world.connect("i1")
    task = await world.submit()
    begun = []
    for _ in range(300):
        await world.advance(1)
        now = await world.task(task.id)
        if now.final:
            break
        if now.attempt.at is not None:
            begun.append(now.attempt.at)
    assert now.outcome.fault.facts["last_attempt"] == rfc3339(begun[-1])
    assert (now.finished_at - begun[-1], len(set(begun))) == (30 * SECOND, 4)


@pytest.mark.parametrize(
    ("kind", "name", "fits"), [("infra", "i1", True), ("i1", "i1", True), ("code", "i1", False), ("code", "any", True)]
)
async def test_a_request_with_a_kind_and_an_agent_means_an_agent_of_that_kind(world, kind, name, fits):
    await world.add("i1", "infra")
    await world.add("c1", "code")
    await world.add("any")
    wish = world.request(kind, pinned=AgentId(name))
    if fits:
        assert (await world.ask(wish)).routing.pinned == name
    else:
        fault = await world.refused(wish)
        assert (fault.kind, fault.field, "i1 is infra" in fault.message) == (Kind.INVALID, "agent", True)


@pytest.mark.parametrize("told", [True, False])
async def test_an_agent_that_ends_spends_the_attempt_of_what_it_was_at_and_no_other(world, told):
    """What it was at is what it told of, or else what it had first; the rest it only took along. One order that kills
    whoever reads it failed all those that were given out beside it."""
    await world.add("i1", "infra", concurrent=8)
    gone = Fault(kind=Kind.UNAVAILABLE, message="the process ended", retryable=True)
    tasks = []
    for _ in range(3):
        tasks.append(await world.submit())
        await world.advance(1)
    deadly = tasks.pop(1 if told else 0)
    for attempt in range(1, 5):
        i1 = await world.connect("i1", fresh=True)
        await world.advance(10)
        if told:
            await world.progress("i1", deadly.id)
        elif attempt > 1:  # it reads in order, and has done those that came before
            for task in tasks:
                await world.finish("i1", task.id)
            tasks.clear()
        await i1.close(fault=gone)
        assert (await world.task(deadly.id)).attempt.count == attempt
        assert [(await world.task(task.id)).attempt.count for task in tasks] == [0] * len(tasks)
    assert (await world.task(deadly.id)).status is Status.FAILED


async def test_an_agent_that_was_asked_to_end_finishes_what_it_has_and_is_given_nothing_new(world):
    await world.add("i1", "infra")
    i1 = await world.connect("i1")
    begun = await world.submit()
    await world.ask(PartLink(principal=AgentId("i1"), session=i1.session))
    later = await world.submit()
    assert (later.status, later.attempt.count) == (Status.QUEUED, 0)
    await world.finish("i1", begun.id)
    await i1.close()
    again = await world.connect("i1")
    assert [order.delivery.task for order in again.take()] == [later.id]
    assert (await world.task(later.id)).attempt.count == 1

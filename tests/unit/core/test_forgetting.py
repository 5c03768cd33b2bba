"""Tasks that ended long ago are forgotten, whole, and only when nothing needs them."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from tests.adapters import records
from tests.support.heads import changed
from tests.support.world import World

from dragoman.app import intake
from dragoman.core.commands import AskPerson, Cancel, Discard, Forget, Retry
from dragoman.core.ids import ADMIN, DAY, AgentId, Instant, TaskId
from dragoman.core.lookups import Finished
from dragoman.core.model.audit import verify
from dragoman.core.model.tasks import Event, Question, QuestionStatus, Reserved, Status, Task
from dragoman.core.ports import Changes, StoreFailed
from dragoman.core.rules import Rules
from dragoman.core.tasks.forgetting import PAGE, QUESTIONS
from dragoman.messages.faults import Kind
from dragoman.messages.tasks import Ask
from dragoman.stores.memory import MemoryStore

MONTH = Rules().keep_finished


@pytest.fixture(params=[True, False], ids=["embedded", "over a wire"])
async def world(request):
    world = await World(MemoryStore(immediate=request.param)).start()
    await world.add("boss", "orchestrator")
    await world.add("i1", "infra", concurrent=100)
    world.i1 = await world.connect("i1")
    yield world
    await world.intake.stop()


async def heard(world):
    """Whoever asked takes what there is to hear."""
    while outgoing_messages := await world.poll("boss"):
        await world.ask_ack("boss", outgoing_messages)


async def ended(world, **fields):
    """A task that came to its end, as whoever asked knows."""
    world.time += 1
    task = await world.submit(**fields)
    await world.finish("i1", task.id)
    await heard(world)
    return task


async def insert(world, *rows, **more):
    async with world.store.unit() as unit:
        await unit.commit(Changes(added=rows, **more))


def left(world):
    return sorted({row.id for row in world.store.rows(Task)} | {row.task for row in world.store.rows(Event)})


async def test_a_task_is_forgotten_after_its_time_with_all_its_messages(world):
    task = await world.submit()
    asked = AskPerson(principal=AgentId("i1"), request_id="q", task_id=task.id, ask=Ask(question="Really?"))
    await world.ask(asked)
    await world.finish("i1", task.id)
    await heard(world)
    before = await world.store.audit()
    world.time += MONTH
    assert await world.ask(Forget()) == 0
    world.time += 1
    assert await world.ask(Forget()) == 1
    assert (left(world), world.store.rows(Question)) == ([], [])
    now = await world.store.audit()
    assert list(now[: len(before)]) == list(before)
    assert [(one.principal, one.action, one.reason[:2]) for one in now[len(before) :]] == [("hub", "task.forget", "1 ")]
    assert verify(now)[2] is None
    fault = await world.refused(Retry(principal=ADMIN, task_id=task.id))
    assert fault.kind is Kind.NOT_FOUND
    assert (await world.refused_finish("i1", task.id)).kind is Kind.NOT_FOUND


async def test_the_same_request_is_new_work_from_then_on(world):
    request = world.request()
    first = await world.ask(request)
    await world.finish("i1", first.id)
    await heard(world)
    assert (await world.ask(request)).final
    await heard(world)
    world.time += MONTH + 1
    assert await world.ask(Forget()) == 1
    again = await world.ask(request)
    assert (again.id, again.status) == (first.id, Status.ASSIGNED)
    assert await world.history(again.id) == ["submitted", "assigned"]


async def test_what_came_long_ago_and_ended_now_is_young(world):
    task = await world.submit(total_seconds=2 * MONTH / 1_000_000, idle_seconds=2 * MONTH / 1_000_000)
    world.time += MONTH + 1
    await world.finish("i1", task.id)
    await heard(world)
    assert await world.ask(Forget()) == 0
    world.time += MONTH + 1
    assert await world.ask(Forget()) == 1


async def test_nothing_is_forgotten_where_everything_is_kept():
    world = await World(rules=Rules(keep_finished=0)).start()
    await world.add("boss", "orchestrator")
    await world.add("i1", "infra")
    await world.connect("i1")
    task = await ended(world)
    world.time += 100 * MONTH
    await world.settle()
    assert await world.ask(Forget()) == 0
    assert await world.task(task.id)
    await world.intake.stop()


async def undelivered(world):
    task = await world.submit()
    await world.finish("i1", task.id)
    return task.id, lambda: heard(world)


async def dead_letter(world):
    task = await world.submit()
    await world.ask(Cancel(principal=AgentId("boss"), task_id=task.id))
    await heard(world)
    await world.ask_ack("i1", world.i1.take())
    await insert(world, records.dead_letter("letter", task.id))
    return task.id, lambda: world.ask(Discard(principal=ADMIN, dead_letter="letter"))


async def child(world):
    parent = await world.submit()
    child = await world.submit(parent=parent.id)
    await world.finish("i1", parent.id)
    await heard(world)
    await insert(world, changed=[changed(await world.task(child.id), deadline=Instant(world.time * 2))])
    return parent.id, lambda: world.finish("i1", child.id)


async def dependent(world):
    """It waits no more for the one, and does for the other: both are kept."""
    done, other = await ended(world), await world.submit(total_seconds=3e6, idle_seconds=3e6)
    waits = await world.submit(dependencies=(done.id, other.id))
    assert (await world.task(waits.id)).lineage.blocked_by == (other.id,)

    async def go_on():
        await world.ask(Cancel(principal=AgentId("boss"), task_id=waits.id))

    return done.id, go_on


async def open_question(world):
    task = await ended(world)
    asked = records.question("q", task.id)
    await insert(world, asked)
    closed = msgspec.structs.replace(asked, status=QuestionStatus.ANSWERED)
    return task.id, lambda: insert(world, changed=[closed])


async def set_aside(world):
    task = await world.task((await ended(world)).id)
    held = changed(task, reserved=Reserved(AgentId("i1"), {"budget": 1.0}))
    await insert(world, changed=[held])
    return task.id, lambda: insert(world, changed=[task])


@pytest.mark.parametrize("need", [undelivered, dead_letter, child, dependent, open_question, set_aside])
async def test_a_task_that_something_needs_is_kept_until_it_does_not(world, need):
    id, let_go = await need(world)
    world.time += MONTH + 1
    await world.ask(Forget())
    assert id in left(world)
    await let_go()
    await world.ask(Forget())
    assert id not in left(world)


async def test_the_alarm_begins_a_round_that_goes_through_everything(world, monkeypatch):
    monkeypatch.setattr(intake, "FORGET_PAUSE", 0)
    monkeypatch.setattr(intake, "FORGETTABLE_WITHIN", 0)
    tasks = [await world.submit() for _ in range(2 * PAGE + 3)]
    for task in tasks:
        await world.finish("i1", task.id)
    await heard(world)
    young = await ended(world)
    kept = tasks[PAGE - 1].id
    await insert(world, records.question("q", kept))
    await insert(world, changed=[msgspec.structs.replace(await world.task(young.id), finished_at=world.time + MONTH)])
    world.time += MONTH + 1
    await world.intake.wake_due()
    async with asyncio.timeout(60):
        while len(left(world)) > 2:
            await asyncio.sleep(0)
    assert left(world) == sorted([kept, young.id])
    assert list(await world.store.deliveries()) == []


@pytest.mark.parametrize("after", [False, True], ids=["before it was written", "when it was written"])
async def test_a_crash_in_the_middle_of_a_round_leaves_whole_tasks_and_the_next_one_goes_on(world, after):
    tasks = [await ended(world) for _ in range(PAGE + 2)]
    world.time += MONTH + 1
    world.store.fail_next_commit(StoreFailed("injected"), after=after)
    fault = await world.refused(Forget())
    assert fault.kind is Kind.OVERLOADED
    await world.restart()
    assert left(world) == sorted(task.id for task in tasks[PAGE * after :])
    assert len(world.store.rows(Event)) == 3 * len(left(world))
    await world.ask(Forget())
    await world.ask(Forget())
    assert left(world) == []


async def test_a_task_with_many_questions_goes_when_they_are_gone(world):
    tasks = [await ended(world) for _ in range(3)]
    asked = [records.question(f"q{n}", tasks[1].id, status=QuestionStatus.WITHDRAWN) for n in range(QUESTIONS + 1)]
    await insert(world, *asked)
    world.time += MONTH + 1
    assert (await world.ask(Forget()), len(world.store.rows(Question))) == (1, 1)
    assert (await world.ask(Forget()), world.store.rows(Question), left(world)) == (2, [], [])


async def test_what_is_asked_in_the_same_unit_sees_that_it_is_gone(world):
    request = world.request()
    first = await world.ask(request)
    await world.finish("i1", first.id)
    await heard(world)
    world.time += MONTH + 1
    other_id = msgspec.structs.replace(request, task_id=TaskId(world.uuid()))
    forgot, same, other = await asyncio.gather(
        *(world.intake.enqueue(command) for command in (Forget(), request, other_id)), return_exceptions=True
    )
    assert (forgot, same.fault.kind, same.fault.retryable) == (1, Kind.OVERLOADED, True)
    assert (other.id, other.status) == (other_id.task_id, Status.ASSIGNED)
    assert left(world) == [other.id]


async def test_a_repeated_request_in_the_unit_that_forgets_its_task_still_gets_the_first_outcome(world):
    request = world.request()
    first = await world.ask(request)
    await world.finish("i1", first.id)
    await heard(world)
    world.time += MONTH + 1
    again, forgot = await asyncio.gather(world.intake.enqueue(request), world.intake.enqueue(Forget()))
    assert (again.id, forgot) == (first.id, 0)
    [outgoing] = await world.poll("boss")
    assert outgoing.delivery.kind == "result"


def test_a_place_is_between_two_tasks_also_of_one_moment():
    rows = [records.task(id, created_at=5, status=Status.FAILED) for id in ("a", "b")]
    assert [Finished(Instant(5), TaskId("a"), Instant(6), 9).matches(row) for row in rows] == [False, True]
    assert DAY * 30 == MONTH

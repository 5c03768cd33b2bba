"""Direct messages between agents: two promises, lanes, ranks, retries, time to live, and what is remembered."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from tests.support.world import World

from dragoman.core.commands import Beat, Pause, Redrive, Resume, Sweep
from dragoman.core.ids import ADMIN, DAY, HOUR, SECOND, AgentId, Instant, TaskId
from dragoman.core.lookups import PAGE
from dragoman.core.model.deliveries import Delivery, MessageKind, SeenMessage
from dragoman.core.model.tasks import Priority, Status
from dragoman.core.rules import Rules
from dragoman.messages.faults import Kind
from dragoman.stores.memory import MemoryStore

CRITICAL, LOW = Priority.CRITICAL, Priority.LOW


@pytest.fixture(params=["loads first", "peeks"])
async def world(request):
    world = await World(MemoryStore(immediate=request.param == "peeks"), Rules(direct_message_jitter=False)).start()
    for id in ("ann", "bob"):
        await world.add(id, protocol="agentmsg")
    await world.add("boss", "orchestrator")
    yield world
    await world.intake.stop()


def texts(outgoing_messages) -> list[str]:
    return [msgspec.json.decode(p.content.raw)["text"] for p in outgoing_messages]


def rows(world: World) -> list[Delivery]:
    return list(world.store.rows(Delivery))


# -- the two promises


async def test_a_kept_message_is_in_the_store_until_it_is_acknowledged(world):
    bob = await world.connect("bob", acknowledges=True)
    await world.ask(world.tell("ann", "bob"))
    [outgoing] = bob.take()
    assert (outgoing.delivery.kind, outgoing.delivery.attempt, texts([outgoing])) == (
        MessageKind.DIRECT_MESSAGE,
        1,
        ["hello"],
    )
    assert len(rows(world)) == 1
    await bob.ack(outgoing)
    assert rows(world) == []


async def test_an_at_most_once_message_touches_no_store_when_its_receiver_is_connected(world):
    bob = await world.connect("bob", acknowledges=True)
    audited = len(await world.store.audit(after=0, limit=1000))
    await world.ask(world.tell("ann", "bob", once=True))
    assert texts(bob.take()) == ["hello"]
    assert list(world.store.rows(Delivery)) == []
    assert len(await world.store.audit(after=0, limit=1000)) == audited


async def test_an_at_most_once_message_waits_for_its_receiver_and_is_gone_when_it_leaves(world):
    await world.ask(world.tell("ann", "bob", once=True))
    bob = await world.connect("bob", acknowledges=True)
    assert texts(bob.take()) == ["hello"]
    await bob.close()
    again = await world.connect("bob", acknowledges=True)
    await world.advance(60)
    assert again.take() == []


async def test_a_kept_message_survives_the_hub(world):
    await world.ask(world.tell("ann", "bob"))
    await world.restart()
    bob = await world.connect("bob", acknowledges=True)
    assert texts(bob.take()) == ["hello"]


async def test_what_was_on_a_connection_that_broke_leaves_again_at_once_over_the_next(world):
    bob = await world.connect("bob", acknowledges=True)
    await world.ask(world.tell("ann", "bob"))
    await bob.close()
    again = await world.connect("bob", acknowledges=True)
    [outgoing] = again.take()
    assert outgoing.delivery.attempt == 2


# -- the same again


@pytest.mark.parametrize("there", [True, False])
async def test_a_message_that_left_once_does_not_leave_again_after_a_restart(world, there):
    told = world.tell("ann", "bob", once=True)
    if there:
        bob = await world.connect("bob", acknowledges=True)
    await world.ask(told)
    if not there:
        bob = await world.connect("bob", acknowledges=True)
    assert texts(bob.take()) == ["hello"]
    await world.restart()
    bob = await world.connect("bob", acknowledges=True)
    await world.ask(told)
    assert bob.take() == []
    other = msgspec.structs.replace(told, direct_message=msgspec.structs.replace(told.direct_message, digest="other"))
    assert (await world.refused(other)).kind is Kind.MISMATCH


@pytest.mark.parametrize("once", [False, True])
async def test_a_repeated_message_is_delivered_once_and_other_content_is_refused(world, once):
    bob = await world.connect("bob", acknowledges=True)
    told = world.tell("ann", "bob", once=once)
    for _ in range(2):
        await world.ask(told)
    assert len(bob.take()) == 1
    other = msgspec.structs.replace(told, direct_message=msgspec.structs.replace(told.direct_message, digest="other"))
    assert (await world.refused(other)).kind is Kind.MISMATCH


async def test_a_message_that_arrived_is_recognised_for_a_day(world):
    bob = await world.connect("bob", acknowledges=True)
    told = world.tell("ann", "bob")
    await world.ask(told)
    await bob.ack(*bob.take())
    await world.restart()
    bob = await world.connect("bob", acknowledges=True)
    await world.ask(told)
    assert bob.take() == []
    world.time = Instant(world.time + DAY - HOUR)
    assert await world.ask(Sweep()) == 0
    world.time = Instant(world.time + HOUR + 1)
    assert await world.ask(Sweep()) == 1
    assert list(world.store.rows(SeenMessage)) == []


async def test_an_unknown_receiver_and_a_protocol_without_the_message_are_refused(world):
    assert (await world.refused(world.tell("ann", "zoe"))).kind is Kind.NOT_FOUND
    fault = await world.refused(world.tell("ann", "boss"))
    assert fault.kind is Kind.UNSUPPORTED_WORK
    assert "chiffon" in fault.message


# -- retries


async def test_without_an_acknowledgment_it_leaves_again_after_growing_waits_and_is_a_dead_letter_at_last(world):
    ann = await world.connect("ann", acknowledges=True)
    bob = await world.connect("bob", acknowledges=True)
    await world.ask(world.tell("ann", "bob"))
    began, seen = world.time, []
    for _ in range(200):
        seen += [(p.delivery.attempt, (world.time - began) / SECOND) for p in bob.take()]
        await world.advance(0.1)
    assert [(attempt, round(at)) for attempt, at in seen] == [(1, 0), (2, 1), (3, 3), (4, 7)]
    [letter] = await world.store.dead_letters(task=None, after=None, limit=10)
    assert (letter.kind, letter.attempts, letter.receiver) == (MessageKind.DIRECT_MESSAGE, 4, "bob")
    [told] = ann.take()[:1]
    assert (told.delivery.kind, told.delivery.reason.kind) == (MessageKind.UNDELIVERED, Kind.UNAVAILABLE)
    await world.ask(Redrive(principal=ADMIN, dead_letter=letter.id))
    assert texts(bob.take()) == ["hello"]


async def test_a_message_sets_how_often_it_is_sent(world):
    bob = await world.connect("bob", acknowledges=True)
    await world.ask(world.tell("ann", "bob", attempts=1))
    await world.advance(30)
    assert len(bob.take()) == 1
    assert len(await world.store.dead_letters(task=None, after=None, limit=10)) == 1


@pytest.mark.parametrize("away", [1, 60])
@pytest.mark.parametrize("how", ["link", "poll"])
async def test_an_offer_that_the_hub_did_not_live_to_hear_of_does_not_count(world, how, away):
    """It may never have left, or its acknowledgment found nobody."""
    bob = await world.connect("bob", acknowledges=True) if how == "link" else None
    await world.ask(world.tell("ann", "bob", attempts=1))
    taken = await world.poll("bob") if bob is None else bob.take()
    for _ in range(3):
        assert texts(taken) == ["hello"]
        world.time = Instant(world.time + away * SECOND)
        await world.restart()
        await world.settle()
        world.time = Instant(world.time + SECOND)
        taken = await world.poll("bob") if bob is None else (await world.connect("bob", acknowledges=True)).take()
    assert await world.store.dead_letters(task=None, after=None, limit=10) == []
    await world.ask_ack("bob", taken)
    assert rows(world) == []


async def test_nor_does_an_offer_of_work(world):
    bob = await world.connect("bob", acknowledges=True)
    await world.submit(None, pinned="bob")
    assert [outgoing.delivery.attempt for outgoing in bob.take()] == [1]
    world.time = Instant(world.time + SECOND // 10)
    await world.restart()
    bob = await world.connect("bob", acknowledges=True)
    await world.advance(20)
    assert [outgoing.delivery.attempt for outgoing in bob.take()] == [1, 2, 3, 4]


async def test_work_that_was_paused_before_anybody_acknowledged_it_is_given_out_again_when_it_goes_on(world):
    """Its agent is well and knows nothing of it: its heartbeats are no sign of that work."""
    bob = await world.connect("bob", acknowledges=True)
    task = await world.submit(None, pinned="bob")
    await world.ask(Pause(principal=ADMIN, task_id=task.id))
    for _ in range(3):
        await world.advance(20)
        await world.ask(Beat(principal=AgentId("bob")))
    assert [outgoing.delivery.kind for outgoing in bob.take()] == [MessageKind.WORK]  # as it was before the pause
    await world.ask(Resume(principal=ADMIN, task_id=task.id))
    await world.advance(1)
    assert bob.work == [task.id]
    assert (await world.task(task.id)).attempt.count == 1


async def test_a_poll_that_never_acknowledges_gets_it_again(world):
    await world.ask(world.tell("ann", "bob"))
    assert texts(await world.poll("bob")) == ["hello"]
    assert await world.poll("bob") == []
    await world.advance(1)
    [outgoing] = await world.poll("bob")
    assert outgoing.delivery.attempt == 2


# -- time to live


async def test_an_expired_message_is_dropped_recorded_and_reported_to_its_sender(world):
    ann = await world.connect("ann", acknowledges=True)
    await world.ask(world.tell("ann", "bob", expires_at=Instant(world.time + SECOND)))
    await world.advance(1)
    [told] = ann.take()
    assert (told.delivery.kind, told.delivery.reason.kind) == (MessageKind.UNDELIVERED, Kind.TIMEOUT)
    bob = await world.connect("bob", acknowledges=True)
    assert bob.take() == []
    assert "letter.expire" in [r.action for r in await world.store.audit(after=0, limit=1000)]


async def test_a_lost_at_most_once_message_is_not_reported(world):
    ann = await world.connect("ann", acknowledges=True)
    await world.ask(world.tell("ann", "bob", once=True, expires_at=Instant(world.time + SECOND)))
    await world.advance(2)
    assert ann.take() == []
    assert rows(world) == []


# -- lanes


async def test_only_the_head_of_a_lane_is_delivered(world):
    bob = await world.connect("bob", acknowledges=True)
    lane = TaskId(world.uuid())
    for n in range(3):
        await world.ask(world.tell("ann", "bob", f"{n}", lane=lane))
    heard = []
    for _ in range(3):
        [outgoing] = bob.take()
        heard += texts([outgoing])
        await bob.ack(outgoing)
    assert heard == ["0", "1", "2"]


async def test_what_may_be_lost_does_not_overtake_in_its_lane_and_does_not_hold_it_up(world):
    bob = await world.connect("bob", acknowledges=True)
    lane = TaskId(world.uuid())
    await world.ask(world.tell("ann", "bob", "kept", lane=lane))
    for text in ("a", "b"):
        await world.ask(world.tell("ann", "bob", text, lane=lane, once=True))
    await world.ask(world.tell("ann", "bob", "last", lane=lane))
    [head] = bob.take()
    assert texts([head]) == ["kept"]
    await bob.ack(head)
    assert texts(bob.take()) == ["a", "b", "last"]


async def test_messages_about_a_task_stand_behind_its_assignment(world):
    bob = await world.connect("bob", acknowledges=True)
    task = await world.submit(None, pinned="bob")
    await world.ask(world.tell("ann", "bob", "about it", lane=task.id))
    [order] = bob.take()
    assert order.delivery.kind is MessageKind.WORK
    await bob.ack(order)
    assert texts(bob.take()) == ["about it"]


async def test_a_critical_message_takes_its_lane_along_and_overtakes_the_others(world):
    early, late = TaskId(world.uuid()), TaskId(world.uuid())
    for lane in (early, late):
        for n in range(2):
            await world.ask(world.tell("ann", "bob", f"{'early' if lane == early else 'late'} {n}", lane=lane))
    await world.ask(world.tell("ann", "bob", "now!", lane=late, priority=CRITICAL))
    heard = []
    for _ in range(5):
        outgoing_messages = await world.poll("bob", most=1)
        heard += texts(outgoing_messages)
        await world.ask_ack("bob", outgoing_messages)
    assert heard == ["late 0", "late 1", "now!", "early 0", "early 1"]


async def test_nobody_starves(world):
    """A low letter is overtaken by critical ones of the next hour, not by later ones."""
    await world.ask(world.tell("ann", "bob", "low", priority=LOW))
    await world.advance(HOUR / SECOND + 1)
    await world.ask(world.tell("ann", "bob", "critical", priority=CRITICAL))
    assert texts(await world.poll("bob", most=1)) == ["low"]


class Counting(MemoryStore):
    """Remembers the largest answer it gave."""

    largest = 0

    def _answer(self, lookup):
        found = super()._answer(lookup)
        self.largest = max(self.largest, len(found))
        return found


async def test_however_many_wait_a_page_of_them_is_looked_at_and_a_window_leaves_the_urgent_first():
    world = await World(store := Counting(), rules=Rules(link_window=100)).start()
    for id in ("ann", "bob"):
        await world.add(id, protocol="agentmsg")
    await asyncio.gather(*(world.ask(world.tell("ann", "bob", f"{n}")) for n in range(1000)))
    await world.ask(world.tell("ann", "bob", "now!", priority=CRITICAL))
    store.largest = 0
    bob = await world.connect("bob", acknowledges=True)
    first = texts(bob.inbox)
    assert (first[0], len(first)) == ("now!", 100)
    assert 0 < store.largest <= PAGE
    await bob.ack(*bob.take())
    await world.settle()
    assert len({*first, *texts(bob.inbox)}) == 200
    await world.intake.stop()


# -- what the hub tells such an agent itself


async def test_a_work_order_that_is_not_acknowledged_is_put_before_the_agent_again_and_then_fails(world):
    bob = await world.connect("bob", acknowledges=True)
    task = await world.submit(None, pinned="bob")
    await world.advance(7.5)
    assert [p.delivery.attempt for p in bob.take()] == [1, 2, 3, 4]
    assert (await world.task(task.id)).attempt.count == 1
    await world.advance(14)
    assert "attempt_failed" in await world.history(task.id)


async def test_an_agent_that_polls_gets_its_work_order_again(world):
    task = await world.submit(None, pinned="bob")
    [order] = await world.poll("bob")
    assert order.delivery.kind is MessageKind.WORK
    await world.advance(1)
    [again] = await world.poll("bob")
    assert (again.delivery.id, again.delivery.attempt) == (order.delivery.id, 2)
    await world.ask_ack("bob", [again])
    await world.finish("bob", task.id)
    assert (await world.task(task.id)).status is Status.COMPLETED


async def test_progress_is_delivered_to_an_agentmsg_caller_at_most_once(world):
    await world.add("i1", "infra")
    i1 = await world.connect("i1")
    ann = await world.connect("ann", acknowledges=True)
    task = await world.submit(principal="ann", protocol="agentmsg")
    await world.progress("i1", task.id, 10)
    await world.progress("i1", task.id, 20)
    await world.finish("i1", task.id)
    assert [p.delivery.kind for p in ann.take()] == [MessageKind.PROGRESS, MessageKind.PROGRESS, MessageKind.RESULT]
    assert [row.kind for row in rows(world)] == [MessageKind.RESULT]
    assert i1.work == [task.id]


async def test_an_assignment_leaves_when_a_message_before_it_is_gone(world):
    """The hub died, a poll took the letter, and nobody answers: on the next link the order stands behind the letter."""
    task = await world.submit(None, pinned="bob", follows=True)
    await world.ask(world.tell("ann", "bob", "about it", lane=task.id))
    bob = await world.connect("bob")
    assert {outgoing.delivery.kind for outgoing in bob.take()} == {MessageKind.DIRECT_MESSAGE, MessageKind.WORK}
    await world.restart()
    polled = await world.poll("bob", most=1)
    assert texts(polled) == ["about it"]
    order = next(row for row in rows(world) if row.kind is MessageKind.WORK)
    world.time = order.wake_at
    await world.settle()
    bob = await world.connect("bob", acknowledges=True)
    assert bob.take() == []
    await world.ask_ack("bob", polled)
    assert [outgoing.delivery.id for outgoing in bob.take()] == [order.id]


async def test_a_task_goes_on_although_an_answer_is_buried_that_stands_before_its_order(world):
    """Both are met at once when its agent is back. The order was sent again with the task as it was before the burial,
    and from then on nothing about it could be stored (found by seed 8589 of the conversations)."""
    task = await world.submit(None, pinned="bob")
    await world.ask(world.tell("ann", "bob", lane=task.id))
    await world.connect("bob", acknowledges=True)
    letter, order = sorted(rows(world), key=lambda row: row.seq)
    assert (letter.kind, order.kind, letter.task) == (MessageKind.DIRECT_MESSAGE, MessageKind.WORK, task.id)
    answer = msgspec.structs.replace(letter, kind=MessageKind.ANSWER, direct_message=None, attempt=99)
    world.store._tables[Delivery][letter.id] = answer
    await world.restart()
    bob = await world.connect("bob", acknowledges=True)
    assert [outgoing.delivery.kind for outgoing in bob.take()] == [MessageKind.WORK]
    await world.finish("bob", task.id)
    assert (await world.task(task.id)).status is Status.COMPLETED
    assert "dead_lettered" in await world.history(task.id)


@pytest.mark.requirement("agentmsg-D5")
async def test_a_poll_takes_several_of_a_lane_and_what_is_owed_comes_again_in_order(world):
    """What is promised at most once is gone with the poll that took it, also if its answer got lost."""
    for text, once in (("one", False), ("two", True), ("three", False), ("four", False)):
        await world.ask(world.tell("ann", "bob", text, lane="a task", once=once))
    first = await world.poll("bob", most=3)
    assert texts(first) == ["one", "two", "three"]
    assert await world.poll("bob") == []  # another poll holds the head
    await world.advance(31)
    assert texts(await world.poll("bob")) == ["one", "three", "four"]


async def test_however_the_waits_of_a_polls_messages_end_they_come_again_in_order():
    """Each has a wait of its own, with jitter: one that ends before that of the message before it waits for that."""
    world = await World(rules=Rules(direct_message_jitter=True)).start()
    for id in ("ann", "bob"):
        await world.add(id, protocol="agentmsg")
    for number in range(8):
        await world.ask(world.tell("ann", "bob", str(number), lane="a task", attempts=50))
    for _ in range(20):
        taken = texts(await world.poll("bob"))
        assert taken in ([], [str(number) for number in range(8)][: len(taken)])
        await world.advance(0.7)
    await world.intake.stop()

"""News leave in order, are acknowledged or leave again, and end as dead letters."""

from __future__ import annotations

import pytest
from tests.support.world import World

from dragoman.core.commands import Cancel, Discard, PaceLink, Redrive, RemoveAgent, Retry
from dragoman.core.ids import ADMIN, AgentId
from dragoman.core.model.tasks import Priority
from dragoman.core.rules import Rules


async def test_a_poll_takes_notices_and_work_and_leases_them(world):
    await world.add("i1", "infra")
    task = await world.submit()
    [order] = await world.poll("i1")
    assert (order.delivery.kind, order.delivery.task) == ("work", task.id)
    assert await world.poll("i1") == []
    await world.finish("i1", task.id)
    [result] = await world.poll("boss")
    assert await world.poll("boss") == []
    await world.advance(31)
    [again] = await world.poll("boss")
    assert (again.delivery.id, again.delivery.attempt) == (result.delivery.id, 2)


async def told(world, many: int = 3):
    """A task of which its caller is told so much: progress, and then the result."""
    await world.add("i1", "infra")
    await world.connect("i1")
    task = await world.submit()
    for number in range(1, many):
        await world.progress("i1", task.id, number)
    await world.finish("i1", task.id)
    return task


def events(outgoing_messages) -> list[int]:
    return [outgoing.delivery.event for outgoing in outgoing_messages]


@pytest.mark.requirement("chiffon-D13-polls")
async def test_a_poll_takes_consecutive_messages_of_a_lane_up_to_what_it_asks_for(world):
    await told(world, 5)
    first = await world.poll("boss", most=2)
    assert events(first) == [3, 4]
    assert await world.poll("boss", most=2) == []  # another poll holds the head
    await world.ask_ack("boss", first)
    rest = await world.poll("boss")
    assert events(rest) == [5, 6, 7]
    await world.ask_ack("boss", rest)
    assert await world.poll("boss") == []


async def test_what_a_lost_poll_answer_held_comes_again_in_order(world):
    await told(world)
    assert events(await world.poll("boss")) == [3, 4, 5]
    await world.advance(31)
    again = await world.poll("boss")
    assert [(p.delivery.event, p.delivery.attempt) for p in again] == [(3, 2), (4, 2), (5, 2)]


@pytest.mark.parametrize("parked", [False, True], ids=["polls later", "a poll is parked"])
@pytest.mark.parametrize("acked", [{0}, {1}, {2}, {0, 1}, {0, 2}, {1, 2}])
async def test_what_of_a_poll_is_not_acknowledged_comes_again_in_order(world, acked, parked):
    """Whichever of them were: nothing comes before what stood before it and is still owed."""
    await world.add("i1", "infra")
    await world.connect("i1")
    task = await world.submit()
    for number in (1, 2, 3):
        await world.progress("i1", task.id, number)
    taken = await world.poll("boss")
    await world.ask_ack("boss", [taken[index] for index in sorted(acked)])
    await world.finish("i1", task.id)  # more to tell, behind all of it
    peer = await world.park("boss") if parked else None
    owed = [outgoing.delivery.event for index, outgoing in enumerate(taken) if index not in acked]
    assert peer is None or peer.take() == []  # somebody still has the first of the lane
    await world.advance(31)
    again = events(await world.poll("boss") if peer is None else peer.take())
    assert again[: len(owed)] == owed
    assert again == sorted(again)
    assert len(again) > len(owed)


async def test_an_acknowledgment_lets_a_parked_poll_have_all_that_waits(world):
    await told(world, 6)
    [head] = await world.poll("boss", most=1)
    parked = await world.park("boss", most=4)
    assert parked.take() == []
    await world.ask_ack("boss", [head])
    assert events(parked.take()) == [4, 5, 6, 7]


async def test_a_poll_has_only_so_many_bytes_and_never_nothing():
    world = await World(rules=Rules(link_bytes=3000)).start()
    await world.add("boss", "orchestrator")
    await world.add("i1", "infra")
    await world.connect("i1")
    task = await world.submit()
    for _ in range(4):
        await world.progress("i1", task.id, body=b'{"output":"%b"}' % (b"x" * 2000))
    first = await world.poll("boss")
    assert events(first) == [3, 4]
    await world.ask_ack("boss", first)
    assert events(await world.poll("boss")) == [5, 6]
    await world.intake.stop()


async def test_unacknowledged_notices_leave_again_over_the_next_connection_in_order(world):
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


@pytest.mark.parametrize("window", [1024, 10], ids=["with room for all", "a few at a time"])
@pytest.mark.parametrize("restarts", [False, True], ids=["a new link", "a new hub"])
async def test_however_much_is_unacknowledged_all_of_it_leaves_again_over_the_next_connection(window, restarts):
    world = await World(rules=Rules(link_window=window)).start()
    await world.add("boss", "orchestrator")
    await world.add("i1", "infra", concurrent=300)
    await world.connect("i1")
    tasks = [await world.submit() for _ in range(300)]
    for task in tasks:
        await world.finish("i1", task.id)
    for _ in range(2):  # the second time some of it is of a link that had not seen all
        boss = await world.connect("boss", acknowledges=True)
        if restarts:
            await world.restart()
        else:
            await boss.close()
    boss = await world.connect("boss", acknowledges=True)
    heard = []
    while outgoing_messages := boss.take():
        assert len(outgoing_messages) <= window
        heard += outgoing_messages
        await boss.ack(*outgoing_messages)
        await world.settle()
    assert sorted(outgoing.delivery.task for outgoing in heard) == sorted(task.id for task in tasks)
    await world.intake.stop()


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
    await world.ask(Redrive(principal=ADMIN, dead_letter=letter.id))
    assert [p.delivery.kind for p in await world.poll("boss")] == ["result"]
    assert list(await world.store.dead_letters()) == []


async def test_a_notice_that_no_connection_survives_becomes_a_dead_letter(world):
    await world.add("i1", "infra")
    await world.connect("i1")
    task = await world.submit()
    await world.finish("i1", task.id)
    for attempt in range(1, 9):
        boss = await world.connect("boss", acknowledges=True)
        assert [outgoing.delivery.attempt for outgoing in boss.inbox] == [attempt]
        await boss.close()
    assert (await world.connect("boss", acknowledges=True)).inbox == []
    assert [(letter.task, letter.attempts) for letter in await world.store.dead_letters()] == [(task.id, 8)]


async def test_another_agents_acknowledgment_changes_nothing(world):
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
    await world.ask(Redrive(principal=ADMIN, dead_letter=letter.id, input=b'{"n":2}'))
    await world.advance(70)
    again = [p for p in i1.inbox if p.delivery.task == task.id] or pytest.fail("it was not sent again")
    assert bytes(again[0].content.body) == b'{"input":{"n":2}}'
    await world.advance(4000)
    [letter] = await world.store.dead_letters()
    await world.ask(Discard(principal=ADMIN, dead_letter=letter.id))
    assert list(await world.store.dead_letters()) == []


async def test_what_a_dead_connection_held_behind_a_poll_leaves_when_the_head_is_acknowledged(world):
    from dragoman.core.commands import Acknowledge

    await world.add("i1", "infra")
    await world.connect("i1")
    boss = await world.connect("boss")
    task = await world.submit()
    await world.progress("i1", task.id)
    await world.finish("i1", task.id)
    await boss.close()  # holds both
    [head] = await world.poll("boss", most=1)
    boss = await world.connect("boss")
    assert boss.inbox == []  # the poll holds the head
    await world.ask(Acknowledge(principal=AgentId("boss"), deliveries=(head.delivery.id,)))
    assert [p.delivery.kind for p in boss.inbox] == ["result"]


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


@pytest.mark.parametrize("protocol", ["chiffon", "agentmsg"])  # kept until acknowledged; at most once
async def test_a_peer_that_does_not_read_is_owed_the_rest_in_the_store(protocol):
    world = await World(rules=Rules(link_bytes=10_000)).start()
    await world.add("boss", "orchestrator", protocol=protocol)
    await world.add("i1", "infra")
    await world.connect("i1")
    boss = await world.connect("boss", acknowledges=True, paced=True)
    task = await world.submit()
    for percent in range(100):
        await world.progress("i1", task.id, percent, body=b'{"output":"%s"}' % (b"x" * 4000))
    heard = came = boss.take()
    assert len(came) == 3  # so much is on its way that there is no room for another
    for rounds in range(1, 40):
        await boss.ack(*came)
        assert not boss.inbox
        await world.ask(PaceLink(principal=AgentId("boss"), session=boss.session, written=13_500 * rounds))
        came = boss.take()
        assert len(came) <= 3
        heard += came
    assert [p.event.seq for p in heard] == list(range(heard[0].event.seq, heard[0].event.seq + 100))
    await world.intake.stop()


async def test_an_assignment_of_a_dying_hub_leaves_again_also_behind_more_urgent_messages_about_it(world):
    await world.add("lab", protocol="a2acp")
    await world.add("ann", protocol="agentmsg")
    await world.connect("lab")
    task = await world.submit(None, pinned="lab")
    await world.ask(world.tell("ann", "lab", lane=task.id, priority=Priority.CRITICAL))
    await world.restart()
    lab = await world.connect("lab")
    assert [outgoing.delivery.kind for outgoing in lab.inbox] == ["work", "letter"]


async def test_a_connection_counts_all_that_it_is_given_at_once(world):
    """A notice, and the work behind it in its lane."""
    await world.add("i1", "infra")
    await world.connect("i1", acknowledges=True, paced=True)
    task = await world.submit()
    await world.ask(Cancel(principal=AgentId("boss"), task_id=task.id))
    await world.ask(Retry(principal=AgentId("boss"), task_id=task.id))
    await world.restart()
    i1 = await world.connect("i1", acknowledges=True, paced=True)
    assert [outgoing.delivery.kind for outgoing in i1.inbox] == ["cancel", "work"]
    link = world.intake._directory.links[i1.session]
    assert (link.outstanding, link.given) == (1, sum(outgoing.weight for outgoing in i1.inbox))

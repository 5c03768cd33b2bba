"""News leave in order, are acknowledged or leave again, and end as dead letters."""

from __future__ import annotations

import pytest
from tests.support.world import World

from dragoman.core.commands import Cancel, Discard, PaceLink, Redrive, RemoveAgent, Retry
from dragoman.core.ids import ADMIN, AgentId
from dragoman.core.rules import Rules
from dragoman.core.tasks.model import Priority


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


@pytest.mark.parametrize("window", [1024, 10], ids=["with room for all", "a few at a time"])
@pytest.mark.parametrize("restarts", [False, True], ids=["a new link", "a new hub"])
async def test_however_much_is_unacknowledged_all_of_it_leaves_again_over_the_next_link(window, restarts):
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
    while parcels := boss.take():
        assert len(parcels) <= window
        heard += parcels
        await boss.ack(*parcels)
        await world.settle()
    assert sorted(parcel.delivery.task for parcel in heard) == sorted(task.id for task in tasks)
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
    await world.ask(Redrive(principal=ADMIN, letter=letter.id))
    assert [p.delivery.cargo for p in await world.poll("boss")] == ["result"]
    assert list(await world.store.dead_letters()) == []


async def test_a_notice_that_no_link_survives_becomes_a_dead_letter(world):
    await world.add("i1", "infra")
    await world.connect("i1")
    task = await world.submit()
    await world.finish("i1", task.id)
    for attempt in range(1, 9):
        boss = await world.connect("boss", acknowledges=True)
        assert [parcel.delivery.attempt for parcel in boss.inbox] == [attempt]
        await boss.close()
    assert (await world.connect("boss", acknowledges=True)).inbox == []
    assert [(letter.task, letter.attempts) for letter in await world.store.dead_letters()] == [(task.id, 8)]


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
        await world.progress("i1", task.id, percent, body=b'"%s"' % (b"x" * 4000))
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


async def test_work_that_a_dying_hub_held_leaves_again_also_behind_more_urgent_words_about_it(world):
    await world.add("lab", protocol="a2acp")
    await world.add("ann", protocol="agentmsg")
    await world.connect("lab")
    task = await world.submit(None, pinned="lab")
    await world.ask(world.tell("ann", "lab", lane=task.id, priority=Priority.CRITICAL))
    await world.restart()
    lab = await world.connect("lab")
    assert [parcel.delivery.cargo for parcel in lab.inbox] == ["work", "letter"]


async def test_a_link_counts_all_that_it_is_given_at_once(world):
    """A notice, and the work behind it in its lane."""
    await world.add("i1", "infra")
    await world.connect("i1", acknowledges=True, paced=True)
    task = await world.submit()
    await world.ask(Cancel(principal=AgentId("boss"), task_id=task.id))
    await world.ask(Retry(principal=AgentId("boss"), task_id=task.id))
    await world.restart()
    i1 = await world.connect("i1", acknowledges=True, paced=True)
    assert [parcel.delivery.cargo for parcel in i1.inbox] == ["cancel", "work"]
    link = world.intake._floor.links[i1.session]
    assert (link.outstanding, link.given) == (1, sum(parcel.weight for parcel in i1.inbox))

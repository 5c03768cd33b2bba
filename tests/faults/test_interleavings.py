"""Commands that meet in one unit of work: whatever the order, every notice reaches its receiver.

The same few commands in random batches, thousands of times, without a socket. (A removal that the next decision of
the same unit did not see once left one result in ten behind a head that was gone.)
"""

from __future__ import annotations

import random

import pytest
from tests.support.world import Peer, World

from dragoman.core.commands import Acknowledge, CloseLink, Finish, OpenLink, ReportProgress
from dragoman.core.ids import AgentId, SessionId

BOSS, AGENT = AgentId("boss"), AgentId("i1")
REPORTS = 3


@pytest.mark.parametrize("seed", range(60))
async def test_every_notice_arrives_in_order_however_commands_share_units(seed: int) -> None:
    rng = random.Random(seed)
    world = await World(seed=seed).start()
    await world.add(BOSS, "orchestrator")
    await world.add(AGENT, "infra", concurrent=100)
    await world.connect(AGENT)
    tasks = [(await world.submit()).id for _ in range(5)]
    said = dict.fromkeys(tasks, 0)
    heard: dict[str, list[int]] = {task: [] for task in tasks}
    parked: list[Peer] = []
    taken: list[Peer] = []

    def report() -> None:
        task = rng.choice(tasks)
        said[task] += 1
        if said[task] < REPORTS:
            world.intake.enqueue(ReportProgress(principal=AGENT, task_id=task, percent=said[task]))
        elif said[task] == REPORTS:
            world.intake.enqueue(Finish(principal=AGENT, task_id=task, digest="r"))

    def poll() -> None:
        peer = Peer(world, BOSS, SessionId(world.mint()))
        world.intake.attach(peer.session, peer)
        world.intake.enqueue(OpenLink(principal=BOSS, session=peer.session, ordered=False, credit=50))
        parked.append(peer)

    async def answer() -> None:
        if parked:
            peer = parked.pop(0)
            await world.ask(CloseLink(principal=BOSS, session=peer.session, lost=False))
            world.intake.detach(peer.session)
            taken.append(peer)

    def acknowledge() -> None:
        if taken:
            outgoing_messages = taken.pop(0).inbox
            for outgoing in outgoing_messages:
                heard[outgoing.delivery.task].append(outgoing.delivery.seq)
            ids = tuple(outgoing.delivery.id for outgoing in outgoing_messages)
            world.intake.enqueue(Acknowledge(principal=BOSS, deliveries=ids))

    for _ in range(300):
        match rng.choices("rpaks", (6, 4, 4, 3, 2))[0]:
            case "r":
                report()
            case "p" if not parked:
                poll()
            case "a":
                await answer()
            case "k":
                acknowledge()
            case "s":
                await world.settle()
    while any(count < REPORTS for count in said.values()):
        report()
    while parked or taken:
        await answer()
        acknowledge()
    await world.advance(60)  # leases of polls that were never acknowledged end
    for _ in range(2 * REPORTS):
        outgoing_messages = await world.poll(BOSS, 100)
        for outgoing in outgoing_messages:
            heard[outgoing.delivery.task].append(outgoing.delivery.seq)
        await world.ask(
            Acknowledge(principal=BOSS, deliveries=tuple(outgoing.delivery.id for outgoing in outgoing_messages))
        )

    assert await world.store.deliveries(receiver=BOSS) == []
    for order in heard.values():
        first_time = list(dict.fromkeys(order))
        assert first_time == sorted(first_time)
        assert len(first_time) == REPORTS

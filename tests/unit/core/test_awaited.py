"""Requests that wait for their own answer: it is theirs while they wait, and never lost when they do not.

Also what a poll took and never acknowledged, and what counts once across a restart.
"""

from __future__ import annotations

import pytest
from tests.support.world import Peer, World

from dragoman.core.commands import (
    AnswerHandshake,
    CloseLink,
    OpenLink,
    RegisterAgent,
    Retry,
    RotateToken,
    ShakeHands,
    TellAgain,
)
from dragoman.core.ids import ADMIN, AgentId, SessionId
from dragoman.core.model.agents import Offer
from dragoman.core.model.tasks import Status, Task
from dragoman.messages.faults import Kind
from dragoman.stores.memory import MemoryStore

BOSS = AgentId("boss")


@pytest.fixture(params=["loads first", "peeks"])
async def world(request):
    world = await World(MemoryStore(immediate=request.param == "peeks")).start()
    await world.add("boss", "orchestrator", protocol="a2acp")
    await world.add("i1", "infra", protocol="a2acp")
    await world.ask(RegisterAgent(principal=AgentId("i1"), offers=(Offer(intent="run_playbook"),)))
    yield world
    await world.intake.stop()


def waiter(world: World) -> Peer:
    """The end of a request that waits."""
    peer = Peer(world, BOSS, SessionId(world.mint()))
    world.intake.attach(peer.session, peer)
    return peer


async def asked(world: World, **fields) -> tuple[Task, Peer]:
    waiting = waiter(world)
    return await world.submit(awaited=waiting.session, **fields), waiting


def told(outgoing_messages) -> list[str]:
    return [outgoing.delivery.kind.value for outgoing in outgoing_messages]


async def tell_again(world: World, request_id: str) -> None:
    await world.ask(TellAgain(principal=BOSS, request_id=request_id))


# -- while it waits


async def test_an_answer_goes_to_the_request_that_waits_for_it_and_nowhere_else(world):
    await world.connect("i1")
    boss = await world.connect("boss")
    task, waiting = await asked(world)
    await world.progress("i1", task.id)
    await world.finish("i1", task.id)
    assert (told(waiting.inbox), boss.inbox, await world.poll("boss")) == (["result"], [], [])
    assert await world.ask_ack("boss", waiting.take()) == 1
    await world.advance(60)
    assert (boss.inbox, list(await world.store.deliveries())) == ([], [])


async def test_what_fails_at_once_is_an_answer_too(world):
    failed = await world.submit()
    await world.connect("i1")
    await world.fault("i1", failed.id, Kind.WORK_FAILED)
    _, waiting = await asked(world, dependencies=(failed.id,))
    assert told(waiting.inbox) == ["failure"]


async def test_a_request_that_waits_is_no_way_to_reach_its_agent(world):
    await world.connect("i1")
    _, waiting = await asked(world)
    assert not world.intake.reachable(BOSS)
    await world.submit("orchestrator", principal=AgentId("i1"))
    assert waiting.inbox == []


async def test_a_request_waits_no_longer_than_its_token_is_good(world):
    task, waiting = await asked(world)
    await world.ask(RotateToken(principal=ADMIN, agent=BOSS, token_hash="other"))
    assert waiting.hung_up is not None
    await world.connect("i1")
    await world.finish("i1", task.id)
    assert (waiting.inbox, told(await world.poll("boss"))) == ([], ["result"])


# -- when nobody waits any more


@pytest.mark.parametrize("way", ["left", "killed"])
async def test_an_answer_that_nobody_waits_for_any_more_comes_to_the_inbox(world, way):
    await world.connect("i1")
    task, waiting = await asked(world)
    if way == "left":
        await world.ask(CloseLink(principal=BOSS, session=waiting.session, lost=False))
    else:
        await world.restart()
        await world.connect("i1")
    await world.finish("i1", task.id)
    [answer] = await world.poll("boss")
    assert (answer.delivery.kind, waiting.inbox) == ("result", [])


@pytest.mark.parametrize("killed", [False, True])
async def test_an_answer_that_was_not_acknowledged_comes_again(world, killed):
    """It was on its way to the request, and the client or the hub died over it."""
    await world.connect("i1")
    task, waiting = await asked(world)
    await world.finish("i1", task.id)
    [first] = waiting.take()
    if killed:
        await world.restart()
    assert await world.poll("boss") == []  # it may be read just now
    await world.advance(30)
    boss = await world.connect("boss")
    assert [(outgoing.delivery.id, outgoing.delivery.attempt) for outgoing in boss.inbox] == [(first.delivery.id, 2)]


async def test_a_task_that_is_retried_afterwards_reports_to_its_caller(world):
    await world.connect("i1")
    task, waiting = await asked(world)
    await world.fault("i1", task.id, Kind.WORK_FAILED)
    await world.ask_ack("boss", waiting.take())
    await world.ask(Retry(principal=ADMIN, task_id=task.id))
    await world.finish("i1", task.id)
    assert told(await world.poll("boss")) == ["result"]


# -- handshakes


def shakes(world: World, waiting: Peer | None = None) -> ShakeHands:
    return ShakeHands(
        principal=BOSS, protocol="a2acp", request_id=world.uuid(), digest="d", target=AgentId("i1"),
        intent="run_playbook", domain="default", version="1.0.0", awaited=None if waiting is None else waiting.session,
    )  # fmt: skip


@pytest.mark.parametrize("way", ["waits", "left", "killed", "too late"])
async def test_a_handshake_is_never_lost_either(world, way):
    waiting = waiter(world)
    question = await world.ask(shakes(world, waiting))
    if way == "left":
        await world.ask(CloseLink(principal=BOSS, session=waiting.session, lost=False))
    elif way == "killed":
        await world.restart()
    if way == "too late":
        await world.advance(5)
    else:
        await world.ask(AnswerHandshake(principal=AgentId("i1"), question=question.id, accepted=True))
    here, there = waiting.inbox, await world.poll("boss")
    assert (told(here), told(there)) == ((["answer"], []) if way in ("waits", "too late") else ([], ["answer"]))
    [answer] = here + there
    assert ("fault" in answer.question.answer) == (way == "too late")
    await world.ask_ack("boss", [answer])
    await world.advance(60)
    assert await world.poll("boss") == []


# -- once more


async def test_a_lost_answer_is_sent_again(world):
    """It was acknowledged for a client that never read it."""
    await world.connect("i1")
    task, waiting = await asked(world)
    await tell_again(world, task.origin.request_id)
    assert await world.poll("boss") == []  # there is none yet
    await world.finish("i1", task.id)
    await world.ask_ack("boss", waiting.take())
    for _ in range(2):
        await tell_again(world, task.origin.request_id)
        [again] = await world.poll("boss")
        assert (again.delivery.kind, again.event.seq) == ("result", (await world.task(task.id)).outcome.event)
    assert await world.ask_ack("boss", [again]) == 1
    assert await world.poll("boss") == []


async def test_a_caller_that_asks_for_a_lost_answer_need_not_wait_for_the_end_of_its_lease(world):
    await world.connect("i1")
    task, waiting = await asked(world)
    await world.finish("i1", task.id)
    [first] = waiting.take()
    await tell_again(world, task.origin.request_id)
    [again] = await world.poll("boss")
    assert again.delivery.id == first.delivery.id


async def test_the_outcome_of_a_handshake_is_sent_again(world):
    wish = shakes(world, waiting := waiter(world))
    question = await world.ask(wish)
    await tell_again(world, wish.request_id)
    assert await world.poll("boss") == []
    await world.ask(AnswerHandshake(principal=AgentId("i1"), question=question.id, accepted=True))
    await world.ask_ack("boss", waiting.take())
    await tell_again(world, wish.request_id)
    [again] = await world.poll("boss")
    assert (again.delivery.kind, again.content.id) == ("answer", question.id)


async def test_only_ones_own_answers_are_sent_again(world):
    task, _ = await asked(world)
    for principal, id in ((AgentId("i1"), task.origin.request_id), (BOSS, "never asked")):
        refused = await world.refused(TellAgain(principal=principal, request_id=id))
        assert (refused.kind, refused.field) == (Kind.NOT_FOUND, "answer_to")


# -- work that a poll took


async def test_a_work_order_that_a_poll_took_and_lost_is_given_again(world):
    """Its task's clock is set to ten minutes: nobody else would notice."""
    task = await world.submit(idle_seconds=600, total_seconds=600)
    [first] = await world.poll("i1")
    assert await world.poll("i1") == []
    await world.advance(30)
    [again] = await world.poll("i1")
    assert (again.delivery.id, again.delivery.attempt, again.task.attempt.count) == (first.delivery.id, 2, 1)
    await world.restart()
    await world.advance(30)
    i1 = await world.connect("i1")  # it comes back by another way
    assert i1.work == [task.id]
    await world.finish("i1", task.id)
    assert (await world.task(task.id)).status is Status.COMPLETED


async def test_a_work_order_that_was_acknowledged_is_not_given_again(world):
    task = await world.submit(idle_seconds=600, total_seconds=600)
    await world.ask_ack("i1", await world.poll("i1"))
    await world.advance(590)
    assert (await world.poll("i1"), (await world.task(task.id)).status) == ([], Status.ASSIGNED)


async def test_a_poll_gets_no_more_lost_work_than_it_asked_for(world):
    for _ in range(3):
        await world.submit(idle_seconds=600, total_seconds=600)
    assert len(await world.poll("i1")) == 3
    await world.advance(30)
    assert [len(await world.poll("i1", most)) for most in (2, 2)] == [2, 1]


async def test_a_parked_poll_gets_what_another_one_lost(world):
    task = await world.submit(idle_seconds=600, total_seconds=600)
    await world.poll("i1")
    parked = Peer(world, AgentId("i1"), SessionId(world.mint()))
    world.intake.attach(parked.session, parked)
    await world.ask(OpenLink(principal=parked.agent, session=parked.session, ordered=False, credit=1))
    await world.advance(30)
    assert parked.work == [task.id]


async def test_an_agent_that_takes_work_and_stays_silent_has_failed_in_the_end(world):
    task = await world.submit(idle_seconds=3600, total_seconds=3600)
    for _ in range(world.rules.notice_attempts):
        assert len(await world.poll("i1")) == 1
        await world.advance(30)
    assert await world.poll("i1") == []
    await world.advance(6)  # the grace time, and the pause before the next attempt
    [again] = await world.poll("i1")
    assert (again.delivery.task, again.task.attempt.count) == (task.id, 2)


# -- what counts once


async def test_a_nonce_counts_once_for_its_key_also_after_a_restart(world):
    await world.submit(sealed_by="key/nonce")
    await world.restart()
    refused = await world.refused(world.request(sealed_by="key/nonce"))
    assert (refused.kind, refused.facts["reason"]) == (Kind.FORBIDDEN, "nonce")
    await world.submit(sealed_by="other key/nonce")


async def test_a_message_that_was_refused_used_up_nothing(world):
    refused = await world.refused(world.request("nobody", sealed_by="key/nonce", seen="m-1"))
    assert refused.kind is Kind.UNAVAILABLE
    await world.submit(sealed_by="key/nonce", seen="m-1")
    refused = await world.refused(world.request(sealed_by="key/nonce", seen="m-1"))
    assert refused.facts["reason"] == "replayed"

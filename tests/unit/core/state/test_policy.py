"""The policy is data, and holds from the commit that changed it (agentmsg-D11)."""

from __future__ import annotations

import pytest

from dragoman.core.commands import Answer, Cancel, Retry
from dragoman.core.ids import ADMIN, SECOND, AgentId
from dragoman.core.model.agents import BreakerState
from dragoman.core.model.state import Registry
from dragoman.core.model.tasks import QuestionStatus, Status, Waiting
from dragoman.messages.faults import Kind

pytestmark = pytest.mark.requirement("agentmsg-D11")


@pytest.fixture
async def talking(world):
    await world.join("i1")
    world.i1 = await world.connect("i1")
    return world


async def ask(world, **fields):
    return await world.submit(None, pinned=AgentId("i1"), **fields)


async def test_a_chain_that_is_not_enabled_is_refused_with_those_that_are(talking):
    await ask(talking, constraints={"chain": "B"})
    await talking.policy(enabled_chains=["A", "C"])
    fault = await talking.refused(talking.request(None, pinned=AgentId("i1"), constraints={"chain": "B"}))
    assert (fault.kind, fault.facts["enabled_chains"]) == (Kind.FORBIDDEN, ["A", "C"])


@pytest.mark.parametrize(
    ("constraints", "changes", "kind"),
    [
        ({"chain": "B"}, {"enabled_chains": ["A"]}, Kind.FORBIDDEN),
        ({"budget_usd": 5}, {"budget_limits": {"per_task": 1}}, Kind.RESOURCES),
    ],
)
@pytest.mark.parametrize("waits", ["for a seat", "for another task", "to be tried again"])
async def test_what_is_not_allowed_any_more_when_its_turn_comes_is_given_to_nobody(
    talking, constraints, changes, kind, waits
):
    first = await ask(talking) if waits == "for another task" else None
    seats = [await ask(talking) for _ in range(8)] if waits == "for a seat" else []
    task = await ask(talking, constraints=constraints, dependencies=() if first is None else (first.id,))
    if waits == "to be tried again":
        await talking.fault("i1", task.id, Kind.TIMEOUT)
    talking.i1.take()
    await talking.policy(**changes)
    for done in (first, *seats[:1]):
        if done is not None:
            await talking.finish("i1", done.id)
    await talking.advance(1)
    ended = await talking.task(task.id)
    assert (ended.status, ended.outcome.fault.kind, task.id in talking.i1.work) == (Status.FAILED, kind, False)


async def test_what_is_risky_by_now_waits_for_a_person_when_its_turn_comes(talking):
    seats = [await ask(talking) for _ in range(8)]
    task, other = await ask(talking, constraints={"risk": 0.5}), await ask(talking)
    talking.i1.take()
    await talking.policy(risk_thresholds={"high": 0.4})
    await talking.finish("i1", seats[0].id)
    held = await talking.task(task.id)
    assert (held.status, held.waiting, talking.i1.work) == (Status.WAITING, Waiting.PERSON, [other.id])
    [question] = await talking.store.questions(status=QuestionStatus.OPEN, limit=10)
    await talking.ask(Answer(principal=ADMIN, question=question.id, answer="approve"))
    await talking.finish("i1", seats[1].id)
    assert (await talking.task(task.id)).owner == "i1"


async def test_the_policys_own_version_follows_its_changes(talking):
    assert (await talking.view.one(Registry.POLICY, "policy")).version == 1
    changed = await talking.policy(enabled_chains=[])
    assert (changed.version, changed.value["version"]) == (2, "2")
    named = await talking.policy(version="2026-10")
    assert (named.version, named.value["version"]) == (3, "2026-10")
    assert (await talking.refused(talking.change(ADMIN, Registry.POLICY, "policy", {}, 3, "DELETE"))).kind is (
        Kind.FORBIDDEN
    )
    fault = await talking.refused(talking.change(ADMIN, Registry.POLICY, "other", {}, 0, "CREATE"))
    assert fault.kind is Kind.FORBIDDEN


async def test_the_breaker_of_an_agent_that_converses_is_the_policys(talking):
    await talking.add("old", "infra")
    await talking.connect("old")

    async def fail(who: str, times: int) -> BreakerState:
        for _ in range(times):
            task = await talking.submit(None, pinned=AgentId(who))
            await talking.fault(who, task.id, Kind.TIMEOUT)
            await talking.ask(Cancel(principal=AgentId("boss"), task_id=task.id))
        return talking.intake.agent(AgentId(who)).breaker

    assert (await fail("i1", 2)).state is BreakerState.CLOSED
    opened = await fail("i1", 1)
    assert (opened.state, opened.until) == (BreakerState.OPEN, talking.time + 300 * SECOND)
    assert (await fail("old", 4)).state is BreakerState.CLOSED
    opened = await fail("old", 1)
    assert (opened.state, opened.until) == (BreakerState.OPEN, talking.time + 60 * SECOND)


async def test_the_breaker_config_holds_at_once(talking):
    await talking.policy(circuit_breaker_config={"error_threshold": 1, "reset_timeout_ms": 5000, "timeout_ms": 7000})
    task = await ask(talking)
    assert task.wake_at == talking.time + 7 * SECOND
    await talking.fault("i1", task.id, Kind.TIMEOUT)
    breaker = talking.intake.agent(AgentId("i1")).breaker
    assert (breaker.state, breaker.until) == (BreakerState.OPEN, talking.time + 5 * SECOND)


async def test_a_task_of_some_risk_goes_on_and_is_marked(talking):
    task = await ask(talking, constraints={"risk": 0.3})
    assert task.status is Status.ASSIGNED
    assert await talking.history(task.id) == ["submitted", "log", "assigned"]
    assert await talking.history((await ask(talking, constraints={"risk": 0.2})).id) == ["submitted", "assigned"]
    fault = await talking.refused(talking.request(None, pinned=AgentId("i1"), constraints={"risk": 2}))
    assert (fault.kind, fault.field) == (Kind.INVALID, "constraints.risk")


async def answer(world, task, word):
    [question] = [q for q in await world.store.questions(status=QuestionStatus.OPEN) if q.task == task.id]
    return await world.ask(Answer(principal=ADMIN, question=question.id, answer=word))


async def test_a_task_of_high_risk_waits_for_a_person_and_is_done_when_approved(talking):
    task = await ask(talking, constraints={"risk": 0.6, "budget_usd": 1})
    assert (task.status, task.waiting, talking.i1.inbox) == (Status.WAITING, Waiting.PERSON, [])
    assert await talking.account("i1:budget") == {}
    await talking.advance(7200)  # no clock runs while a person thinks
    await talking.restart()
    i1 = await talking.connect("i1")
    await answer(talking, task, "approve")
    placed = await talking.task(task.id)
    assert (placed.status, placed.owner, placed.attempt.round) == (Status.ASSIGNED, "i1", 0)
    [order] = i1.take()
    assert (order.delivery.kind, bytes(order.content.body)) == ("work", b'{"input":{"n":1}}')


async def test_a_task_of_high_risk_that_a_person_refuses_has_failed_and_cannot_be_retried_past_them(talking):
    task = await ask(talking, constraints={"risk": 0.9})
    await answer(talking, task, "refuse")
    refused = await talking.task(task.id)
    assert (refused.status, refused.outcome.fault.kind) == (Status.FAILED, Kind.FORBIDDEN)
    await talking.ask(Retry(principal=AgentId("boss"), task_id=task.id))
    assert (await talking.task(task.id)).waiting is Waiting.PERSON
    assert [p for p in talking.i1.inbox if p.delivery.kind == "work"] == []


async def test_an_approval_needs_one_of_its_options_and_comes_once(talking):
    task = await ask(talking, constraints={"risk": 0.9})
    [question] = await talking.store.questions(status=QuestionStatus.OPEN)
    command = Answer(principal=ADMIN, question=question.id, answer="perhaps")
    assert (await talking.refused(command)).kind is Kind.INVALID
    own = Answer(principal=AgentId("boss"), question=question.id, answer="approve")
    assert (await talking.refused(own)).kind is Kind.NOT_FOUND
    assert (await talking.task(task.id)).question == question.id
    await answer(talking, task, "approve")
    again = Answer(principal=ADMIN, question=question.id, answer="refuse")
    assert (await talking.refused(again)).kind is Kind.CONFLICT


async def test_a_risky_task_is_approved_when_what_it_depends_on_is_done(talking):
    first = await ask(talking)
    risky = await ask(talking, constraints={"risk": 0.9}, dependencies=(first.id,))
    assert risky.waiting is Waiting.DEPENDENCY
    await talking.finish("i1", first.id)
    assert (await talking.task(risky.id)).waiting is Waiting.PERSON
    await answer(talking, risky, "approve")
    assert (await talking.task(risky.id)).status is Status.ASSIGNED


async def test_a_cancelled_task_needs_no_approval_any_more(talking):
    task = await ask(talking, constraints={"risk": 0.9})
    await talking.ask(Cancel(principal=AgentId("boss"), task_id=task.id))
    [question] = await talking.store.questions()
    assert question.status is QuestionStatus.WITHDRAWN

"""Why nobody takes a task, told of a running hub: the same reasons for which routing passes an agent over."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from tests.support.heads import changed

from dragoman.api.tasks import explain
from dragoman.core.commands import Beat, ReportStatus
from dragoman.core.ids import ADMIN, SECOND, AgentId, Instant, QuestionId
from dragoman.core.model.agents import Breaker, BreakerState, Offer
from dragoman.core.model.contracts import Contract, Party, Standing
from dragoman.core.model.tasks import Asking, Question, QuestionStatus, Status, Task, Waiting
from dragoman.core.queries import AgentFacts, WhyOut, why
from dragoman.messages.faults import Fault, Kind

I1 = AgentId("i1")


async def told(world: Any, task: Task) -> WhyOut:
    return await explain(SimpleNamespace(intake=world.intake, store=world.store), await world.task(task.id))  # type: ignore[arg-type]


async def silent(world: Any) -> None:
    peer = await world.connect("i1", acknowledges=True)
    await world.ask(Beat(principal=I1))
    await peer.close(lost=False)
    await world.advance(31)


async def in_maintenance(world: Any) -> None:
    await world.connect("i1", acknowledges=True)
    await world.ask(ReportStatus(principal=I1, status={"state": "MAINTENANCE"}))


async def away_for_an_hour(world: Any) -> None:
    await world.connect("i1", acknowledges=True)
    back = Instant(world.time + 3600 * SECOND)
    await world.ask(ReportStatus(principal=I1, status={"state": "IDLE"}, next_available=back))


async def at_work(world: Any) -> None:
    await world.connect("i1", acknowledges=True)
    for _ in range(8):
        await world.submit()


async def without_room(world: Any) -> None:
    await world.connect("i1", acknowledges=True)
    await world.allot("i1:budget", limit=3)
    await world.submit(constraints={"budget_usd": 2})


async def gone(world: Any) -> None:
    pass


@pytest.mark.parametrize(
    ("before", "code", "text", "advice"),
    [
        (gone, "offline", "offline, never seen", "dragoman agent token i1"),
        (silent, "silent", "not heard any more since", "its next message"),
        (in_maintenance, "away", "says that it is in maintenance", "report that it is IDLE"),
        (away_for_an_hour, "away", "takes no work before", "wait until"),
        (at_work, "busy", "busy 8/8", "start another agent like it"),
        (without_room, "no_room", "has 1 of 3 USD free (0 used, 2 set aside), and the task asks for 2", "i1:budget"),
    ],
)
async def test_the_agents_that_could_do_it_and_why_not_now(
    make_world: Any, before: Any, code: str, text: str, advice: str
) -> None:
    world = await make_world()
    await world.add("boss", "orchestrator")
    await world.join("i1", kind="infra")
    await before(world)
    task = await world.submit(constraints={"budget_usd": 2} if before is without_room else {})
    assert task.status is Status.QUEUED
    found = await told(world, task)
    [one] = [one for one in found.candidates if one.agent == "i1"]
    assert (one.able, one.free, [reason.code for reason in one.reasons]) == (True, False, [code])
    assert text in one.reasons[0].text
    assert text in found.summary
    assert advice in found.next[0]


async def test_the_total_of_all_tasks_is_named_once_whatever_agent_is_free(make_world: Any) -> None:
    world = await make_world()
    await world.add("boss", "orchestrator")
    for id in ("i1", "i2"):
        await world.add(id, "infra")
        await world.connect(id)
    await world.policy(budget_limits={"total": 5})
    first, second = [await world.submit(constraints={"budget_usd": 3}) for _ in range(2)]
    assert (first.status, second.status) == (Status.ASSIGNED, Status.QUEUED)
    found = await told(world, second)
    assert [reason.code for reason in found.reasons] == ["queued", "no_room_in_total"]
    assert "All tasks together have 2 of 5 USD free (0 used, 3 set aside), and the task asks for 3" in found.summary
    assert [(one.able, one.free) for one in found.candidates[:2]] == [(True, False), (True, False)]
    assert "budget_limits" in found.next[0]


async def test_a_breaker_and_the_submitter_are_obstacles(world: Any) -> None:
    broken = await world.join("i1", breaker=Breaker(state=BreakerState.HALF_OPEN, failures=5))
    task = await world.submit(None, principal=AgentId("boss"))
    agents = [
        AgentFacts(agent=world.intake.agent(AgentId("boss")), reachable=True, load=0),
        AgentFacts(agent=broken, reachable=True, load=0),
    ]
    found = why(task, now=world.time, agents=agents)
    assert {one.agent: one.reasons[0].code for one in found.candidates} == {
        "boss": "asked_for_it",
        "i1": "breaker_open",
    }
    assert "until it answers a health check" in found.summary
    assert found.next == ("see what went wrong with i1: dragoman agent logs i1",)


def waiting(task: Task, question: Question, **changes: Any) -> WhyOut:
    stands = {"status": Status.WAITING, "waiting": Waiting.HELP, "owner": I1, "question": question.id, **changes}
    return why(msgspec.structs.replace(task, **stands), now=task.created_at, question=question)


async def test_the_agent_and_then_the_person_that_were_asked_for_help(world: Any) -> None:
    await world.add("i1", "infra")
    task = await world.submit()
    question = Question(
        id=QuestionId("q-1"), task=task.id, agent=I1, question="left or right?", created_at=world.time,
        about=Asking.HELP, status=QuestionStatus.WITH_AGENT, asked_of=AgentId("brain"),
    )  # fmt: skip
    found = waiting(task, question)
    assert (found.summary, found.next) == (
        "i1 asked brain for help: left or right?.",
        ("see whether it is there: dragoman agent show brain",),
    )
    person = msgspec.structs.replace(question, asked_of=None, asked_before=(AgentId("brain"),), options=("left",))
    found = waiting(task, person)
    assert "waits for a person's answer, after brain could not help" in found.summary
    assert found.next == ("dragoman ask answer q-1 ANSWER",)
    assert "must approve it" in waiting(task, person, owner=None, waiting=Waiting.PERSON).summary


async def test_the_question_of_an_agent_that_paused_comes_before_its_resume(world: Any) -> None:
    await world.add("i1", "infra")
    task = await world.submit()
    question = Question(
        id=QuestionId("q-1"), task=task.id, agent=I1, question="Restart prod?", created_at=world.time,
        status=QuestionStatus.OPEN,
    )  # fmt: skip
    found = waiting(task, question, waiting=Waiting.AGENT)
    assert [reason.code for reason in found.reasons] == ["question", "paused"]
    assert found.summary == "i1 waits for a person's answer: Restart prod?. i1 said that it pauses."
    assert found.next == ("dragoman ask answer q-1 ANSWER", f"dragoman task resume {task.id}")
    answered = msgspec.structs.replace(question, status=QuestionStatus.ANSWERED)
    assert [reason.code for reason in waiting(task, answered, waiting=Waiting.AGENT).reasons] == ["paused"]


async def test_a_contract_that_ended_is_named_with_its_end(world: Any) -> None:
    await world.add("i1", "infra")
    task = await world.submit()
    contract = Contract(
        id="contract-1", collaboration="c", source=Party(AgentId("ada"), "a", "1"), target=Party(I1, "b", "1"),
        offer=Offer(intent="run_playbook"), created_at=world.time, since=world.time,
        expires_at=Instant(world.time + 60 * SECOND), standing=Standing.TERMINATED, by=ADMIN,
    )  # fmt: skip
    found = why(task, now=world.time, contract=contract)
    assert "its contract contract-1 is terminated since" in found.summary.lower()
    assert "what was accepted on it is still done" in found.summary
    assert any("ada must shake hands with i1 again" in one for one in found.next)
    expired = msgspec.structs.replace(contract, standing=Standing.ACTIVE, by=None)
    assert "contract_over" not in [reason.code for reason in why(task, now=world.time, contract=expired).reasons]
    assert "is expired since" in why(task, now=expired.expires_at, contract=expired).summary


@pytest.mark.parametrize(
    ("kind", "facts", "advice"),
    [
        (Kind.TIMEOUT, {}, "dragoman task retry {id}"),
        (Kind.RESOURCES, {}, "raise the limit"),
        (Kind.CONTRACT, {}, "dragoman contract ls"),
        (Kind.DEPENDENCY, {"dependency": "t-9"}, "dragoman task why t-9"),
        (Kind.INVALID, {}, "dragoman task retry {id} key=value"),
    ],
)
async def test_what_to_do_about_a_failed_task(world: Any, kind: Kind, facts: Any, advice: str) -> None:
    await world.add("i1", "infra")
    task = await world.submit()
    fault = Fault(kind=kind, message="it went wrong", facts=facts)
    failed = changed(task, status=Status.FAILED, fault=fault, queue=None)
    assert advice.format(id=task.id) in why(failed, now=world.time).next[0]

"""What people and callers do to a task on its way: cancel, pause, ask, answer, let it wait for others."""

from __future__ import annotations

import msgspec
import pytest

from dragoman.core.commands import Answer, AskPerson, Cancel, Finish, Pause, ReportFault, ReportProgress, Resume, Retry
from dragoman.core.ids import ADMIN, HOUR, SECOND, AgentId, Instant
from dragoman.core.model.tasks import QuestionStatus, Status, Waiting
from dragoman.messages.faults import Fault, Kind
from dragoman.messages.tasks import Ask


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
    assert [p.delivery.task for p in i1.inbox if p.delivery.kind == "cancel"] == [parent.id, grandchild.id]
    assert [p.delivery.task for p in c1.inbox if p.delivery.kind == "cancel"] == [child.id]
    assert [p.delivery.kind for p in boss.inbox] == ["failure"]
    fault = await world.refused(Cancel(principal=AgentId("boss"), task_id=parent.id))
    assert fault.kind is Kind.CONFLICT


@pytest.mark.parametrize("end", ["cancelled", "late"])
async def test_children_that_depend_on_each_other_end_with_their_parent_once(world, end):
    await world.add("i1", "infra")
    await world.connect("i1")
    boss = await world.connect("boss")
    parent = await world.submit(deadline=Instant(world.time + 20 * SECOND))
    first = await world.submit(parent=parent.id)
    second = await world.submit(parent=parent.id, dependencies=(first.id,))
    third = await world.submit(parent=parent.id, dependencies=(second.id,))
    if end == "cancelled":
        await world.ask(Cancel(principal=AgentId("boss"), task_id=parent.id))
    else:
        await world.advance(20)
    assert sorted(p.delivery.task for p in boss.inbox) == sorted(t.id for t in (parent, first, second, third))
    assert {p.delivery.kind for p in boss.inbox} == {"failure"}


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
    assert (failed.status, failed.outcome.fault.kind) == (Status.FAILED, Kind.DEPENDENCY)


@pytest.mark.parametrize("answered", [False, True], ids=["at once", "after a question"])
async def test_what_an_agent_says_of_an_earlier_round_does_not_count_for_the_one_that_a_person_began(world, answered):
    """Its result, of another input, was taken for that of the new one."""
    await world.add("i1", "infra")
    await world.connect("i1")
    task = await world.submit()
    first = task.request_id
    await world.ask(Cancel(principal=AgentId("boss"), task_id=task.id))
    await world.ask(Retry(principal=ADMIN, task_id=task.id, input=b'{"n":2}'))
    if answered:
        await world.ask(ReportProgress(principal=AgentId("i1"), task_id=task.id, paused=True))
        await world.ask(Resume(principal=ADMIN, task_id=task.id, answer="yes", has_answer=True))
    again = await world.task(task.id)
    assert (again.holder, again.request_id == first) == ("i1", False)
    late = {"principal": AgentId("i1"), "task_id": task.id, "request_id": first}
    for words in (ReportProgress(**late), Finish(**late, digest="of 1")):
        fault = await world.refused(words)
        assert (fault.kind, fault.field) == (Kind.CONFLICT, "request_id")
    error = Fault(kind=Kind.INVALID, message="no such playbook")
    assert await world.ask(ReportFault(principal=AgentId("i1"), request_id=first, fault=error)) is None
    await world.finish("i1", task.id, request_id=again.request_id)
    assert (await world.task(task.id)).status is Status.COMPLETED


@pytest.mark.parametrize("taken", ["queued", "with another agent"])
async def test_a_late_answer_of_the_agent_that_lost_the_task_to_a_retry_is_refused_as_late(world, taken):
    """It was "no such task" until the agent had the new round."""
    for id in ("i1", "i2", "eve"):
        await world.add(id, "infra" if id != "eve" else "code")
    i1 = await world.connect("i1")
    task = await world.submit(request_id="its request id follows from the task's")
    await world.progress("i1", task.id)
    await i1.close()
    if taken == "with another agent":
        await world.connect("i2")
    await world.ask(Retry(principal=ADMIN, task_id=task.id))
    assert (await world.task(task.id)).owner == (None if taken == "queued" else "i2")

    async def refusal(agent: str, request_id: str | None) -> tuple[Kind, str | None]:
        fault = await world.refused(
            Finish(principal=AgentId(agent), task_id=task.id, digest="late", request_id=request_id)
        )
        return fault.kind, fault.field

    assert await refusal("i1", task.request_id) == (Kind.CONFLICT, "request_id")
    unknown = (Kind.NOT_FOUND, "task_id")
    assert await refusal("i1", None) == unknown
    assert await refusal("i1", world.uuid()) == unknown
    assert await refusal("eve", task.request_id) == unknown  # it never had the task


@pytest.mark.parametrize("others", [0, 1])
@pytest.mark.parametrize("paused_by", ["its agent", "a person"])
async def test_an_answer_goes_at_once_to_an_agent_whose_only_seat_the_task_has(world, paused_by, others):
    """The seat counted as taken, by the very task that was to go on: it stood in a queue beside its idle agent."""
    await world.add("i1", "infra", concurrent=1)
    i1 = await world.connect("i1")
    task = await world.submit()
    if paused_by == "its agent":
        await world.ask(ReportProgress(principal=AgentId("i1"), task_id=task.id, paused=True))
    else:
        await world.ask(Pause(principal=ADMIN, task_id=task.id))
    behind = [await world.submit() for _ in range(others)]
    again = await world.ask(Resume(principal=ADMIN, task_id=task.id, answer="yes", has_answer=True))
    assert (again.status, again.holder) == (Status.ASSIGNED, "i1")
    assert [(await world.task(other.id)).status for other in behind] == [Status.QUEUED] * others
    assert i1.work == [task.id, task.id]


async def test_after_an_answer_an_agent_may_go_on_under_the_request_it_began_with(world):
    await world.add("i1", "infra")
    await world.connect("i1")
    task = await world.submit()
    first = task.request_id
    await world.ask(ReportProgress(principal=AgentId("i1"), task_id=task.id, paused=True, request_id=first))
    await world.ask(Resume(principal=ADMIN, task_id=task.id, answer="yes", has_answer=True))
    assert (await world.task(task.id)).request_id != first
    assert (await world.finish("i1", task.id, request_id=first)).status is Status.COMPLETED


@pytest.mark.parametrize("world", [True], ids=["embedded"], indirect=True)  # every link is a surprise: n² over a wire
async def test_a_chain_of_dependents_fails_however_long_it_is(world):
    """Each failed inside the call that failed the one before, until Python nested no deeper: then nothing could end the
    first of them any more."""
    await world.add("i1", "infra")
    chain = [await world.submit()]
    for _ in range(400):
        chain.append(await world.submit(dependencies=(chain[-1].id,)))
    await world.ask(Cancel(principal=AgentId("boss"), task_id=chain[0].id))
    ends = [await world.task(task.id) for task in chain]
    assert [task.status for task in ends] == [Status.CANCELLED, *[Status.FAILED] * 400]
    assert [task.outcome.fault.facts for task in ends[1:]] == [{"dependency": task.id} for task in chain[:-1]]


@pytest.mark.parametrize("begun", ["first", "anew"])
async def test_a_dependent_has_its_whole_time_when_what_it_waited_for_is_done(world, begun):
    await world.add("i1", "infra")
    await world.connect("i1")
    first = await world.submit(total_seconds=3 * 3600)
    after = await world.submit(dependencies=(first.id,))
    if begun == "anew":
        await world.advance(20)
        await world.ask(Cancel(principal=AgentId("boss"), task_id=after.id))
        await world.ask(Retry(principal=AgentId("boss"), task_id=after.id))
    for _ in range(2 * 130):
        await world.advance(29)
        await world.progress("i1", first.id)
    await world.finish("i1", first.id)
    await world.advance(20)
    given = await world.task(after.id)
    assert (given.status, given.timing.deadline) == (Status.ASSIGNED, given.attempt.at + HOUR)


async def test_what_is_done_again_waits_for_what_it_depends_on(world):
    await world.add("i1", "infra")
    i1 = await world.connect("i1")
    first = await world.submit()
    after = await world.submit(dependencies=(first.id,))
    boss = AgentId("boss")
    await world.ask(Cancel(principal=boss, task_id=after.id))
    await world.ask(Retry(principal=boss, task_id=after.id))
    again = await world.task(after.id)
    assert (again.status, again.waiting, again.lineage.blocked_by) == (Status.WAITING, Waiting.DEPENDENCY, (first.id,))
    await world.finish("i1", first.id, fault=Fault(kind=Kind.WORK_FAILED, message="exit 1"))
    assert (await world.task(after.id)).status is Status.FAILED
    fault = await world.refused(Retry(principal=boss, task_id=after.id))
    assert (fault.kind, fault.facts["task_id"]) == (Kind.CONFLICT, first.id)
    await world.ask(Retry(principal=boss, task_id=first.id))
    await world.ask(Retry(principal=boss, task_id=after.id))
    assert after.id not in i1.work
    await world.finish("i1", first.id)
    assert after.id in i1.work


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
    assert [p.delivery.kind for p in i1.inbox] == ["work", "pause", "resume"]
    await world.finish("i1", task.id)
    assert (await world.task(task.id)).status is Status.COMPLETED


async def test_a_task_that_is_paused_between_two_attempts_keeps_nobody_busy_and_is_given_out_again(world):
    await world.add("i1", "infra", concurrent=1)
    i1 = await world.connect("i1")
    task = await world.submit()
    await world.fault("i1", task.id, Kind.RESOURCES)
    await world.ask(Pause(principal=ADMIN, task_id=task.id))
    meanwhile = await world.submit()
    await world.finish("i1", meanwhile.id)
    await world.ask(Resume(principal=ADMIN, task_id=task.id))
    assert i1.work == [task.id, meanwhile.id, task.id]
    assert [outgoing.delivery.kind for outgoing in i1.inbox] == ["work"] * 3


async def test_a_paused_task_whose_agent_is_gone_stays_paused(world):
    for id in ("i1", "i2"):
        await world.add(id, "infra", concurrent=1)
    i1 = await world.connect("i1", vouches=True)
    task = await world.submit()
    await world.ask(Pause(principal=ADMIN, task_id=task.id))
    i2 = await world.connect("i2")
    await world.advance(2 * 3600)
    await i1.close(fault=Fault(kind=Kind.UNAVAILABLE, message="gone", retryable=True))
    await world.advance(2 * 3600)
    assert ((await world.task(task.id)).waiting, i2.work) == (Waiting.HELD, [])
    await world.ask(Resume(principal=ADMIN, task_id=task.id))
    await world.advance(20)
    assert (i2.work, (await world.task(task.id)).status) == ([task.id], Status.ASSIGNED)


@pytest.mark.parametrize("comes", ["back", "by itself"])
async def test_a_task_that_stood_still_for_long_is_not_late(world, comes):
    """Whoever had it may have died meanwhile, or have shown all the time that it is well."""
    await world.add("i1", "infra")
    i1 = await world.connect("i1", vouches=True)
    task = await world.submit()
    if comes == "back":
        await world.ask(AskPerson(principal=AgentId("i1"), task_id=task.id, request_id="q", ask=Ask(question="Go on?")))
        await world.advance(2 * 3600)
        await i1.close(fault=Fault(kind=Kind.UNAVAILABLE, message="gone", retryable=True))
        i1 = await world.connect("i1", vouches=True)
    else:
        for _ in range(3):
            await world.progress("i1", task.id, paused=True)
            await world.advance(3600)
        await world.progress("i1", task.id)
    await world.advance(20)
    assert (await world.task(task.id)).holder == "i1"


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
    told = {"input": {"n": 1}, "answer": "no", "asked_by": "i1", "question": "Restart?"}
    assert msgspec.json.decode(order.content.body) == told  # whoever else may get it knows what was asked
    assert order.task.request_id != task.origin.request_id
    assert (await world.refused(Answer(principal=ADMIN, question=question.id, answer="yes"))).kind is Kind.CONFLICT


@pytest.mark.parametrize(("option", "other"), [(True, 1), (0, False), ("1", 1)])
async def test_an_answer_that_only_python_takes_for_an_option_is_none(world, option, other):
    await world.add("i1", "infra")
    await world.connect("i1")
    task = await world.submit()
    await world.progress("i1", task.id, paused=True, ask=Ask(question="Restart?", options=(option, None)))
    [question] = await world.store.questions(status=QuestionStatus.OPEN)
    refused = await world.refused(Answer(principal=ADMIN, question=question.id, answer=other))
    assert refused.message == f"the answer must be one of {msgspec.json.encode(option).decode()}, null"
    assert (await world.ask(Answer(principal=ADMIN, question=question.id, answer=option))).answer == option


@pytest.mark.parametrize("others", [0, 99])
async def test_an_agent_may_give_up_while_its_question_waits(world, others):
    await world.add("i1", "infra")
    await world.connect("i1")
    for _ in range(others + 1):
        task = await world.submit()
        await world.progress("i1", task.id, paused=True, ask=Ask(question="Restart?"))
    await world.ask(
        ReportFault(
            principal=AgentId("i1"),
            request_id=task.request_id,  # chiffon names no task
            fault=Fault(kind=Kind.WORK_FAILED, message="it broke"),
        )
    )
    task = await world.task(task.id)
    assert (task.status, task.outcome.fault.message) == (Status.FAILED, "it broke")
    [question] = await world.store.questions(task=task.id)
    assert question.status == "withdrawn"


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
    told = {"input": {"n": 1}, "answer": "no", "asked_by": "i1", "question": "Restart?"}
    assert msgspec.json.decode(i1.take()[0].content.body) == told


@pytest.mark.requirement("chiffon/B3")
async def test_the_caller_may_answer_a_paused_task_by_a_request_about_it(world):
    await world.add("i1", "infra")
    i1 = await world.connect("i1")
    task = await world.submit()
    i1.take()
    await world.progress("i1", task.id, paused=True)
    answer = world.request(task_id=task.id, answer=b'"blue"')
    fault = await world.refused(msgspec.structs.replace(answer, principal="i1"))
    assert (fault.kind, fault.field) == (Kind.CONFLICT, "task_id")  # somebody else's
    assert (await world.ask(answer)).id == task.id
    assert (await world.ask(answer)).id == task.id  # said again, it has been heard
    [order] = i1.take()
    assert msgspec.json.decode(order.content.body) == {"input": {"n": 1}, "answer": "blue", "asked_by": "i1"}
    await world.progress("i1", task.id)
    assert (await world.refused(world.request(task_id=task.id, answer=b"1"))).kind is Kind.CONFLICT


WHAT = Ask(question="Which region?", implied=True)


async def at_a_pause(world):
    """A task whose agent paused without a word of why, and the question that this is."""
    await world.add("i1", "infra")
    i1 = await world.connect("i1")
    task = await world.submit()
    i1.take()
    for _ in range(2):  # it says so again and again, and asks once
        await world.progress("i1", task.id, paused=True, ask=WHAT)
    [question] = list(await world.store.questions())
    return i1, task, question


@pytest.mark.requirement("chiffon/B3")
async def test_an_agent_that_pauses_can_be_answered_by_a_person(world):
    i1, task, question = await at_a_pause(world)
    assert (question.status, question.question, question.task) == (QuestionStatus.OPEN, "Which region?", task.id)
    assert (await world.task(task.id)).waiting is Waiting.AGENT
    await world.ask(Answer(principal=ADMIN, question=question.id, answer="eu"))
    [order] = i1.take()
    told = {"input": {"n": 1}, "answer": "eu", "asked_by": "i1", "question": "Which region?"}
    assert msgspec.json.decode(order.content.body) == told


@pytest.mark.requirement("chiffon-D13")
@pytest.mark.parametrize("how", ["by itself", "resumed", "answered by who asked"])
async def test_an_agent_that_goes_on_after_its_pause_waits_for_no_answer(world, how):
    _, task, question = await at_a_pause(world)
    if how == "by itself":
        await world.progress("i1", task.id)
    elif how == "resumed":
        await world.ask(Resume(principal=AgentId("boss"), task_id=task.id))
    else:
        await world.ask(world.request(task_id=task.id, answer=b'"eu"'))
    [question] = list(await world.store.questions())
    assert question.status is QuestionStatus.WITHDRAWN
    assert (await world.refused(Answer(principal=ADMIN, question=question.id, answer="us"))).kind is Kind.CONFLICT


async def test_an_agent_that_asked_a_person_may_repeat_that_it_waits(world):
    await world.add("i1", "infra")
    await world.connect("i1")
    task = await world.submit()
    await world.progress("i1", task.id, paused=True, ask=Ask(question="Restart?"))
    await world.progress("i1", task.id, paused=True, ask=WHAT)
    assert (await world.task(task.id)).waiting is Waiting.PERSON
    assert [one.question for one in await world.store.questions()] == ["Restart?"]


async def test_an_agent_that_pauses_on_request_asks_no_question(world):
    await world.add("i1", "infra")
    await world.connect("i1")
    task = await world.submit()
    await world.ask(Pause(principal=AgentId("boss"), task_id=task.id))
    await world.progress("i1", task.id, paused=True, ask=WHAT)
    assert (await world.task(task.id)).waiting is Waiting.HELD
    assert list(await world.store.questions()) == []

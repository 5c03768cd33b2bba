"""Questions that an agent behind a gateway waits for, or asks by the way."""

from __future__ import annotations

import msgspec
import pytest

from dragoman.core.commands import Answer, AskPerson
from dragoman.core.ids import ADMIN, AgentId
from dragoman.core.model.deliveries import MessageKind
from dragoman.core.model.tasks import QuestionStatus, Status, Waiting
from dragoman.messages.faults import Fault, Kind
from dragoman.messages.tasks import Ask

GONE = Fault(kind=Kind.UNAVAILABLE, message="the stream ended", retryable=True)


def asks(agent: str, text: str, request: str, **fields) -> AskPerson:
    return AskPerson(principal=AgentId(agent), request_id=request, ask=Ask(question=text, **fields))


async def test_an_agent_waits_for_an_answer_and_its_task_goes_on(world):
    await world.add("i1", "infra")
    i1 = await world.connect("i1")
    task = await world.submit()
    i1.take()
    question = await world.ask(asks("i1", "Which?", "req-1", options=("a", "b")))
    waiting = await world.task(task.id)
    assert (waiting.status, waiting.waiting, question.task) == (Status.WAITING, Waiting.PERSON, task.id)
    await world.advance(3000)
    await world.ask(Answer(principal=ADMIN, question=question.id, answer="a"))
    [outgoing] = i1.take()
    assert (outgoing.delivery.kind, outgoing.question.answer, outgoing.question.request_id) == (
        MessageKind.ANSWER,
        "a",
        "req-1",
    )
    running = await world.task(task.id)
    assert (running.status, running.attempt.count) == (Status.RUNNING, 1)
    assert running.timing.deadline > task.timing.deadline
    await world.finish("i1", task.id)


async def test_an_answer_reaches_an_agent_that_was_away(world):
    await world.add("i1", "infra")
    i1 = await world.connect("i1")
    await world.submit()
    question = await world.ask(asks("i1", "Which?", "req-1"))
    await world.restart()
    await world.ask(Answer(principal=ADMIN, question=question.id, answer=7))
    i1 = await world.connect("i1")
    [outgoing] = i1.take()
    assert (outgoing.delivery.kind, outgoing.question.answer) == (MessageKind.ANSWER, 7)
    await i1.ack(outgoing)
    assert (await (await world.connect("i1")).ack()) == 0


async def test_an_agent_that_starts_again_comes_to_the_same_questions(world):
    await world.add("i1", "infra")
    i1 = await world.connect("i1")
    task = await world.submit()
    first = await world.ask(asks("i1", "Which?", "req-1"))
    await world.ask(Answer(principal=ADMIN, question=first.id, answer="a"))
    second = await world.ask(asks("i1", "Which?", "req-2"))
    assert second.id != first.id
    await i1.close(fault=GONE)
    i1 = await world.connect("i1", fresh=True)
    await world.ask(Answer(principal=ADMIN, question=second.id, answer="b"))
    await world.advance(1)
    assert i1.work == [task.id]
    i1.take()
    for request, answer in (("req-3", "a"), ("req-4", "b")):
        again = await world.ask(asks("i1", "Which?", request))
        assert again.status is QuestionStatus.ANSWERED
        [outgoing] = i1.take()
        assert (outgoing.question.request_id, outgoing.question.answer) == (request, answer)
    assert len(await world.store.questions()) == 2
    assert (await world.history(task.id)).count("asked") == 2


async def test_the_same_request_is_the_same_question(world):
    await world.add("i1", "infra")
    await world.connect("i1")
    await world.submit()
    first = await world.ask(asks("i1", "Which?", "req-1"))
    assert (await world.ask(asks("i1", "Which?", "req-1"))).id == first.id


async def test_an_agent_that_starts_again_under_the_same_ids_comes_to_the_same_questions(world):
    await world.add("i1", "infra")
    i1 = await world.connect("i1")
    await world.submit()
    first = await world.ask(asks("i1", "Which?", "ask-1"))
    await world.ask(Answer(principal=ADMIN, question=first.id, answer="a"))
    second = await world.ask(asks("i1", "Which?", "ask-2"))
    assert (await world.ask(asks("i1", "Which?", "ask-1"))).id == first.id
    await i1.close(fault=GONE)
    await world.connect("i1", fresh=True)
    await world.advance(1)
    assert (await world.ask(asks("i1", "Which?", "ask-1"))).answer == "a"
    assert (await world.ask(asks("i1", "Which?", "ask-2"))).id == second.id
    assert (await world.ask(asks("i1", "Which?", "ask-3"))).id not in (first.id, second.id)
    assert len(await world.store.questions()) == 3


@pytest.mark.parametrize("at_work", [True, False])
async def test_the_id_of_a_question_is_refused_for_another(world, at_work):
    await world.add("i1", "infra")
    await world.connect("i1")
    if at_work:
        await world.submit()
    await world.ask(asks("i1", "Which?", "req-1"))
    assert (await world.refused(asks("i1", "Why?", "req-1"))).kind is Kind.CONFLICT
    assert len(await world.store.questions()) == 1


@pytest.mark.parametrize("at_work", [True, False])
async def test_questions_by_the_way_may_share_an_id(world, at_work):
    await world.add("i1", "infra")
    await world.connect("i1")
    if at_work:
        await world.submit()
    one, two, again = [
        await world.ask(msgspec.structs.replace(asks("i1", words, "evt-1"), blocking=False))
        for words in ("Which?", "Why?", "Which?")
    ]
    assert one.id == again.id != two.id


async def test_a_question_that_nobody_answered_in_time_is_asked_again(world):
    await world.add("i1", "infra")
    await world.connect("i1")
    await world.submit()
    first = await world.ask(asks("i1", "Which?", "req-1", timeout_seconds=10))
    await world.advance(11)
    again = await world.ask(asks("i1", "Which?", "req-1", timeout_seconds=10))
    assert (again.id, again.status) == (first.id, QuestionStatus.OPEN)


async def test_a_question_from_before_a_task_stays_the_one_it_was(world):
    await world.add("i1", "infra")
    await world.connect("i1")
    first = await world.ask(asks("i1", "Which?", "req-1"))
    task = await world.submit()
    assert (await world.ask(asks("i1", "Which?", "req-1"))).id == first.id
    assert (await world.task(task.id)).status is Status.ASSIGNED


async def test_a_question_may_belong_to_no_task(world):
    await world.add("i1", "infra")
    i1 = await world.connect("i1")
    question = await world.ask(asks("i1", "Anybody?", "req-1", timeout_seconds=10))
    assert question.task is None
    await i1.close()
    await world.advance(11)
    i1 = await world.connect("i1")
    [outgoing] = i1.take()
    assert (outgoing.about_task, outgoing.question.status, outgoing.question.has_default) == (
        None,
        QuestionStatus.EXPIRED,
        False,
    )
    await i1.ack(outgoing)
    assert (await world.connect("i1")).inbox == []


async def test_a_question_by_the_way_does_not_stop_the_task(world):
    await world.add("i1", "infra")
    i1 = await world.connect("i1")
    task = await world.submit()
    i1.take()
    by_the_way = msgspec.structs.replace(asks("i1", "Proceed?", "evt-1"), blocking=False)
    question = await world.ask(by_the_way)
    assert (await world.task(task.id)).status is Status.ASSIGNED
    await world.progress("i1", task.id)
    await world.ask(Answer(principal=ADMIN, question=question.id, answer="yes"))
    [outgoing] = i1.take()
    assert (outgoing.question.blocking, outgoing.question.answer) == (False, "yes")


async def test_another_agents_task_cannot_be_asked_about(world):
    await world.add("i1", "infra")
    await world.add("i2", "other")
    await world.connect("i1")
    task = await world.submit()
    foreign = msgspec.structs.replace(asks("i2", "Which?", "r"), task_id=task.id)
    assert (await world.refused(foreign)).kind is Kind.NOT_FOUND


async def test_a_question_ends_with_its_task(world):
    await world.add("i1", "infra")
    await world.connect("i1")
    task = await world.submit()
    question = await world.ask(asks("i1", "Which?", "req-1"))
    await world.finish("i1", task.id)
    assert (await world.store.question(question.id)).status is QuestionStatus.WITHDRAWN

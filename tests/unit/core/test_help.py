"""Help: whom the hub asks, what their answer does to the task, and what happens without one."""

from __future__ import annotations

import msgspec
import pytest
from tests.support.conversations import asks, hands, helps, question, three_who_converse, working

from dragoman.core.commands import (
    Answer,
    Beat,
    Cancel,
    HelpVerdict,
    RegisterAgent,
    RemoveAgent,
    ReportStatus,
    SetDomainPolicy,
)
from dragoman.core.ids import ADMIN, SECOND, AgentId, Instant, TaskId
from dragoman.core.model.agents import Offer
from dragoman.core.model.deliveries import ESCALATED as ESCALATED_LETTER
from dragoman.core.model.deliveries import Escalation, MessageKind
from dragoman.core.model.tasks import EventKind, QuestionStatus, Status, Task, Waiting
from dragoman.core.queries import question_out
from dragoman.core.tasks.assistance import LONGEST
from dragoman.messages.brevity import CUT
from dragoman.messages.faults import Fault, Kind
from dragoman.stores.memory import MemoryStore

LATER = Instant(2**52)
ANSWERED, ESCALATED, UNABLE = HelpVerdict.ANSWERED, HelpVerdict.ESCALATED, HelpVerdict.UNABLE


@pytest.fixture(params=["loads first", "peeks"])
async def world(request):
    world = await three_who_converse(MemoryStore(immediate=request.param == "peeks"))
    yield world
    await world.intake.stop()


async def test_an_agent_that_can_help_is_asked_the_task_waits_and_goes_on_with_the_answer(world):
    bob = await world.connect("bob", acknowledges=True)
    ann, task = await working(world)
    request = asks(world, "ann", task.id)
    asked = await world.ask(request)
    assert (asked.asked_of, asked.status) == ("bob", QuestionStatus.WITH_AGENT)
    waiting = await world.task(task.id)
    assert (waiting.status, waiting.waiting) == (Status.WAITING, Waiting.HELP)
    not_yours = await world.refused(Answer(principal=ADMIN, question=asked.id, answer="right"))
    assert (not_yours.kind, "bob, an agent, is asked" in not_yours.message) == (Kind.CONFLICT, True)
    [letter] = bob.take()
    assert (letter.delivery.kind, letter.direct_message.message_id) == (
        MessageKind.DIRECT_MESSAGE,
        request.direct_message.message_id,
    )
    await bob.ack(letter)
    await world.ask(helps(world, "bob", request, ANSWERED, answer="left"))
    [answer] = ann.take()
    assert answer.content.kind == "HELP_RESPONSE"
    assert (await world.task(task.id)).status is Status.RUNNING
    fault = await world.refused(helps(world, "bob", request, ANSWERED))
    assert fault.kind is Kind.CONFLICT


async def test_a_follow_up_belongs_to_the_same_request(world):
    bob = await world.connect("bob", acknowledges=True)
    ann, task = await working(world)
    request = asks(world, "ann", task.id, to=AgentId("bob"))
    await world.ask(request)
    await bob.ack(*bob.take())
    await world.ask(helps(world, "bob", request, ANSWERED, more=True))
    assert (await world.task(task.id)).status is Status.RUNNING
    await ann.ack(*ann.take())
    done = await world.ask(helps(world, "bob", request, ANSWERED))
    assert done.status is QuestionStatus.ANSWERED
    assert [p.content.kind for p in ann.take()] == ["HELP_RESPONSE"]


async def test_an_agent_that_is_unable_is_passed_over_and_in_the_end_a_person_is_asked(world):
    bob = await world.connect("bob", acknowledges=True)
    cid = await world.connect("cid", acknowledges=True)
    ann, task = await working(world)
    request = asks(world, "ann", task.id)
    await world.ask(request)
    await bob.ack(*bob.take())
    passed = await world.ask(helps(world, "bob", request, UNABLE))
    assert (passed.asked_of, passed.asked_before) == ("cid", ("bob",))
    await cid.ack(*cid.take())
    passed = await world.ask(helps(world, "cid", request, UNABLE))
    assert (passed.status, passed.asked_of) == (QuestionStatus.OPEN, None)
    asked = [event for event in await world.store.events(task.id) if event.kind is EventKind.ASKED]
    assert [msgspec.json.decode(event.body).get("asked_of") for event in asked] == ["bob", "cid", None]
    await world.ask(Answer(principal=ADMIN, question=passed.id, answer="right"))
    [told] = ann.take()
    assert (told.delivery.kind, told.question.answer) == (MessageKind.ANSWER, "right")
    assert (await world.task(task.id)).status is Status.RUNNING


@pytest.mark.parametrize(
    "said",
    [
        {"status": {"state": "MAINTENANCE"}},
        {"status": {"state": "IDLE"}, "next_available": LATER},
        {"status": {"state": "IDLE", "error_rate": 0.9}},
    ],
    ids=["away", "later", "fails often"],
)
async def test_an_agent_that_takes_no_work_or_fails_often_is_not_asked_first(world, said):
    for id in ("bob", "cid"):
        await world.connect(id, acknowledges=True)
    await world.ask(ReportStatus(principal=AgentId("bob"), **said))
    _, task = await working(world)
    assert (await world.ask(asks(world, "ann", task.id))).asked_of == "cid"


RESOURCES = [{"type": "code", "url": "https://example.org/x", "title": "X"}]
PASSED_ON = {"content": "not mine to say", "resources": RESOURCES, "response_type": "ESCALATION"}


async def test_an_escalation_goes_to_the_asker_and_with_its_content_to_the_next_helper(world):
    bob = await world.connect("bob", acknowledges=True)
    cid = await world.connect("cid", acknowledges=True)
    ann, task = await working(world)
    request = asks(world, "ann", task.id, to=AgentId("bob"))
    await world.ask(request)
    await bob.ack(*bob.take())
    passed = await world.ask(escalation := helps(world, "bob", request, ESCALATED, answer=PASSED_ON))
    assert (passed.status, passed.asked_of, passed.asked_before) == (QuestionStatus.WITH_AGENT, "cid", ("bob",))
    [told] = ann.take()
    assert told.direct_message.message_id == escalation.direct_message.message_id
    assert (await world.task(task.id)).waiting is Waiting.HELP
    said = Escalation(agent=AgentId("bob"), content="not mine to say", resources=tuple(RESOURCES))
    [asked] = cid.take()
    assert (asked.direct_message.message_id, asked.direct_message.escalations) == (
        request.direct_message.message_id,
        (said,),
    )
    assert await world.ask(escalation) == passed  # said again, it happens once
    assert (ann.take(), cid.take()) == ([], [])
    await ann.ack(told)
    await cid.ack(asked)
    await world.ask(helps(world, "cid", request, ANSWERED))
    [answer] = ann.take()
    assert answer.direct_message.sender == "cid"
    assert (await world.task(task.id)).status is Status.RUNNING


async def test_without_another_helper_an_escalated_request_goes_to_a_person_with_its_content(world):
    bob = await world.connect("bob", acknowledges=True)
    _, task = await working(world)
    await world.ask(RemoveAgent(principal=ADMIN, agent=AgentId("cid")))
    request = asks(world, "ann", task.id, to=AgentId("bob"))
    await world.ask(request)
    await bob.ack(*bob.take())
    passed = await world.ask(helps(world, "bob", request, ESCALATED, answer=PASSED_ON))
    assert (passed.status, passed.asked_of) == (QuestionStatus.OPEN, None)
    [shown] = question_out(passed).escalations
    assert (shown.agent, shown.content, list(shown.resources)) == ("bob", "not mine to say", RESOURCES)
    asked = [event for event in await world.store.events(task.id) if event.kind is EventKind.ASKED][-1]
    assert msgspec.json.decode(asked.body)["escalated"]["content"] == "not mine to say"


async def test_a_helper_of_another_protocol_escalates_by_its_result_and_reads_earlier_escalations(world):
    """Forge has no word for help: it is asked by a task, and what its result says of itself counts."""
    for id in ("rev", "ver"):
        await world.add(id, "reviewer", protocol="forge", capabilities=("code-review",))
    rev = await world.connect("rev")
    ann, task = await working(world, "ann")
    request = asks(world, "ann", task.id)
    first = await world.ask(request)
    [order] = rev.take()
    ver = await world.connect("ver")
    await world.finish("rev", order.task.id, body=msgspec.json.encode({"result": PASSED_ON}))
    [told] = ann.take()
    assert (told.delivery.kind, told.content.kind, told.direct_message.sender) == (
        MessageKind.DIRECT_MESSAGE,
        ESCALATED_LETTER,
        "rev",
    )
    assert msgspec.json.decode(told.content.raw) == {
        "agent": "rev", "content": "not mine to say", "resources": RESOURCES,
        "request_id": request.direct_message.message_id,
    }  # fmt: skip
    assert (await world.task(task.id)).waiting is Waiting.HELP
    [order] = ver.take()
    asked = msgspec.json.decode(order.content.body)["input"]["help"]
    assert asked["escalations"] == [{"agent": "rev", "content": "not mine to say", "resources": RESOURCES}]
    await world.finish("ver", order.task.id, body=b'{"result":{"response_type":"UNABLE_TO_HELP","content":"no idea"}}')
    now = await question(world, first.id)
    assert (now.asked_of, now.asked_before) == ("bob", ("rev", "ver"))


async def test_what_an_escalation_says_is_cut_where_it_would_not_fit(world):
    bob = await world.connect("bob", acknowledges=True)
    _, task = await working(world)
    request = asks(world, "ann", task.id, to=AgentId("bob"))
    await world.ask(request)
    await bob.ack(*bob.take())
    long = {"content": "x" * 100_000, "resources": [{**RESOURCES[0], "title": "y" * 40_000}] * 3}
    [said] = (await world.ask(helps(world, "bob", request, ESCALATED, answer=long))).details.escalations
    assert said.content == "x" * LONGEST + CUT
    assert len(said.resources) == 1


async def test_a_named_helper_that_is_unable_answers_itself(world):
    bob = await world.connect("bob", acknowledges=True)
    ann, task = await working(world)
    request = asks(world, "ann", task.id, to=AgentId("bob"))
    await world.ask(request)
    await bob.ack(*bob.take())
    await world.ask(helps(world, "bob", request, UNABLE))
    assert [p.content.kind for p in ann.take()] == ["HELP_RESPONSE"]
    assert (await world.task(task.id)).status is Status.RUNNING


async def test_without_help_by_its_deadline_the_task_goes_on(world):
    await world.connect("bob", acknowledges=True)
    ann, task = await working(world)
    asked = await world.ask(asks(world, "ann", task.id, deadline=Instant(world.time + 3 * SECOND)))
    await world.advance(3)
    assert (await question(world, asked.id)).status is QuestionStatus.EXPIRED
    assert [p.delivery.kind for p in ann.take()][-1] is MessageKind.ANSWER
    assert (await world.task(task.id)).status is Status.RUNNING


async def test_an_agent_of_another_protocol_helps_by_doing_a_task(world):
    await world.add("rev", "reviewer", protocol="forge", capabilities=("code-review",))
    rev = await world.connect("rev")
    ann, task = await working(world, "ann")
    asked = await world.ask(asks(world, "ann", task.id))
    [order] = rev.take()
    assert order.delivery.kind is MessageKind.WORK
    assert msgspec.json.decode(order.content.body)["input"]["content"] == "which way?"
    await world.finish("rev", order.task.id, body=b'{"result":"up"}')
    [told] = ann.take()
    assert (told.delivery.kind, told.question.answer, told.question.answered_by) == (MessageKind.ANSWER, "up", "rev")
    assert (await question(world, asked.id)).status is QuestionStatus.ANSWERED
    assert (await world.task(task.id)).status is Status.RUNNING


async def test_a_helper_that_never_acknowledges_is_passed_over(world):
    await world.connect("bob", acknowledges=True)
    cid = await world.connect("cid", acknowledges=True)
    _, task = await working(world)
    asked = await world.ask(asks(world, "ann", task.id))
    await world.advance(16)
    assert (await question(world, asked.id)).asked_of == "cid"
    assert cid.take()


@pytest.mark.parametrize("gone", ["silent", "removed"])
async def test_when_who_is_asked_is_gone_the_next_is_and_who_was_named_only_if_it_cannot_come_back(world, gone):
    """Though it had acknowledged the request."""
    await world.connect("cid", acknowledges=True)
    _, task = await working(world)
    given = await world.submit(None, pinned="ann")
    await world.ask(Beat(principal=AgentId("bob")))
    await world.poll("bob")
    until = Instant(world.time + 100 * SECOND)
    requests = (
        asks(world, "ann", task.id),
        asks(world, "ann", task.id, to=AgentId("bob")),
        hands(world, "ann", given.id, deadline=until),
    )
    asked = [await world.ask(request) for request in requests]
    assert [one.asked_of for one in asked] == ["bob"] * 3
    for _ in requests:
        await world.ask_ack("bob", await world.poll("bob"))
    if gone == "removed":
        await world.ask(RemoveAgent(principal=ADMIN, agent=AgentId("bob")))
    for _ in range(7 if gone == "silent" else 0):
        await world.advance(5)
        for id in ("ann", "cid"):
            await world.ask(Beat(principal=AgentId(id)))
    help_, named, handover = [await question(world, one.id) for one in asked]
    assert (help_.asked_of, handover.asked_of) == ("cid", "cid")
    assert named.asked_of == "bob"
    assert named.status is (QuestionStatus.EXPIRED if gone == "removed" else QuestionStatus.WITH_AGENT)


async def test_what_was_called_off_with_another_request_is_put_to_nobody_else(world):
    """Who is gone was asked to take a task over, and to help with it; another takes it, and needs no help."""
    bob = await world.connect("bob", acknowledges=True)
    _, task = await working(world)
    asked = [await world.ask(request) for request in (asks(world, "ann", task.id), hands(world, "ann", task.id))]
    assert [one.asked_of for one in asked] == ["bob", "bob"]
    await bob.ack(*bob.take())
    await world.add("rev", "reviewer", protocol="forge", capabilities=("code-review",))
    rev = await world.connect("rev")
    await world.ask(RemoveAgent(principal=ADMIN, agent=AgentId("bob")))
    help_, handover = [await question(world, one.id) for one in asked]
    assert handover.answered_by == "rev"
    assert help_.status is QuestionStatus.WITHDRAWN
    assert rev.work == [task.id]


@pytest.mark.parametrize("gone", ["silent", "removed"])
async def test_however_many_ask_who_is_gone_the_next_is_asked_by_all_of_them(world, gone):
    """Those who named it, and wait for it, stand before the others."""
    await world.connect("cid", acknowledges=True)
    await world.ask(Beat(principal=AgentId("bob")))
    await world.poll("bob")
    named = [await world.ask(asks(world, "ann", None, to=AgentId("bob"))) for _ in range(100)]
    asked = [await world.ask(asks(world, "ann", None)) for _ in range(100)]
    assert {one.asked_of for one in (*named, *asked)} == {"bob"}
    while outgoing_messages := await world.poll("bob", 100):
        await world.ask_ack("bob", outgoing_messages)
    if gone == "removed":
        await world.ask(RemoveAgent(principal=ADMIN, agent=AgentId("bob")))
    for _ in range(7 if gone == "silent" else 1):
        await world.advance(5)
        for id in ("ann", "cid"):
            await world.ask(Beat(principal=AgentId(id)))
    assert {(await question(world, one.id)).asked_of for one in asked} == {"cid"}
    left = QuestionStatus.WITH_AGENT if gone == "silent" else QuestionStatus.EXPIRED
    assert {(await question(world, one.id)).status for one in named} == {left}


async def test_help_about_a_task_that_the_hub_does_not_know(world):
    bob = await world.connect("bob", acknowledges=True)
    ann = await world.connect("ann", acknowledges=True)
    request = asks(world, "ann", TaskId(world.uuid()))
    await world.ask(request)
    await bob.ack(*bob.take())
    await world.ask(helps(world, "bob", request, ANSWERED))
    assert [p.content.kind for p in ann.take()] == ["HELP_RESPONSE"]


async def test_a_stranger_cannot_answer(world):
    await world.connect("bob", acknowledges=True)
    _, task = await working(world)
    request = asks(world, "ann", task.id)
    await world.ask(request)
    assert (await world.refused(helps(world, "cid", request, ANSWERED))).kind is Kind.NOT_FOUND


async def test_a_cancelled_task_takes_its_request_for_help_along(world):
    await world.connect("bob", acknowledges=True)
    _, task = await working(world)
    asked = await world.ask(asks(world, "ann", task.id))
    await world.ask(Cancel(principal=ADMIN, task_id=task.id))
    assert (await question(world, asked.id)).status is QuestionStatus.WITHDRAWN


async def test_a_helper_that_does_a_task_gets_a_cancel_when_its_help_is_not_needed_any_more(world):
    await world.add("rev", "reviewer", protocol="forge", capabilities=("code-review",))
    rev = await world.connect("rev")
    _, task = await working(world)
    await world.ask(asks(world, "ann", task.id, to=AgentId("rev")))
    [order] = rev.take()
    await world.finish("ann", task.id)
    assert (await world.task(order.task.id)).status is Status.CANCELLED
    assert [outgoing.delivery.kind for outgoing in rev.take()] == [MessageKind.CANCEL]


async def test_help_that_gets_its_turn_because_other_help_is_called_off_is_called_off_as_well(world):
    """All in one decision: what the next one is by then is not what the store says of it."""
    await world.add("i1", "infra", concurrent=1)
    await world.connect("i1")
    _, task = await working(world)
    for _ in range(6):
        await world.ask(asks(world, "ann", task.id, to=AgentId("i1")))
    helping = [row for row in world.store.rows(Task) if row.lineage.helps is not None]
    assert [row.status for row in helping] == [Status.ASSIGNED] + 5 * [Status.QUEUED]
    await world.finish("ann", task.id)
    for row in helping:
        ended = await world.task(row.id)
        assert ended.status is Status.CANCELLED
        assert [event.seq for event in await world.store.events(row.id)] == list(range(1, ended.seq + 1))
    assert [d for d in await world.store.deliveries() if d.kind is MessageKind.WORK] == []


async def test_when_a_deadline_ends_a_task_nobody_else_is_asked_to_help_with_it(world):
    for id in ("rev", "sue"):
        await world.add(id, "reviewer", protocol="forge", capabilities=("code-review",))
    rev, sue = await world.connect("rev"), await world.connect("sue")
    _, task = await working(world, deadline=Instant(world.time + 20 * SECOND), firm=True)
    requests = [await world.ask(asks(world, "ann", task.id)) for _ in range(3)]
    asked = rev.take() + sue.take()
    await world.advance(20)
    ended = await world.task(task.id)
    assert (ended.status, len(await world.store.events(task.id))) == (Status.FAILED, ended.seq)
    assert {(await question(world, request.id)).status for request in requests} == {QuestionStatus.WITHDRAWN}
    told = rev.take() + sue.take()
    assert {outgoing.delivery.task for outgoing in told} == {outgoing.delivery.task for outgoing in asked}
    assert {outgoing.delivery.kind for outgoing in told} == {MessageKind.CANCEL}


async def test_a_request_that_was_called_off_reaches_nobody_any_more(world):
    """Whether its task ended, its time was up or its owner was lost; and the lane goes on behind it."""
    ann, task = await working(world)
    asked = await world.ask(asks(world, "ann", task.id, to=AgentId("bob")))
    await world.ask(world.tell("ann", "bob", "by the way", lane=task.id))
    await world.ask(Cancel(principal=ADMIN, task_id=task.id))
    late = await world.submit(None, pinned="ann")
    await world.ask(hands(world, "ann", late.id, to=AgentId("bob"), deadline=Instant(world.time + SECOND)))
    await world.advance(2)
    given = await world.submit(None, pinned="ann")
    await world.ask(hands(world, "ann", given.id, to=AgentId("bob")))
    await ann.close(fault=Fault(kind=Kind.UNAVAILABLE, message="gone", retryable=True))
    bob = await world.connect("bob", acknowledges=True)
    assert [msgspec.json.decode(outgoing.content.raw) for outgoing in bob.take()] == [{"text": "by the way"}]
    records = [r for r in await world.store.audit(limit=100) if r.action == "letter.withdraw"]
    assert len(records) == 3
    assert asked.direct_message.message_id in {record.subject for record in records}


@pytest.mark.parametrize("end", ["removed", "gone"])
async def test_help_with_help_ends_with_what_it_was_for_also_in_the_same_hands(world, end):
    """Who goes had asked for help, and helped with that help: to fail the one ends the other, once."""
    for id in ("dot", "eve"):
        await world.add(id, "infra", concurrent=4)
    dot, eve = await world.connect("dot"), await world.connect("eve")
    task = await world.submit(None, pinned="dot")
    await world.ask(asks(world, "dot", task.id, to=AgentId("eve")))
    [help] = eve.work
    await world.ask(asks(world, "eve", help, to=AgentId("dot")))
    [_, help_with_help] = dot.work
    if end == "removed":
        await world.ask(RemoveAgent(principal=ADMIN, agent=AgentId("dot")))
    else:
        await dot.close(fault=Fault(kind=Kind.UNAVAILABLE, message="gone", retryable=True))
    ended = [(await world.task(id)).status for id in (task.id, help, help_with_help)]
    assert ended == [Status.QUEUED, Status.CANCELLED, Status.CANCELLED]
    assert (await world.history(help_with_help)).count("cancelled") == 1


async def test_nobody_is_asked_for_help_over_a_closed_border(world):
    bob = await world.connect("bob", acknowledges=True)
    _, task = await working(world)
    await world.ask(SetDomainPolicy(principal=ADMIN, source="*", target="default", allow=False))
    fault = await world.refused(asks(world, "ann", task.id, to=AgentId("bob")))
    assert (fault.kind, fault.facts["target_domain"]) == (Kind.FORBIDDEN, "default")
    asked = await world.ask(asks(world, "ann", task.id))
    assert (asked.status, bob.take()) == (QuestionStatus.OPEN, [])  # a person is


@pytest.mark.parametrize(("protocol", "asked_of"), [("chiffon", "dan"), ("a2acp", None)])
async def test_a_task_that_helps_with_personal_work_is_personal(world, protocol, asked_of):
    """And an a2acp agent, which has no key to it, is not asked."""
    terms = (Offer(intent="admit", pii=True),)
    await world.ask(RegisterAgent(principal=AgentId("ann"), work_types=("admit",), offers=terms))
    await world.add("dan", "reviewer", protocol=protocol, work_types=("advise",))
    dan = await world.connect("dan")
    _, task = await working(world, type="admit")
    asked = await world.ask(asks(world, "ann", task.id, topic="advise", question="is Erika ill?"))
    assert (asked.asked_of, asked.personal) == (asked_of, True)
    for given in dan.work:
        helping = await world.task(given)
        assert (helping.agreement.personal, helping.lineage.helps) == (True, asked.id)
    assert len(dan.work) == (asked_of is not None)

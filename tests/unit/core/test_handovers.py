"""Handovers: who is asked, what goes along with the task, and what stays where it is."""

from __future__ import annotations

import msgspec
import pytest
from tests.support.conversations import allots, asks, hands, question, takes, three_who_converse, working

from dragoman.core.commands import Answer, AskPerson, Beat, Handing, RegisterAgent, Retry, SetDomainPolicy, ShakeHands
from dragoman.core.ids import ADMIN, SECOND, AgentId, Instant, TaskId
from dragoman.core.model.agents import RESOURCES, Offer
from dragoman.core.model.deliveries import Backoff, MessageKind
from dragoman.core.model.tasks import EventKind, QuestionStatus, Status, Waiting
from dragoman.messages.faults import Fault, Kind
from dragoman.messages.tasks import Ask, Handoff
from dragoman.stores.memory import MemoryStore


@pytest.fixture(params=["loads first", "peeks"])
async def world(request):
    world = await three_who_converse(MemoryStore(immediate=request.param == "peeks"))
    yield world
    await world.intake.stop()


async def test_with_a_yes_the_task_and_all_that_is_known_of_it_are_theirs(world):
    bob = await world.connect("bob", acknowledges=True)
    ann, task = await working(world, input={"file": "a.py"})
    await world.progress("ann", task.id, 40)
    request = hands(world, "ann", task.id, to=AgentId("bob"), known=Handoff(metadata={"tried": "x"}))
    await world.ask(request)
    assert (await world.task(task.id)).owner == "ann"
    [asked] = bob.take()
    assert asked.content.kind == "TASK_HANDOFF"
    await bob.ack(asked)
    done = await world.ask(takes(world, "bob", request, estimated="soon"))
    assert (done.answer["accepted"], done.answer["estimated"]) == (True, "soon")
    moved = await world.task(task.id)
    assert (moved.owner, moved.status, moved.lineage.handed) == ("bob", Status.RUNNING, (("ann", "bob"),))
    [yours] = bob.take()
    assert yours.delivery.kind is MessageKind.HANDOFF
    body = msgspec.json.decode(yours.content.body)
    assert body["input"] == {"file": "a.py"}
    assert body["handover"]["metadata"] == {"tried": "x"}
    assert [e["kind"] for e in body["handover"]["story"]][:3] == ["submitted", "assigned", "progress"]
    assert [p.content.kind for p in ann.take()] == ["TASK_HANDOFF"]
    assert (await world.refused_finish("ann", task.id)).kind is Kind.NOT_FOUND
    await world.finish("bob", task.id)
    assert (await world.task(task.id)).status is Status.COMPLETED


async def test_a_new_owner_that_never_acknowledges_the_task_is_assigned_it_again(world):
    """It is alive, but may have forgotten what it said. How often it is told is for the task's caller to say."""
    bob = await world.connect("bob", acknowledges=True)
    _, task = await working(world, retry=Backoff(base=float(SECOND), attempts=2))
    request = hands(world, "ann", task.id, to=AgentId("bob"))
    await world.ask(request)
    await bob.ack(*bob.take())
    await world.ask(takes(world, "bob", request))
    assert [outgoing.delivery.kind for outgoing in bob.take()] == [MessageKind.HANDOFF]
    for _ in range(10):
        await world.advance(1)
        await world.ask(Beat(principal=AgentId("bob")))
    assert [outgoing.delivery.kind for outgoing in bob.take()][:2] == [MessageKind.HANDOFF, MessageKind.WORK]
    assert (await world.task(task.id)).attempt.count == 2
    assert [dead.kind for dead in await world.store.dead_letters(limit=10)] == [MessageKind.HANDOFF]


async def test_the_time_that_a_task_waited_for_help_is_not_taken_from_who_takes_it_over(world):
    bob = await world.connect("bob", acknowledges=True)
    _, task = await working(world)
    await world.ask(asks(world, "ann", task.id, to=AgentId("bob")))
    request = hands(world, "ann", task.id, to=AgentId("bob"), deadline=Instant(world.time + 300 * SECOND))
    for round_ in range(20):
        if round_ == 10:
            await world.ask(request)
        await bob.ack(*bob.take())
        await world.advance(10)
        for id in ("ann", "bob"):
            await world.ask(Beat(principal=AgentId(id)))
    await world.ask(takes(world, "bob", request))
    theirs = await world.task(task.id)
    assert (theirs.owner, theirs.timing.deadline) == ("bob", task.timing.deadline + 200 * SECOND)


async def test_with_a_no_the_owner_keeps_it(world):
    bob = await world.connect("bob", acknowledges=True)
    ann, task = await working(world)
    request = hands(world, "ann", task.id, to=AgentId("bob"))
    await world.ask(request)
    await bob.ack(*bob.take())
    await world.ask(takes(world, "bob", request, accepted=False, error="busy"))
    assert (await world.task(task.id)).owner == "ann"
    assert [p.content.kind for p in ann.take()] == ["TASK_HANDOFF"]
    await world.finish("ann", task.id)


async def test_where_it_is_left_open_the_next_is_asked_after_a_no_and_then_nobody(world):
    bob = await world.connect("bob", acknowledges=True)
    cid = await world.connect("cid", acknowledges=True)
    ann, task = await working(world)
    request = hands(world, "ann", task.id)
    await world.ask(request)
    await bob.ack(*bob.take())
    asked = await world.ask(takes(world, "bob", request, accepted=False))
    assert asked.asked_of == "cid"
    await cid.ack(*cid.take())
    kept = await world.ask(takes(world, "cid", request, accepted=False))
    assert kept.answer["accepted"] is False
    [told] = ann.take()
    assert (told.delivery.kind, told.question.answer["accepted"]) == (MessageKind.ANSWER, False)
    assert (await world.task(task.id)).owner == "ann"


async def test_without_an_answer_by_the_deadline_it_stays_where_it_is(world):
    bob = await world.connect("bob", acknowledges=True)
    ann, task = await working(world)
    request = hands(world, "ann", task.id, to=AgentId("bob"), deadline=Instant(world.time + 2 * SECOND))
    await world.ask(request)
    await bob.ack(*bob.take())
    await world.advance(3)
    [told] = ann.take()[:1]
    assert told.question.answer["accepted"] is False
    assert (await world.refused(takes(world, "bob", request))).kind is Kind.CONFLICT
    assert (await world.task(task.id)).owner == "ann"


async def test_an_agent_of_another_protocol_is_given_the_work(world):
    await world.add("i1", "infra")
    i1 = await world.connect("i1")
    ann, task = await working(world, input={"n": 7})
    await world.ask(hands(world, "ann", task.id, to=AgentId("i1")))
    [order] = i1.take()
    assert order.delivery.kind is MessageKind.WORK
    assert msgspec.json.decode(order.content.body)["input"] == {"n": 7}
    [told] = ann.take()
    assert told.question.answer == {"accepted": True, "agent_id": "i1"}
    await world.finish("i1", task.id)
    assert (await world.task(task.id)).status is Status.COMPLETED


async def test_an_escalation_that_no_agent_can_take_ends_at_a_person(world):
    ann, task = await working(world)
    await world.ask(hands(world, "ann", task.id, Handing.ESCALATION))
    [told] = ann.take()
    assert told.question.answer == {"accepted": True, "agent_id": "person"}
    waiting = await world.task(task.id)
    assert (waiting.status, waiting.waiting, waiting.owner) == (Status.WAITING, Waiting.PERSON, ADMIN)
    [job] = await world.store.questions(status=QuestionStatus.OPEN, task=task.id, limit=10)
    await world.ask(Answer(principal=ADMIN, question=job.id, answer={"fixed": True}))
    assert (await world.task(task.id)).status is Status.COMPLETED
    history = await world.store.events(task.id)
    [completed] = [event for event in history if event.kind is EventKind.COMPLETED]
    assert bytes(completed.body) == b'{"result":{"fixed":true}}'


async def test_the_same_hand_to_the_same_hand_again_is_a_loop(world):
    bob = await world.connect("bob", acknowledges=True)
    ann, task = await working(world)
    for giver, taker, peer in (("ann", "bob", bob), ("bob", "ann", ann)):
        request = hands(world, giver, task.id, to=AgentId(taker))
        await world.ask(request)
        await world.ask(takes(world, taker, request))
        await peer.ack(*peer.take())
        await peer.ack(*peer.take())
    fault = await world.refused(hands(world, "ann", task.id, to=AgentId("bob")))
    assert (fault.kind, fault.facts["path"]) == (Kind.CONFLICT, "ann → bob → ann")


async def test_after_eight_hands_it_fails(world):
    for n in range(9):
        await world.add(f"a{n}", protocol="agentmsg")
    _, task = await working(world, "a0")
    for n in range(8):
        await world.connect(f"a{n + 1}", acknowledges=True)
        request = hands(world, f"a{n}", task.id, to=AgentId(f"a{n + 1}"))
        await world.ask(request)
        await world.ask(takes(world, f"a{n + 1}", request))
    await world.ask(hands(world, "a8", task.id, to=AgentId("ann")))
    failed = await world.task(task.id)
    assert (failed.status, failed.outcome.fault.facts["reason"]) == (Status.FAILED, "CAPABILITY_LIMIT")
    await world.ask(Retry(principal=ADMIN, task_id=task.id))
    again = await world.task(task.id)
    assert (again.owner, again.lineage.handed) == ("a0", ())  # as if nobody had begun it
    request = hands(world, "a0", task.id, to=AgentId("a1"))
    await world.ask(request)
    await world.ask(takes(world, "a1", request))
    assert (await world.task(task.id)).owner == "a1"


async def test_a_task_that_the_hub_does_not_know_can_be_handed_over(world):
    bob = await world.connect("bob", acknowledges=True)
    ann = await world.connect("ann", acknowledges=True)
    id = TaskId(world.uuid())
    request = hands(world, "ann", id, to=AgentId("bob"), type="write", called="t-1", known=Handoff(metadata={"k": 1}))
    await world.ask(request)
    assert (await world.task(id)).owner == "ann"
    await bob.ack(*bob.take())
    await world.ask(takes(world, "bob", request))
    await bob.ack(*bob.take())
    await world.finish("bob", id)
    assert [p.delivery.kind for p in ann.take()][-1] in (MessageKind.RESULT, MessageKind.DIRECT_MESSAGE)
    assert (await world.task(id)).origin.called == "t-1"


async def test_an_owner_that_is_lost_withdraws_what_it_asked(world):
    bob = await world.connect("bob", acknowledges=True)
    ann, task = await working(world)
    request = hands(world, "ann", task.id, to=AgentId("bob"))
    await world.ask(request)
    await ann.close(fault=Fault(kind=Kind.UNAVAILABLE, message="gone", retryable=True))
    assert (await world.refused(takes(world, "bob", request))).kind is Kind.CONFLICT
    assert bob.take()


async def test_what_the_last_owner_asked_is_withdrawn_when_its_task_changes_hands(world):
    """A person's answer would reach nobody, and nobody is told to wait for one."""
    bob = await world.connect("bob", acknowledges=True)
    _, task = await working(world)
    words = Ask(question="left or right?")
    person = await world.ask(AskPerson(principal=AgentId("ann"), request_id="q", ask=words, task_id=task.id))
    helper = await world.ask(asks(world, "ann", task.id, to=AgentId("cid")))
    request = hands(world, "ann", task.id, to=AgentId("bob"))
    await world.ask(request)
    assert (await question(world, person.id)).status is QuestionStatus.OPEN
    await world.ask(takes(world, "bob", request))
    for id in (person.id, helper.id):
        assert (await question(world, id)).status is QuestionStatus.WITHDRAWN
    assert (await world.refused(Answer(principal=ADMIN, question=person.id, answer="left"))).kind is Kind.CONFLICT
    moved = await world.task(task.id)
    assert (moved.owner, moved.status, moved.waiting) == ("bob", Status.RUNNING, None)
    assert bob.take()


# -- to whom, and at whose cost


@pytest.mark.parametrize(("role", "asked"), [(None, None), ("planner", "pam")])
async def test_an_escalated_task_goes_back_to_its_caller_only_where_that_is_a_planner(world, role, asked):
    await world.add("pam", protocol="agentmsg", role=role)
    await world.connect("pam", acknowledges=True)
    _, task = await working(world, principal=AgentId("pam"))
    assert (await world.ask(hands(world, "ann", task.id, Handing.ESCALATION))).asked_of == asked
    assert (await world.task(task.id)).owner == (ADMIN if asked is None else "ann")


async def test_a_task_that_a_person_took_over_holds_nothing_of_its_agents_budget(world):
    _, task = await working(world, constraints={"budget_usd": 0.5})
    spent = "RESOURCE/ann:budget"
    assert world.intake.entity(spent).value["reserved"] == 0.5
    await world.ask(hands(world, "ann", task.id, Handing.ESCALATION))
    assert world.intake.entity(spent).value["reserved"] == 0
    assert world.intake.entity("RESOURCE/hub:budget").value["reserved"] == 0


@pytest.mark.parametrize("said", [5000, "much", None])
@pytest.mark.parametrize("resource", RESOURCES, ids=[resource.name for resource in RESOURCES])
@pytest.mark.parametrize("needs", [{}, {"max_memory_mb": 60, "max_gpu_vram_mb": 60}], ids=["none", "some"])
async def test_an_agent_that_hands_a_task_over_does_not_change_what_it_may_need(world, needs, resource, said):
    """Else work for the agent that takes it over would be refused with figures that no caller sent."""
    bob = await world.connect("bob", acknowledges=True)
    await world.ask(msgspec.structs.replace(world.registration("bob"), memory_mb=100, gpu_vram_mb=100))
    _, task = await working(world, constraints=needs)
    request = hands(world, "ann", task.id, to=AgentId("bob"), known=Handoff(constraints={resource.constraint: said}))
    await world.ask(request)
    await bob.ack(*bob.take())
    await world.ask(takes(world, "bob", request))
    moved = await world.task(task.id)
    assert (moved.owner, moved.agreement.constraints) == ("bob", needs)
    other = await world.submit(None, pinned="bob", constraints={resource.constraint: 40})
    assert other.owner == "bob"


async def test_a_task_that_an_agent_hands_over_as_its_own_says_in_numbers_what_it_may_need(world):
    await world.connect("ann", acknowledges=True)
    known = Handoff(constraints={"max_gpu_vram_mb": "much"})
    request = hands(world, "ann", TaskId("own idea"), to=AgentId("bob"), type="review", known=known)
    fault = await world.refused(request)
    assert (fault.kind, fault.field) == (Kind.INVALID, "constraints.max_gpu_vram_mb")


async def test_an_agent_without_budget_takes_over_nothing_and_the_owner_learns_so_at_once(world):
    bob = await world.connect("bob", acknowledges=True)
    ann, task = await working(world)
    request = hands(world, "ann", task.id, to=AgentId("bob"))
    asked = await world.ask(request)
    await bob.ack(*bob.take())
    await allots(world, "bob:tokens", limit=10, consumed=10)
    fault = await world.refused(takes(world, "bob", request))
    assert (fault.kind, fault.facts["limit"], fault.facts["remaining"]) == (Kind.RESOURCES, 10, 0)
    assert (await world.task(task.id)).owner == "ann"
    [told] = ann.take()
    assert told.question.answer == {
        "accepted": False,
        "agent_id": "bob",
        "error": "bob has no budget for it any more; the task stays yours",
    }
    assert (await question(world, asked.id)).status is QuestionStatus.ANSWERED


async def test_after_a_yes_that_cannot_count_the_next_is_asked(world):
    bob = await world.connect("bob", acknowledges=True)
    cid = await world.connect("cid", acknowledges=True)
    _, task = await working(world)
    request = hands(world, "ann", task.id)
    await world.ask(request)
    await bob.ack(*bob.take())
    await allots(world, "bob:tokens", limit=10, consumed=10)
    assert (await world.refused(takes(world, "bob", request))).kind is Kind.RESOURCES
    await cid.ack(*cid.take())
    await world.ask(takes(world, "cid", request))
    assert (await world.task(task.id)).owner == "cid"


async def test_work_under_a_contract_stays_where_its_caller_may_ask(world):
    """The contract names one agent; who takes over from it stands behind the same border (a2acp-D19)."""
    await world.add("lab", protocol="a2acp", domain="research")
    for id, domain in (("near", "clinic"), ("far", "elsewhere")):
        await world.add(id, protocol="agentmsg", domain=domain)
        await world.connect(id, acknowledges=True)
    await world.ask(RegisterAgent(principal=AgentId("near"), work_types=None, offers=(Offer(intent="infra_setup"),)))
    await world.ask(SetDomainPolicy(principal=ADMIN, source="research", target="clinic"))
    shaken = await world.ask(
        ShakeHands(
            principal=AgentId("lab"), protocol="a2acp", request_id=world.uuid(), digest="d", target=AgentId("near"),
            intent="infra_setup", domain="research", version="1.0.0",
        )
    )  # fmt: skip
    contract = shaken.answer["contract_id"]
    task = await world.submit(None, principal=AgentId("lab"), type="infra_setup", contract=contract)
    fault = await world.refused(hands(world, "near", task.id, to=AgentId("far")))
    assert (fault.kind, fault.facts["target_domain"]) == (Kind.FORBIDDEN, "elsewhere")
    open_choice = await world.ask(hands(world, "near", task.id))
    assert open_choice.answer["accepted"] is False
    await world.ask(SetDomainPolicy(principal=ADMIN, source="research", target="elsewhere"))
    assert (await world.ask(hands(world, "near", task.id, to=AgentId("far")))).asked_of == "far"


async def test_so_does_work_without_a_contract_where_there_is_a_border(world):
    for id, domain in (("near", "clinic"), ("far", "elsewhere")):
        await world.add(id, protocol="agentmsg", domain=domain)
        await world.connect(id, acknowledges=True)
    await world.ask(SetDomainPolicy(principal=ADMIN, source="clinic", target="elsewhere"))
    await world.add("shop", domain="shop")
    task = await world.submit(None, principal=AgentId("shop"), pinned=AgentId("near"), type="infra_setup")
    fault = await world.refused(hands(world, "near", task.id, to=AgentId("far")))
    assert (fault.kind, fault.facts["source_domain"]) == (Kind.FORBIDDEN, "shop")  # whoever asked, not who hands on
    await world.ask(SetDomainPolicy(principal=ADMIN, source="shop", target="elsewhere"))
    assert (await world.ask(hands(world, "near", task.id, to=AgentId("far")))).asked_of == "far"


@pytest.mark.parametrize("protocol", ["chiffon", "a2acp"])
@pytest.mark.parametrize("named", [True, False], ids=["by name", "to whoever can"])
async def test_a_polling_agent_finds_a_task_that_was_handed_over_between_two_polls(world, protocol, named):
    await world.add("pol", protocol=protocol, kind="poller", work_types=("run_playbook",))
    assert await world.poll("pol") == []
    ann, task = await working(world)
    await world.ask(
        hands(world, "ann", task.id, to=AgentId("pol") if named else None, known=Handoff(metadata={"n": 2}))
    )
    moved = await world.task(task.id)
    assert (moved.owner, moved.status, moved.lineage.handed) == ("pol", Status.ASSIGNED, (("ann", "pol"),))
    [told] = ann.take()
    assert (told.question.answer["accepted"], told.question.answer["agent_id"]) == (True, "pol")
    await world.advance(50)  # longer than an agent may be silent over its work: it has not got it yet
    [order] = await world.poll("pol")
    assert (order.delivery.kind, order.task.id) == (MessageKind.WORK, task.id)
    assert msgspec.json.decode(order.content.body)["handover"]["metadata"] == {"n": 2}
    await world.ask_ack("pol", [order])
    await world.finish("pol", task.id)
    assert (await world.task(task.id)).status is Status.COMPLETED


async def test_an_agent_that_stops_polling_before_it_fetched_a_task_costs_it_an_attempt_and_no_failure(world):
    await world.add("pol", protocol="chiffon", kind="poller", work_types=("run_playbook",))
    await world.poll("pol")
    _, task = await working(world)
    await world.ask(hands(world, "ann", task.id, to=AgentId("pol")))
    await world.advance(100)
    failed = [event for event in await world.store.events(task.id) if event.kind is EventKind.ATTEMPT_FAILED]
    assert msgspec.json.decode(failed[0].body)["fault"]["message"] == "pol did not poll for it"
    assert world.intake.agent("pol").breaker.failures == 0


async def test_a_busy_polling_agent_is_no_handoff_candidate(world):
    await world.add("pol", protocol="chiffon", kind="poller", work_types=("run_playbook",), concurrent=1)
    ann, task = await working(world)
    await world.submit(None, pinned="pol")
    await world.ask_ack("pol", await world.poll("pol"))
    await world.ask(hands(world, "ann", task.id, to=AgentId("pol")))
    [told] = ann.take()
    assert told.question.answer["error"] == "pol has no seat now; the task stays yours"

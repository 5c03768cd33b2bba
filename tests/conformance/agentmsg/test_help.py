"""Help over the wire: who is asked, in whose words the answer comes, and what the task does meanwhile."""

from __future__ import annotations

from typing import Any

import pytest
from tests.conformance.agentmsg import words
from tests.conformance.agentmsg.stage import Speaker, Stage

from dragoman.core.commands import Answer, RemoveAgent
from dragoman.core.ids import ADMIN, AgentId
from dragoman.core.model.tasks import Question, QuestionStatus, Status, Waiting


@pytest.fixture
async def cast(stage: Stage) -> dict[str, Speaker]:
    """`bob` works on `t-1` for `ada`; `cid` and `dot` know reviews, `eve` knows nothing."""
    cast = {"ada": await stage.join("ada", work_types=()), "bob": await stage.join("bob")}
    for id in ("cid", "dot"):
        cast[id] = await stage.join(id, capabilities=("code_review",))
    cast["eve"] = await stage.join("eve")
    await cast["bob"].works(cast["ada"], "t-1")
    return cast


async def waiting(stage: Stage) -> tuple[Status, Waiting | None]:
    task = await stage.named("t-1")
    return task.status, task.waiting


async def to_a_person(stage: Stage) -> Question:
    [question] = await stage.store.questions(status=QuestionStatus.OPEN, limit=10)
    return question


@pytest.mark.requirement("AM-HLP-6", "AM-HLP-7")
@pytest.mark.parametrize("to", ["cid", "hub", "*"])
async def test_a_request_reaches_who_can_help_and_the_response_returns(
    stage: Stage, cast: dict[str, Speaker], to: str
) -> None:
    bob, cid = cast["bob"], cast["cid"]
    async with cid.link() as helper:
        request = await bob.say("HELP_REQUEST", to, words.help_request("bob", "t-1", x_extra="kept"))
        asked = await helper.hears("HELP_REQUEST")
        assert (asked["id"], asked["from"], asked["to"]) == (request["id"], "bob", "cid")
        assert asked["payload"] == request["payload"]
        assert await waiting(stage) == (Status.WAITING, Waiting.HELP)
        resources = [{"type": "code", "url": "https://example.org/x", "title": "X"}]
        response = words.help_response("cid", request["id"], resources=resources)
        answer = await helper.say("HELP_RESPONSE", "bob", response, correlation_id=request["id"])
        await stage.rest()
        await helper.told()
    told = await bob.hears("HELP_RESPONSE")
    assert (told["id"], told["from"], told["payload"]) == (answer["id"], "cid", response)
    assert (await waiting(stage))[0] is Status.RUNNING
    assert await cast["eve"].hear() == []


@pytest.mark.requirement("AM-HLP-6", "agentmsg/B3")
async def test_where_no_agent_can_a_person_is_asked_and_answers(stage: Stage, cast: dict[str, Speaker]) -> None:
    bob = cast["bob"]
    payload = words.help_request("bob", "t-1", help_type="ARCHITECTURE_ADVICE", description="left or right?")
    request = await bob.say("HELP_REQUEST", "hub", payload)
    question = await to_a_person(stage)
    assert (question.question, question.agent) == ("left or right?", "bob")
    await stage.ask(Answer(principal=ADMIN, question=question.id, answer="left"))
    told = await bob.hears("HELP_RESPONSE")
    assert told["payload"] == {
        "responder_id": "person", "request_id": request["id"], "response_type": "DIRECT_ANSWER", "content": "left",
        "follow_up_required": False, "estimated_effort": 0, "answer": "left",
    }  # fmt: skip
    assert (told["from"], told["metadata"]["correlation_id"]) == ("hub", request["id"])
    assert (await waiting(stage))[0] is Status.RUNNING


@pytest.mark.requirement("agentmsg/B3")
async def test_all_of_a_persons_answer_arrives(stage: Stage, cast: dict[str, Speaker]) -> None:
    bob = cast["bob"]
    await bob.say("HELP_REQUEST", "hub", words.help_request("bob", "t-1", ask="person"))
    answer = {"content": "left", "because": "the other bank is gone"}
    await stage.ask(Answer(principal=ADMIN, question=(await to_a_person(stage)).id, answer=answer))
    told = (await bob.hears("HELP_RESPONSE"))["payload"]
    assert (told["content"], told["answer"]) == ("left", answer)


@pytest.mark.requirement("AM-HLP-6", "agentmsg-D6a")
@pytest.mark.parametrize("to", ["hub", "cid"])
async def test_an_escalation_reaches_the_requester_and_the_next_who_can_and_in_the_end_a_person(
    stage: Stage, cast: dict[str, Speaker], to: str
) -> None:
    """Content and resources, though the first was named; an answer of each of them leads on."""
    bob = cast["bob"]
    resources = [{"type": "code", "url": "https://example.org/x", "title": "X"}]
    told: list[dict[str, Any]] = []
    async with cast["cid"].link() as cid, cast["dot"].link() as dot:
        request = await bob.say("HELP_REQUEST", to, words.help_request("bob", "t-1"))
        for link in (cid, dot):
            asked = await link.hears("HELP_REQUEST")
            assert (asked["id"], asked["to"]) == (request["id"], link.agent.id)
            assert asked["payload"] == request["payload"] | ({"escalations": told} if told else {})
            await link.ack(asked)
            said = words.help_response(
                link.agent.id, request["id"], response_type="ESCALATION", content="?", resources=resources
            )
            sent = await link.say("HELP_RESPONSE", "bob", said)
            await link.told()
            escalation = await bob.hears("HELP_RESPONSE")
            assert (escalation["id"], escalation["from"]) == (sent["id"], link.agent.id)
            assert escalation["payload"] == said
            told.append({"responder_id": link.agent.id, "content": "?", "resources": resources})
    question = await to_a_person(stage)
    assert question.request_id == request["id"]
    assert [(one.agent, one.content, list(one.resources)) for one in question.details.escalations] == [
        ("cid", "?", resources),
        ("dot", "?", resources),
    ]
    assert await waiting(stage) == (Status.WAITING, Waiting.HELP)
    await stage.ask(Answer(principal=ADMIN, question=question.id, answer="left"))
    assert (await bob.hears("HELP_RESPONSE"))["payload"]["content"] == "left"
    assert (await waiting(stage))[0] is Status.RUNNING


@pytest.mark.requirement("AM-HLP-6")
async def test_who_is_unable_makes_room_for_the_next(stage: Stage, cast: dict[str, Speaker]) -> None:
    bob = cast["bob"]
    async with cast["cid"].link() as cid, cast["dot"].link() as dot:
        request = await bob.say("HELP_REQUEST", "hub", words.help_request("bob", "t-1"))
        for link in (cid, dot):
            asked = await link.hears("HELP_REQUEST")
            await link.ack(asked)
            said = words.help_response(link.agent.id, request["id"], response_type="UNABLE_TO_HELP", content="?")
            await link.say("HELP_RESPONSE", "bob", said)
            await link.told()
    assert (await to_a_person(stage)).request_id == request["id"]
    assert await waiting(stage) == (Status.WAITING, Waiting.HELP)


@pytest.mark.requirement("AM-HLP-6")
async def test_a_named_helper_that_is_unable_answers_itself(stage: Stage, cast: dict[str, Speaker]) -> None:
    bob, cid = cast["bob"], cast["cid"]
    request = await bob.say("HELP_REQUEST", "cid", words.help_request("bob", "t-1"))
    await cid.hears("HELP_REQUEST")
    said = words.help_response("cid", request["id"], response_type="UNABLE_TO_HELP", content="no idea")
    await cid.say("HELP_RESPONSE", "bob", said)
    assert (await bob.hears("HELP_RESPONSE"))["payload"] == said
    assert (await waiting(stage))[0] is Status.RUNNING


@pytest.mark.requirement("AM-HLP-7")
async def test_a_task_goes_on_when_the_time_for_help_is_up(stage: Stage, cast: dict[str, Speaker]) -> None:
    bob, cid = cast["bob"], cast["cid"]
    request = await bob.say("HELP_REQUEST", "cid", words.help_request("bob", "t-1", deadline=stage.after(20)))
    await cid.hears("HELP_REQUEST")
    for _ in range(2):
        await stage.pass_time(9)
        assert await bob.hear() == []
        await cid.hear()  # nobody falls silent
        assert await waiting(stage) == (Status.WAITING, Waiting.HELP)
    await stage.pass_time(3)
    told = await bob.hears("HELP_RESPONSE")
    assert (told["payload"]["response_type"], told["payload"]["request_id"]) == ("UNABLE_TO_HELP", request["id"])
    assert (await waiting(stage))[0] is Status.RUNNING
    status, _ = await cid.refused("HELP_RESPONSE", "bob", words.help_response("cid", request["id"]))
    assert status == 409
    await bob.say("TASK_COMPLETE", "ada", {"task_id": "t-1", "result": 1})


@pytest.mark.requirement("AM-HLP-7", "AM-CTX-4")
async def test_a_deadline_that_the_caller_named_holds_while_its_task_waits(
    stage: Stage, cast: dict[str, Speaker]
) -> None:
    """For help, and for another task; and help that comes before it does not move it."""
    ada, bob, cid = cast["ada"], cast["bob"], cast["cid"]
    until = words.constraints(deadline=stage.after(12))
    requests = {}
    for task in ("helped", "waits"):
        await bob.works(ada, task, constraints=until)
        requests[task] = await bob.say("HELP_REQUEST", "cid", words.help_request("bob", task))
    behind = words.context("behind", dependencies=["t-1"])
    await ada.say("TASK_ASSIGNMENT", "bob", words.assignment("behind", context=behind, constraints=until))
    await cid.hear()
    await stage.pass_time(8)
    await cid.say("HELP_RESPONSE", "bob", words.help_response("cid", requests["helped"]["id"]))
    await bob.hears("HELP_RESPONSE")
    await stage.pass_time(5)
    failed = {one["payload"]["task_id"]: one for one in await ada.hear() if one["type"] == "TASK_FAILED"}
    assert failed.keys() == {"helped", "waits", "behind"}
    assert {one["payload"]["error"]["error_type"] for one in failed.values()} == {"TIMEOUT"}
    told = {one["payload"]["task_id"] for one in await bob.hear() if one["payload"].get("status") == "cancelled"}
    assert told == {"helped", "waits"}
    late = words.help_response("cid", requests["waits"]["id"])
    assert (await cid.refused("HELP_RESPONSE", "bob", late))[0] == 409


@pytest.mark.requirement("AM-HLP-8")
async def test_a_follow_up_belongs_to_the_same_request(stage: Stage, cast: dict[str, Speaker]) -> None:
    bob, cid = cast["bob"], cast["cid"]
    request = await bob.say("HELP_REQUEST", "cid", words.help_request("bob", "t-1"))
    await cid.hears("HELP_REQUEST")
    first = words.help_response("cid", request["id"], content="try this", follow_up_required=True)
    await cid.say("HELP_RESPONSE", "bob", first)
    assert (await bob.hears("HELP_RESPONSE"))["payload"] == first
    second = words.help_response("cid", request["id"], content="and then that")
    await cid.say("HELP_RESPONSE", "bob", second)
    assert (await bob.hears("HELP_RESPONSE"))["payload"] == second
    status, _ = await cid.refused("HELP_RESPONSE", "bob", words.help_response("cid", request["id"], content="more"))
    assert status == 409  # it said itself that nothing follows


@pytest.mark.requirement("AM-HLP-6")
async def test_help_about_a_task_that_the_hub_does_not_know(stage: Stage, cast: dict[str, Speaker]) -> None:
    eve, cid = cast["eve"], cast["cid"]
    request = await eve.say("HELP_REQUEST", "cid", words.help_request("eve", "a thought of mine"))
    await cid.hears("HELP_REQUEST")
    await cid.say("HELP_RESPONSE", "eve", words.help_response("cid", request["id"].upper()))
    assert (await eve.hears("HELP_RESPONSE"))["payload"]["content"] == "it is"


@pytest.mark.requirement("agentmsg/B3")
async def test_a_question_meant_for_a_person_is_put_to_nobody_else(stage: Stage, cast: dict[str, Speaker]) -> None:
    bob = cast["bob"]
    async with cast["cid"].link() as cid:
        payload = words.help_request("bob", "t-1", ask="person", options=["a", "b"])
        request = await bob.say("HELP_REQUEST", "hub", payload)
        assert "HELP_REQUEST" not in {one["type"] for one in (await cid.told()).values()}
    question = await to_a_person(stage)
    assert (question.options, question.request_id) == (("a", "b"), request["id"])
    await stage.ask(Answer(principal=ADMIN, question=question.id, answer="b"))
    told = await bob.hears("HELP_RESPONSE")
    assert (told["payload"]["answer"], told["payload"]["request_id"]) == ("b", request["id"])


@pytest.mark.requirement("AM-HLP-6")
async def test_who_is_alive_is_asked_though_it_does_not_poll(stage: Stage, cast: dict[str, Speaker]) -> None:
    await stage.pass_time(60)  # nobody is new any more
    await cast["dot"].say("HEARTBEAT", "hub", {"agent_id": "dot"})
    await stage.pass_time(29)
    await cast["bob"].say("HELP_REQUEST", "hub", words.help_request("bob", "t-2"))
    await cast["dot"].hears("HELP_REQUEST")
    await stage.pass_time(61)  # its poll is long ago, too
    await to_a_person(stage)  # what it was asked and did not answer
    await cast["bob"].say("HELP_REQUEST", "hub", words.help_request("bob", "t-3"))
    assert len(await stage.store.questions(status=QuestionStatus.OPEN, limit=10)) == 2


@pytest.mark.requirement("AM-HLP-6")
async def test_an_agent_between_two_polls_can_be_asked(stage: Stage, cast: dict[str, Speaker]) -> None:
    await cast["cid"].hear()
    request = await cast["bob"].say("HELP_REQUEST", "hub", words.help_request("bob", "t-1"))
    assert (await cast["cid"].hears("HELP_REQUEST"))["id"] == request["id"]


@pytest.mark.requirement("AM-HLP-6")
async def test_all_that_a_helper_was_asked_that_is_removed_reaches_the_next(
    stage: Stage, cast: dict[str, Speaker]
) -> None:
    """Though it had acknowledged all of it, and there are more of them than the hub looks at in one go."""
    bob, cid, dot = cast["bob"], cast["cid"], cast["dot"]
    for helper in (cid, dot):
        await helper.hear()
    asked = set()
    for n in range(80):
        request = await bob.say("HELP_REQUEST", "*", words.help_request("bob", f"aside {n}"))
        asked.add(request["id"])
    assert {one["id"] for one in await cid.hear()} == asked
    await stage.ask(RemoveAgent(principal=ADMIN, agent=AgentId("cid")))
    await stage.rest()
    assert {one["id"] for one in await dot.hear()} == asked

"""A2acp over HTTP: what is asked of the hub, what is answered, and when."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import jwt
import msgspec
import pytest

from dragoman.core.commands import (
    Acknowledge,
    Cancel,
    CloseLink,
    Command,
    Finish,
    NoteRead,
    OpenLink,
    RegisterAgent,
    ShakeHands,
    Submit,
    TellAgain,
)
from dragoman.core.ids import AgentId, QuestionId, TaskId
from dragoman.core.model.deliveries import MessageKind
from dragoman.core.model.outgoing import Outgoing
from dragoman.core.model.tasks import Asking, Question, QuestionDetails, QuestionStatus, Status
from dragoman.messages.faults import Fault, Kind

REQUEST = {"rows": 1, "contract_id": "c-1", "correlation_id": "k"}


def code(answer: Any) -> str:
    return str(answer.json()["payload"]["error"]["code"])


@asynccontextmanager
async def waiting(client: Any, hub: Any, said: Any, kind: type[Command] = Submit) -> AsyncIterator[tuple[Any, Any]]:
    """A request under way that waits, and the end of its connection."""
    sending = asyncio.ensure_future(client.send(said))
    await hub.until(lambda: bool(hub.asked_for(kind)))
    asked = hub.asked_for(kind)[-1]
    yield sending, hub.ends[asked.reply.awaited if isinstance(asked, Submit) else asked.awaited]
    sending.cancel()


async def test_a_request_waits_for_its_answer_and_acknowledges_it(client: Any, hub: Any, kit: Any) -> None:
    async with waiting(client, hub, client.message("request", "provision", REQUEST)) as (sending, end):
        (asked,) = hub.asked_for(Submit)
        assert (asked.agreement.contract, asked.seen) == ("c-1", asked.request_id)
        assert not sending.done()
        told = kit.outgoing(status=Status.COMPLETED)
        end.deliver([told])
        answer = await kit.soon(sending)
    assert (answer.status_code, answer.json()["message_type"]) == (200, "response")
    assert answer.json()["payload"]["n"] == 1
    await hub.until(lambda: bool(hub.asked_for(Acknowledge)))
    assert [(one.principal, one.deliveries) for one in hub.asked_for(Acknowledge)] == [("ada", (told.delivery.id,))]
    assert (hub.asked_for(CloseLink), hub.detached) == ([], [asked.reply.awaited])


async def test_the_status_of_an_answer_is_that_of_its_error(client: Any, hub: Any, kit: Any) -> None:
    fault = Fault(kind=Kind.TIMEOUT, message="too late")
    async with waiting(client, hub, client.message("request", "provision", REQUEST)) as (sending, end):
        told = kit.outgoing(message_kind=MessageKind.FAILURE, status=Status.FAILED, fault=fault)
        end.deliver([told])
        answer = await kit.soon(sending)
    assert (answer.status_code, code(answer)) == (504, "TIMEOUT")
    await hub.until(lambda: bool(hub.asked_for(Acknowledge)))


async def test_the_hub_does_not_wait_for_a_client_that_left_before_the_answer(client: Any, hub: Any) -> None:
    async with waiting(client, hub, client.message("request", "provision", REQUEST)) as (sending, _):
        sending.cancel()
        await hub.until(lambda: bool(hub.asked_for(CloseLink)))
    assert [one.session for one in hub.asked_for(CloseLink)] == [one.reply.awaited for one in hub.asked_for(Submit)]


async def test_a_client_that_closes_its_side_learns_that_its_request_was_accepted(
    client: Any, hub: Any, serving: Any, kit: Any
) -> None:
    said = client.message("request", "provision", REQUEST)
    body = msgspec.json.encode(said)
    reader, writer = await asyncio.open_connection("127.0.0.1", serving.port)
    writer.write(b"POST /a2acp/messages HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
    writer.write_eof()
    answer = await kit.soon(reader.read())
    writer.close()
    assert answer.startswith(b"HTTP/1.1 202 ")
    assert msgspec.json.decode(answer.rpartition(b"\r\n\r\n")[2])["message_id"] == said["message_id"]
    assert [one.session for one in hub.asked_for(CloseLink)] == [one.reply.awaited for one in hub.asked_for(Submit)]


async def test_an_answer_that_comes_too_late_for_its_request_is_not_acknowledged(
    client: Any, hub: Any, serving: Any, kit: Any
) -> None:
    """It was there, and was being put into words, when the client left."""
    async with waiting(client, hub, client.message("request", "provision", REQUEST)) as (sending, end):
        hub.slow = asyncio.Event()
        end.deliver([kit.outgoing(status=Status.COMPLETED)])
        await hub.until(lambda: bool(hub.detached))
        await client("GET", "/a2acp/messages")
        assert serving.connections == 2
        sending.cancel()
        async with asyncio.timeout(60):
            while all(one.cycle.keep_alive for one in serving._server.server_state.connections):  # until it has noticed
                await client("GET", "/a2acp/messages")
        hub.slow.set()
    assert (await client("GET", "/a2acp/messages")).json() == {"messages": []}
    assert hub.asked_for(Acknowledge) == []


async def test_a_lost_answer_is_asked_for_by_the_request(client: Any, hub: Any) -> None:
    answer = await client("GET", "/a2acp/messages?answer_to=M-1")
    assert answer.json() == {"messages": []}
    assert [type(one) for one in hub.asked[:2]] == [TellAgain, OpenLink]
    assert (hub.asked[0].principal, hub.asked[0].request_id) == ("ada", "m-1")
    hub.script[TellAgain] = Fault(kind=Kind.NOT_FOUND, message="no such request", field="answer_to")
    answer = await client("GET", "/a2acp/messages?answer_to=m-2")
    assert (answer.status_code, code(answer)) == (404, "CAPABILITY_NOT_FOUND")


async def test_with_respond_async_it_is_accepted_at_once(client: Any, hub: Any, kit: Any) -> None:
    hub.script[Submit] = kit.task()
    said = client.message("request", "provision", REQUEST)
    answer = await client.send(said, prefer="respond-async, wait=5")
    assert (answer.status_code, answer.headers["preference-applied"]) == (202, "respond-async")
    assert answer.json() == {"status": "accepted", "message_id": said["message_id"], "correlation_id": "k"}
    assert hub.asked_for(Submit)[0].reply.awaited is None


async def test_waiting_polls_are_answered_when_the_hub_stops(client: Any, hub: Any, serving: Any, kit: Any) -> None:
    async with waiting(client, hub, client.message("request", "provision", REQUEST)) as (sending, _):
        stopping = asyncio.ensure_future(serving.stop(5))
        answer = await kit.soon(sending)
    assert (answer.status_code, code(answer)) == (503, "INTERNAL_ERROR")
    assert "inbox" in answer.text
    assert len(hub.asked_for(CloseLink)) == 1
    await kit.soon(stopping)


@pytest.mark.parametrize("agreed", [True, False])
async def test_a_handshake_waits_for_its_target(client: Any, hub: Any, kit: Any, agreed: bool) -> None:
    fault = Fault(kind=Kind.CONTRACT, message="bob declined: busy")
    ended = {"contract_id": "c-1"} if agreed else {"fault": msgspec.to_builtins(fault)}
    question = Question(
        id=QuestionId("q-1"), task=None, agent=AgentId("ada"), question="?", created_at=0, about=Asking.HANDSHAKE,
        status=QuestionStatus.ANSWERED, answer=ended, details=QuestionDetails(correlation_id="k"),
    )  # type: ignore[arg-type]  # fmt: skip
    told = kit.outgoing().delivery
    told = msgspec.structs.replace(told, task=TaskId("q-1"), kind=MessageKind.ANSWER, question=question.id)
    payload = {"target_agent_id": "bob", "requested_intent": "provision"}
    said = client.message("request", "initiate_handshake", payload, to=kit.broker)
    async with waiting(client, hub, said, ShakeHands) as (sending, end):
        end.deliver([Outgoing(told, None, question)])
        answer = await kit.soon(sending)
    assert hub.asked_for(ShakeHands)[0].granted == ("w",)
    if agreed:
        body = answer.json()["payload"]
        assert (body["contract"]["contract_id"], body["collaboration_id"]) == ("c-1", "l-1")
    else:
        assert (answer.status_code, code(answer)) == (422, "CONTRACT_VIOLATION")
    await hub.until(lambda: bool(hub.asked_for(Acknowledge)))


async def test_a_message_with_a_wrong_token_is_refused_and_recorded(client: Any, hub: Any) -> None:
    answer = await client.http.post("/a2acp/messages", content=b"{}", headers={"authorization": "Bearer wrong"})
    assert answer.status_code == 401
    assert len(hub.noted) == 1


async def test_what_the_hub_decides_it_records_itself(client: Any, hub: Any) -> None:
    facts = {"scope": "agent", "limit": 3, "retry_after": 17}
    hub.script[Submit] = Fault(kind=Kind.RATE_LIMITED, message="too many", retryable=True, facts=facts)
    answer = await client.send(client.message("request", "provision", REQUEST))
    assert (answer.status_code, code(answer), answer.headers["retry-after"]) == (429, "RATE_LIMIT_EXCEEDED", "17")
    assert answer.json()["payload"]["error"]["retry_after"] == 17
    assert hub.noted == []
    await client.send(client.message("request", "provision", {"rows": 1}))
    assert [(note.what, note.principal, note.fault.kind) for note in hub.noted] == [
        ("a2acp.message", "ada", Kind.CONTRACT)
    ]


async def test_a_store_that_cannot_be_read_is_no_ones_fault(client: Any, hub: Any) -> None:
    hub.fails = True
    answer = await client.send(client.message("request", "provision", REQUEST))
    assert (answer.status_code, code(answer)) == (503, "INTERNAL_ERROR")


async def test_a_stranger_gets_no_token_for_the_agent_that_it_names(client: Any, hub: Any) -> None:
    said = client.message("request", "provision", REQUEST)
    said["security"]["auth_token"] = "forged"
    answer = await client.send(said)
    assert (answer.status_code, code(answer)) == (401, "AUTH_FAILED")
    token = answer.json()["security"]["auth_token"]
    assert jwt.decode(token, options={"verify_signature": False})["aud"] == "unknown"
    assert "forged" not in answer.text
    assert hub.noted[0].principal == "anonymous"


async def test_an_answer_goes_to_the_agent_that_asked(client: Any, hub: Any, store: Any, kit: Any) -> None:
    given = kit.task()

    async def task(id: Any) -> Any:
        return given if id == given.id else None

    store.task = task
    hub.script[Finish] = given
    payload = {"dataset_id": "d", "correlation_id": given.id}
    wrong = await client.send(client.message("response", "provision", payload, by="bob", to="chi"))
    assert (wrong.status_code, code(wrong)) == (422, "CONTRACT_VIOLATION")
    good = await client.send(client.message("response", "provision", payload, by="bob", to="ada"))
    assert good.status_code == 202, good.text
    (done,) = hub.asked_for(Finish)
    assert (done.principal, done.task_id, done.content.result) == (
        "bob",
        given.id,
        {"dataset_id": "d"},
    )
    lost = await client.send(
        client.message("response", "provision", {"correlation_id": "nobody's"}, by="bob", to="ada")
    )
    assert (lost.status_code, code(lost)) == (404, "CAPABILITY_NOT_FOUND")


async def test_a_caller_cancels_what_is_open_of_a_name_it_used_before(
    client: Any, hub: Any, store: Any, kit: Any
) -> None:
    done, still = (kit.task(number) for number in (2, 1))
    done = msgspec.structs.replace(done, status=Status.COMPLETED, origin=still.origin)

    async def tasks(*_: Any, **__: Any) -> Any:
        return [done, still], None

    store.tasks = tasks
    hub.script[Cancel] = still
    said = await client.send(client.message("event", "cancel", {"correlation_id": "k-1"}))
    assert (said.status_code, hub.asked_for(Cancel)[0].task_id) == (202, still.id), said.text


async def test_discovery_is_on_record_and_counts_once(client: Any, hub: Any, kit: Any) -> None:
    said = client.message("request", "discover_capabilities", {"intent": "provision"}, to=kit.broker)
    answer = await client.send(said)
    found = answer.json()["payload"]["capabilities"]
    named = [(one["agent"]["agent_id"], one["capability"]["intent"]) for one in found]
    assert named == [("bob", "provision"), ("chi", "*")]  # chi speaks chiffon and declared nothing: it takes anything
    assert [(note.what, note.seen) for note in hub.asked_for(NoteRead)] == [
        ("discover_capabilities", said["message_id"])
    ]


@pytest.mark.parametrize(
    ("changed", "status", "field"),
    [
        ({"agent_id": "bob"}, 401, "agent_id"),
        ({"domain": "elsewhere"}, 403, "domain"),
        ({"version": "1"}, 400, "version"),
        ({"protocol_version": "1"}, 400, "protocol_version"),
        ({"protocol_version": "7.0"}, 422, "protocol_version"),
        ({"capabilities": [{"intent": "x", "input_schema": {"type": "none"}}]}, 422, "capabilities[0].input_schema"),
        ({"capabilities": [{"intent": "x", "input_schema": {"$ref": "x:y"}}]}, 422, "capabilities[0].input_schema"),
        ({"capabilities": [{"intent": "x", "input_schema": True}] * 2}, 422, "capabilities[1].intent"),
        ({"capabilities": [{"intent": "rotate_key", "input_schema": True}]}, 422, "capabilities[0].intent"),
        ({"capabilities": [{"intent": "x"}]}, 400, "capabilities[0]"),
    ],
)  # fmt: skip
async def test_a_declaration_is_refused_by_its_place(
    client: Any, hub: Any, changed: dict[str, Any], status: int, field: str
) -> None:
    body = {"agent_id": "ada", "domain": "lab", "version": "1.0.0", **changed}
    answer = await client("POST", "/a2acp/agents", json=body)
    assert answer.status_code == status, answer.text
    assert answer.json()["payload"]["error"]["details"]["field"].startswith(field)
    assert hub.asked == []


async def test_a_declaration_says_what_the_agent_serves_and_grants_nothing(client: Any, hub: Any) -> None:
    hub.script[RegisterAgent] = lambda command: hub.known["ada"]
    capability = {"intent": "x", "input_schema": {"type": "object"}, "pii": True, "timeout_seconds": 2.5}
    answer = await client("POST", "/a2acp/agents", json={"agent_id": "ada", "capabilities": [capability]})
    assert answer.status_code == 200, answer.text
    (asked,) = hub.asked_for(RegisterAgent)
    assert (asked.work_types, asked.capabilities, asked.offers[0].pii) == (("x",), None, True)
    assert asked.offers[0].timeout == 2_500_000
    assert answer.json()["broker"]["agent_id"] == "protocol-broker-agent"


async def test_other_protocols_agents_are_turned_away(client: Any, hub: Any) -> None:
    for method, path in (
        ("GET", "/a2acp/messages"),
        ("POST", "/a2acp/ack"),
        ("POST", "/a2acp/agents"),
        ("POST", "/auth/token"),
    ):
        assert (await client(method, path, by="chi")).status_code == 403, path
        assert (await client(method, path, by="f" * 32)).status_code == 401, path
        assert (await client("PUT", path)).status_code == 405, path

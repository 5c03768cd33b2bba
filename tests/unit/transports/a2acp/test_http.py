"""A2acp over HTTP: what is asked of the hub, what is answered, and when."""

from __future__ import annotations

import asyncio
from typing import Any

import jwt
import msgspec
import pytest

from dragoman.core.commands import Finish, NoteRead, RegisterAgent, ShakeHands, Submit
from dragoman.core.errors import Fault, Kind
from dragoman.core.ids import QuestionId
from dragoman.core.tasks.model import Asking, Event, EventKind, Question, QuestionStatus, Status

REQUEST = {"rows": 1, "contract_id": "c-1", "correlation_id": "k"}


def code(answer: Any) -> str:
    return str(answer.json()["payload"]["error"]["code"])


async def test_a_request_waits_for_the_end_of_its_task(client: Any, hub: Any, store: Any, kit: Any) -> None:
    hub.script[Submit] = begun = kit.task()
    sending = asyncio.ensure_future(client.send(client.message("request", "provision", REQUEST)))
    await kit.soon(hub.waiting.wait())
    assert not sending.done()
    (asked,) = hub.asked_for(Submit)
    assert (asked.follows, asked.contract, asked.seen) == (True, "c-1", asked.request_id)
    body = msgspec.Raw(b'{"result":{"dataset_id":"d"}}')
    done = msgspec.structs.replace(begun, status=Status.COMPLETED, outcome=2, seq=2)
    event = Event(task=begun.id, seq=2, at=begun.created_at, kind=EventKind.COMPLETED, body=body, agent=begun.owner)

    async def task(id: Any) -> Any:
        return done

    async def events(id: Any, *, after: int, limit: int) -> Any:
        return [event]

    store.task, store.events = task, events
    hub.news.set()
    answer = await kit.soon(sending)
    assert (answer.status_code, answer.json()["message_type"]) == (200, "response")
    assert answer.json()["payload"]["dataset_id"] == "d"


async def test_with_respond_async_it_is_accepted_at_once(client: Any, hub: Any, kit: Any) -> None:
    hub.script[Submit] = kit.task()
    said = client.message("request", "provision", REQUEST)
    answer = await client.send(said, prefer="respond-async, wait=5")
    assert answer.status_code == 202
    assert answer.json() == {"status": "accepted", "message_id": said["message_id"], "correlation_id": "k"}
    assert hub.asked_for(Submit)[0].follows is False


async def test_whoever_waits_is_sent_home_when_the_hub_stops(
    client: Any, hub: Any, serving: Any, store: Any, kit: Any
) -> None:
    hub.script[Submit] = kit.task()
    sending = asyncio.ensure_future(client.send(client.message("request", "provision", REQUEST)))
    await kit.soon(hub.waiting.wait())
    stopping = asyncio.ensure_future(serving.stop(5))
    answer = await kit.soon(sending)
    assert (answer.status_code, code(answer)) == (503, "INTERNAL_ERROR")
    await kit.soon(stopping)


async def test_a_handshake_waits_for_its_target(client: Any, hub: Any, store: Any, kit: Any) -> None:
    asked = Question(
        id=QuestionId("q-1"), task=None, agent="ada", question="?", created_at=0, about=Asking.HANDSHAKE,
        status=QuestionStatus.WITH_AGENT, details={},
    )  # type: ignore[arg-type]  # fmt: skip
    hub.script[ShakeHands] = asked
    answers: list[Any] = [None, {"contract_id": "c-1"}]

    async def question(id: Any) -> Any:
        return msgspec.structs.replace(asked, answer=answers.pop(0))

    store.question = question
    payload = {"target_agent_id": "bob", "requested_intent": "provision"}
    said = client.message("request", "initiate_handshake", payload, to=kit.broker)
    sending = asyncio.ensure_future(client.send(said))
    await kit.soon(hub.waiting.wait())
    hub.news.set()
    told = (await kit.soon(sending)).json()["payload"]
    assert (told["contract"]["contract_id"], told["collaboration_id"]) == ("c-1", "l-1")
    assert hub.asked_for(ShakeHands)[0].granted == ("w",)


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


async def test_a_stranger_gets_no_token_for_whom_they_name(client: Any, hub: Any) -> None:
    said = client.message("request", "provision", REQUEST)
    said["security"]["auth_token"] = "forged"
    answer = await client.send(said)
    assert (answer.status_code, code(answer)) == (401, "AUTH_FAILED")
    token = answer.json()["security"]["auth_token"]
    assert jwt.decode(token, options={"verify_signature": False})["aud"] == "unknown"
    assert "forged" not in answer.text
    assert hub.noted[0].principal == "anonymous"


async def test_an_answer_goes_to_whoever_asked(client: Any, hub: Any, store: Any, kit: Any) -> None:
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
    assert (done.principal, done.task_id, msgspec.json.decode(done.body)["result"]) == (
        "bob",
        given.id,
        {"dataset_id": "d"},
    )
    lost = await client.send(
        client.message("response", "provision", {"correlation_id": "nobody's"}, by="bob", to="ada")
    )
    assert (lost.status_code, code(lost)) == (404, "CAPABILITY_NOT_FOUND")


async def test_discovery_is_on_record_and_counts_once(client: Any, hub: Any, kit: Any) -> None:
    said = client.message("request", "discover_capabilities", {"intent": "provision"}, to=kit.broker)
    answer = await client.send(said)
    assert [one["agent"]["agent_id"] for one in answer.json()["payload"]["capabilities"]] == ["bob"]
    assert [(note.what, note.seen) for note in hub.asked_for(NoteRead)] == [
        ("discover_capabilities", said["message_id"])
    ]


@pytest.mark.parametrize(
    ("changed", "status", "field"),
    [
        ({"agent_id": "bob"}, 401, "agent_id"),
        ({"domain": "elsewhere"}, 403, "domain"),
        ({"version": "1"}, 400, "version"),
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
    assert (asked.work_types, asked.capabilities, asked.offers[0].pii) == (("x",), (), True)
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

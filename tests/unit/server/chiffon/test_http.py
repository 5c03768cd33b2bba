"""Chiffon over HTTP: every status, every refusal in chiffon's own words."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from email.utils import parsedate_to_datetime
from typing import Any

import httpx2
import pytest
from tests.support.scripted import NOW

from dragoman.core.commands import (
    Acknowledge,
    Cancel,
    Finish,
    Pause,
    RegisterAgent,
    ReportFault,
    ReportProgress,
    Resume,
    Submit,
)
from dragoman.core.ids import ADMIN, SECOND
from dragoman.core.model.tasks import Task
from dragoman.messages.faults import Fault, Kind
from dragoman.protocols.chiffon import codec
from dragoman.protocols.chiffon.types import ErrorPayload


def error_in(response: Any, status: int, code: int) -> dict[str, Any]:
    """The context of the `error` envelope in a response."""
    assert response.status_code == status, response.text
    envelope = codec.decode(response.content)
    assert isinstance(envelope.payload, ErrorPayload)
    assert envelope.payload.error_code == code
    assert envelope.payload.error_message.endswith(".")
    return envelope.payload.error_context


@pytest.mark.parametrize(
    ("kind", "command"),
    [("work_request", Submit), ("work_status", ReportProgress), ("work_result", Finish), ("error", ReportFault)],
)
async def test_a_message_is_accepted_after_its_command_was_decided(
    kind: str, command: type[Any], client: Any, hub: Any, kit: Any
) -> None:
    message = kit.message(kind)
    response = await client.send(message, token=kit.tokens["orch-1" if kind == "work_request" else "infra-1"])
    assert (response.status_code, response.json()) == (
        202,
        {"status": "accepted", "message_id": message["message_id"]},
    )
    assert [type(asked) for asked in hub.asked] == [command]
    assert hub.noted == []


REFUSALS = [
    (Kind.INVALID, 422, 5003),
    (Kind.TOO_LARGE, 413, 5003),
    (Kind.UNSUPPORTED_WORK, 422, 5006),
    (Kind.UNAUTHENTICATED, 401, 5004),
    (Kind.FORBIDDEN, 401, 5004),
    (Kind.NOT_FOUND, 404, 5003),
    (Kind.CONFLICT, 409, 5003),
    (Kind.MISMATCH, 409, 5003),
    (Kind.RATE_LIMITED, 429, 5005),
    (Kind.OVERLOADED, 503, 5002),
    (Kind.UNAVAILABLE, 503, 5002),
    (Kind.INTERNAL, 503, 5002),
]


@pytest.mark.parametrize(("said", "header"), [(42, "42"), (0.2, "1"), (3600, "60"), ("soon", "1")])
async def test_retry_after_is_what_the_refusal_says(said: Any, header: str, client: Any, hub: Any, kit: Any) -> None:
    hub.script[Submit] = Fault(kind=Kind.RATE_LIMITED, message="no", retryable=True, facts={"retry_after": said})
    response = await client.send(kit.message())
    assert (response.status_code, response.headers["retry-after"]) == (429, header)


@pytest.mark.requirement("chiffon-D11")
@pytest.mark.parametrize(("kind", "status", "code"), REFUSALS)
async def test_what_the_hub_refuses_is_an_error_envelope(
    kind: Kind, status: int, code: int, client: Any, hub: Any, kit: Any
) -> None:
    hub.script[Submit] = Fault(kind=kind, message="no")
    message = kit.message()
    response = await client.send(message)
    error_in(response, status, code)
    answer = response.json()
    assert (answer["request_id"], answer["trace_id"]) == (message["request_id"], message["trace_id"])
    assert answer["to_agent"] == "orchestrator"
    assert ("retry-after" in response.headers) == (status in (429, 503))
    assert hub.noted == []  # the hub has recorded it with the command


@pytest.mark.requirement("CH-AUT-3")
@pytest.mark.requirement("CH-AUT-4")
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/api/agent/message"),
        ("GET", "/api/agent/messages"),
        ("POST", "/api/agent/ack"),
        ("POST", "/api/agent/register"),
        ("POST", "/api/tasks/x/cancel"),
    ],
)
@pytest.mark.parametrize(("token", "status"), [(None, "missing"), ("f" * 32, "invalid")])
async def test_without_a_good_token_nothing_goes(
    method: str, path: str, token: str | None, status: str, client: Any, hub: Any
) -> None:
    response = await client(method, path, token=token)
    assert error_in(response, 401, 5004) == {"agent_id": "unknown", "token_status": status}
    assert response.headers["www-authenticate"] == "Bearer"
    assert hub.asked == []
    assert [(note.fault.kind, note.principal) for note in hub.noted] == [(Kind.UNAUTHENTICATED, "anonymous")]


async def test_a_token_of_another_protocol_does_not_open_this_endpoint(client: Any, hub: Any, kit: Any) -> None:
    response = await client.send(kit.message(), token=kit.tokens["forge-1"])
    assert error_in(response, 401, 5004)["agent_id"] == "forge-1"
    assert hub.asked == []


@pytest.mark.requirement("all-D1")
async def test_a_spoofed_sender_is_refused_and_recorded(client: Any, hub: Any, kit: Any) -> None:
    message = kit.message() | {"from_agent": "infra"}
    error_in(await client.send(message), 401, 5004)
    (note,) = hub.noted
    assert (note.what, note.principal, note.about) == ("agent.message", "orch-1", message["message_id"])
    assert (note.fault.kind, note.fault.field) == (Kind.FORBIDDEN, "from_agent")
    assert hub.asked == []


@pytest.mark.requirement("all-D3")
@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"nonsense", 400),
        (b"[]", 400),
        (b"{}", 400),
        (b"\xff\xfe", 400),
        (b'{"a":1,"a":2}', 400),
        (b'{"a":NaN}', 400),
        (b'"\\ud800"', 400),
        (b"[" * 90_000, 400),
        (b'{"a":' * 15_000, 400),
        (b" " * 100_001, 413),
    ],
)
async def test_what_cannot_be_read_is_refused_recorded_and_the_hub_serves_on(
    body: bytes, status: int, client: Any, hub: Any, kit: Any
) -> None:
    response = await client("POST", "/api/agent/message", content=body)
    error_in(response, status, 5003)
    assert [note.principal for note in hub.noted] == ["orch-1"]
    assert (await client.send(kit.message())).status_code == 202


@pytest.mark.requirement("all-D3")
async def test_half_a_million_brackets_are_refused(opened: Any, hub: Any, kit: Any) -> None:
    async with (
        opened() as serving,
        httpx2.AsyncClient(base_url=serving.url, verify=False, trust_env=False, timeout=60) as http,
    ):
        headers = {"authorization": f"Bearer {kit.tokens['orch-1']}"}
        for body in (b"[" * 500_000 + b"]" * 500_000, b'{"a":' * 500_000):
            response = await kit.soon(http.post("/api/agent/message", content=body, headers=headers))
            assert "deep" in error_in(response, 400, 5003)["validation_error"]


async def test_a_body_without_a_declared_length_is_cut_at_the_limit(client: Any, kit: Any) -> None:
    async def endless() -> AsyncIterator[bytes]:
        for _ in range(200):
            yield b" " * 1000

    error_in(await client("POST", "/api/agent/message", content=endless()), 413, 5003)
    assert (await client.send(kit.message())).status_code == 202


async def test_a_declared_length_above_the_limit_is_refused_before_the_body(serving: Any, kit: Any) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", serving.port)
    writer.write(
        b"POST /api/agent/message HTTP/1.1\r\nhost: x\r\ncontent-length: 999999999\r\nauthorization: Bearer "
        + kit.tokens["orch-1"].encode()
        + b"\r\n\r\n"
    )
    assert b" 413 " in await kit.soon(reader.readline())
    writer.close()


@pytest.mark.requirement("chiffon-D12")
async def test_what_reads_well_but_contradicts_itself_is_422(client: Any, kit: Any) -> None:
    message = kit.message("work_result", exit_code=1)
    response = await client.send(message, token=kit.tokens["infra-1"])
    assert error_in(response, 422, 5003)["field_name"] == "payload.exit_code"
    assert response.json()["request_id"] == message["request_id"]


@pytest.mark.requirement("CH-VER-3")
async def test_a_version_that_is_not_spoken_is_5006(client: Any, kit: Any) -> None:
    context = error_in(await client.send(kit.message() | {"protocol_version": "2.0"}), 422, 5006)
    assert context == {"work_type_requested": "run_playbook", "supported_types": [], "supported_versions": ["1.0"]}


async def test_an_unknown_kind_of_recipient_is_404(client: Any, hub: Any, kit: Any) -> None:
    hub.script[Submit] = Fault(kind=Kind.UNAVAILABLE, message="nobody", field="to_agent", facts={"agent_id": "infra"})
    assert error_in(await client.send(kit.message()), 404, 5002) == {"agent_id": "infra", "last_heartbeat": None}


@pytest.mark.requirement("chiffon-D9")
async def test_an_agent_registers(client: Any, hub: Any, kit: Any) -> None:
    body = {"agent_id": "infra-1", "agent_type": "infra", "supported_versions": ["2.0", "1.0"], "work_types": ["a"]}
    response = await client("POST", "/api/agent/register", json=body, token=kit.tokens["infra-1"])
    assert (response.status_code, response.json()) == (
        200,
        {"status": "registered", "agent_id": "infra-1", "agent_type": "infra", "protocol_version": "1.0"},
    )
    assert [asked.work_types for asked in hub.asked_for(RegisterAgent)] == [("a",)]


@pytest.mark.parametrize(
    ("change", "status", "code"),
    [
        ({"agent_id": "orch-1"}, 401, 5004),
        ({"agent_type": "code"}, 401, 5004),
        ({"supported_versions": ["2.0"]}, 422, 5006),
        ({"supported_versions": []}, 400, 5003),
        ({"agent_id": 7}, 400, 5003),
        ({"callback_url": "http://127.0.0.1:1/"}, 422, 5003),
        ({"callback_url": "http://169.254.169.254/latest/meta-data"}, 422, 5003),
        ({"callback_url": "file:///etc/passwd"}, 422, 5003),
    ],
)
async def test_a_registration_that_cannot_be_is_refused(
    change: dict[str, Any], status: int, code: int, client: Any, hub: Any, kit: Any
) -> None:
    body = {"agent_id": "infra-1", "agent_type": "infra", "supported_versions": ["1.0"]} | change
    response = await client("POST", "/api/agent/register", json=body, token=kit.tokens["infra-1"])
    error_in(response, status, code)
    assert hub.asked == []
    assert [note.what for note in hub.noted] == ["agent.register"]


async def test_deliveries_are_acknowledged(client: Any, hub: Any) -> None:
    hub.script[Acknowledge] = 1
    response = await client("POST", "/api/agent/ack", json={"delivery_ids": ["a", "b"]})
    assert (response.status_code, response.json()) == (200, {"acknowledged": 1})
    assert [asked.deliveries for asked in hub.asked] == [("a", "b")]


@pytest.mark.parametrize("body", [{}, {"delivery_ids": "a"}, {"delivery_ids": [1]}])
async def test_an_acknowledgment_of_nothing_sensible_is_refused(body: dict[str, Any], client: Any) -> None:
    assert error_in(await client("POST", "/api/agent/ack", json=body), 400, 5003)["field_name"] == "delivery_ids"


@pytest.mark.requirement("chiffon-D13")
@pytest.mark.parametrize("who", ["orch-1", "admin"])
@pytest.mark.parametrize(
    ("verb", "body", "command"),
    [
        ("cancel", None, Cancel),
        ("cancel", {"reason": "enough"}, Cancel),
        ("pause", None, Pause),
        ("resume", None, Resume),
        ("resume", {"answer": "yes"}, Resume),
    ],
)
async def test_tasks_are_steered_by_their_caller_or_the_admin(
    who: str, verb: str, body: Any, command: type[Any], client: Any, hub: Any, kit: Any
) -> None:
    task: Task = kit.outgoing().task
    hub.script[command] = task
    token = kit.admin if who == "admin" else kit.tokens[who]
    more = {"json": body} if body else {}
    response = await client("POST", f"/api/tasks/{kit.task}/{verb}", token=token, **more)
    assert (response.status_code, response.json()) == (200, {"task_id": task.id, "status": "running"})
    (asked,) = hub.asked
    assert (type(asked), asked.principal, asked.task_id) == (command, ADMIN if who == "admin" else who, task.id)
    if command is Resume:
        assert (asked.has_answer, asked.answer) == (bool(body), "yes" if body else None)
    if command is Cancel and body:
        assert asked.reason == "enough"


async def test_anothers_task_is_not_found(client: Any, hub: Any, kit: Any) -> None:
    hub.script[Cancel] = Fault(kind=Kind.NOT_FOUND, message="no such task", field="task_id")
    error_in(await client("POST", f"/api/tasks/{kit.task}/cancel", token=kit.tokens["infra-1"]), 404, 5003)


async def test_an_unknown_verb_is_not_found(client: Any, kit: Any) -> None:
    error_in(await client("POST", f"/api/tasks/{kit.task}/explode"), 404, 5003)
    error_in(await client("GET", "/api/tasks/"), 404, 5003)


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/api/agent/message", "POST"),
        ("POST", "/api/agent/messages", "GET"),
        ("PUT", "/api/agent/ack", "POST"),
        ("GET", "/api/agent/register", "POST"),
        ("GET", "/api/tasks/x/cancel", "POST"),
    ],
)
async def test_a_wrong_method_is_refused_with_the_right_ones(method: str, path: str, allowed: str, client: Any) -> None:
    response = await client(method, path)
    assert (response.status_code, response.headers["allow"]) == (405, allowed)


async def test_everything_else_falls_through(client: Any) -> None:
    assert (await client("GET", "/livez")).text == "elsewhere"
    assert (await client("GET", "/api/v1/tasks")).text == "elsewhere"
    assert (await client("GET", "/api/agent/ws")).status_code == 426


@pytest.mark.requirement("CH-AUT-2")
@pytest.mark.requirement("all-D4")
async def test_no_token_is_in_any_command_note_or_log(
    client: Any, hub: Any, kit: Any, caplog: Any, capsys: Any
) -> None:
    canary = "c0ffee" * 5 + "00"
    await client.send(kit.message(), token=canary)
    await client.send(kit.message(custom={"token": canary}))
    await client.send(kit.message(custom={"token": canary}) | {"from_agent": "infra"})
    await client("GET", f"/api/agent/messages?wait=no&token={canary}")
    printed = capsys.readouterr()
    for text in (repr(hub.asked), repr(hub.noted), caplog.text, printed.out, printed.err):
        assert canary not in text
        assert kit.tokens["orch-1"] not in text


async def test_an_answer_is_dated_by_the_hubs_clock(client: Any) -> None:
    """Whoever compares it with their own sees by which clock the hub judges what is too old."""
    answer = await client("GET", "/api/agent/messages", token=None)
    assert parsedate_to_datetime(answer.headers["date"]).timestamp() == NOW // SECOND


@pytest.mark.parametrize(
    ("kind", "field", "value"),
    [
        ("work_request", "files", "one"),
        ("work_request", "files", {"id": "one"}),
        ("work_request", "files", [7, None]),
        ("work_request", "files", ["one"] * 101),
        ("work_status", "file", ["one"]),
        ("work_status", "file", 7),
    ],
)
async def test_files_that_cannot_be_meant_are_refused_and_not_left_out(
    kind: str, field: str, value: Any, client: Any, hub: Any, kit: Any
) -> None:
    """Of more than a hundred, the first hundred were taken, and what was no list was no files."""
    token = kit.tokens["orch-1" if kind == "work_request" else "infra-1"]
    response = await client.send(kit.message(kind, {field: value}), token=token)
    assert error_in(response, 422, 5003)["field_name"] == f"x_custom_fields.{field}"
    assert not hub.asked_for(Submit)
    assert not hub.asked_for(ReportProgress)

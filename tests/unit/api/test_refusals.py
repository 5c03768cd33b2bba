"""Who may come in, and how a refusal reads: RFC 9457, always ending with what to do next."""

from __future__ import annotations

import logging
from typing import Any

import msgspec
import pytest

from dragoman.api import bodies
from dragoman.api.problems import TITLES, Next, detail, problem
from dragoman.api.routes import MANAGEMENT, OPERATIONS
from dragoman.core.budgets.budget import Account, exceeds
from dragoman.core.commands import Submit
from dragoman.core.ports import StoreFailed
from dragoman.messages.faults import Fault, Kind, new_fault


def address(path: str) -> str:
    return path.replace("{id}", "x").replace("{protocol}", "chiffon")


def assert_problem(answer: Any, status: int, kind: str) -> dict[str, Any]:
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"
    told: dict[str, Any] = answer.json()
    assert {
        "type", "title", "status", "detail", "instance", "kind", "reason", "message", "field", "facts", "next",
    } == set(told)  # fmt: skip
    assert (told["type"], told["status"], told["kind"]) == (f"urn:dragoman:problem:{kind}", status, kind)
    assert told["detail"].endswith(".")
    assert told["instance"] == answer.request.url.path
    return told


WRONG = [None, "", "Bearer", "Bearer ", "Bearer wrong", "Basic 0123456789abcdef0123456789abcdef",
         "Bearer 0123456789abcdef0123456789abcdee", "0123456789abcdef0123456789abcdef",
         "Bearer " + "0" * 5000, "Bearer \xff\xfe"]  # fmt: skip


@pytest.mark.parametrize("header", WRONG)
async def test_without_the_admin_token_nothing_is_returned(world: Any, header: str | None) -> None:
    headers = {} if header is None else {"Authorization": header.encode("latin-1")}
    answer = await world.stranger.get("/api/v1/tasks", headers=headers)
    assert_problem(answer, 401, "unauthenticated")
    assert answer.headers["www-authenticate"].startswith("Bearer")
    [note] = world.intake.noted
    assert (note.principal, note.what) == ("anonymous", "GET /api/v1/tasks")


@pytest.mark.parametrize(
    "endpoint",
    [endpoint for endpoint in MANAGEMENT if endpoint.auth is not None],
    ids=lambda endpoint: f"{endpoint.method} {endpoint.path}",
)
async def test_every_management_route_needs_the_token(world: Any, endpoint: Any) -> None:
    answer = await world.stranger.request(endpoint.method, address(endpoint.path), content=b"not json")
    assert_problem(answer, 401, "unauthenticated")
    assert world.intake.asked == []


NOT_PLAIN = ("/login/{code}", "/assets/{name}", "/oidc/login", "/oidc/callback")
"""Public routes that answer something else than 200 here."""
PUBLIC = [one for one in OPERATIONS if one.path not in NOT_PLAIN]


@pytest.mark.parametrize("endpoint", PUBLIC, ids=lambda endpoint: endpoint.path)
async def test_operations_need_none(world: Any, endpoint: Any) -> None:
    assert (await world.stranger.get(address(endpoint.path))).status_code == 200


@pytest.mark.parametrize("kind", list(Kind))
async def test_every_fault_of_the_core_has_its_problem(world: Any, kind: Kind) -> None:
    world.intake.script[Submit] = Fault(kind=kind, message="it went wrong", field="input.x", facts={"limit": 3})
    answer = await world.client.post("/api/v1/tasks", json={"type": "a"})
    told = assert_problem(answer, answer.status_code, kind.value)
    assert 400 <= answer.status_code < 600
    assert (told["field"], told["facts"], told["title"]) == ("input.x", {"limit": 3}, TITLES[kind])
    assert told["detail"].startswith("It went wrong. ")
    assert ("retry-after" in answer.headers) == (answer.status_code in (429, 503))
    assert world.intake.noted == []  # the core has audited it


@pytest.mark.parametrize(("kind", "facts", "header"), [
    (Kind.RATE_LIMITED, {"retry_after": 42}, "42"),
    (Kind.OVERLOADED, {"retry_after": 5}, "5"),
    (Kind.OVERLOADED, {}, "2"),
])  # fmt: skip
async def test_retry_after_is_what_the_refusal_says(world: Any, kind: Kind, facts: dict[str, Any], header: str) -> None:
    world.intake.script[Submit] = Fault(kind=kind, message="not now", retryable=True, facts=facts)
    answer = await world.client.post("/api/v1/tasks", json={"type": "a"})
    assert answer.headers["retry-after"] == header


@pytest.mark.parametrize(("kind", "field"), [("budget", "budget"), ("tokens", "budget.max_tokens")])
async def test_a_task_above_its_budget_is_refused_for_good_with_the_numbers(world: Any, kind: str, field: str) -> None:
    world.intake.script[Submit] = exceeds(kind, "a task", 6, Account(kind, 5, 1, 0.5, 0)).fault
    answer = await world.client.post("/api/v1/tasks", json={"type": "a", "budget": 6})
    told = assert_problem(answer, 422, "resources")
    assert told["field"] == field
    assert told["facts"] == {
        "resource": kind, "whose": "a task", "asked": 6, "limit": 5, "consumed": 1, "reserved": 0.5, "remaining": 4,
    }  # fmt: skip
    assert "retry-after" not in answer.headers


async def test_a_task_for_an_unknown_agent_is_no_failure_of_the_hub(world: Any) -> None:
    world.intake.script[Submit] = Fault(kind=Kind.UNAVAILABLE, message="no agent is called 'x'", field="to_agent")
    answer = await world.client.post("/api/v1/tasks", json={"type": "a", "agent": "x"})
    assert assert_problem(answer, 404, "unavailable")["field"] == "agent"
    world.intake.script[Submit] = Fault(kind=Kind.UNSUPPORTED_WORK, message="nobody does 'a'", field="work_type")
    answer = await world.client.post("/api/v1/tasks", json={"type": "a"})
    assert assert_problem(answer, 422, "unsupported_work")["field"] == "type"


async def test_the_receiver_of_a_task_has_the_callers_name_for_it(world: Any) -> None:
    world.intake.script[Submit] = Fault(kind=Kind.UNAVAILABLE, message="no agent of kind 'x'", field="to_agent")
    answer = await world.client.post("/api/v1/tasks", json={"type": "a", "kind": "x"})
    assert assert_problem(answer, 404, "unavailable")["field"] == "kind"


async def test_an_input_that_does_not_fit_is_called_so(world: Any) -> None:
    world.intake.script[Submit] = Fault(kind=Kind.INVALID, message="it does not fit", field="payload")
    answer = await world.client.post("/api/v1/tasks", json={"type": "a", "agent": "x"})
    assert assert_problem(answer, 422, "invalid")["field"] == "input"


async def test_what_needs_a_contract_says_how_to_have_one(world: Any) -> None:
    message, next = "scan is personal, and x takes it encrypted only", "shake hands with it for a key"
    world.intake.script[Submit] = new_fault(Kind.FORBIDDEN, message, next=next, field="contract_id")
    answer = await world.client.post("/api/v1/tasks", json={"type": "scan", "agent": "x"})
    told = assert_problem(answer, 403, "forbidden")
    assert told["field"] == "agent"
    assert told["detail"].endswith("for a key. Make a contract first: `dragoman call --via a2acp` does.")
    assert told["next"]["command"] == "dragoman call --via a2acp"


def test_advice_is_not_repeated() -> None:
    whole = new_fault(Kind.CONFLICT, "the task is done", next="retry it first")
    assert detail(whole, None) == "The task is done; retry it first."
    assert detail(whole, Next("look")) == "The task is done; retry it first. Look."
    assert detail(Fault(kind=Kind.NOT_FOUND, message="no task"), Next("look")) == "No task. Look."


@pytest.mark.parametrize(
    ("fault", "instance", "asked", "command"),
    [
        (Fault(kind=Kind.CONFLICT, message="it is done"), "tasks/7f/retry", "tasks/7f", "dragoman task show 7f"),
        (Fault(kind=Kind.CONTRACT, message="it has ended"), "contracts/c1/end", None, None),
        (Fault(kind=Kind.CONFLICT, message="it is there"), "agents", "agents", "dragoman agent ls"),
        (Fault(kind=Kind.NOT_FOUND, message="it is gone"), "questions/q1", "questions", "dragoman ask ls --status all"),
        (Fault(kind=Kind.UNAVAILABLE, message="no", field="to_agent"), "tasks", "agents", "dragoman agent ls"),
        (Fault(kind=Kind.NOT_FOUND, message="no keys"), "keys", None, None),
        (Fault(kind=Kind.INVALID, message="no"), "tasks/7f/retry", None, None),
    ],
)
def test_a_fault_of_the_core_says_where_to_look(
    fault: Fault, instance: str, asked: str | None, command: str | None
) -> None:
    told = msgspec.json.decode(bytes(problem(fault, f"/api/v1/{instance}").body))
    advice = told["next"] or {}
    assert told["reason"] == told["kind"]
    assert (advice.get("request"), advice.get("command")) == (asked and f"GET /api/v1/{asked}", command)


async def test_what_the_api_refuses_itself_has_a_reason(world: Any) -> None:
    async def reason(method: str, path: str, **more: Any) -> str:
        return str((await world.client.request(method, f"/api/v1/{path}", **more)).json()["reason"])

    assert await reason("GET", "nothing") == "no_route"
    assert await reason("PUT", "tasks") == "wrong_method"
    assert await reason("GET", "tasks?limit=0") == "invalid_query"
    assert await reason("POST", "tasks", json={}) == "invalid_body"


async def test_an_unknown_parameter_and_a_missing_field_are_called_so(world: Any) -> None:
    unknown = (await world.client.get("/api/v1/tasks?prio=high")).json()
    assert (unknown["message"], unknown["field"]) == ("unknown parameter `prio`", "prio")
    missing = (await world.client.post("/api/v1/tasks", json={})).json()
    assert (missing["message"], missing["field"]) == ("the field `type` is missing", "type")


@pytest.mark.parametrize(
    ("body", "status", "field"),
    [
        (b"", 400, None),
        (b"{", 400, None),
        (b'{"type": "a", "type": "b"}', 400, "type"),
        (b'{"type": NaN}', 400, None),
        (b'"text"', 422, None),
        (b"[]", 422, None),
        (b"{}", 422, "type"),
        (b'{"type": 1}', 422, "type"),
        (b'{"type": ""}', 422, "type"),
        (b'{"type": "a", "input": []}', 422, "input"),
        (b'{"type": "a", "priority": "asap"}', 422, "priority"),
        (b'{"type": "a", "deadline": "2026-01-19T04:21:04"}', 422, "deadline"),
        (b'{"type": "a", "hints": {"max_duration_seconds": 0}}', 422, "hints.max_duration_seconds"),
        (b'{"type":"a","input":' + b'{"a":' * 500_000 + b"1" + b"}" * 500_000 + b"}", 400, None),
    ],
    ids=range(14),
)
async def test_a_malformed_body_is_refused_by_name(world: Any, body: bytes, status: int, field: str | None) -> None:
    answer = await world.client.post("/api/v1/tasks", content=body)
    told = assert_problem(answer, status, "invalid")
    assert told["field"] == field
    assert [note.what for note in world.intake.noted] == ["POST /api/v1/tasks"]
    assert world.intake.asked == []


async def test_a_body_too_large_is_refused_before_and_while_it_is_read(world: Any) -> None:
    whole = b'{"type":"' + b"a" * world.context.limits.bytes + b'"}'
    told = assert_problem(await world.client.post("/api/v1/tasks", content=whole), 413, "too_large")
    assert told["facts"] == {"limit": world.context.limits.bytes}

    async def dripping() -> Any:
        for start in range(0, len(whole), 65536):
            yield whole[start : start + 65536]

    assert_problem(await world.client.post("/api/v1/tasks", content=dripping()), 413, "too_large")


async def test_a_stalled_body_is_not_waited_for(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import asyncio

    monkeypatch.setattr(bodies, "BODY_SECONDS", 0.01)
    never = asyncio.Event()

    async def stalled() -> Any:
        yield b"{"
        await never.wait()

    async with asyncio.timeout(60):
        assert_problem(await world.client.post("/api/v1/tasks", content=stalled()), 408, "timeout")


async def test_a_compressed_body_is_refused(world: Any) -> None:
    answer = await world.client.post("/api/v1/tasks", content=b"x", headers={"Content-Encoding": "gzip"})
    assert_problem(answer, 415, "invalid")


@pytest.mark.parametrize("key", ["", "a b", "x" * 201, "\xe9"])
async def test_a_key_that_is_none_is_refused(world: Any, key: str) -> None:
    headers = {"Idempotency-Key": key.encode("latin-1")}
    answer = await world.client.post("/api/v1/tasks", json={"type": "a"}, headers=headers)
    assert assert_problem(answer, 422, "invalid")["field"] == "Idempotency-Key"


async def test_unknown_addresses_and_methods_are_problems_too(world: Any) -> None:
    assert_problem(await world.client.get("/api/v1/nothing"), 404, "not_found")
    assert_problem(await world.client.get("/api/v1/tasks/"), 404, "not_found")
    wrong = await world.client.put("/api/v1/tasks")
    assert_problem(wrong, 405, "invalid")
    assert {"GET", "POST"} <= set(wrong.headers["allow"].split(", "))


async def test_a_store_that_cannot_be_read_is_named_in_the_error(world: Any) -> None:
    async def broken(*args: Any, **kwargs: Any) -> Any:
        raise StoreFailed("I/O error at /var/lib/secret/path")

    world.store.task = broken
    answer = await world.client.get("/api/v1/tasks/0123")
    assert_problem(answer, 503, "overloaded")
    assert "secret" not in answer.text


async def test_a_bug_does_not_leak_its_details(world: Any, caplog: pytest.LogCaptureFixture) -> None:
    async def broken(*args: Any, **kwargs: Any) -> Any:
        raise KeyError("0123456789abcdef-token")

    world.store.task = broken
    with caplog.at_level(logging.ERROR):
        answer = await world.client.get("/api/v1/tasks/0123")
    assert_problem(answer, 500, "internal")
    assert "token" not in answer.text

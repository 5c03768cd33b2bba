"""Broken, hostile and enormous input at every endpoint of chiffon: a clear refusal, as a chiffon error.

all-D3: size, nesting depth, strict JSON, shape, meaning, in this order, and each refusal names what was wrong.
"""

from __future__ import annotations

import gzip
import json

import pytest
from websockets.exceptions import ConnectionClosed

from tests.support.chiffon import envelope, task_of, work_request, work_result
from tests.support.hubproc import HubProcess

MIB = 1024 * 1024
ENDPOINTS = (
    "/api/agent/message",
    "/api/agent/register",
    "/api/agent/ack",
    "/api/tasks/550e8400-e29b-41d4-a716-446655440004/cancel",
    "/api/tasks/550e8400-e29b-41d4-a716-446655440004/resume",
)


def request_with(parameters: str) -> bytes:
    """A whole request whose parameters are these bytes."""
    return json.dumps(work_request({"here": 1})).replace('{"here": 1}', parameters).encode()


def around(value: str) -> bytes:
    """The same hostile value in a body that any endpoint reads before it looks at the shape."""
    return b'{"x": %b, ' % value.encode() + request_with("{}")[1:]


BROKEN = {
    "empty": b" ",
    "not json": b"hello",
    "cut short": request_with("{}")[:-20],
    "two values": b"{}{}",
    "not an object": b"[1, 2, 3]",
    "a string": b'"message"',
    "null": b"null",
    "nan": around("NaN"),
    "infinity": around("-Infinity"),
    "lone surrogate": around('"\\ud800"'),
    "duplicate key": around('1, "x": 2'),
    "not utf-8": b'{"x": "\xff\xfe"}',
    "utf-16": json.dumps(work_request()).encode("utf-16"),
    "control character": b'{"x": "\x01"}',
    "trailing comma": b'{"x": 1,}',
    "500,000 brackets": around("[" * 500_000 + "]" * 500_000),
    "500,000 open brackets": b"[" * 500_000,
    "500,000 objects": b'{"a":' * 500_000 + b"1" + b"}" * 500_000,
    "nested keys": around('{"a":' * 200 + "1" + "}" * 200),
}


@pytest.mark.parametrize("path", ENDPOINTS)
@pytest.mark.parametrize("attack", BROKEN)
def test_broken_input_is_refused_over_http(hub: HubProcess, path: str, attack: str) -> None:
    if attack == "empty" and path.startswith("/api/tasks/"):
        pytest.skip("not applicable: a control's body may be empty")
    answer = hub.orchestrator().ask("POST", path, BROKEN[attack])
    assert answer.status in (400, 413, 422), answer
    assert answer.code == 5003
    assert set(answer.error["error_context"]) == {"validation_error", "field_name"}
    assert answer.error["error_context"]["validation_error"]
    assert len(answer.body) < 4096  # the attack is not sent back


def test_broken_input_is_refused_over_websocket_and_the_connection_goes_on(hub: HubProcess) -> None:
    boss, worker = hub.orchestrator("ws-boss"), hub.worker("ws-worker", "ws-worker")
    with boss.websocket() as link:
        for attack, data in BROKEN.items():
            if attack in ("not utf-8", "utf-16"):
                continue  # not a text frame: see below
            link.raw.send(data.decode())
            answer = link.recv()
            assert (attack, answer["type"]) == (attack, "error")
            assert answer["payload"]["error_code"] == 5003
        link.send(work_request(to_agent="ws-worker"))
        worker.send(work_result(worker.work()))
        assert link.recv()["type"] == "work_result"


@pytest.mark.parametrize("attack", ["not utf-8", "utf-16"])
def test_frames_that_are_no_text_are_refused(hub: HubProcess, attack: str) -> None:
    with hub.orchestrator("ws-binary").websocket() as link:
        link.raw.send(BROKEN[attack], text=False)
        answer = link.recv()
        assert answer["payload"]["error_code"] == 5003


def test_huge_integers_pass_unharmed_or_are_refused_and_never_rounded(hub: HubProcess) -> None:
    boss, worker = hub.orchestrator("int-boss"), hub.worker("int-worker", "int-worker")
    for number in (2**53 + 1, 2**63, 2**64, 10**30):
        sent = work_request({"n": number}, to_agent="int-worker")
        answer = boss.send(sent)
        if answer.status == 202:
            assert worker.work()["payload"]["parameters"] == {"n": number}
        else:
            assert (answer.status, answer.code) == (400, 5003)
    answer = boss.ask("POST", "/api/agent/message", request_with('{"n": ' + "9" * 1_000_000 + "}"))
    assert answer.code == 5003


@pytest.mark.parametrize("path", ENDPOINTS)
def test_a_compressed_body_is_refused(hub: HubProcess, path: str) -> None:
    body = gzip.compress(json.dumps(work_request()).encode())
    answer = hub.orchestrator().ask("POST", path, body, {"Content-Encoding": "gzip"})
    assert answer.status in (400, 415, 422), answer
    assert answer.code == 5003


@pytest.mark.parametrize("path", ENDPOINTS)
def test_an_oversized_body_is_refused_before_it_is_read(hub: HubProcess, path: str) -> None:
    answer = hub.orchestrator().ask("POST", path, b"{}", {"Content-Length": str(100 * MIB)})
    assert (answer.status, answer.code) == (413, 5003)


def test_an_oversized_body_without_a_length_is_refused_while_it_is_read(hub: HubProcess) -> None:
    boss = hub.orchestrator()

    def pieces():  # type: ignore[no-untyped-def]
        for _ in range(6):
            yield b"x" * MIB

    answer = boss.ask("POST", "/api/agent/message", pieces())  # type: ignore[arg-type]
    assert (answer.status, answer.code) == (413, 5003)


def test_an_oversized_frame_is_refused_and_an_enormous_one_ends_the_connection(hub: HubProcess) -> None:
    with hub.orchestrator("ws-large").websocket() as link:
        link.raw.send('{"x": "' + "x" * (5 * MIB) + '"}')
        assert link.recv()["payload"]["error_code"] == 5003
        with pytest.raises(ConnectionClosed) as closed:  # noqa: PT012 - it may already be closed while we send
            link.raw.send("x" * (17 * MIB))
            link.recv()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1009


def without(field: str) -> dict[str, object]:
    message = work_request()
    del message[field]
    return message


MISSHAPEN = {
    **{f"without {field}": (without(field), field) for field in work_request() if field != "x_custom_fields"},
    "id no uuid": (work_request() | {"message_id": "1"}, "message_id"),
    "trace no uuid": (work_request() | {"trace_id": "x" * 36}, "trace_id"),
    "time without offset": (work_request() | {"timestamp": "2026-01-19T04:21:04"}, "timestamp"),
    "time in the wrong form": (work_request() | {"timestamp": 1768796464}, "timestamp"),
    "unknown type": (envelope("work_order", {}), "type"),
    "payload no object": (work_request() | {"payload": []}, "payload"),
    "parameters no object": (work_request() | {"payload": {**work_request()["payload"], "parameters": 1}}, "payload"),
    "custom fields no object": (work_request() | {"x_custom_fields": 1}, "x_custom_fields"),
    "success with exit code 1": (
        work_result(work_request(), exit_code=1, payload={"status": "success"}) | {"from_agent": "orchestrator"},
        "",
    ),
}


@pytest.mark.parametrize("case", MISSHAPEN)
def test_a_misshapen_message_is_refused_and_the_field_is_named(hub: HubProcess, case: str) -> None:
    message, field = MISSHAPEN[case]
    answer = hub.orchestrator().send(message)
    assert (answer.status, answer.code) in ((422, 5003), (400, 5003)), answer
    assert field in (answer.error["error_context"]["field_name"] or "")
    if "trace" not in case and "request_id" in message:
        assert answer.json["request_id"] == message["request_id"]  # it says what it answers


def test_what_was_refused_left_no_task_but_a_trace_in_the_audit_record(hub: HubProcess) -> None:
    boss = hub.orchestrator("audited")
    message = work_request() | {"timestamp": "yesterday"}
    boss.send(message)
    assert hub.admin.get(f"/api/v1/tasks/{task_of(message)}").status == 404
    refused = hub.admin.get("/api/v1/audit?principal=audited&outcome=refused&limit=100").json["records"]
    assert [(record["action"], record["principal"]) for record in refused] == [("agent.message", "audited")]
    assert refused[0]["reason"]


@pytest.mark.parametrize("query", ["wait=abc", "wait=-1", "wait=nan", "wait=inf", "max=0", "max=-5", "max=x"])
def test_a_poll_with_nonsense_is_refused(hub: HubProcess, query: str) -> None:
    answer = hub.orchestrator().get(f"/api/agent/messages?{query}")
    assert (answer.status, answer.code) == (400, 5003)


@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/api/agent/message"), ("POST", "/api/agent/messages"), ("PUT", "/api/agent/ack")]
)
def test_a_wrong_method_is_named(hub: HubProcess, method: str, path: str) -> None:
    answer = hub.orchestrator().ask(method, path)
    assert answer.status == 405
    assert answer.headers["allow"] in ("GET", "POST")

"""Hostile JSON, and words that would do harm where they are shown."""

from __future__ import annotations

import json
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed

from tests.conformance.agentmsg import words
from tests.conformance.agentmsg.plain import Plain
from tests.support.cli import dragoman
from tests.support.hubproc import HubProcess

EVIL = "\x1b[31mred\x1b[0m \u202egpj.exe\u2066 \x07bell <img src=x onerror=alert(1)>"


def whole(value: str) -> bytes:
    """A message with a hostile value in a field that nobody knows."""
    said = words.message("eve", "HEARTBEAT", "hub", {"agent_id": "eve"}, words.now())
    return json.dumps({**said, "x": "HERE"}).replace('"HERE"', value).encode()


FRAMES = {
    "empty": b" ",
    "not json": b"hello",
    "not an object": b"[1, 2]",
    "two values": b"{}{}",
    "deep": whole("[" * 200_000 + "]" * 200_000),
    "open": b"[" * 500_000,
    "deep objects": whole('{"a":' * 500 + "1" + "}" * 500),
    "nan": whole("NaN"),
    "infinity": whole("-Infinity"),
    "a key twice": whole('1, "x": 2'),
    "a deep key twice": whole('{"a": {"b": 1, "b": 2}}'),
    "from twice": whole('1, "from": "bob"'),
    "lone surrogate": whole('"\\ud800"'),
    "not utf-8": b'{"x": "\xff\xfe"}',
    "control character": b'{"x": "\x01"}',
    "too large": whole('"' + "a" * (1 << 20) + '"'),
}


@pytest.mark.requirement("agentmsg/all-D3")
@pytest.mark.parametrize("name", FRAMES)
def test_hostile_json_is_refused_at_every_endpoint(hub: HubProcess, cast: dict[str, Plain], name: str) -> None:
    eve, frame = cast["eve"], FRAMES[name]
    for path in ("/messages", "/state", "/ack"):
        answer = eve.http.ask("POST", f"/agentmsg{path}", frame)
        assert answer.status == (413 if name == "too large" else 400), (path, answer)
        assert answer.json["error_type"] in ("VALIDATION_ERROR", "RESOURCE_EXHAUSTED")
        assert len(answer.body) < 4096  # the attack is not sent back
    with eve.link(max_size=None) as link:
        try:
            link.socket.send(frame.decode("latin-1") if name != "not utf-8" else frame)
            told = link.hears("ERROR_REPORT")
            assert len(json.dumps(told)) < 4096
            link.settled()  # and the connection goes on
        except ConnectionClosed:
            assert name in ("too large", "not utf-8")


ODD: dict[str, dict[str, Any]] = {
    "an id that is none": {"id": "../../etc/passwd"},
    "an id of a megabyte": {"id": "f" * 500_000},
    "a time without an offset": {"timestamp": "2026-01-01T00:00:00"},
    "a time that is none": {"timestamp": "yesterday"},
    "no recipient": {"to": ""},
    "an object as sender": {"from": {"$ne": None}},
    "an unknown type": {"type": "SUDO"},
    "a type of the hub's": {"type": "WELCOME"},
    "no payload": {"payload": None},
    "negative ttl": {"metadata": {"priority": "low", "retry_count": 0, "max_retries": 0, "ttl_ms": -1}},
    "negative retries": {"metadata": {"priority": "low", "retry_count": 0, "max_retries": -1}},
    "fractional retries": {"metadata": {"priority": "low", "retry_count": 0, "max_retries": 0.5}},
    "an unknown priority": {"metadata": {"priority": "now!", "retry_count": 0, "max_retries": 0}},
}


@pytest.mark.parametrize("name", ODD)
def test_a_message_that_makes_no_sense_is_refused_with_its_field(cast: dict[str, Plain], name: str) -> None:
    eve = cast["eve"]
    answer = eve.send({**eve.message("HEARTBEAT", "hub", {"agent_id": "eve"}), **ODD[name]})
    assert answer.status in (400, 403, 422), answer
    assert answer.json["context"]["details"]["field"].split(".")[0] in (*ODD[name], "id", "from"), answer
    assert len(answer.body) < 4096


@pytest.mark.parametrize(
    "metadata",
    [
        {"max_retries": 10**9},
        {"max_retries": 2**53 - 1},
        {"retry_count": 10**9},
        {"ttl_ms": 1e300},
        {"ttl_ms": 2**53},
        {"correlation_id": "x" * 200},
        {"traceparent": "00-" + "0" * 32 + "-" + "0" * 16 + "-00"},
        {"traceparent": "zz"},
        {"delivery_id": "not yours"},
        {"max_retries": 10**9, "retry_config": {"base_delay_ms": 0, "max_delay_ms": 0, "jitter": False}},
        {"retry_config": {"base_delay_ms": 1e12, "max_delay_ms": 1e12, "backoff_multiplier": 1000}},
    ],
)
def test_large_numbers_and_odd_names_do_no_harm(cast: dict[str, Plain], metadata: dict[str, Any]) -> None:
    bob, eve = cast["bob"], cast["eve"]
    bob.hear()
    said = eve.message("ERROR_REPORT", "bob", words.error("eve", message="odd"), **metadata)
    answer = eve.send(said)
    assert answer.status in (202, 400, 422), answer
    if answer.status == 202:
        heard = bob.hears("ERROR_REPORT")
        assert (heard["id"], heard["metadata"]["retry_count"]) == (said["id"], 0)
        assert heard["metadata"]["delivery_id"] != "not yours"


@pytest.mark.parametrize(
    "name", ["../../../etc/passwd", "a\x00b", "x" * 199, EVIL, "%2e%2e/%2f", "TASK/x", "__proto__"]
)
def test_any_name_is_only_a_name(hub: HubProcess, cast: dict[str, Plain], name: str) -> None:
    eve, bob = cast["eve"], cast["bob"]
    bob.hear()
    answer = eve.send(eve.message("TASK_ASSIGNMENT", "bob", words.assignment(name)))
    assert answer.status in (202, 400, 422), answer
    if answer.status == 202:
        assert bob.hears("TASK_ASSIGNMENT")["payload"]["task"]["task_id"] == name
        bob.say("TASK_COMPLETE", "hub", {"task_id": name, "result": 1})
        assert eve.hears("TASK_COMPLETE")["payload"]["task_id"] == name
    made = eve.post("/state", words.change("CREATE", "TASK", f"{name}!", {}, 0, words.now()))
    assert made.status in (200, 400, 422), made


def test_hostile_text_is_delivered_as_it_is_and_shown_escaped(hub: HubProcess, cast: dict[str, Plain]) -> None:
    eve, bob = cast["eve"], cast["bob"]
    bob.hear()
    eve.say("ERROR_REPORT", "bob", words.error("eve", message=EVIL))
    assert bob.hears("ERROR_REPORT")["payload"]["message"] == EVIL
    eve.say("ERROR_REPORT", "hub", words.error("eve", message=EVIL))
    asked = eve.say("HELP_REQUEST", "hub", words.help_request(
        "eve", "x", help_type="ARCHITECTURE_ADVICE", description=EVIL))  # fmt: skip
    for command in (("ask", "ls"), ("agent", "show", "eve"), ("audit", "query")):
        said = dragoman(*command, hub=hub)
        assert said.code == 0, said
        for bad in ("\x1b", "\x07", "\u202e", "\u2066"):
            assert bad not in said.out, (command, bad)
    listed = hub.admin.get("/api/v1/questions?status=open").json["questions"]
    [question] = [one for one in listed if one["question"] == EVIL]
    assert hub.admin.post(f"/api/v1/questions/{question['id']}/answer", {"answer": EVIL}).status == 200
    told = eve.hears("HELP_RESPONSE")
    assert (told["payload"]["content"], told["payload"]["request_id"]) == (EVIL, asked["id"])
    log = hub.log.read_text("utf-8")
    for bad in ("\x07", "\u202e", "\u2066"):
        assert bad not in log

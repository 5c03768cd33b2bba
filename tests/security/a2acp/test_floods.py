"""Too deep, too large, too much."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conformance.a2acp.plain import BROKER, PROVISION, Plain, code_of, compact
from tests.security.a2acp.ground import CANARY, INTENT, Json
from tests.support.hubproc import running

FRAMES: dict[str, bytes] = {
    "nothing": b"",
    "no object": b"[]",
    "nested": b'{"payload":' + b"[" * 400_000 + b"]" * 400_000 + b"}",
    "nan": b'{"payload":{"a":NaN}}',
    "huge number": b'{"payload":{"a":' + b"9" * 100_000 + b"}}",
    "twice": b'{"message_id":"a","message_id":"b"}',
    "lone surrogate": b'{"payload":{"a":"\\ud800"}}',
    "not utf-8": b'{"a":"\xff"}',
    "too large": b'{"payload":{"a":"' + b"x" * 1_000_000 + b'"}}',
}


@pytest.mark.requirement("a2acp/all-D3", "a2acp-D10")
@pytest.mark.parametrize("name", list(FRAMES))
def test_hostile_json_is_refused_at_every_endpoint(cast: dict[str, Plain], name: str) -> None:
    eve, frame = cast["eve"], FRAMES[name]
    for path in ("/a2acp/messages", "/a2acp/agents", "/auth/token", "/a2acp/ack"):
        answer = eve.http.ask("POST", path, frame)
        assert answer.status in (400, 413), (path, answer)
        assert code_of(answer) == "SCHEMA_MISMATCH"
        assert CANARY.encode() not in answer.body
    if name != "too large":
        with eve.link() as link:
            link.socket.send(frame.decode("latin-1") if name == "not utf-8" else frame.decode())
            assert link.hears("error")["payload"]["error"]["code"] in ("SCHEMA_MISMATCH", "AUTH_FAILED")


@pytest.mark.requirement("a2acp-D10", "A2-SIZ-1", "A2-SIZ-2")
def test_sizes_are_held_to_the_byte(cast: dict[str, Plain]) -> None:
    ada, bob = cast["ada"], cast["bob"]
    bond = ada.shake(bob, "loose")

    def sized(payload: int) -> Json:
        made = bond.request({"a": ""}, thread="size")
        rest = len(compact(made["payload"]))
        return {**made, "payload": {**made["payload"], "a": "x" * (payload - rest)}}

    assert ada.send(compact(sized(900_000)), later=True).status == 202
    told = ada.refused(compact(sized(900_001)))
    assert (told["code"], told["details"]["limit"]) == ("SCHEMA_MISMATCH", 900_000)
    whole = sized(100_000)
    over = {**whole, "extra": "x" * (1_000_001 - len(compact({**whole, "extra": ""})))}
    told = ada.refused(compact(over))
    assert (told["code"], told["details"]["limit"]) == ("SCHEMA_MISMATCH", 1_000_000)
    work = bob.hears("request", "loose")
    bob.say(bond.response(work, {"ok": True}))


@pytest.mark.requirement("A2-LIM-1", "a2acp-D16")
def test_a_flood_is_held_back_at_every_endpoint(tmp_path: Path) -> None:
    with running(tmp_path, DRAGOMAN_A2ACP__MESSAGES_PER_AGENT="20") as hub:
        eve, bob = Plain(hub, "eve"), Plain(hub, "bob").serves(PROVISION)
        said = [eve.send(eve.initiate("bob", INTENT), later=True).status for _ in range(25)]
        assert said == [202] * 20 + [429] * 5
        for _ in range(2):  # a new connection is not a new agent, nor is a new token
            with eve.link() as link:
                fresh = {"auth_token": eve.token(BROKER["agent_id"], ttl=60)}
                link.say(eve.initiate("bob", INTENT) | {"security": fresh})
                told = link.hears("error")["payload"]["error"]
                assert told["code"] == "RATE_LIMIT_EXCEEDED"
                assert told["retry_after"] >= 1
        assert bob.send(bob.initiate("eve", "nothing such")).status == 404  # others are served


@pytest.mark.requirement("A2-LIM-1", "a2acp-D16")
def test_what_is_refused_counts_too(tmp_path: Path) -> None:
    with running(tmp_path, DRAGOMAN_A2ACP__MESSAGES_PER_AGENT="20") as hub:
        eve = Plain(hub, "eve")
        said = [eve.send(eve.initiate("bob", "nothing such")).status for _ in range(25)]
        assert said == [404] * 20 + [429] * 5

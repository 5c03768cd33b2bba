"""Attacks by agentmsg agents: false names, other people's tasks, answers nobody asked for, hostile JSON, floods, and
readers that do not read. Whatever is tried, honest agents are served afterwards.
"""

from __future__ import annotations

import json
import re
import socket
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tests.conformance.agentmsg import words
from tests.conformance.agentmsg.plain import Plain
from tests.support.chiffon import Door
from tests.support.cli import dragoman
from tests.support.hubproc import HubProcess, running, until

EVIL = "\x1b[31mred\x1b[0m \u202egpj.exe\u2066 \x07bell <img src=x onerror=alert(1)>"
ENDPOINTS = (
    ("POST", "/messages", {}),
    ("GET", "/messages?wait=0", None),
    ("POST", "/ack", {"delivery_ids": []}),
    ("GET", "/state", None),
    ("GET", "/state/TASK/x", None),
    ("POST", "/state", {}),
    ("GET", "/state/watch", None),
)


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubProcess]:
    settings = {"DRAGOMAN_RULES__IDLE_SECONDS": "60", "DRAGOMAN_SERVER__MAX_MESSAGE_BYTES": str(1 << 20)}
    with running(tmp_path_factory.mktemp("hub"), **settings) as hub:
        yield hub


@pytest.fixture(scope="module")
def cast(hub: HubProcess) -> dict[str, Plain]:
    return {id: Plain(hub, id) for id in ("ada", "bob", "cid", "eve")}


@pytest.fixture(autouse=True)
def honest(hub: HubProcess) -> Iterator[None]:
    """After each attack two honest agents work together."""
    yield
    boss, hand = Plain(hub, f"boss-{uuid.uuid4().hex[:8]}"), Plain(hub, f"hand-{uuid.uuid4().hex[:8]}")
    name = f"honest {uuid.uuid4().hex[:8]}"
    hand.works(boss, name)
    hand.say("TASK_COMPLETE", boss.id, {"task_id": name, "result": 1})
    assert boss.hears("TASK_COMPLETE")["payload"]["result"] == 1
    assert "Traceback" not in hub.log.read_text()


@pytest.fixture
def task(cast: dict[str, Plain]) -> Iterator[str]:
    """A task of `ada`'s that `bob` has in hand: whatever `eve` tries, he finishes it."""
    ada, bob = cast["ada"], cast["bob"]
    for one in cast.values():
        one.hear()
    name = f"secret {uuid.uuid4().hex[:6]}"
    bob.works(ada, name)
    yield name
    assert ada.task(name)["assigned_agent"] == "bob"
    bob.say("TASK_COMPLETE", "ada", {"task_id": name, "result": "bob's"})
    done = ada.hears("TASK_COMPLETE")
    assert (done["from"], done["payload"]["result"]) == ("bob", "bob's")
    assert ada.hear() == []


def resident(hub: HubProcess) -> int:
    """Megabytes."""
    lines = Path(f"/proc/{hub.pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) // 1024


# -- false names


@pytest.mark.requirement("agentmsg/all-D1")
def test_every_endpoint_wants_a_token_of_this_protocol(hub: HubProcess) -> None:
    forge = hub.admin.post("/api/v1/agents", {"agent_id": "smith", "protocol": "forge"}).json["token"]
    others = [(None, 401), ("0" * 32, 401), ("a" * 5000, 401), (forge, 403), (hub.token("chi", "infra"), 403)]
    for method, path, body in ENDPOINTS:
        data = None if body is None else json.dumps(body).encode()
        for token, status in others:
            answer = Door(hub.url, token).ask(method, f"/agentmsg{path}", data)
            assert (answer.status, answer.json["error_type"]) == (status, "AUTHENTICATION_ERROR"), (path, token)
            assert answer.json["agent_id"] == "hub"
    for token, status in [*others, (hub.ready["admin_token"], 401)]:
        with pytest.raises(InvalidStatus) as refused, Plain(hub, "x", token or "").link():
            pass
        assert refused.value.response.status_code == status
        assert json.loads(refused.value.response.body)["error_type"] == "AUTHENTICATION_ERROR"


@pytest.mark.requirement("agentmsg/all-D1")
def test_a_token_in_the_address_is_none(hub: HubProcess, cast: dict[str, Plain]) -> None:
    token = cast["eve"].token
    for query in (f"token={token}", f"access_token={token}", f"authorization=Bearer%20{token}"):
        assert Door(hub.url).get(f"/agentmsg/messages?wait=0&{query}").status == 401


@pytest.mark.requirement("agentmsg/all-D1")
@pytest.mark.parametrize("name", ["bob", "hub", "*", "EVE", "eve ", "eve\u200b", "", "admin", "person"])
def test_nobody_speaks_in_another_name(cast: dict[str, Plain], name: str) -> None:
    eve = cast["eve"]
    said = {**eve.message("STATUS_UPDATE", "hub", words.status(name or "x", words.now(), state="ERROR")), "from": name}
    answer = eve.send(said)
    assert answer.status in (400, 403), answer
    with eve.link() as link:
        link.socket.send(json.dumps(said))
        told = link.hears("ERROR_REPORT")
        assert told["payload"]["error_type"] in ("AUTHENTICATION_ERROR", "VALIDATION_ERROR")
    if name == "bob":
        assert eve.get("/state/AGENT/bob").json["value"]["state"] != "ERROR"


@pytest.mark.requirement("agentmsg/all-D1")
@pytest.mark.parametrize("id", ["hub", "*", "admin"])
def test_nobody_is_added_under_a_name_of_the_hubs_own(hub: HubProcess, id: str) -> None:
    made = hub.admin.post("/api/v1/agents", {"agent_id": id, "protocol": "agentmsg"})
    assert made.status in (400, 409, 422), made


def test_registering_gives_no_rights(hub: HubProcess, cast: dict[str, Plain]) -> None:
    eve = cast["eve"]
    wish = {"agent_id": "eve", "role": "planner", "admin": True, "capabilities": ["anything"], "max_concurrent": 1}
    eve.say("REGISTER", "hub", wish)
    assert hub.admin.get("/api/v1/agents/eve").json.get("role") != "planner"
    policy = words.change("UPDATE", "POLICY", "policy", {"enabled_chains": []}, 1, words.now())
    assert eve.post("/state", policy).status == 403


# -- other people's messages and tasks


def test_anothers_ack_changes_nothing(cast: dict[str, Plain]) -> None:
    ada, bob, eve = cast["ada"], cast["bob"], cast["eve"]
    bob.hear()
    said = ada.say("ERROR_REPORT", "bob", words.error("ada", message="for bob"))
    [one] = bob.poll(60)
    assert eve.ack(one) == 0
    for correlation in (said["id"], one["delivery_id"]):
        eve.say("ACK", "hub", {"message_ids": [said["id"]]}, correlation_id=correlation)
        eve.say("ACK", "hub", {}, correlation_id=correlation, delivery_id=one["delivery_id"])
    with eve.link() as link:
        link.say("ACK", "hub", {"message_ids": [said["id"], one["delivery_id"]]}, correlation_id=said["id"])
        link.settled()
    assert bob.ack(one) == 1  # it was still his to acknowledge


def attempts_on(task: str) -> dict[str, tuple[str, dict[str, Any]]]:
    failure = {"task_id": task, "error": words.error("eve", task)}
    return {
        "finish": ("TASK_COMPLETE", {"task_id": task, "result": "forged"}),
        "fail": ("TASK_FAILED", failure),
        "report": ("TASK_UPDATE", {"task_id": task, "progress": 99, "output": "forged"}),
        "end": ("TASK_UPDATE", {"task_id": task, "status": "completed", "output": "forged"}),
        "cancel": ("TASK_UPDATE", {"task_id": task, "status": "cancelled"}),
        "hand over": ("TASK_HANDOFF", words.handoff(task, "eve", "hub")),
    }


@pytest.mark.parametrize("attempt", attempts_on(""))
def test_anothers_task_is_not_there(cast: dict[str, Plain], task: str, attempt: str) -> None:
    eve = cast["eve"]
    kind, payload = attempts_on(task)[attempt]
    status, report = eve.refused(kind, "hub", payload)
    assert (status, report["error_type"]) == (404, "VALIDATION_ERROR")
    if attempt == "hand over":
        return  # a task that nobody knows may be handed over: it is taken down as the giver's own
    nowhere = str(uuid.uuid4())
    kind, payload = attempts_on(nowhere)[attempt]
    other = eve.refused(kind, "hub", payload)[1]
    ids = re.compile(r"[0-9a-f]{8}-[0-9a-f-]{27}")
    told = [
        ids.sub("ID", json.dumps({**one, "error_id": ""}).replace(named, "ID"))  # it is told back what it said itself
        for one, named in ((report, task), (other, nowhere))
    ]
    assert told[0] == told[1]  # no hint that one of them exists


@pytest.mark.parametrize("attempt", ["finish", "fail", "end"])
def test_who_waits_for_a_task_is_not_told_of_its_end_by_a_stranger(
    hub: HubProcess, cast: dict[str, Plain], attempt: str
) -> None:
    ada, bob, eve = cast["ada"], cast["bob"], cast["eve"]
    name = f"forged {uuid.uuid4().hex[:6]}"
    bob.hear()
    bob.works(ada, name)
    ada.hear()
    kind, payload = attempts_on(name)[attempt]
    answer = eve.send(eve.message(kind, "ada", payload, priority="high"))
    heard = [(one["from"], one["type"]) for one in ada.hear()]
    bob.say("TASK_COMPLETE", "ada", {"task_id": name, "result": 1})
    ada.hear()
    assert heard == []
    assert answer.status in (403, 404)


def test_nobody_answers_what_was_not_put_to_it(cast: dict[str, Plain], task: str) -> None:
    bob, cid, eve = cast["bob"], cast["cid"], cast["eve"]
    asked = bob.say("HELP_REQUEST", "cid", words.help_request("bob", task))
    cid.hears("HELP_REQUEST")
    forged = words.help_response("eve", asked["id"], content="rm -rf /")
    for to in ("hub", "bob"):
        assert eve.refused("HELP_RESPONSE", to, forged)[0] == 404
    cid.say("HELP_RESPONSE", "bob", words.help_response("cid", asked["id"]))
    assert bob.hears("HELP_RESPONSE")["from"] == "cid"

    handed = bob.say("TASK_HANDOFF", "cid", words.handoff(task, "bob", "cid"))
    cid.hears("TASK_HANDOFF")
    for to in ("bob", "hub"):
        status, _ = eve.refused("TASK_HANDOFF", to, words.yes("eve"), correlation_id=handed["id"])
        assert status == 404
    cid.say("TASK_HANDOFF", "bob", words.no("cid"), correlation_id=handed["id"])
    told = bob.hears("TASK_HANDOFF")
    assert (told["from"], told["payload"]["accepted"]) == ("cid", False)
    assert eve.hear() == []


def test_state_is_written_only_by_those_who_may(hub: HubProcess, cast: dict[str, Plain], task: str) -> None:
    ada, bob, eve = cast["ada"], cast["bob"], cast["eve"]
    plan = f"plan {uuid.uuid4().hex[:6]}"
    assert ada.post("/state", words.change("CREATE", "TASK", plan, {}, 0, words.now())).status == 200
    version = ada.get(f"/state/TASK/{task.replace(' ', '%20')}").json["version"]
    attempts: list[tuple[Plain, str, str, str, dict[str, Any], int]] = [
        (eve, "UPDATE", "TASK", plan, {"status": "completed"}, 1),
        (eve, "DELETE", "TASK", plan, {}, 1),
        (eve, "UPDATE", "TASK", task, {"context": {"metadata": {"x": 1}}}, version),
        (eve, "UPDATE", "TASK", task, {"status": "cancelled"}, version),
        (bob, "UPDATE", "TASK", task, {"status": "cancelled"}, version),
        (eve, "DELETE", "TASK", task, {}, version),
        (eve, "UPDATE", "AGENT", "bob", {"state": "OFFLINE"}, 0),
        (eve, "UPDATE", "AGENT", "eve", {"errors": []}, 0),
        (eve, "CREATE", "RESOURCE", "bob:budget", {"consumed": 1e9}, 0),
        (eve, "CREATE", "RESOURCE", "eve:budget", {"limit": 1e12}, 0),
        (eve, "CREATE", "RESOURCE", "hub:budget", {"limit": 1e12}, 0),
        (eve, "UPDATE", "POLICY", "policy", {"budget_limits": {"total": 1e12}}, 1),
        (eve, "DELETE", "POLICY", "policy", {}, 1),
    ]
    for who, operation, kind, id, changes, read in attempts:
        update = words.change(operation, kind, id, changes, read, words.now())
        assert who.post("/state", update).status == 403, update
        status, report = who.refused("STATE_UPDATE", "hub", update)
        assert (status, report["error_type"]) == (403, "AUTHENTICATION_ERROR"), update


def test_a_stranger_reads_heads_and_no_contents(cast: dict[str, Plain]) -> None:
    ada, bob, eve = cast["ada"], cast["bob"], cast["eve"]
    bob.hear()
    name = f"private {uuid.uuid4().hex[:6]}"
    given = words.context(name, metadata={"key": "canary-in"})
    bob.works(ada, name, context=given, input={"secret": "canary-in"})
    bob.say("TASK_COMPLETE", "ada", {"task_id": name, "result": "canary-out"})
    ada.hear()
    seen = [eve.get("/state").body, eve.get(f"/state/TASK/{name.replace(' ', '%20')}").body]
    asked = eve.message("STATE_QUERY", "hub", {"entity_type": "TASK"})
    seen.append(eve.send(asked).body)
    with eve.link() as link:
        query = link.say("STATE_QUERY", "hub", {"watch": True, "cursor": 0})
        link.hears("STATE_QUERY", query["id"])
        until(lambda: link.hears("STATE_UPDATE", query["id"])["payload"]["entity_id"] == name, "the task's changes")
        link.settled()
        seen.append(json.dumps(link.heard).encode())
    assert b"canary" not in b"".join(seen)


# -- hostile JSON


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
def test_hostile_json_is_refused_at_every_door(hub: HubProcess, cast: dict[str, Plain], name: str) -> None:
    eve, frame = cast["eve"], FRAMES[name]
    for path in ("/messages", "/state", "/ack"):
        answer = eve.door.ask("POST", f"/agentmsg{path}", frame)
        assert answer.status == (413 if name == "too large" else 400), (path, answer)
        assert answer.json["error_type"] in ("VALIDATION_ERROR", "RESOURCE_EXHAUSTED")
        assert len(answer.body) < 4096  # the attack is not sent back
    with eve.link(max_size=None) as link:
        try:
            link.socket.send(frame.decode("latin-1") if name != "not utf-8" else frame)
            told = link.hears("ERROR_REPORT")
            assert len(json.dumps(told)) < 4096
            link.settled()  # and the link goes on
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


def test_hostile_words_are_carried_as_they_are_and_shown_escaped(hub: HubProcess, cast: dict[str, Plain]) -> None:
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


# -- too much


def test_a_flood_for_an_absent_receiver_holds_up_nobody(hub: HubProcess, cast: dict[str, Plain]) -> None:
    """What was accepted is kept; the hub's memory does not grow with it, and others are served meanwhile."""
    eve = cast["eve"]
    absent, other = Plain(hub, "absent"), Plain(hub, "other")
    before = resident(hub)
    filler = "x" * 4096
    with eve.link() as link:
        said = []
        for n in range(2000):
            said.append(link.say("ERROR_REPORT", "absent", words.error("eve", message=f"{n} {filler}")))
            if n % 200 == 199:
                link.acked(*said[-200:])
        urgent = eve.say("ERROR_REPORT", "other", words.error("eve", message="and you"))
        assert other.hears("ERROR_REPORT")["id"] == urgent["id"]
    assert resident(hub) - before < 80
    first = absent.poll(60, 50)
    assert [one["message"]["id"] for one in first] == [one["id"] for one in said[:50]]
    assert absent.ack(*first) == 50
    assert absent.poll(60, 1)[0]["message"]["id"] == said[50]["id"]


def test_a_link_that_never_acknowledges_gets_a_bounded_window(tmp_path: Path) -> None:
    with running(tmp_path, DRAGOMAN_RULES__LINK_WINDOW="20", DRAGOMAN_AGENTMSG__RETRY_BASE_SECONDS="60") as own:
        ada, bob = Plain(own, "ada"), Plain(own, "bob")
        with bob.link() as link:
            link.settled()
            for n in range(60):
                ada.say("ERROR_REPORT", "bob", words.error("ada", message=str(n)))
            link.settled()
            got = [one for one in link.heard if one["type"] == "ERROR_REPORT"]
            assert len(got) == 20
            link.ack(*got)
            until(lambda: link.hears("ERROR_REPORT") and len(link.heard) > 40, "the next ones")


def test_a_watcher_that_does_not_read_holds_up_nobody(hub: HubProcess, cast: dict[str, Plain]) -> None:
    """Both kinds of watch stand still; the writer goes on, memory stays, and a reader loses nothing."""
    eve, ada = cast["eve"], cast["ada"]
    address = urlsplit(hub.url)
    stuck = socket.create_connection((address.hostname, address.port), timeout=60)
    stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    cursor = ada.get("/state").json["cursor"]
    head = f"Host: x\r\nAuthorization: Bearer {eve.token}"
    stuck.sendall(f"GET /agentmsg/state/watch?cursor={cursor} HTTP/1.1\r\n{head}\r\n\r\n".encode())
    name = f"big {uuid.uuid4().hex[:6]}"
    before = resident(hub)
    with eve.link(max_queue=1) as link:
        link.say("STATE_QUERY", "hub", {"watch": True, "entity_type": "TASK", "cursor": cursor})
        for version in range(400):
            changes = {"context": {"filler": f"{version} " + "x" * 50_000}}
            update = words.change("UPDATE" if version else "CREATE", "TASK", name, changes, version, words.now())
            assert ada.post("/state", update).status == 200  # nobody waits for them
        assert resident(hub) - before < 100
        seen: list[int] = []

        def all_of_them() -> bool:
            told = link.hears("STATE_UPDATE")["payload"]
            if told["entity_id"] == name:
                seen.append(told["version"])
            return len(seen) == 400

        until(all_of_them, "whoever reads at last")
        assert seen == list(range(1, 401))
    stuck.close()


def test_too_many_watches_on_one_link_are_refused(cast: dict[str, Plain]) -> None:
    with cast["eve"].link() as link:
        asked = [
            link.say("STATE_QUERY", "hub", {"watch": True, "entity_type": "TASK", "entity_id": f"t{n}"})
            for n in range(40)
        ]
        link.settled()
        refused = [one for one in link.heard if one["type"] == "ERROR_REPORT"]
        assert len(refused) == len(asked) - 16
        assert {one["payload"]["error_type"] for one in refused} == {"RESOURCE_EXHAUSTED"}

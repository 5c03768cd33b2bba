"""Attacks by forge agents, over WebSocket and as children: bombs, garbage, false names, other people's tasks, hostile
words. Whatever is tried, an honest agent's request is answered afterwards.
"""

from __future__ import annotations

import base64
import contextlib
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from tests.support.children import program
from tests.support.cli import dragoman
from tests.support.forge import ForgeClient
from tests.support.hubproc import HubProcess, running, until

MIB = 1024 * 1024
WHEN = "2026-02-04T14:30:00Z"
EVIL = "\x1b[31mred\x1b[0m \u202egpj.exe\u2066 \x07bell\x9b2J <img src=x onerror=alert(1)>"
NOWHERE = "01900000-0000-7000-8000-000000000000"


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubProcess]:
    with running(tmp_path_factory.mktemp("hub"), DRAGOMAN_RULES__IDLE_SECONDS="20") as hub:
        yield hub


def add(hub: HubProcess, id: str, **more: Any) -> str:
    """The token of an agent, added when it is first asked for."""
    if id not in hub._tokens:
        made = hub.admin.post("/api/v1/agents", {"agent_id": id, "protocol": "forge", **more})
        assert made.status == 201, made
        hub._tokens[id] = made.json["token"]
    return hub._tokens[id]


def client(hub: HubProcess, id: str, **more: Any) -> ForgeClient:
    return ForgeClient(hub.url, id, add(hub, id, **more))


def socket(hub: HubProcess, id: str, subprotocol: str = "forge.v1.json", **options: Any) -> ClientConnection:
    return connect(
        hub.url.replace("http", "ws") + "/forge/ws",
        additional_headers={"Authorization": f"Bearer {add(hub, id)}"},
        subprotocols=[subprotocol],  # type: ignore[list-item]
        proxy=None,
        open_timeout=60,
        max_size=None,
        **options,
    )


@pytest.fixture(autouse=True)
def honest(hub: HubProcess) -> Iterator[None]:
    """After each attack an honest planner and an honest worker work together."""
    yield
    boss, hand = client(hub, "honest-boss", role="planner"), client(hub, "honest-hand", role="worker")
    task = boss.ask("submit-task", {"type": "check", "agent": "honest-hand"})["task"]["id"]
    hand.until(lambda said: said["type"] == "notify:task-assigned" and said["payload"]["taskId"] == task)
    assert hand.ask("update-task", {"taskId": task, "status": "completed"})["task"]["status"] == "completed"
    for one in (boss, hand):
        one.ws.close()


def resident(hub: HubProcess) -> int:
    """Megabytes."""
    lines = Path(f"/proc/{hub.pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) // 1024


# -- hostile frames


def request(payload: str, type: str = "request:submit-task") -> str:
    return f'{{"type": "{type}", "id": "attack", "timestamp": "{WHEN}", "payload": {payload}}}'


FRAMES = {
    "deep": request('{"type": "x", "payload": ' + "[" * 500_000 + "]" * 500_000 + "}"),
    "open": "[" * 500_000,
    "objects": '{"a":' * 500_000 + "1" + "}" * 500_000,
    "nan": request('{"type": "x", "payload": {"a": NaN}}'),
    "huge": request('{"type": "x", "payload": {"a": ' + "9" * 500_000 + "}}"),
    "duplicate": request('{"type": "x", "payload": {"a": 1, "a": 2}}'),
    "surrogate": request('{"type": "x", "payload": {"a": "\\ud800"}}'),
    "a thousand batches": "[" * 40 + "{}" + "]" * 40,
    "a large batch": "[" + ",".join(['{"type": "event:log"}'] * 100_000) + "]",
    "no time zone": request("{}").replace(WHEN, "2026-02-04T14:30:00"),
    "empty id": request("{}").replace("attack", ""),
    "type no text": request("{}").replace('"request:submit-task"', "7"),
    "control": '{"type": "request:get-task\x00"}',
    "empty": "",
}


@pytest.mark.parametrize("name", FRAMES)
def test_a_hostile_frame_is_refused_and_the_connection_goes_on(hub: HubProcess, name: str) -> None:
    before, id = len(hub.tasks()), f"attacker-{name.replace(' ', '-')}"
    attacker = client(hub, id)
    attacker.ws.send(FRAMES[name])
    assert "agents" in attacker.ask("query-agents", {})
    errors = [said for said in attacker.received if said["type"] == "response:error"]
    if FRAMES[name]:  # what is no message at all is a line of its log
        assert errors or hub.admin.get(f"/api/v1/agents/{id}/logs").json["logs"]
    assert all(said["error"]["code"] in ("INVALID_REQUEST", "INVALID_MESSAGE_TYPE") for said in errors)
    assert all(len(json.dumps(said)) < 4096 for said in errors)  # the attack is not sent back
    if '"type": "request:' in FRAMES[name] and '"attack"' in FRAMES[name]:
        assert [said["correlationId"] for said in errors] in (["attack"], [None])
    assert len(hub.tasks()) == before
    attacker.ws.close()


def test_binary_garbage_on_a_connection_of_text_is_survived(hub: HubProcess) -> None:
    for garbage in (bytes(range(256)) * 100, b"\xff\xfe" * 1000, b"\x00" * 100_000):
        with socket(hub, "binary-attacker") as link, contextlib.suppress(ConnectionClosed):
            link.send(garbage)
            link.send(request("{}", "request:query-agents"))
            said = json.loads(link.recv(60))
            assert said["type"] in ("response:error", "response:success")


PACKED = {
    "an array of four thousand million": b"\xdd\xff\xff\xff\xff",
    "a map of four thousand million": b"\xdf\xff\xff\xff\xff",
    "a text of four gigabytes": b"\xdb\xff\xff\xff\xff",
    "bytes of four gigabytes": b"\xc6\xff\xff\xff\xff",
    "500,000 arrays": b"\x91" * 500_000 + b"\xc0",
    "500,000 maps": b"\x81\xa1a" * 500_000 + b"\xc0",
    "an extension": b"\xc9\x00\x00\x00\x04\x01abcd",
    "a moment": b"\xd6\xff\x00\x00\x00\x00",
    "nan": b"\x81\xa1a\xcb\x7f\xf8\x00\x00\x00\x00\x00\x00",
    "bytes for text": b"\x81\xc4\x01a\x01",
    "no utf-8": b"\x81\xa1\xff\x01",
    "twice": b"\x82\xa1a\x01\xa1a\x02",
    "reserved": b"\xc1",
    "cut short": b"\x85\xa4type",
    "trailing": b"\x80\x80",
    "a million nothings": b"\xdd\x00\x0f\x42\x40" + b"\xc0" * 1_000_000,
}


@pytest.mark.parametrize("name", PACKED)
def test_a_packed_bomb_is_refused_with_bounded_memory_and_the_connection_goes_on(hub: HubProcess, name: str) -> None:
    before = resident(hub)
    with socket(hub, "pack-attacker", "forge.v1.msgpack") as link:
        link.send(PACKED[name])
        link.send(msgspec.msgpack.encode({"type": "request:query-agents", "id": "q", "timestamp": WHEN, "payload": {}}))
        while (said := msgspec.msgpack.decode(link.recv(60)))["correlationId"] != "q":
            assert said["type"] == "response:error"
        assert said["type"] == "response:success"
    assert resident(hub) - before < 60


def test_a_compressed_bomb_ends_its_connection_with_bounded_memory(hub: HubProcess) -> None:
    before = resident(hub)
    for size in (20 * MIB, 200 * MIB):
        with socket(hub, "bomber", compression="deflate") as link:
            squeeze = zlib.compressobj(9, zlib.DEFLATED, -12)
            body = b"".join(squeeze.compress(bytes(MIB)) for _ in range(size // MIB))
            body += squeeze.flush(zlib.Z_SYNC_FLUSH)[:-4]
            # A frame as it lies on the wire: FIN and RSV1, text, masked with nothing.
            link.socket.sendall(b"\xc1\xff" + len(body).to_bytes(8, "big") + bytes(4) + body)
            with pytest.raises(ConnectionClosed) as ended:
                link.recv(60)
            assert ended.value.rcvd is not None
            assert ended.value.rcvd.code == 1009
    assert resident(hub) - before < 60


# -- too much


def test_the_rate_limit_is_the_agents_and_not_the_connections(tmp_path: Path) -> None:
    """As good as no refill: whatever is granted is the burst, over however many connections."""
    measure = {"DRAGOMAN_FORGE__MESSAGES_PER_SECOND": "0.001", "DRAGOMAN_FORGE__BURST": "200"}
    with running(tmp_path, **measure) as hub:
        granted, refused = 0, []
        for turn in range(5):
            link = client(hub, "hasty")
            asked = [link.say("request:query-agents", {}, f"{turn}-{n}") for n in range(60)]
            for id in asked:
                answer = link.response(id)
                if "agents" in answer:
                    granted += 1
                else:
                    refused.append(answer)
            link.ws.close()
        assert (granted, len(refused)) == (200, 100)
        assert {error["code"] for error in refused} == {"INVALID_REQUEST"}
        assert {error["details"]["reason"] for error in refused} == {"RATE_LIMITED"}
        other = client(hub, "unhurried")  # somebody else's measure is their own
        assert "agents" in other.ask("query-agents", {})


# -- false names, other people's tasks


def test_the_endpoint_opens_only_for_a_forge_agents_token(hub: HubProcess) -> None:
    chiffon = hub.token("chiffon-boss", "orchestrator")
    address = hub.url.replace("http", "ws") + "/forge/ws"
    for token, status in ((None, 401), ("0" * 32, 401), (chiffon, 403), (hub.ready["admin_token"], 401)):
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        with pytest.raises(InvalidStatus) as turned_away:
            connect(address, additional_headers=headers, proxy=None, open_timeout=60)
        assert turned_away.value.response.status_code == status, token
    with pytest.raises(InvalidStatus):  # a token in the address is in everybody's logs: it does not count
        connect(f"{address}?token={add(hub, 'addressed')}", proxy=None, open_timeout=60)


@pytest.fixture
def secret(hub: HubProcess) -> Iterator[str]:
    """A task of another agent, with a file, under way."""
    owner, hand = client(hub, "owner", role="planner"), client(hub, "owners-hand", role="worker")
    attachment = {"filename": "s", "mimeType": "a/b", "data": base64.b64encode(b"secret").decode()}
    wish = {"type": "x", "agent": "owners-hand", "payload": {"p": "secret"}, "attachments": [attachment]}
    task = owner.ask("submit-task", wish)["task"]["id"]
    hand.until(lambda said: said["type"] == "notify:task-assigned" and said["payload"]["taskId"] == task)
    yield task
    assert hub.task(task)["status"] in ("assigned", "running")  # nobody else moved it
    assert hub.task(task)["output"] == ""
    assert hand.ask("update-task", {"taskId": task, "status": "completed"})["task"]["status"] == "completed"
    for one in (owner, hand):
        one.ws.close()


def test_anothers_task_is_not_there(hub: HubProcess, secret: str) -> None:
    thief = client(hub, "thief", role="worker")
    file = hub.admin.get(f"/api/v1/tasks/{secret}/files").json["files"][0]["id"]
    for about, payload in {
        "get-task": {},
        "get-file": {"fileId": file},
        "update-task": {"status": "completed", "result": "forged"},
        "cancel-task": {},
        "ask-user": {"question": "Which password?"},
    }.items():
        answers = [thief.ask(about, {"taskId": id, **payload}) for id in (secret, NOWHERE)]
        told = [json.dumps(answer).replace(secret, "ID").replace(NOWHERE, "ID") for answer in answers]
        assert told[0] == told[1], about  # no hint that one of them exists
        assert answers[0]["code"] == "NOT_FOUND", (about, answers)
    for wish in ({"dependencies": [secret]}, {"parentId": secret}):
        assert thief.ask("submit-task", {"type": "x", **wish})["code"] == "NOT_FOUND"
    assert secret not in json.dumps(thief.ask("query-tasks", {}))
    # Events are not answered, and change nothing.
    thief.say("event:progress", {"taskId": secret, "progress": 1, "result": "forged", "output": "forged"})
    thief.say("event:error", {"taskId": secret, "error": "forged", "recoverable": False})
    thief.say("event:log", {"taskId": secret, "level": "info", "message": "forged"})
    thief.say("event:question", {"taskId": secret, "question": "forged"})
    assert "agents" in thief.ask("query-agents", {})
    assert "forged" not in hub.admin.get(f"/api/v1/tasks/{secret}?history=1&raw=1").body.decode()
    assert hub.admin.get("/api/v1/questions?status=open").json["questions"] == []
    thief.ws.close()


def test_no_agent_promotes_itself_or_speaks_for_another(hub: HubProcess, secret: str) -> None:
    thief, roleless = client(hub, "climber", role="worker"), client(hub, "roleless")
    for one in (thief, roleless):
        assert one.ask("register", {"role": "planner", "name": "owner"})["code"] == "UNAUTHORIZED"
        assert one.ask("get-task", {"taskId": secret})["code"] == "NOT_FOUND"
    said = {"type": "request:get-task", "id": "spoof", "timestamp": WHEN, "payload": {"taskId": secret}}
    for name in ("agentId", "agent_id", "from", "sender"):
        thief.ws.send(json.dumps({**said, "id": f"spoof-{name}", name: "owner"}))
        assert thief.response(f"spoof-{name}")["code"] == "NOT_FOUND"
    records = hub.admin.get("/api/v1/audit?principal=owner&limit=500").json["records"]
    assert not [record for record in records if "spoof" in json.dumps(record)]
    assert hub.admin.get("/api/v1/agents/climber").json["role"] == "worker"
    assert hub.admin.get("/api/v1/agents/roleless").json["role"] is None
    for one in (thief, roleless):
        one.ws.close()


def test_hostile_file_names_are_only_names(hub: HubProcess) -> None:
    names = ("../../x", "/etc/passwd", "a\x00b", "C:\\x\\..\\y", "..", "x" * 5000, EVIL)
    boss = client(hub, "names", role="planner")
    attachments = [{"filename": name, "mimeType": "text/html", "data": "MTIzNA=="} for name in names]
    answer = boss.ask("submit-task", {"type": "never-done", "attachments": attachments})
    if "task" in answer:
        shown = hub.admin.get(f"/api/v1/tasks/{answer['task']['id']}/files").json["files"]
        assert len(shown) == len(names)
        for file in shown:
            assert not set(file["name"]) & set("/\\\0\x1b\u202e\u2066")
            assert file["name"] not in ("", ".", "..")
        for asked in (
            {"offset": -1},
            {"offset": 10**12},
            {"length": -5},
            {"length": 10**12},
            {"fileId": "../hub.json"},
        ):
            got = boss.ask("get-file", {"taskId": answer["task"]["id"], "fileId": shown[0]["id"], **asked})
            assert got.get("code") in ("INVALID_REQUEST", "NOT_FOUND") or got["size"] == 4, (asked, got)
            assert len(got.get("data", "")) <= 8
        assert hub.admin.post(f"/api/v1/tasks/{answer['task']['id']}/cancel").status == 200
    for path in (hub.data / "files").iterdir():
        assert set(path.name) <= set("0123456789abcdef-"), path
    boss.ws.close()


# -- what is shown to people


def test_hostile_text_is_kept_as_it_is_and_shown_escaped(hub: HubProcess) -> None:
    def shown(*command: str) -> str:
        said = dragoman(*command, hub=hub)
        assert said.code == 0, said
        for bad in ("\x1b", "\x07", "\x9b", "\u202e", "\u2066", "\r"):
            assert bad not in said.out, (command, bad)
        return said.out

    lines = [EVIL, "a\rforged", "line \u2028 two"]
    question = {"type": "event:question", "id": "q", "timestamp": WHEN, "payload": {"question": EVIL}}
    said = {"type": "event:log", "id": "l", "timestamp": WHEN, "payload": {"level": "error", "message": EVIL}}
    printing = program(
        "import sys",
        "sys.stdout.reconfigure(encoding='utf-8', newline='\\n')",
        f"[print(line, flush=True) for line in {lines!r}]",
        f"print({json.dumps(said)!r}, flush=True)",
        f"print({json.dumps(question)!r}, flush=True)",
        "print(sys.argv, file=sys.stderr)",
        "sys.stdin.read()",
    )
    wish = {"agent_id": "rude", "protocol": "forge", "name": EVIL, "command": printing}
    made = hub.admin.post("/api/v1/agents", wish)
    if made.status != 201:  # a name that is no name is refused: without it
        del wish["name"]
        assert hub.admin.post("/api/v1/agents", wish).status == 201
    path = "/api/v1/agents/rude/logs"
    until(lambda: len(hub.admin.get(path).json["logs"]) >= 5, "everything was printed")
    assert [one["text"] for one in hub.admin.get(path).json["logs"] if "gpj" in one["text"]] == [EVIL, EVIL]
    (asked,) = until(lambda: hub.admin.get("/api/v1/questions?status=open").json["questions"], "the question")
    assert asked["question"] == EVIL
    assert "gpj.exe" in shown("agent", "logs", "rude")
    assert "gpj.exe" in shown("ask", "ls")
    shown("agent", "ls")
    shown("agent", "show", "rude")
    assert hub.admin.post(f"/api/v1/questions/{asked['id']}/answer", {"answer": EVIL}).status == 200
    shown("audit", "query")
    log = hub.log.read_text("utf-8")
    for bad in ("\x1b", "\x07", "\x9b", "\u202e", "\u2066", "\r"):
        assert bad not in log
    assert b"onerror" not in hub.admin.get("/").body
    assert hub.admin.ask("DELETE", "/api/v1/agents/rude").status == 204


@pytest.mark.requirement("all-D4")
def test_no_token_is_found_in_anything_the_hub_wrote_or_sent(hub: HubProcess) -> None:
    wrong = "feedfacefeedfacefeedfacefeedface"
    address = hub.url.replace("http", "ws") + f"/forge/ws?token={wrong}"
    with pytest.raises(InvalidStatus) as turned_away:
        connect(address, additional_headers={"Authorization": f"Bearer {wrong}"}, proxy=None)
    seen = [str(turned_away.value.response.body), str(turned_away.value.response.headers)]
    boss, hand = client(hub, "canary-boss", role="planner"), client(hub, "canary-hand", role="worker")
    seen.append(json.dumps(boss.ask("submit-task", {"type": "x", "agent": "canary-hand"})))
    given = hand.notice("task-assigned")
    seen += [json.dumps(given), json.dumps(hand.ask("update-task", {"taskId": given["taskId"], "status": "completed"}))]
    seen.append(json.dumps(boss.ask("query-agents", {})))
    for path in (f"/api/v1/tasks/{given['taskId']}?history=1&raw=1", "/api/v1/audit?limit=500", "/api/v1/agents"):
        seen.append(hub.admin.get(path).body.decode())
    files = [path for path in hub.data.rglob("*") if path.is_file() and path.name not in ("hub.json", "admin.token")]
    kept = {"seen": "".join(seen).encode()} | {str(path): path.read_bytes() for path in [*files, hub.log]}
    for place, data in kept.items():
        for token in (wrong, add(hub, "canary-boss"), add(hub, "canary-hand"), hub.ready["admin_token"]):
            assert token.encode() not in data, place
    for one in (boss, hand):
        one.ws.close()

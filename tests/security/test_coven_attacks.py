"""Attacks on coven's port: streams that never register, resets, bombs, garbage, false names, other people's tasks.

Whatever is tried, an honest agent's task is done afterwards.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from dragoman.protocols.coven import codec
from dragoman.protocols.coven.types import CANCEL, FOLLOW, SEND, CancelRequest, FileData, FollowRequest, SendMessage
from tests.support import coven as outside
from tests.support.chiffon import Door, task_of, work_request
from tests.support.cli import dragoman
from tests.support.hubproc import HubProcess, running, until

Code = grpc.StatusCode
MIB = 1024 * 1024
DEEP = "[" * 500_000 + "]" * 500_000
QUOTA = 8 * MIB
"""Of all files together; a file's own description beside it may exceed it by a little, once."""


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubProcess]:
    settings = {
        "DRAGOMAN_COVEN__REGISTER_SECONDS": "2",
        "DRAGOMAN_COVEN__MAX_STREAMS": "2000",
        "DRAGOMAN_FILES__QUOTA_BYTES": str(QUOTA),
        "DRAGOMAN_FILES__LARGEST_BYTES": str(4 * MIB),
        "DRAGOMAN_RULES__IDLE_SECONDS": "20",
        "DRAGOMAN_LOG__LEVEL": "debug",
    }
    with running(tmp_path_factory.mktemp("hub"), **settings) as hub:
        yield hub


@pytest.fixture(autouse=True)
async def honest(hub: HubProcess) -> AsyncIterator[None]:
    """After each attack an honest agent works."""
    yield
    async with agent_of(hub, "honest") as agent:
        assert (await done_by(hub, agent, "honest", text="as ever"))["output"] == "as ever"


def credential(token: str | None) -> Any:
    return None if token is None else (("authorization", f"Bearer {token}"),)


def token_of(hub: HubProcess, id: str, **more: Any) -> str:
    made = hub.admin.post("/api/v1/agents", {"agent_id": id, "protocol": "coven", **more})
    assert made.status == 201, made
    return str(made.json["token"])


@contextlib.asynccontextmanager
async def agent_of(hub: HubProcess, id: str, token: str | None = None) -> AsyncIterator[outside.Agent]:
    async with outside.channel(hub.ready["grpc"]) as channel:
        agent = outside.stream(channel, token=token)
        await agent.register(id, id, ["chat"])
        yield agent


async def outcome(call: Any) -> Any:
    """How a caller's stream ended, once everything in it was read."""
    with contextlib.suppress(grpc.aio.AioRpcError):
        while await outside.soon(call.read()) is not grpc.aio.EOF:
            pass
    return await outside.soon(call.code())


def submit(hub: HubProcess, to: str, content: str = "hello") -> str:
    made = hub.admin.post("/api/v1/tasks", {"type": "chat", "agent": to, "input": {"content": content}})
    assert made.status == 202, made
    return str(made.json["id"])


async def done_by(hub: HubProcess, agent: outside.Agent, id: str, *events: Any, text: str = "") -> dict[str, Any]:
    """A task that the agent does with these events; how it ended."""
    task = submit(hub, id)
    request = (await agent.work()).request_id
    for event in events:
        await agent.respond(request, **event)
    if text:
        await agent.respond(request, text=text)
    await agent.respond(request, done={})
    until(lambda: hub.status(task) in ("completed", "failed"), "the task has ended")
    return hub.task(task)


def resident(hub: HubProcess) -> int:
    """Megabytes."""
    lines = Path(f"/proc/{hub.pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) // 1024


# -- floods


@pytest.fixture
def patient_hub(tmp_path: Path) -> Iterator[HubProcess]:
    """One so patient that a slow machine has opened thousands of streams before the first place is free again."""
    with running(tmp_path, DRAGOMAN_COVEN__REGISTER_SECONDS="8", DRAGOMAN_COVEN__MAX_STREAMS="2000") as hub:
        yield hub


async def test_thousands_of_streams_that_never_register_are_capped_and_closed(patient_hub: HubProcess) -> None:
    hub = patient_hub
    before = resident(hub)
    async with contextlib.AsyncExitStack() as opened, agent_of(hub, "patient") as agent:
        channels = [await opened.enter_async_context(outside.channel(hub.ready["grpc"])) for _ in range(4)]
        streams = [outside.stream(channels[n % 4]) for n in range(2500)]
        ends = asyncio.gather(*(outside.soon(stream.call.code(), 60) for stream in streams))
        await outside.soon(streams[0].call.initial_metadata())
        # While they wait, others are served.
        assert (await done_by(hub, agent, "patient", text="meanwhile"))["status"] == "completed"
        assert resident(hub) - before < 150
        codes = Counter(await ends)
    # How many had a place depends on how fast they came; that never more than a thousand have one at once is shown at
    # the door itself (tests/unit/transports/coven/test_door.py).
    assert set(codes) == {Code.DEADLINE_EXCEEDED, Code.RESOURCE_EXHAUSTED}
    assert resident(hub) - before < 150


async def test_strangers_with_a_made_up_token_take_no_places(hub: HubProcess) -> None:
    """Who waits to register has a place among a thousand: only those who could register may have one."""
    async with outside.channel(hub.ready["grpc"]) as channel:
        streams = [outside.stream(channel, token="feedface" * 4) for _ in range(50)]
        assert {await stream.code() for stream in streams} == {Code.UNAUTHENTICATED}


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """One frame of HTTP/2."""
    return struct.pack("!I", len(payload))[1:] + bytes((kind, flags)) + struct.pack("!I", stream) + payload


def literal(name: bytes, value: bytes) -> bytes:
    """A header field that touches no table (HPACK 6.2.2)."""
    return b"\x00" + bytes((len(name),)) + name + bytes((len(value),)) + value


HEADERS = b"".join(
    literal(name, value)
    for name, value in (
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", outside.STREAM.encode()),
        (b":authority", b"hub"),
        (b"content-type", b"application/grpc"),
        (b"te", b"trailers"),
    )
)
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0)
CANCELLED = struct.pack("!I", 8)


def raw(hub: HubProcess) -> socket.socket:
    host, _, port = hub.ready["grpc"].rpartition(":")
    return socket.create_connection((host, int(port)), timeout=15)


def swallow(opened: socket.socket) -> None:
    """Until the other side ends it."""
    with contextlib.suppress(OSError):
        while opened.recv(65536):
            pass


async def test_streams_opened_and_reset_at_once_harm_nobody(hub: HubProcess) -> None:
    before = resident(hub)
    async with agent_of(hub, "unharmed") as agent:
        for _ in range(4):
            with raw(hub) as attacker, contextlib.suppress(OSError):  # it may be cut off, and should be
                attacker.sendall(PREFACE)
                for number in range(1, 4001, 2):
                    attacker.sendall(frame(1, 4, number, HEADERS) + frame(3, 0, number, CANCELLED))
            assert (await done_by(hub, agent, "unharmed", text="here"))["status"] == "completed"
    assert resident(hub) - before < 100


@pytest.mark.parametrize(
    "garbage",
    {
        "noise": bytes(range(256)) * 400,
        "http/1": b"GET / HTTP/1.1\r\nHost: hub\r\n\r\n",
        "frames without a preface": frame(1, 4, 1, HEADERS),
        "a frame of 16 MiB": PREFACE + b"\xff\xff\xff\x00\x00\x00\x00\x00\x01" + bytes(100_000),
        "headers without end": PREFACE + frame(1, 0, 1, HEADERS) + frame(9, 0, 1, literal(b"x", b"y" * 100)) * 20_000,
        "a message that lies about its length": (
            PREFACE + frame(1, 4, 1, HEADERS) + frame(0, 1, 1, b"\x00\xff\xff\xff\xff" + bytes(100))
        ),
        "a compressed message without an encoding": (
            PREFACE + frame(1, 4, 1, HEADERS) + frame(0, 1, 1, b"\x01\x00\x00\x00\x04\x1f\x8b\x00\x00")
        ),
        "pings without end": PREFACE + frame(6, 0, 0, bytes(8)) * 50_000,
        "settings without end": PREFACE + frame(4, 0, 0) * 50_000,
    }.items(),
    ids=lambda case: case[0],
)
async def test_garbage_on_the_port_harms_nobody(hub: HubProcess, garbage: tuple[str, bytes]) -> None:
    with raw(hub) as attacker, contextlib.suppress(OSError):
        attacker.sendall(garbage[1])
        attacker.shutdown(socket.SHUT_WR)
        await asyncio.to_thread(swallow, attacker)


async def test_large_messages_and_bombs_are_refused_with_bounded_memory(hub: HubProcess) -> None:
    before, refused = resident(hub), 0
    options = [("grpc.max_send_message_length", -1)]
    for size, packed in ((16 * MIB + 1, False), (17 * MIB + 1, False), (40 * MIB, False), (100 * MIB, True)):
        async with outside.channel(hub.ready["grpc"], options) as channel:
            compression = grpc.Compression.Gzip if packed else None
            stream = outside.Agent(channel.stream_stream(outside.STREAM)(compression=compression))
            with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                await stream.raw(b"\x0a" + bytes(size - 1))
            code = await stream.code()
            if await stream.call.details() == "Internal error from Core":
                continue  # made by the client itself: the stream ended while it still wrote, and it lost the status
            assert code in (Code.INVALID_ARGUMENT, Code.RESOURCE_EXHAUSTED), size
            refused += 1
    assert refused >= 2
    assert resident(hub) - before < 120


async def test_a_register_that_is_larger_than_life_is_refused(hub: HubProcess) -> None:
    for said in (
        {"agent_id": "x" * 201},
        {"agent_id": "a\nb"},
        {"agent_id": "\u202ea"},
        {"agent_id": "a", "name": "\x1b[31m"},
        {"agent_id": "a", "capabilities": ["c"] * 10_000},
    ):
        async with outside.channel(hub.ready["grpc"]) as channel:
            stream = outside.stream(channel)
            await stream.say(register=said)
            assert await stream.code() is Code.INVALID_ARGUMENT, said


# -- hostile content


HOSTILE_JSON = {
    "deep": DEEP,
    "open": "[" * 500_000,
    "objects": '{"a":' * 500_000 + "1" + "}" * 500_000,
    "nan": '{"a": NaN}',
    "infinity": '{"a": -Infinity}',
    "huge": '{"a": ' + "9" * 1_000_000 + "}",
    "exponent": '{"a": 1e999999999}',
    "duplicate": '{"a": 1, "a": 2}',
    "surrogate": '{"a": "\\ud800"}',
    "two": "{} {}",
}


@pytest.mark.parametrize("case", HOSTILE_JSON)
async def test_hostile_json_in_an_agents_fields_is_kept_as_text(hub: HubProcess, case: str) -> None:
    text = HOSTILE_JSON[case]
    async with agent_of(hub, "hostile") as agent:
        used = {"tool_use": {"id": "t", "name": "n", "input_json": text}}
        done = await done_by(hub, agent, "hostile", used, text="well")
    assert (done["status"], done["output"]) == ("completed", "well")
    history = hub.admin.get(f"/api/v1/tasks/{done['id']}?history=1")
    assert history.status == 200
    uses = [event["body"]["tool_use"] for event in history.json["history"] if "tool_use" in (event.get("body") or {})]
    assert [use["input"] for use in uses] == [text]  # nobody's parser met it, and nothing of it was lost


@pytest.mark.parametrize("case", HOSTILE_JSON)
async def test_hostile_json_from_a_caller_is_refused(hub: HubProcess, case: str) -> None:
    message = SendMessage(request_id=case, content="", input_json=HOSTILE_JSON[case], to_agent="honest")
    async with outside.channel(hub.ready["grpc"]) as channel:
        call = channel.unary_stream(SEND)(codec.encode_send(message))
        assert await outcome(call) is Code.INVALID_ARGUMENT
        assert "input_json" in await outside.soon(call.details())


NAMES = ("../../x", "/etc/passwd", "a\0b", "C:\\x\\..\\y", "..", "", "x" * 5000, "\u202egpj.exe", "a\r\nSet-Cookie: b")


async def test_hostile_file_names_are_only_names(hub: HubProcess) -> None:
    def everything() -> set[Path]:
        return {path for path in hub.home.rglob("*") if hub.data / "files" not in path.parents}

    before = everything()
    async with agent_of(hub, "names") as agent:
        files = [{"file": {"filename": name, "mime_type": "a/b\r\nx: y", "data": b"1234"}} for name in NAMES]
        done = await done_by(hub, agent, "names", *files)
        attached = tuple(FileData(name, "text/html", b"1234") for name in NAMES)
        message = SendMessage(request_id="names", content="hi", attachments=attached, to_agent="names")
        async with outside.channel(hub.ready["grpc"]) as channel:
            call = channel.unary_stream(SEND)(codec.encode_send(message))
            work = await agent.work()
            await agent.respond(work.request_id, done={})
            assert await outcome(call) is Code.OK
    shown = hub.admin.get(f"/api/v1/tasks/{done['id']}/files").json["files"]
    assert len(shown) == len(NAMES)
    for name in [*(file["name"] for file in shown), *(file.filename for file in work.attachments)]:
        assert name.isprintable()
        assert not set(name) & set("/\\\0\r\n")
        assert name not in ("", ".", "..")
        assert len(name) <= 255
    for file in shown:
        answer = hub.admin.get(f"/api/v1/tasks/{done['id']}/files/{file['id']}")
        assert (answer.body, answer.headers["x-content-type-options"]) == (b"1234", "nosniff")
        assert answer.headers["content-disposition"].startswith("attachment")
        assert "set-cookie" not in answer.headers
        assert "x" not in answer.headers
    keys = hub.data / "keys"  # what shuts the first file makes the key for it, and notes that it did
    made = {keys, keys / "master.json", hub.data / "master.made"}
    assert everything() | made == before | made  # and nothing else
    for path in (hub.data / "files").iterdir():
        assert set(path.name) <= set("0123456789abcdef-"), path


def bytes_kept(hub: HubProcess) -> int:
    """Bytes on the disk, whatever the hub believes."""
    total = 0
    for path in (hub.data / "files").iterdir():
        with contextlib.suppress(FileNotFoundError):  # dropped this moment
            total += path.stat().st_size
    return total


def refused_for_room(hub: HubProcess, task: str) -> bool:
    """Whether an attempt failed for want of room; that may pass, so it is tried again."""
    history = hub.admin.get(f"/api/v1/tasks/{task}?history=1").json["history"]
    return any("quota_bytes" in json.dumps(event) for event in history)


async def test_quotas_hold_and_what_was_refused_takes_no_room(hub: HubProcess) -> None:
    large = {"file": {"filename": "large", "mime_type": "a/b", "data": bytes(4 * MIB + 1)}}
    async with agent_of(hub, "greedy") as agent:
        task = submit(hub, "greedy")
        await agent.respond((await agent.work()).request_id, **large)
        until(lambda: hub.status(task) == "failed", "too large")
        assert "4194304" in json.dumps(hub.task(task)["error"])
    async with agent_of(hub, "greedier") as agent:  # the first stream's request was given up, not ended
        task = submit(hub, "greedier")
        request = (await agent.work()).request_id
        for _ in range(5):
            await agent.respond(request, file={"filename": "f", "mime_type": "a/b", "data": bytes(2 * MIB)})
        until(lambda: refused_for_room(hub, task), "the hub is full")
        assert hub.admin.post(f"/api/v1/tasks/{task}/cancel").status == 200
    assert bytes_kept(hub) <= QUOTA + 1000
    # A caller's attachments are dropped again when its request is refused, as often as it likes.
    full = bytes_kept(hub)
    message = SendMessage(
        request_id="", content="x", attachments=(FileData("a", "b/c", bytes(1000)),) * 60, to_agent="nobody-at-all"
    )
    async with outside.channel(hub.ready["grpc"]) as channel:
        for _ in range(20):
            call = channel.unary_stream(SEND)(codec.encode_send(message))
            assert await outcome(call) is not Code.OK
        until(lambda: bytes_kept(hub) == full, "what was refused is dropped again")
        many = SendMessage(
            request_id="many", content="x", attachments=(FileData("a", "b/c", b""),) * 65, to_agent="honest"
        )
        call = channel.unary_stream(SEND)(codec.encode_send(many))
        assert await outcome(call) in (Code.INVALID_ARGUMENT, Code.RESOURCE_EXHAUSTED)
    async with agent_of(hub, "greediest") as agent:  # twelve hundred dropped files made no room for more
        task = submit(hub, "greediest")
        request = (await agent.work()).request_id
        room = QUOTA - full
        await agent.respond(request, file={"filename": "f", "mime_type": "a/b", "data": bytes(room + 1)})
        until(lambda: refused_for_room(hub, task), "the hub is still full")
        assert hub.admin.post(f"/api/v1/tasks/{task}/cancel").status == 200
    assert bytes_kept(hub) <= QUOTA + 1000


# -- false names


async def test_nobody_takes_a_connected_agents_id(hub: HubProcess) -> None:
    token, other = token_of(hub, "owner"), token_of(hub, "thief")
    async with agent_of(hub, "owner", token) as owner, outside.channel(hub.ready["grpc"]) as channel:
        tries = {
            "no token": (None, Code.UNAUTHENTICATED),
            "a wrong token": ("0" * 32, Code.UNAUTHENTICATED),
            "half a token": (token[:16], Code.UNAUTHENTICATED),
            "another's token": (other, Code.PERMISSION_DENIED),
            "its own, a second time": (token, Code.ALREADY_EXISTS),
            "the admin's": (hub.ready["admin_token"], Code.UNAUTHENTICATED),
        }
        for name, (given, code) in tries.items():
            stream = outside.stream(channel, token=given)
            with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                await stream.say(register={"agent_id": "owner"})
            assert await stream.code() is code, name
            assert token not in await stream.details()
        assert (await done_by(hub, owner, "owner", text="still I"))["output"] == "still I"
        for reserved in ("admin", "hub", "*"):
            stream = outside.stream(channel)
            await stream.say(register={"agent_id": reserved})
            assert await stream.code() in (Code.PERMISSION_DENIED, Code.INVALID_ARGUMENT), reserved


async def test_an_agent_speaks_only_of_its_own_requests(hub: HubProcess) -> None:
    async with agent_of(hub, "victim") as victim, agent_of(hub, "meddler") as meddler:
        task = submit(hub, "victim")
        request = (await victim.work()).request_id
        await meddler.respond(request, text="forged")
        await meddler.respond(request, done={"full_response": "forged"})
        assert (await done_by(hub, meddler, "meddler", text="own"))["output"] == "own"
        assert hub.status(task) != "completed"
        await victim.respond(request, text="true")
        await victim.respond(request, done={})
        until(lambda: hub.status(task) == "completed", "the victim's answer")
        assert hub.task(task)["output"] == "true"


@pytest.mark.parametrize(
    ("given", "sender", "code"),
    [
        ("own", "somebody-else", Code.PERMISSION_DENIED),
        ("own", "admin", Code.PERMISSION_DENIED),
        (None, "named", Code.UNAUTHENTICATED),
        (None, "admin", Code.PERMISSION_DENIED),
        ("0" * 32, "named", Code.UNAUTHENTICATED),
        ("0" * 32, "", Code.UNAUTHENTICATED),
    ],
)
async def test_a_callers_sender_must_be_who_it_is(hub: HubProcess, given: str, sender: str, code: Any) -> None:
    id = "named" if sender == "named" else "caller"
    if hub.admin.get(f"/api/v1/agents/{id}").status == 404:
        hub._tokens[id] = token_of(hub, id)
    token = hub._tokens[id] if given == "own" else given
    before = len(hub.tasks())
    message = SendMessage(request_id="forged", sender=sender, content="x", to_agent="honest")
    async with outside.channel(hub.ready["grpc"]) as channel:
        call = channel.unary_stream(SEND)(codec.encode_send(message), metadata=credential(token))
        assert await outcome(call) is code
    assert len(hub.tasks()) == before


async def test_anothers_task_is_not_there(hub: HubProcess) -> None:
    mine, theirs = token_of(hub, "asks-one"), token_of(hub, "asks-two")
    async with agent_of(hub, "serves") as agent, outside.channel(hub.ready["grpc"]) as channel:
        message = SendMessage(request_id="r", content="secret", to_agent="serves")
        call = channel.unary_stream(SEND)(codec.encode_send(message), metadata=credential(mine))
        task = dict(await outside.soon(call.initial_metadata()))["dragoman-task-id"]
        request = (await agent.work()).request_id
        answers = set()
        for id in (task, "01900000-0000-7000-8000-000000000000", "nothing"):
            for token in (theirs, None):
                follow = channel.unary_stream(FOLLOW)(
                    codec.encode_follow(FollowRequest(task_id=id)), metadata=credential(token)
                )
                answers.add((await outcome(follow), await outside.soon(follow.details())))
                cancel = channel.unary_unary(CANCEL)(
                    codec.encode_cancel(CancelRequest(task_id=id)), metadata=credential(token)
                )
                answers.add((await outside.soon(cancel.code()), await outside.soon(cancel.details())))
        assert len(answers) == 1, answers  # one answer for what is not theirs and for what does not exist
        assert next(iter(answers))[0] is Code.NOT_FOUND
        # The same request id of another caller is another request.
        other = channel.unary_stream(SEND)(codec.encode_send(message), metadata=credential(theirs))
        assert dict(await outside.soon(other.initial_metadata()))["dragoman-task-id"] != task
        await agent.respond(request, done={})
        assert await outcome(call) is Code.OK
        await agent.respond((await agent.work()).request_id, done={})
        assert await outcome(other) is Code.OK


# -- secrets


@pytest.mark.requirement("all-D4")
async def test_no_token_is_found_in_anything_the_hub_wrote_or_sent(hub: HubProcess) -> None:
    agents, callers, wrong = token_of(hub, "canary"), token_of(hub, "canary-caller"), "feedfacefeedfacefeedfacefeedface"
    seen: list[str] = []
    async with outside.channel(hub.ready["grpc"]) as channel:
        for token in (wrong, callers):  # neither may be the canary
            stream = outside.stream(channel, token=token)
            with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                await stream.say(register={"agent_id": "canary"})
            await stream.code()
            seen.append(str(await stream.details()) + str(await outside.soon(stream.call.trailing_metadata())))
        async with agent_of(hub, "canary", agents) as agent:
            message = SendMessage(request_id="canary", content="hi", to_agent="canary")
            extra = (("x-api-key", wrong), ("cookie", f"token={wrong}"))
            call = channel.unary_stream(SEND)(codec.encode_send(message), metadata=(*credential(callers), *extra))
            work = await agent.work()
            seen += [str(work), str(await outside.soon(agent.call.initial_metadata()))]
            await agent.respond(work.request_id, text="an answer")
            await agent.respond(work.request_id, done={})
            assert await outcome(call) is Code.OK
            seen.append(str(await outside.soon(call.initial_metadata())))
            task = dict(await outside.soon(call.initial_metadata()))["dragoman-task-id"]
    for path in (f"/api/v1/tasks/{task}?history=1&raw=1", "/api/v1/audit?limit=500", "/api/v1/agents", "/metrics"):
        seen.append(hub.admin.get(path).body.decode())
    for command in (("agent", "ls", "-o", "json"), ("audit", "query", "-o", "json"), ("task", "show", task)):
        said = dragoman(*command, hub=hub)
        seen += [said.out, said.err]
    files = [path for path in hub.data.rglob("*") if path.is_file() and path.name not in ("hub.json", "admin.token")]
    kept = {"seen": "".join(seen).encode()} | {str(path): path.read_bytes() for path in [*files, hub.log]}
    for place, data in kept.items():
        for secret in (agents, callers, wrong, hub.ready["admin_token"]):
            assert secret.encode() not in data, place


async def test_other_protocols_tokens_open_no_stream(hub: HubProcess) -> None:
    """A chiffon agent's token says who it is, and that is not somebody who speaks coven."""
    boss = hub.orchestrator("chiffon-only")
    async with outside.channel(hub.ready["grpc"]) as channel:
        stream = outside.stream(channel, token=boss.token)
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            await stream.say(register={"agent_id": "chiffon-only"})
        assert await stream.code() is Code.PERMISSION_DENIED
    # And the other way round.
    coven = token_of(hub, "coven-only")
    answer = Door(hub.url, coven).post("/api/agent/message", work_request())
    assert answer.status in (401, 403), answer
    assert not [task for task in hub.tasks() if task["requested_by"] == "coven-only"]
    assert task_of(work_request())

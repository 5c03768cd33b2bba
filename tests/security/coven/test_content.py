"""Hostile JSON, hostile file names, and more files than there is room for."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import grpc
import pytest

from dragoman.protocols.coven import codec
from dragoman.protocols.coven.types import SEND, FileData, SendMessage
from tests.security.coven.attackers import QUOTA, agent_of, done_by, outcome, submit
from tests.support import coven as outside
from tests.support.hubproc import HubProcess, until

Code = grpc.StatusCode
MIB = 1024 * 1024
DEEP = "[" * 500_000 + "]" * 500_000


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
            request_id="many", content="x", attachments=(FileData("a", "b/c", b""),) * 101, to_agent="honest"
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

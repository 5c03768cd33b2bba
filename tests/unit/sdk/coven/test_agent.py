"""An agent that speaks coven, against a gateway of the tests' own."""

from __future__ import annotations

import asyncio
import json
import subprocess
from pathlib import Path
from typing import Any

import grpc
import pytest
from tests.unit.sdk.coven.gateway import Gateway, Hasty, Serving
from tests.unit.sdk.coven.workers import Steps, work, worker
from tests.unit.sdk.harness import PATIENCE

from dragoman import Misconfigured, Task
from dragoman.protocols.coven.connection import Ignored
from dragoman.protocols.coven.errors import Oddity
from dragoman.protocols.coven.types import (
    Done,
    Error,
    FileData,
    Progress,
    Question,
    RegisterAgent,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
)
from dragoman.sdk.address import resolve_agent
from dragoman.sdk.coven.io import CovenLink
from dragoman.sdk.coven.responses import LONGEST_END, PIECE
from dragoman.sdk.coven.transcripts import Transcripts
from dragoman.sdk.links import Introduction, LinkDown

TRACE = "0af7651916cd43dd8448eb211c80319c"


async def test_an_agent_says_who_it_is_what_it_does_and_brings_its_token(gateway: Gateway) -> None:
    agent = worker(version="1.2", kind="helper", token="s3cret")
    Steps(agent)
    async with Serving(agent, gateway):
        stream = await gateway.stream()
    assert stream.metadata["authorization"] == "Bearer s3cret"
    assert stream.who == RegisterAgent(
        agent_id="worker",
        name="helper",
        capabilities=("steps",),
        work_types=("steps",),
        version="1.2",
        extensions=("cancel", "input"),
    )


def test_on_loopback_coven_needs_no_token_and_elsewhere_it_does() -> None:
    assert resolve_agent("a", "coven://127.0.0.1", None, {}).token is None
    assert resolve_agent("a", "coven://localhost:1", None, {"DRAGOMAN_TOKEN": "t"}).token == "t"
    for url in ("coven://hub.lan:50051", "covens://hub.lan", "chiffon+ws://127.0.0.1:1"):
        with pytest.raises(Misconfigured, match="agent add a --protocol"):
            resolve_agent("a", url, None, {})


async def test_everything_a_handler_says_has_its_event(gateway: Gateway) -> None:
    agent = worker()

    @agent.on("everything")
    async def everything(task: Task, a: int) -> dict[str, int]:
        await task.think("hm")
        await task.tool_use("df", {"p": "/"}, id="t")
        await task.tool_result("t", {"free": 1}, is_error=True)
        await task.progress(40, "middle", output="forty")
        await task.text("x")
        await task.progress(60)
        await task.send_file("a.bin", b"\x00", "application/x-a")
        return {"a": a}

    async with Serving(agent, gateway):
        stream = await gateway.stream()
        await work(stream, "r", "everything", {"a": 1})
        said, end = await stream.said()
    figures = Progress(percent=40, step="middle", number=1)
    assert [(one.event, one.progress) for one in said] == [
        (Thinking("hm"), None),
        (ToolUse("t", "df", '{"p":"/"}'), None),
        (ToolResult("t", '{"free":1}', True), None),
        (Text("forty"), figures),
        (Text("x"), None),
        (Thinking("middle"), Progress(percent=60, step="middle", number=1)),
        (FileData("a.bin", "application/x-a", b"\x00"), None),
    ]
    assert end.message.event == Done(full_response="x", result_json='{"a":1}')


async def test_files_trace_attempt_and_sender_arrive_with_the_work(gateway: Gateway) -> None:
    agent = worker()

    @agent.on("look")
    async def look(task: Task) -> list[Any]:
        return [task.trace_id, task.attempt, [(file.name, file.mime_type, len(file.data)) for file in task.files]]

    async with Serving(agent, gateway):
        stream = await gateway.stream()
        files = (FileData("a", "text/plain", b"abc"),)
        await work(stream, "r", "look", traceparent=f"00-{TRACE}-b7ad6b7169203331-01", attempt=3, attachments=files)
        end = await stream.end()
    assert end == Done(full_response=end.full_response, result_json=f'["{TRACE}",3,[["a","text/plain",3]]]')  # type: ignore[union-attr]


async def test_a_gateway_of_other_make_needs_only_content(gateway: Gateway) -> None:
    """No work type, no input, no task id: the one thing the agent does, with the text it was sent."""
    agent = worker()

    @agent.on("reply")
    async def reply(task: Task, content: str) -> str:
        answer = await task.ask(f"really {content}?")
        return f"{task.id}: {answer}"

    async with Serving(agent, gateway):
        stream = await gateway.stream()
        await stream.give("r1", "this", thread_id="t")
        assert await stream.end() == Done(question=Question(question="really this?"))
        await stream.give("r2", "yes, really", thread_id="t")
        assert await stream.end() == Done(full_response="r1: yes, really")
        await stream.give("r3", "that", thread_id="t")
        assert await stream.end() == Done(question=Question(question="really that?"))


async def test_a_failure_is_reported_in_a_sentence_and_for_programs(gateway: Gateway) -> None:
    agent = worker()

    @agent.on("fail")
    async def fail(n: int = 0) -> None:
        raise ValueError("no such disk")

    @agent.on("other")
    async def other() -> None: ...

    async with Serving(agent, gateway):
        stream = await gateway.stream()
        ends = []
        for request_id, type, given in (("r1", "fail", {}), ("r2", "fail", {"n": "x"}), ("r3", "chat", {})):
            await work(stream, request_id, type, given)
            ends.append((await stream.said())[1].message)
    assert [end.event for end in ends] == [
        Error("ValueError: no such disk"),
        Error("n: expected `int`, got `str`"),
        Error("worker does not do chat"),
    ]
    assert [end.fault.kind for end in ends if end.fault] == ["work_failed", "invalid", "unsupported_work"]
    assert json.loads(ends[0].fault.facts_json) == {"exit_code": 1, "type": "ValueError"}  # type: ignore[union-attr]
    assert json.loads(ends[2].fault.facts_json) == {"supported_types": ["fail", "other"]}  # type: ignore[union-attr]


async def test_a_cancel_stops_the_handler_ends_the_request_and_frees_the_stream(gateway: Gateway) -> None:
    agent = worker()
    steps = Steps(agent)
    stopped = asyncio.Event()

    @agent.on("forever")
    async def forever(task: Task) -> None:
        await task.text("begun")
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    async with Serving(agent, gateway):
        stream = await gateway.stream()
        await work(stream, "r1", "forever")
        await stream.text("begun")
        await stream.write(stream.connection.send_cancel("enough"))
        await asyncio.wait_for(stopped.wait(), PATIENCE)
        steps.go.put_nowait(None)
        assert await stream.hear() == Ignored(Oddity.ABANDONED_REQUEST, "r1")
        assert stream.connection.request is None
        await work(stream, "r2", "steps")
        assert await stream.end() == Done()


async def test_asked_to_leave_an_agent_finishes_leaves_and_comes_back(gateway: Gateway) -> None:
    agent = worker()
    steps = Steps(agent)
    async with Serving(agent, gateway):
        first = await gateway.stream()
        await work(first, "r", "steps")
        steps.go.put_nowait("still ")
        await first.text("still ")
        await first.write(first.connection.send_shutdown("maintenance"))
        steps.go.put_nowait("here")
        steps.go.put_nowait(None)
        assert await first.end() == Done(full_response="still here")
        await first.left()
        second = await gateway.stream()
        await work(second, "r2", "steps")
        steps.go.put_nowait(None)
        assert await second.end() == Done()


async def test_a_stopped_agent_ends_its_work_and_closes_its_half(gateway: Gateway) -> None:
    agent = worker()
    steps = Steps(agent)
    async with Serving(agent, gateway) as serving:
        stream = await gateway.stream()
        await work(stream, "r", "steps")
        steps.go.put_nowait("last ")
        await stream.text("last ")
        agent.stop()
        steps.go.put_nowait("words")
        steps.go.put_nowait(None)
        assert await stream.end() == Done(full_response="last words")
        await stream.left()
        await serving.ended()


async def test_a_long_answer_comes_in_pieces_and_half_characters_are_no_obstacle(gateway: Gateway) -> None:
    agent = worker()
    whole = "ä" * (LONGEST_END + 1)

    @agent.on("long")
    async def long() -> str:
        return whole

    @agent.on("odd")
    async def odd(task: Task) -> None:
        await task.text("a\ud800b")

    async with Serving(agent, gateway):
        stream = await gateway.stream()
        await work(stream, "r1", "long")
        said, end = await stream.said()
        assert [len(one.event.text) for one in said if isinstance(one.event, Text)] == [PIECE, PIECE, 1]
        assert (end.message.event, end.text) == (Done(), whole)
        await work(stream, "r2", "odd")
        said, end = await stream.said()
        assert [one.event for one in said] == [Text("a?b")]


async def test_a_file_too_large_for_one_message_is_refused_in_the_handler(gateway: Gateway) -> None:
    agent = worker()

    @agent.on("draw")
    async def draw(task: Task) -> None:
        await task.send_file("big.png", bytes(16 * 1024 * 1024))

    async with Serving(agent, gateway):
        stream = await gateway.stream()
        await work(stream, "r", "draw")
        end = await stream.end()
    assert isinstance(end, Error)
    assert "'big.png' has 16777216 bytes; coven carries" in end.message


async def test_over_tls_only_a_hub_that_is_trusted_is_spoken_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost"]
    try:
        subprocess.run(
            [*command, "-addext", "subjectAltName=DNS:localhost", "-keyout", key, "-out", certificate],
            capture_output=True,
            timeout=60,
            check=True,
        )
    except FileNotFoundError:
        pytest.skip("no openssl here to make a certificate")
    who = Introduction(agent_id="worker", work_types=("steps",))
    async with Gateway(grpc.ssl_server_credentials([(key.read_bytes(), certificate.read_bytes())])) as gateway:
        stranger = CovenLink(gateway.address(), Hasty(), Transcripts())
        with pytest.raises(LinkDown):
            await stranger.open(who)
        await stranger.close()
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        agent = worker()
        steps = Steps(agent)
        async with Serving(agent, gateway):
            stream = await gateway.stream()
            await work(stream, "r", "steps")
            steps.go.put_nowait(None)
            assert await stream.end() == Done()
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "none"))
    with pytest.raises(Misconfigured, match="cannot be read"):
        await CovenLink(gateway.address(), Hasty(), Transcripts()).open(who)

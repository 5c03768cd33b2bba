"""Agentmsg's bytes over HTTP, against scripted answers: receipts, answers in receipts, refusals, tokens."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx2
import pytest
from tests.conformance.agentmsg.samples import decode
from tests.unit.sdk.harness import PATIENCE

from dragoman import NotAllowed
from dragoman.sdk.address import parse
from dragoman.sdk.agentmsg.session import HttpMessages, refusal
from dragoman.sdk.links import Frame, LinkDown
from dragoman.sdk.messages import Accepted
from dragoman.sdk.runtime import SystemRuntime

ADDRESS = parse("agentmsg+http://127.0.0.1:1", "secret")
REPORT = {
    "error_id": "e1",
    "agent_id": "hub",
    "error_type": "VALIDATION_ERROR",
    "severity": "medium",
    "message": "no such task",
    "context": {},
    "recovery_attempts": [],
    "suggested_actions": [],
}


def pipe(answer: httpx2.Response) -> HttpMessages:
    async def serve(request: httpx2.Request) -> httpx2.Response:
        if request.url.path == "/livez":
            return httpx2.Response(200)
        assert request.url.path == "/agentmsg/messages"
        if request.method == "GET":
            await asyncio.Event().wait()
        return answer

    return HttpMessages(ADDRESS, SystemRuntime(), transport=httpx2.MockTransport(serve))


async def said(answer: httpx2.Response) -> Any:
    talking = pipe(answer)
    try:
        async with asyncio.timeout(PATIENCE):
            await talking.open(None)
            talking.send(b"{}", "m1", "")
            return await talking.receive()
    finally:
        await talking.close()


async def test_a_receipt_may_hold_the_hubs_own_answer() -> None:
    assert await said(httpx2.Response(202, json={"status": "accepted", "message_id": "m1"})) == (Accepted(("m1",)),)
    answered = await said(httpx2.Response(202, json={"status": "accepted", "answer": {"type": "WELCOME"}}))
    assert answered == (Accepted(("m1",)), Frame(b'{"type":"WELCOME"}'))


@pytest.mark.parametrize("status", [400, 403, 404, 409, 413, 422, 429])
async def test_a_refusal_arrives_as_a_report_about_the_message(status: int) -> None:
    (frame,) = await said(httpx2.Response(status, json=REPORT))
    message = decode(frame.data)
    assert (message.sender, message.to, message.answers) == ("hub", "*", "m1")
    assert message.payload.message == "no such task"


async def test_what_is_no_report_takes_the_connection_down() -> None:
    with pytest.raises(LinkDown, match="502"):
        await said(httpx2.Response(502, text="<html>"))
    with pytest.raises(LinkDown, match="404"):
        await said(httpx2.Response(404, text="<html>"))
    with pytest.raises(NotAllowed, match="no such task"):
        await said(httpx2.Response(401, json=REPORT))


def test_the_sentence_of_a_refusal() -> None:
    assert refusal(b"<html>") is None

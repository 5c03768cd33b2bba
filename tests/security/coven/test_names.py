"""False names, other people's tasks, and where tokens could be found."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import grpc
import pytest

from dragoman.protocols.coven import codec
from dragoman.protocols.coven.types import CANCEL, FOLLOW, SEND, CancelRequest, FollowRequest, SendMessage
from tests.security.coven.attackers import agent_of, done_by, outcome, submit
from tests.support import coven as outside
from tests.support.chiffon import HttpClient, task_of, work_request
from tests.support.cli import dragoman
from tests.support.hubproc import HubProcess, until

Code = grpc.StatusCode


def credential(token: str | None) -> Any:
    return None if token is None else (("authorization", f"Bearer {token}"),)


def token_of(hub: HubProcess, id: str, **more: Any) -> str:
    made = hub.admin.post("/api/v1/agents", {"agent_id": id, "protocol": "coven", **more})
    assert made.status == 201, made
    return str(made.json["token"])


# -- false names


async def test_no_stranger_takes_a_connected_agents_id(hub: HubProcess) -> None:
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
async def test_a_callers_sender_must_be_the_caller_itself(hub: HubProcess, given: str, sender: str, code: Any) -> None:
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
    """A chiffon agent's token proves who it is, and that agent does not speak coven."""
    boss = hub.orchestrator("chiffon-only")
    async with outside.channel(hub.ready["grpc"]) as channel:
        stream = outside.stream(channel, token=boss.token)
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            await stream.say(register={"agent_id": "chiffon-only"})
        assert await stream.code() is Code.PERMISSION_DENIED
    # And the other way round.
    coven = token_of(hub, "coven-only")
    answer = HttpClient(hub.url, coven).post("/api/agent/message", work_request())
    assert answer.status in (401, 403), answer
    assert not [task for task in hub.tasks() if task["requested_by"] == "coven-only"]
    assert task_of(work_request())

"""The shared state over scripted HTTP answers: reading, changing, conflicts, and watches that break."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import Any

import httpx2
import pytest
from tests.unit.sdk.harness import PATIENCE, FakeRuntime

from dragoman import (
    Client,
    HubUnreachable,
    NotAllowed,
    NotFound,
    NotSupported,
    SharedState,
    StateConflict,
)
from dragoman.sdk.address import parse
from dragoman.sdk.shared_state import Change, Entity

ADDRESS = parse("agentmsg+ws://127.0.0.1:1", "secret")


def state(runtime: FakeRuntime, answer: Callable[[httpx2.Request], Any]) -> SharedState:
    return SharedState(ADDRESS, runtime, transport=httpx2.MockTransport(answer))


def refusal(status: int, message: str, **details: Any) -> httpx2.Response:
    report = {
        "error_id": "e",
        "agent_id": "hub",
        "error_type": "VALIDATION_ERROR",
        "severity": "medium",
        "message": message,
        "context": {"details": details},
        "recovery_attempts": [],
        "suggested_actions": [],
    }
    return httpx2.Response(status, json=report)


async def test_everything_and_one_thing_are_read(runtime: FakeRuntime) -> None:
    def answer(request: httpx2.Request) -> httpx2.Response:
        assert request.headers["authorization"] == "Bearer secret"
        if request.url.path == "/agentmsg/state":
            return httpx2.Response(200, json={"agent_registry": {"a": {"state": "IDLE"}}, "cursor": 7, "new": 1})
        if request.url.raw_path == b"/agentmsg/state/RESOURCE/a%2Fb%3Atokens":
            found = {"entity_type": "RESOURCE", "entity_id": "a/b:tokens", "version": 3, "value": {"limit": 5}}
            return httpx2.Response(200, json=found)
        return refusal(404, "there is none")

    shared = state(runtime, answer)
    everything = await shared.read()
    one = await shared.get("RESOURCE", "a/b:tokens")
    assert (everything.cursor, everything.agent_registry) == (7, {"a": {"state": "IDLE"}})
    assert one == Entity(entity_type="RESOURCE", entity_id="a/b:tokens", version=3, value={"limit": 5})
    assert one.id == "a/b:tokens"
    with pytest.raises(NotFound, match="there is none"):
        await shared.get("TASK", "x")


async def test_a_change_names_what_its_writer_read(runtime: FakeRuntime) -> None:
    wishes: list[dict[str, Any]] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        wish = json.loads(request.content)
        assert wish.pop("timestamp")
        wishes.append(wish)
        made = {name: wish[name] for name in ("entity_type", "entity_id")}
        return httpx2.Response(200, json={**made, "version": wish["version"] + 1, "value": wish["changes"] or None})

    shared = state(runtime, answer)
    made = await shared.create("POLICY", "p", {"a": 1})
    changed = await shared.update("POLICY", "p", {"a": 2}, version=made.version)
    await shared.delete("POLICY", "p", version=changed.version)
    assert changed == Entity(entity_type="POLICY", entity_id="p", version=2, value={"a": 2})
    assert [(wish["operation"], wish["version"], wish["changes"]) for wish in wishes] == [
        ("CREATE", 0, {"a": 1}),
        ("UPDATE", 1, {"a": 2}),
        ("DELETE", 2, {}),
    ]


async def test_the_slower_writer_gets_the_current_version(runtime: FakeRuntime) -> None:
    shared = state(runtime, lambda request: refusal(409, "somebody was faster", version=9))
    with pytest.raises(StateConflict, match="faster") as conflict:
        await shared.update("TASK", "t", {}, version=8)
    assert conflict.value.current_version == 9
    with pytest.raises(NotAllowed):
        await state(runtime, lambda request: refusal(403, "not yours")).delete("TASK", "t", version=1)


async def test_a_change_whose_answer_is_lost_is_not_retried(runtime: FakeRuntime) -> None:
    tries: list[int] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        tries.append(1)
        raise httpx2.ReadError("cut")

    with pytest.raises(HubUnreachable, match="may have happened"):
        await state(runtime, answer).update("TASK", "t", {}, version=8)
    assert tries == [1]


LOG = ((5, "a"), (5, "b"), (6, "a"), (7, "a"), (7, "b"))
"""Cursor and entity: one moment may change several."""


def event(cursor: int, entity: str) -> bytes:
    change = {
        "operation": "UPDATE",
        "entity_type": "TASK",
        "entity_id": entity,
        "changes": {"n": cursor},
        "version": cursor,
        "timestamp": "2026-01-01T00:00:00Z",
    }
    return f"id: {cursor}\nevent: state\ndata: {json.dumps(change)}\n\n".encode()


async def test_a_watch_that_breaks_goes_on_without_a_gap(runtime: FakeRuntime) -> None:
    asked: list[dict[str, str]] = []
    pieces = iter([1, 4, 2])
    """How many changes come before the connection is cut."""

    def answer(request: httpx2.Request) -> httpx2.Response:
        if request.url.path == "/agentmsg/state":
            return httpx2.Response(200, json={"cursor": 4})
        asked.append(dict(request.url.params))
        after = int(request.url.params["cursor"])
        if len(asked) == 2:
            return httpx2.Response(503)

        async def stream() -> AsyncIterator[bytes]:
            yield b": hello\n\n"
            for one in [one for one in LOG if one[0] > after][: next(pieces)]:
                yield event(*one)
            raise httpx2.ReadError("cut")

        return httpx2.Response(200, headers={"content-type": "text/event-stream"}, content=stream())

    heard: list[Change] = []

    async def watch() -> None:
        async with aclosing(state(runtime, answer).watch(entity_type="TASK")) as changes:
            async for change in changes:
                heard.append(change)
                if len(heard) == len(LOG):
                    return

    task = asyncio.ensure_future(watch())
    async with asyncio.timeout(PATIENCE):
        while not task.done():
            await runtime.advance(1)
    await task
    assert [(change.cursor, change.entity_id) for change in heard] == list(LOG)
    assert heard[0].changes == {"n": 5}
    assert asked[0] == {"entity_type": "TASK", "cursor": "4"}
    assert [one["cursor"] for one in asked] == ["4", "4", "4", "6"]


async def test_a_watch_from_too_long_ago_says_so(runtime: FakeRuntime) -> None:
    shared = state(runtime, lambda request: refusal(409, "too old"))
    with pytest.raises(StateConflict, match="too old"):
        async for _ in shared.watch(cursor=1):
            pass


async def test_the_state_is_reached_by_some_addresses_only() -> None:
    assert isinstance(Client("agentmsg+http://127.0.0.1:1", token="x", id="me").state, SharedState)
    assert isinstance(Client("http://127.0.0.1:1", token="x").state, SharedState)
    with pytest.raises(NotSupported, match="agentmsg"):
        _ = Client("chiffon+ws://127.0.0.1:1", token="x", id="me").state

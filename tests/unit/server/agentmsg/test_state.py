"""The shared state over HTTP: read, written by version, watched from a cursor."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from dragoman.core.commands import ChangeState
from dragoman.core.ids import ADMIN
from dragoman.core.model.state import Operation, Registry
from dragoman.messages.faults import Fault, Kind
from dragoman.server.agentmsg import state as watching


@pytest.mark.parametrize("token", ["ada", "admin"])
async def test_agents_and_the_admin_read_it(token: str, client: Any, state: Any, kit: Any) -> None:
    state.put(Registry.AGENT, "a/b c", state="IDLE")
    token = kit.tokens.get(token, kit.admin)
    whole = (await client("GET", "/state", token=token)).json()
    assert (whole["agent_registry"], whole["cursor"]) == ({"a/b c": {"state": "IDLE"}}, 1)
    one = await client("GET", "/state/AGENT/a%2Fb%20c", token=token)
    assert one.json() == {"entity_type": "AGENT", "entity_id": "a/b c", "version": 1, "value": {"state": "IDLE"}}
    for path in ("/state/AGENT/nobody", "/state/AGENT/", "/state/THING/x", "/state/TASK/nothing"):
        missing = await client("GET", path, token=token)
        assert (missing.status_code, missing.json()["error_type"]) == (404, "VALIDATION_ERROR"), path
    nobody = (await client("GET", "/state/RESOURCE/ada:gpu", token=token)).json()
    assert nobody["message"] == "no RESOURCE is called 'ada:gpu'; read the whole state to see which there are"
    assert (await client("DELETE", "/state", token=token)).status_code == 405


async def test_a_write_names_the_version_it_read_and_gets_the_new_one(
    client: Any, hub: Any, state: Any, kit: Any
) -> None:
    hub.script[ChangeState] = state.put(Registry.RESOURCE, "ada:tokens", limit=5)
    update = kit.message("STATE_UPDATE")["payload"]
    written = await client("POST", "/state", json=update)
    assert (written.status_code, written.json()["version"]) == (200, 1)
    await client("POST", "/state", json=update, token=kit.admin)
    assert [(one.principal, one.operation, one.entity_id, one.version) for one in hub.asked_for(ChangeState)] == [
        ("ada", Operation.CREATE, "ada:tokens", 0),
        (ADMIN, Operation.CREATE, "ada:tokens", 0),
    ]
    hub.script[ChangeState] = Fault(kind=Kind.CONFLICT, message="somebody was faster", facts={"version": 7})
    late = await client("POST", "/state", json=update)
    assert (late.status_code, late.json()["context"]["details"]["version"]) == (409, 7)
    for change, field in (
        ({"version": -1}, "version"),
        ({"operation": "MERGE"}, "operation"),
        ({"changes": 1}, "changes"),
    ):
        wrong = await client("POST", "/state", json={**update, **change})
        assert (wrong.status_code, wrong.json()["context"]["details"]["field"]) == (400, field)


async def events(lines: AsyncIterator[str], count: int) -> list[dict[str, str]]:
    """So many events of a stream."""
    found: list[dict[str, str]] = []
    one: dict[str, str] = {}
    async for line in lines:
        if line:
            name, _, value = line.partition(": ")
            one[name] = value
        elif "data" in one:
            found.append(one)
            one = {}
            if len(found) == count:
                break
    return found


async def test_a_watch_resumes_where_it_was(client: Any, state: Any, kit: Any) -> None:
    for number in range(3):
        state.put(Registry.AGENT, "bob", number=number)
    headers = {"authorization": f"Bearer {kit.tokens['ada']}"}

    async def follow(query: str, count: int, **more: str) -> list[str]:
        async with client.http.stream("GET", f"/agentmsg/state/watch{query}", headers={**headers, **more}) as answer:
            assert answer.headers["content-type"] == "text/event-stream"
            await state.change(Registry.RESOURCE, "bob:tokens", limit=1)
            return [one["id"] for one in await events(answer.aiter_lines(), count)]

    assert await kit.soon(follow("?cursor=1", 3)) == ["2", "3", "4"]
    assert await kit.soon(follow("?cursor=1", 1, **{"last-event-id": "4"})) == ["5"]
    assert await kit.soon(follow("?cursor=0&entity_type=AGENT&entity_id=bob", 3)) == ["1", "2", "3"]
    assert await kit.soon(follow("?cursor=0&entity_type=resource", 4)) == ["4", "5", "6", "7"]


async def test_a_watch_that_cannot_be_is_refused(client: Any, state: Any) -> None:
    state.first = 5
    for query, status in (("?cursor=1", 409), ("?cursor=x", 422), ("?entity_id=a", 422), ("?entity_type=THING", 404)):
        assert (await client("GET", f"/state/watch{query}")).status_code == status
    assert state.watchers == 0


async def test_a_stop_ends_watches(client: Any, state: Any, serving: Any, kit: Any) -> None:
    headers = {"authorization": f"Bearer {kit.tokens['ada']}"}
    async with client.http.stream("GET", "/agentmsg/state/watch?cursor=0", headers=headers) as answer:
        lines = answer.aiter_lines()
        await state.change(Registry.AGENT, "bob", state="IDLE")
        await kit.soon(events(lines, 1))
        stopping = asyncio.ensure_future(serving.stop(1.0))
        assert await kit.soon(events(lines, 1)) == []
        await kit.soon(stopping)
    assert state.watchers == 0


async def opened(serving: Any, kit: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A watch whose answer has begun."""
    reader, writer = await asyncio.open_connection("127.0.0.1", serving.port)
    token = kit.tokens["ada"].encode()
    writer.write(b"GET /agentmsg/state/watch HTTP/1.1\r\nhost: x\r\nauthorization: Bearer %b\r\n\r\n" % token)
    await kit.soon(reader.readuntil(b"retry: 1000"))
    return reader, writer


async def test_a_watcher_that_closes_its_connection_frees_its_place_within_seconds(
    serving: Any, state: Any, kit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "PROBE_SECONDS", 0.05)
    _, writer = await opened(serving, kit)
    assert state.watchers == 1
    writer.close()

    async def free() -> None:
        while state.watchers:
            await asyncio.sleep(0.01)

    await kit.soon(free())


async def test_a_watcher_that_only_stops_sending_still_gets_events(
    serving: Any, state: Any, kit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "PROBE_SECONDS", 0.05)
    reader, writer = await opened(serving, kit)
    writer.write_eof()
    for _ in range(3):
        await kit.soon(reader.readuntil(b": heartbeat"))
    await state.change(Registry.AGENT, "bob", state="IDLE")
    await kit.soon(reader.readuntil(b"event: state"))
    writer.close()

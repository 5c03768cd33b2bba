"""What ends the stream between a following node and the leader, and what its end means: stops, silence, strangers."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx2
import pytest
from tests.support.nodes import BEARER, SECONDS, FollowedWorld, Gate, chiffon_at, end_of, peopled, report_on, soon

from dragoman.app.cluster.link import LinkRefused, node_link, remote_intake
from dragoman.app.cluster.link.node_link import NodeLink
from dragoman.core.commands import CloseLink
from dragoman.core.ids import ADMIN, AgentId, SessionId, TaskId
from dragoman.core.model.tasks import Status
from dragoman.core.ports import TaskFilter
from dragoman.core.rules import Rules
from dragoman.messages.faults import Fault, Kind
from dragoman.wire.closing import CloseReason

I1 = AgentId("i1")


# -- the end of a stream -----------------------------------------------------------------------------------------------


async def test_when_the_stream_ends_agents_are_closed_as_by_a_stop_and_can_come_back(world: FollowedWorld) -> None:
    agent, lost = await world.connect("i1"), world.nodes[0].lost
    task = await world.submit()
    world.port._nodes["n2"].stream.end("the test cuts it")
    assert await asyncio.wait_for(lost, SECONDS) == "the other end closed the stream"
    assert agent.hung_up is CloseReason.HUB_STOPS
    await soon(lambda: not world.leader.links)
    assert not world.leader.reachable(I1)
    world.intake = await world.follow("n2")  # type: ignore[assignment]
    back = await world.connect("i1")
    await world.progress("i1", task.id)
    await world.advance(20)
    assert (await world.finish("i1", task.id)).status is Status.COMPLETED
    assert back.hung_up is None


@pytest.mark.parametrize("cut", ["before it is sent", "before the commit", "before the outcome leaves", "by the node"])
async def test_a_command_under_way_when_the_stream_ends_is_neither_accepted_nor_refused(
    world: FollowedWorld, gate: Gate, cut: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    request, node, link = world.request(), world.nodes[0], world.port._nodes["n2"]
    known: list[Any] = []
    if cut in ("before the commit", "by the node"):
        gate.close()
    if cut == "before the outcome leaves":
        monkeypatch.setattr(NodeLink, "delivered", lambda link, touched: link.stream.end("cut"))
    waiting = node.enqueue(request)
    node.enqueue_then(world.request(), lambda outcome, refusal: known.append(outcome or refusal))
    if cut == "before it is sent":
        link.stream.end("cut")
    elif cut != "before the outcome leaves":
        await soon(lambda: gate.waiting)
        (node._stream if cut == "by the node" else link.stream).end("cut")
        await asyncio.wait_for(node.lost, SECONDS)
        gate.open.set()
    await asyncio.wait_for(node.lost, SECONDS)
    await soon(lambda: not world.leader.depth)
    await world.leader.execute(CloseLink(principal=ADMIN, session=SessionId("none")))  # behind what was under way
    stored = await world.store.task(request.task_id or TaskId(""))
    later = node.enqueue(request)
    assert (stored is None, known, waiting.done(), later.done()) == (cut == "before it is sent", [], False, False)
    assert await node.execute(CloseLink(principal=ADMIN, session=SessionId("any"))) is None
    monkeypatch.undo()
    again = await world.follow("n2")
    task = await again.execute(request)
    assert task.id == request.task_id
    assert len((await world.store.tasks(TaskFilter(), after=None, limit=10))[0]) == (1 if stored is None else 2)


async def test_a_request_over_http_that_waits_when_the_stream_ends_gets_no_answer(
    world: FollowedWorld, gate: Gate
) -> None:
    serving = chiffon_at(world)
    async with (
        serving as url,
        httpx2.AsyncClient(base_url=url, headers=BEARER, timeout=SECONDS, verify=False) as client,
    ):
        gate.close()
        body = {
            **report_on(TaskId(world.uuid()), world.uuid()),
            "type": "work_request",
            "payload": {"task_id": world.uuid(), "work_type": "x", "description": "y", "input": {}},
        }
        asking = asyncio.ensure_future(client.post("/api/agent/message", json=body))
        await soon(lambda: gate.waiting or asking.done())
        assert not asking.done()
        world.port._nodes["n2"].stream.end("cut")
        await asyncio.wait_for(world.nodes[0].lost, SECONDS)
        await serving.stop()
        with pytest.raises(httpx2.RemoteProtocolError):
            await asking


async def test_a_node_that_stops_in_order_hands_over_what_it_accepted(world: FollowedWorld, gate: Gate) -> None:
    gate.close()
    accepted = world.nodes[0].enqueue(world.request())
    stopping = asyncio.ensure_future(world.nodes[0].stop())
    await soon(lambda: gate.waiting)
    assert not stopping.done()
    gate.open.set()
    assert (await accepted).status is Status.QUEUED
    await asyncio.wait_for(stopping, SECONDS)
    await soon(lambda: not world.port.nodes)


@pytest.mark.parametrize("fault", [None, Fault(kind=Kind.UNAVAILABLE, message="its process ended", retryable=True)])
async def test_what_a_stop_of_a_node_cuts_short_costs_no_attempt(world: FollowedWorld, fault: Fault | None) -> None:
    agent = await world.connect("i1", vouches=fault is not None)
    task = await world.submit()
    await world.progress("i1", task.id)
    world.nodes[0].part()
    await agent.close(fault=fault)
    await world.advance(10)  # twice the grace time
    now = await world.task(task.id)
    known = world.leader.agent(I1)
    assert known is not None
    assert (now.status.value, now.attempt.count, known.breaker.failures, known.connected) == (
        ("running", 1, 0, False) if fault is None else ("queued", 0, 0, False)
    )


async def test_the_leader_that_stops_ends_the_streams(world: FollowedWorld) -> None:
    await world.port.stop()
    await asyncio.wait_for(world.nodes[0].lost, SECONDS)
    with pytest.raises(OSError):
        await world.follow("n2")


# -- bounds ------------------------------------------------------------------------------------------------------------


async def test_a_leader_that_is_behind_reads_no_more_and_goes_on_later(
    world: FollowedWorld, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_link, "UNDECIDED", 4)
    link = world.port._nodes["n2"]
    gate.close()
    waiting = [world.intake.enqueue(world.request()) for _ in range(10)]
    await soon(lambda: not link.stream.reading)
    gate.open.set()
    assert len({task.id for task in await asyncio.wait_for(asyncio.gather(*waiting), SECONDS)}) == 10
    assert link.stream.reading


async def test_a_node_that_does_not_read_is_cut_off_before_it_fills_the_leaders_memory() -> None:
    world = await peopled(FollowedWorld(cap=1024 * 1024))
    await world.add("eager", "infra", concurrent=100)
    await world.connect("eager", acknowledges=True)
    transport = world.nodes[0]._stream._transport
    assert transport is not None
    transport.pause_reading()
    held = 0
    for number in range(100):
        link = world.port._nodes.get("n2")
        if link is None:
            break
        await world.leader.execute(world.request(input={"n": number, "text": "x" * 500_000}))
        held = max(held, link.stream.unsent)
    assert world.port.nodes == []
    assert held < 3 * 1024 * 1024
    await soon(lambda: not world.leader.reachable(AgentId("eager")))
    transport.resume_reading()
    await world.stop()


async def test_a_node_that_falls_silent_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    world = await peopled(FollowedWorld(ttl=0.2))
    monkeypatch.setattr(world.nodes[0]._stream, "_beat", lambda: None)
    timer = world.nodes[0]._stream._timer
    assert timer is not None
    timer.cancel()
    assert await asyncio.wait_for(end_of(world, "n2"), SECONDS) == "the other end was silent for 0.2 seconds"
    await world.stop()


async def test_a_leader_that_falls_silent_is_left() -> None:
    world = FollowedWorld()
    await world.leader.start()
    await world.port.start()
    node = await world.follow("n2", ttl=0.2)
    timer = world.port._nodes["n2"].stream._timer
    assert timer is not None
    timer.cancel()
    assert await asyncio.wait_for(node.lost, SECONDS) == "the other end was silent for 0.2 seconds"
    await world.port.stop()
    await world.leader.stop()


# -- strangers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ({"realm": "other"}, "node 'n3' is of the realm 'other', this leader of 'default'"),
        ({"epoch": 4}, "node 'n3' follows epoch 4, this leader leads epoch 0"),
        ({"rules": Rules(grace=1)}, "node 'n3' has other rules"),
        ({"node": ""}, "a node has no name"),
    ],
)
async def test_a_node_that_does_not_belong_here_is_told_why(world: FollowedWorld, how: Any, why: str) -> None:
    with pytest.raises(LinkRefused, match=why):
        await world.follow(**{"node": "n3", **how})
    assert world.port.nodes == ["n2"]


async def test_a_node_of_another_version_is_told_why(world: FollowedWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_intake, "VERSION", 99)
    with pytest.raises(LinkRefused, match=r"speaks version 99 of .*, this leader version [0-9]+; upgrade the older"):
        await world.follow("n3")


async def test_a_node_whose_messages_have_other_fields_is_told_to_upgrade(
    world: FollowedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where other rules follow from other fields: what to do is to upgrade, not to compare settings."""
    monkeypatch.setattr(remote_intake, "shape", lambda: "another")
    with pytest.raises(LinkRefused, match=r"is of another version of Dragoman .* upgrade the older one"):
        await world.follow("n3", rules=Rules(grace=1))


GARBAGE: tuple[tuple[str, bytes], ...] = (
    ("a web page", b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"),
    ("no JSON", b"\x00\x00\x00\x04spam"),
    ("another object", b"\x00\x00\x00\x02{}"),
    ("a long frame", b"\x00\x10\x00\x00" + b"x" * 100),
)


@pytest.mark.parametrize(("what", "sent"), GARBAGE, ids=[what for what, _ in GARBAGE])
async def test_garbage_on_the_port_is_refused_and_harms_nobody(world: FollowedWorld, what: str, sent: bytes) -> None:
    reader, writer = await asyncio.open_connection(*world.port.address)
    writer.write(sent)
    assert await asyncio.wait_for(_until_closed(reader), SECONDS)
    writer.close()
    assert (await world.submit()).status is Status.QUEUED


async def _until_closed(reader: asyncio.StreamReader) -> bool:
    try:
        return await reader.read() is not None
    except ConnectionError:
        return True


async def test_one_that_never_shakes_hands_is_cut_off() -> None:
    world = await peopled(FollowedWorld(handshake_seconds=0.1))
    reader, writer = await asyncio.open_connection(*world.port.address)
    assert await asyncio.wait_for(_until_closed(reader), SECONDS)
    writer.close()
    assert world.port.nodes == ["n2"]
    await world.stop()


async def test_garbage_of_a_node_ends_its_stream(world: FollowedWorld) -> None:
    world.nodes[0]._stream.write(b'[["NoSuchCommand",1,null,{}]]')
    assert "a frame that nobody of this version sends" in await asyncio.wait_for(end_of(world, "n2"), SECONDS)

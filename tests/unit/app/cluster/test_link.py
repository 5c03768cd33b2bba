"""The stream between a following node and the leader: what goes over it, in which order, and what its end means."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest
import uvloop
import websockets
from tests.support.nodes import SECONDS, FollowedWorld, soon
from tests.support.scripted import elsewhere
from tests.support.world import Peer

from dragoman.app.cluster.link import LinkRefused, node_link, remote_intake
from dragoman.app.cluster.link.messages import Batch
from dragoman.app.cluster.link.mirror import Delta
from dragoman.app.cluster.link.node_link import NodeLink
from dragoman.core.commands import AddAgent, CloseLink, OpenLink, RegisterAgent, RemoveAgent
from dragoman.core.ids import ADMIN, AgentId, SessionId, TaskId
from dragoman.core.model.agents import Agent
from dragoman.core.model.tasks import Status
from dragoman.core.ports import TaskFilter
from dragoman.core.rules import Rules
from dragoman.messages.faults import Fault, Kind, Refused
from dragoman.security.tokens import token_hash
from dragoman.server.chiffon import http as chiffon
from dragoman.server.chiffon.handler import ChiffonHandler
from dragoman.server.limits import Limits
from dragoman.server.server import HttpServer
from dragoman.stores.shared import StoreUnit
from dragoman.wire.closing import CloseReason

TOKEN = "0" * 32
I1 = AgentId("i1")


@pytest.fixture
async def world() -> AsyncIterator[FollowedWorld]:
    world = await peopled(FollowedWorld())
    yield world
    await world.stop()


async def peopled(world: FollowedWorld) -> FollowedWorld:
    await world.start()
    await world.add("boss", "orchestrator")
    await world.add("i1", "infra")
    return world


def seen_by(intake: Any) -> dict[str, Any]:
    """What the API and endpoints may ask about everybody."""
    agents = {agent.id: agent for agent in intake.agents()}
    return {
        "agents": agents,
        "people": dict(intake.people),
        "tokens": {agent.id: intake.agent_of(agent.token_hash) for agent in agents.values()},
        "load": {id: intake.load_of(id) for id in agents},
        "holding": {id: intake.holding(id) for id in agents},
        "reachable": {id: intake.reachable(id) for id in agents},
        "seen_at": {id: intake.seen_at(id) for id in agents},
        "entities": {entity.id: entity for entity in intake.entities()},
        "policy": intake.policy,
        "queued": intake.queued,
        "links": intake.links,
        "audit": intake.newest_audit,
        "cursor": intake.state_cursor,
        "since": intake._serving_since,
    }


class Gate:
    """Holds commits up from `close` to `open`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self.open = asyncio.Event()
        self.waiting = 0

    def close(self) -> None:
        honest = StoreUnit.commit

        async def slow(unit: StoreUnit, changes: Any) -> None:
            self.waiting += 1
            await self.open.wait()
            await honest(unit, changes)

        self._monkeypatch.setattr(StoreUnit, "commit", slow)


@pytest.fixture
async def gate(world: FollowedWorld, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Gate]:
    gate = Gate(monkeypatch)
    yield gate
    gate.open.set()


# -- there and back ----------------------------------------------------------------------------------------------------


async def test_a_task_goes_from_one_node_through_the_leader_to_an_agent_of_the_node(world: FollowedWorld) -> None:
    agent = await world.connect("i1")
    task = await world.submit()
    assert agent.work == [task.id]
    assert world.intake.load_of(I1) == world.leader.load_of(I1) == [task.id]
    done = await world.finish("i1", task.id)
    assert (done.status, world.intake.load_of(I1)) == (Status.COMPLETED, [])


async def test_a_refusal_comes_back_with_its_fault(world: FollowedWorld) -> None:
    fault = await world.refused(world.request(kind="nobody does this"))
    with pytest.raises(Refused) as at_the_leader:
        await world.leader.execute(world.request(kind="nobody does this"))
    assert fault == at_the_leader.value.fault


async def test_a_poll_through_a_node_has_its_messages_when_it_learns_how_many(world: FollowedWorld) -> None:
    task = await world.submit()
    (outgoing,) = await world.poll("i1")
    assert outgoing.task.id == task.id
    await world.ask_ack("i1", [outgoing])
    assert await world.poll("i1") == []


async def test_a_chiffon_websocket_works_there_and_back_through_a_node(world: FollowedWorld) -> None:
    async with (
        chiffon_at(world) as url,
        websockets.connect(
            url.replace("http", "ws") + "/api/agent/ws?receipts=1", additional_headers=BEARER, proxy=None
        ) as socket,
    ):
        task = await world.submit(kind="lab")
        order = json.loads(await asyncio.wait_for(socket.recv(), SECONDS))
        assert (order["type"], order["payload"]["task_id"]) == ("work_request", task.id)
        status = report_on(task.id, order["request_id"])
        await socket.send(json.dumps(status))
        assert json.loads(await asyncio.wait_for(socket.recv(), SECONDS))["accepted"] == [status["message_id"]]
    assert (await world.task(task.id)).status is Status.RUNNING


def test_it_works_on_the_loop_that_hubs_run_on() -> None:
    async def there_and_back() -> None:
        world = await peopled(FollowedWorld())
        agent = await world.connect("i1")
        task = await world.submit(input={"text": "x" * 3_000_000})
        assert agent.work == [task.id]
        await world.stop()

    uvloop.run(asyncio.wait_for(there_and_back(), SECONDS))


async def test_a_commit_takes_effect_at_a_node_in_its_order(world: FollowedWorld) -> None:
    """The mirror, then outcomes, then deliveries, then hung up connections: all in one turn of the loop."""
    seen: list[tuple[str, list[TaskId]]] = []
    agent = await world.connect("i1")
    honest = agent.deliver
    agent.deliver = lambda messages: (seen.append(("delivery", world.intake.load_of(I1))), honest(messages))  # type: ignore[func-returns-value,method-assign]
    asyncio.get_running_loop().call_soon(lambda: seen.append(("another turn", [])))
    request = world.request()
    world.intake.enqueue_then(request, lambda outcome, refusal: seen.append(("outcome", world.intake.load_of(I1))))
    await soon(lambda: agent.inbox)
    assert request.task_id is not None
    assert seen == [("another turn", []), ("outcome", [request.task_id]), ("delivery", [request.task_id])]


async def test_a_large_commit_takes_effect_whole_though_it_comes_in_several_frames(
    world: FollowedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_link, "PART", 4000)
    frames: list[int] = []
    honest = world.nodes[0]._stream._on_frame
    monkeypatch.setattr(world.nodes[0]._stream, "_on_frame", lambda frame: (frames.append(len(frame)), honest(frame)))
    for number in range(8):
        await world.ask(world.request(input={"n": number, "text": "x" * 1000}))
    frames.clear()
    messages = await world.poll("i1")
    assert sorted(json.loads(bytes(one.event.body))["input"]["n"] for one in messages) == list(range(8))
    assert len([size for size in frames if size > 1000]) >= 3
    assert max(frames) < 8000


# -- the mirror --------------------------------------------------------------------------------------------------------


async def test_a_node_sees_what_the_leader_sees_after_everything_that_agents_do(world: FollowedWorld) -> None:
    """The sums of many deltas are the snapshot that a node gets which comes later."""
    await world.add("ada", protocol="agentmsg")
    await world.add("bob", protocol="agentmsg")
    await world.add("gone")
    gone = await world.connect("gone")
    worker, ada = await world.connect("i1", acknowledges=True), await world.connect("ada")
    tasks = [await world.submit(kind=kind) for kind in ("infra", "infra", "infra", "orchestrator")]
    await worker.ack(*worker.take())
    await world.progress("i1", tasks[0].id)
    await world.finish("i1", tasks[0].id)
    await world.fault("i1", tasks[1].id, Kind.TIMEOUT)
    await world.ask(world.tell("ada", "bob"))
    parked = await world.park("bob")
    await world.ask(RemoveAgent(principal=ADMIN, agent=AgentId("gone")))
    await soon(lambda: gone.hung_up)
    await ada.close()
    await world.advance(3)
    here = seen_by(world.intake)
    assert here == seen_by(world.leader)
    later = await world.follow("n3")
    assert seen_by(later) == here
    await parked.close(lost=False)
    await world.settle()
    assert seen_by(world.intake) == seen_by(world.leader)


async def test_while_no_node_follows_the_leader_tells_nobody(world: FollowedWorld) -> None:
    assert world.leader._listener is world.port
    await world.nodes[0].stop()
    await soon(lambda: not world.port.nodes)
    assert world.leader._listener is None
    await world.leader.execute(world.request())
    again = await world.follow("n2")
    assert world.leader._listener is world.port
    assert seen_by(again) == seen_by(world.leader)


async def test_a_watch_at_a_node_wakes_when_the_leader_commits(world: FollowedWorld) -> None:
    task = await world.submit()
    async with world.intake.watch(task.id) as watch, world.intake.watch_state() as state:
        assert await watch.changed(SECONDS)  # the first one says that the watch began
        world.leader.enqueue(world.tell("boss", "i1"))  # about another thing
        await world.leader.execute(CloseLink(principal=ADMIN, session=SessionId("none")))
        changing = asyncio.ensure_future(watch.changed(SECONDS))
        await world.connect("i1")
        assert await changing
        assert (await world.task(task.id)).status is Status.ASSIGNED
        assert await state.changed(SECONDS)
    await world.settle()
    (link,) = world.port._nodes.values()
    assert link.watched == set()


async def test_a_contract_that_changed_is_read_again(world: FollowedWorld) -> None:
    world.intake._contracts["c1"] = "as it was"  # type: ignore[assignment]
    (link,) = world.port._nodes.values()
    link._send(Batch(deltas=[Delta(contracts=["c1"])]))
    await soon(lambda: "c1" not in world.intake._contracts)
    assert await world.intake.contract("c1") is None


# -- several nodes -----------------------------------------------------------------------------------------------------


async def connect_at(world: FollowedWorld, node: Any, id: str) -> Peer:
    peer = Peer(world, AgentId(id), SessionId(world.mint()))
    node.attach(peer.session, peer)
    await node.execute(OpenLink(principal=peer.agent, session=peer.session, ordered=True))
    return peer


async def test_an_agent_that_connects_at_another_node_leaves_the_first(world: FollowedWorld) -> None:
    first = await world.connect("i1")
    third = await world.follow("n3")
    second = await connect_at(world, third, "i1")
    await soon(lambda: first.hung_up)
    assert first.hung_up is CloseReason.NEWER_CONNECTION
    task = await world.submit()
    await soon(lambda: second.work)
    assert (first.work, second.work) == ([], [task.id])
    at_leader = await connect_at(world, world.leader, "i1")
    await soon(lambda: second.hung_up)
    assert (second.hung_up, at_leader.hung_up) == (CloseReason.NEWER_CONNECTION, None)


async def test_a_node_cannot_take_a_session_that_another_one_holds(world: FollowedWorld) -> None:
    peer = await world.connect("i1")
    third = await world.follow("n3")
    third.attach(peer.session, peer)
    assert "holds a session" in await asyncio.wait_for(_end_of(world, "n3"), SECONDS)
    await asyncio.wait_for(third.lost, SECONDS)
    task = await world.submit()
    assert peer.work == [task.id]


async def _end_of(world: FollowedWorld, node: str) -> str:
    link = world.port._nodes.get(node)
    await soon(lambda: node not in world.port.nodes)
    assert link is not None
    return link.stream._why


async def test_a_newer_stream_of_the_same_node_replaces_the_older_one(world: FollowedWorld) -> None:
    agent = await world.connect("i1")
    again = await world.follow("n2")
    await asyncio.wait_for(world.nodes[0].lost, SECONDS)
    assert agent.hung_up is CloseReason.HUB_STOPS
    assert world.port.nodes == ["n2"]
    await again.execute(OpenLink(principal=I1, session=SessionId(world.mint()), ordered=True))


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
    assert await asyncio.wait_for(_end_of(world, "n2"), SECONDS) == "the other end was silent for 0.2 seconds"
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
    assert "a frame that nobody of this version sends" in await asyncio.wait_for(_end_of(world, "n2"), SECONDS)


# -- chiffon -----------------------------------------------------------------------------------------------------------

BEARER = {"authorization": f"Bearer {TOKEN}"}


def chiffon_at(world: FollowedWorld) -> Any:
    return _ChiffonAt(world)


class _ChiffonAt:
    """Chiffon's endpoints at the following node, with one agent."""

    def __init__(self, world: FollowedWorld) -> None:
        self._world = world
        self._serving: HttpServer

    async def __aenter__(self) -> str:
        world = self._world
        agent = Agent(id=AgentId("infra-1"), protocol="chiffon", created_at=world.time, token_hash=token_hash(TOKEN))
        await world.ask(AddAgent(principal=ADMIN, agent=agent))
        await world.ask(RegisterAgent(principal=AgentId("infra-1"), kind="lab", max_concurrent=4))
        endpoints = chiffon.endpoints(ChiffonHandler(world.intake, world.store, limits=Limits()))
        self._serving = HttpServer(world.intake, endpoints, fallback=elsewhere, port=0)
        await self._serving.start()
        return self._serving.url

    async def stop(self) -> None:
        await self._serving.stop(0)

    async def __aexit__(self, *exc: object) -> None:
        await self._serving.stop(1.0)


def report_on(task: TaskId, request: str) -> dict[str, Any]:
    return {
        "protocol_version": "1.0",
        "message_id": str(uuid.uuid4()),
        "from_agent": "lab",
        "to_agent": "orchestrator",
        "timestamp": "2026-01-19T04:21:04Z",
        "trace_id": str(uuid.uuid4()),
        "request_id": request,
        "type": "work_status",
        "payload": {"task_id": task, "status": "running", "progress_percent": 10},
        "x_custom_fields": {},
    }

"""The stream between a following node and the leader: what goes over it, in which order, and what a node sees."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
import uvloop
import websockets
from tests.support.nodes import BEARER, SECONDS, FollowedWorld, chiffon_at, end_of, peopled, report_on, soon
from tests.support.world import Peer

from dragoman.app.cluster.link import node_link
from dragoman.app.cluster.link.messages import Batch
from dragoman.app.cluster.link.mirror import Delta
from dragoman.core.commands import CloseLink, OpenLink, RemoveAgent
from dragoman.core.ids import ADMIN, AgentId, SessionId, TaskId
from dragoman.core.model.tasks import Status
from dragoman.messages.faults import Kind, Refused
from dragoman.wire.closing import CloseReason

I1 = AgentId("i1")


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
    assert "holds a session" in await asyncio.wait_for(end_of(world, "n3"), SECONDS)
    await asyncio.wait_for(third.lost, SECONDS)
    task = await world.submit()
    assert peer.work == [task.id]


async def test_a_newer_stream_of_the_same_node_replaces_the_older_one(world: FollowedWorld) -> None:
    agent = await world.connect("i1")
    again = await world.follow("n2")
    await asyncio.wait_for(world.nodes[0].lost, SECONDS)
    assert agent.hung_up is CloseReason.HUB_STOPS
    assert world.port.nodes == ["n2"]
    await again.execute(OpenLink(principal=I1, session=SessionId(world.mint()), ordered=True))

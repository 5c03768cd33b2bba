"""What agents were asked before the hub was started they may answer by the same names as before it stopped.

A real hub on one store, and a desk that is made anew with every start, as all that only memory holds.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.support.contracts import agreed, lab_and_clinic, shakes
from tests.support.world import Peer, World

from dragoman.core.ids import SECOND, AgentId, rfc3339
from dragoman.core.model.tasks import QuestionStatus, Status
from dragoman.messages.faults import Refused
from dragoman.protocols.a2acp.types import Agent as Party
from dragoman.security.jwt import Authority
from dragoman.security.keys import KeyRing, new_key
from dragoman.server.a2acp.handler import A2acpHandler
from dragoman.server.a2acp.tokens import AuthService
from dragoman.server.limits import Limits
from dragoman.server.session import LookUp
from dragoman.stores.memory import MemoryStore

Json = dict[str, Any]
BROKER = Party(agent_id="protocol-broker-agent", domain="a_domain", version="1.0.0")


class Stage:
    """The lab asks, the clinic's `data` serves."""

    def __init__(self, world: World, vault: Any) -> None:
        self.world = world
        self._vault = vault
        self._authority = Authority(KeyRing([new_key(world.time // SECOND)]))
        self.handler = self._handler()

    def _handler(self) -> A2acpHandler:
        auth = AuthService(self.world.intake, BROKER, lambda: self._authority)
        return A2acpHandler(self.world.intake, self.world.store, auth, self._vault, limits=Limits())

    async def restart(self) -> None:
        await self.world.restart()
        self.handler = self._handler()

    async def hears(self, peer: Peer) -> Json:
        """What an agent gets next, acknowledged."""
        outgoing, *peer.inbox = peer.inbox
        agent = self.world.intake.agent(peer.agent)
        (frame,) = await self.handler.encode(outgoing, agent, self.world.time)
        message: Json = json.loads(frame)
        assert await peer.ack(outgoing) == 1
        return message

    async def says(self, kind: str, intent: str | None, payload: Json, to: str = BROKER.agent_id) -> Any:
        """By `data`; gives what came of it."""
        data = self.world.intake.agent(AgentId("data"))
        target = BROKER if to == BROKER.agent_id else self.handler.party(AgentId(to))
        said = {
            "protocol_version": "1.0", "message_id": str(uuid.uuid4()), "timestamp": rfc3339(self.world.time),
            "source_agent": {"agent_id": "data", "domain": "clinic", "version": "2.1.0"},
            "target_agent": {"agent_id": to, "domain": target.domain, "version": target.version},
            "message_type": kind, "payload": payload, **({} if intent is None else {"intent": intent}),
            "security": {"auth_token": self.handler.auth.issue(data, to, (), 60).token, "encryption": "none"},
        }  # fmt: skip
        decoded = self.handler.decode(json.dumps(said).encode(), None)
        assert isinstance(decoded, LookUp), decoded
        return await self.world.ask(await decoded.find())


@pytest.fixture
async def stage(vault: Any) -> AsyncIterator[Stage]:
    world = await lab_and_clinic(MemoryStore())
    yield Stage(world, vault)
    await world.intake.stop()


async def asked(stage: Stage) -> Json:
    """A request that the clinic has, and acknowledged."""
    contract = await agreed(stage.world)
    peer = await stage.world.connect("data")
    peer.take()
    ask = {"principal": "lab", "protocol": "a2acp", "type": "provision", "contract": contract.id, "called": "k-1"}
    await stage.world.submit(None, **ask, input={"rows": 3})
    return await stage.hears(peer)


@pytest.mark.parametrize("stopped", [False, True])
@pytest.mark.parametrize("name", ["message_id", "correlation_id", "task"])
async def test_a_request_that_arrived_is_answered_by(stage: Stage, name: str, stopped: bool) -> None:
    work = await asked(stage)
    named = {"message_id": work["message_id"], "correlation_id": "k-1", "task": work["task"]["id"]}[name]
    if stopped:
        await stage.restart()
    told = {"percent": 10, "correlation_id": named}
    assert (await stage.says("event", "progress", told, to="lab")).status is Status.RUNNING
    result = {"dataset_id": "d-1", "correlation_id": named}
    assert (await stage.says("response", "provision", result, to="lab")).status is Status.COMPLETED
    if stopped:
        await stage.restart()
    again = await stage.says("response", "provision", result, to="lab")  # it did not hear that its answer was taken
    assert (again.id, again.status) == (work["task"]["id"], Status.COMPLETED)


async def proposed(stage: Stage) -> Json:
    """A handshake that was put to the clinic, which acknowledged that."""
    peer = await stage.world.connect("data")
    await stage.world.ask(shakes(stage.world))
    return await stage.hears(peer)


@pytest.mark.parametrize("stopped", [False, True])
@pytest.mark.parametrize("intent", ["accept_handshake", None])
@pytest.mark.parametrize("name", ["message_id", "handshake_id", "nothing"])
async def test_a_handshake_is_accepted_by(stage: Stage, name: str, intent: str | None, stopped: bool) -> None:
    proposal = await proposed(stage)
    if stopped:
        await stage.restart()
    named = {
        "message_id": {"correlation_id": proposal["message_id"]},
        "handshake_id": {"handshake_id": proposal["payload"]["handshake_id"]},
        "nothing": {},
    }[name]
    done = await stage.says("response", intent, {"accepted": True, **named})
    assert (done.id, done.status) == (proposal["payload"]["handshake_id"], QuestionStatus.ANSWERED)
    assert set(done.answer) == {"contract_id"}


@pytest.mark.parametrize("stopped", [False, True])
async def test_a_handshake_is_declined_by_an_error_that_names_its_message(stage: Stage, stopped: bool) -> None:
    proposal = await proposed(stage)
    if stopped:
        await stage.restart()
    error = {"code": "RATE_LIMIT_EXCEEDED", "message": "busy", "retry_after": 5}
    done = await stage.says("error", None, {"error": error, "correlation_id": proposal["message_id"]})
    assert done.answer["fault"]["facts"]["reason"] == "RATE_LIMIT_EXCEEDED: busy"


async def test_one_that_was_answered_before_a_stop_is_not_taken_for_open(stage: Stage) -> None:
    named = (await proposed(stage))["payload"]["handshake_id"]
    await stage.says("response", "accept_handshake", {"accepted": True})
    await stage.restart()
    with pytest.raises(Refused, match="0 handshakes are open"):
        await stage.says("response", "accept_handshake", {"accepted": True})
    with pytest.raises(Refused, match="the handshake is over"):
        await stage.says("response", "accept_handshake", {"accepted": True, "handshake_id": named})

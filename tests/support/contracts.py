"""A lab and a clinic, of two domains, that may shake hands: what tests of contracts begin with."""

from __future__ import annotations

from typing import Any

from dragoman.core.commands import AnswerHandshake, RegisterAgent, SetDomainPolicy, ShakeHands
from dragoman.core.ids import ADMIN, AgentId
from dragoman.core.model.agents import Offer
from dragoman.core.model.contracts import Contract, Secret
from dragoman.core.ports import Store
from tests.support.world import World

ROWS = {"type": "object", "properties": {"rows": {"type": "integer", "minimum": 1}}, "required": ["rows"]}
DATASET = {"type": "object", "required": ["dataset_id"], "properties": {"dataset_id": {"type": "string"}}}
PROVISION = Offer(intent="provision", input_schema=ROWS, output_schema=DATASET, required_capabilities=("read:data",))
PATIENT = Offer(intent="patient", pii=True)
SECRET = Secret(kid="k1", locked="x", source_key="sk")


async def lab_and_clinic(store: Store) -> World:
    """The lab has `lab`, the clinic has `data`, which offers what there is."""
    world = await World(store).start()
    await world.add("lab", protocol="a2acp", domain="research")
    await world.add("data", protocol="a2acp", domain="clinic", version="2.1.0")
    await world.ask(RegisterAgent(principal=AgentId("data"), offers=(PROVISION, PATIENT)))
    await world.ask(SetDomainPolicy(principal=ADMIN, source="research", target="clinic"))
    return world


def shakes(world: World, **fields: Any) -> ShakeHands:
    given = {
        "principal": AgentId("lab"), "protocol": "a2acp", "request_id": world.uuid(), "digest": "d",
        "target": AgentId("data"), "intent": "provision", "domain": "research", "version": "1.0.0",
        "granted": ("read:data",),
    }  # fmt: skip
    return ShakeHands(**(given | fields))


async def agreed(world: World, **fields: Any) -> Contract:
    question = await world.ask(shakes(world, **fields))
    done = await world.ask(
        AnswerHandshake(principal=AgentId("data"), question=question.id, accepted=True, public_key="tk")
    )
    contract = await world.store.contract(done.answer["contract_id"])
    assert contract is not None
    return contract

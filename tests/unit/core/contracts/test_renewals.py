"""A person lets a contract go on for longer: the terms stay, both agents learn the new end."""

from __future__ import annotations

import pytest
from tests.support.contracts import agreed

from dragoman.core.commands import EndContract, RemoveAgent, RenewContract
from dragoman.core.ids import ADMIN, HOUR, AgentId, Instant
from dragoman.core.model.contracts import Standing
from dragoman.core.model.deliveries import MessageKind
from dragoman.messages.faults import Kind


async def test_a_renewed_contract_lasts_longer_on_the_same_terms_and_both_agents_learn_it(world):
    lab, data = await world.connect("lab"), await world.connect("data")
    contract = await agreed(world)
    lab.take(), data.take()
    world.time = Instant(world.time + 20 * HOUR)
    renewed = await world.ask(RenewContract(principal=ADMIN, person="ada", collaboration=contract.collaboration))
    assert renewed.expires_at == contract.created_at + 44 * HOUR
    assert (renewed.id, renewed.offer, renewed.since) == (contract.id, contract.offer, contract.since)
    for peer in (lab, data):
        [told] = peer.take()
        assert (told.delivery.kind, told.contract) == (MessageKind.CONTRACT, renewed)
    world.time = Instant(world.time + 10 * HOUR)
    ask = {"principal": "lab", "protocol": "a2acp", "type": "provision", "contract": contract.id, "input": {"rows": 1}}
    assert (await world.submit(None, **ask)).agreement.contract == contract.id
    [record] = await world.store.audit(subject=contract.collaboration)
    assert (record.action, record.principal) == ("contract.renew", "ada")


async def test_a_renewal_never_shortens_a_contract(world):
    contract = await agreed(world)
    fault = await world.refused(RenewContract(principal=ADMIN, collaboration=contract.collaboration, lasts=HOUR))
    assert (fault.kind, fault.field) == (Kind.INVALID, "hours")
    assert await world.store.contract(contract.id) == contract


@pytest.mark.parametrize("over", ["terminated", "expired", "removed"])
async def test_a_contract_that_is_over_does_not_come_back(world, over):
    contract = await agreed(world)
    if over == "terminated":
        await world.ask(EndContract(principal=ADMIN, collaboration=contract.collaboration))
    elif over == "expired":
        world.time = contract.expires_at
    else:
        await world.ask(RemoveAgent(principal=ADMIN, agent=AgentId("lab")))
    fault = await world.refused(RenewContract(principal=ADMIN, collaboration=contract.collaboration))
    assert fault.kind is Kind.CONFLICT
    assert (await world.store.contract(contract.id)).at(world.time) is not Standing.ACTIVE


async def test_no_agent_renews_a_contract_by_itself(world):
    contract = await agreed(world)
    fault = await world.refused(RenewContract(principal=AgentId("lab"), collaboration=contract.collaboration))
    assert fault.kind is Kind.FORBIDDEN

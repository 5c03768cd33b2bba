"""Domain policies: who may ask whom, with a contract and without."""

from __future__ import annotations

import pytest
from tests.support.contracts import agreed
from tests.support.world import World

from dragoman.core.commands import (
    Claim,
    SetDomainPolicy,
)
from dragoman.core.ids import ADMIN, AgentId
from dragoman.messages.faults import Kind

BORDERS = {
    "nothing is said": ((), True),
    "others may": ((("lab", "ward"),), False),
    "it may": ((("shop", "ward"),), True),
    "anybody may": ((("*", "ward"),), True),
    "it may ask anybody": ((("shop", "*"),), True),
    "others may ask anybody": ((("lab", "*"),), False),
    "for something else": ((("shop", "ward", {"intents": ("dig",)}),), False),
    "for this": ((("shop", "ward", {"intents": ("count",)}),), True),
    "only encrypted": ((("shop", "ward", {"encrypt": True}),), False),
    "it may not": ((("shop", "ward", {"allow": False}),), False),
    "it may not, though anybody may": ((("*", "ward"), ("shop", "ward", {"allow": False})), False),
    "others may not": ((("lab", "ward", {"allow": False}),), True),
    "something of another domain": ((("lab", "yard"),), True),
}
"""What the policy says, and whether one of the shop may ask one of the ward to count, without a contract."""


@pytest.mark.parametrize("addressed", ["by name", "by kind", "anybody"])
@pytest.mark.parametrize(("said", "may"), BORDERS.values(), ids=BORDERS)
async def test_domain_policies_bind_callers_of_every_protocol(said, may, addressed):
    world = await World().start()
    await world.add("boss", domain="shop", work_types=())
    await world.add("nurse", "counter", protocol="coven", domain="ward", work_types=("count",))
    nurse = await world.connect("nurse")
    for source, target, *how in said:
        await world.ask(SetDomainPolicy(principal=ADMIN, source=source, target=target, **(how[0] if how else {})))
    to = {"by name": {"pinned": "nurse"}, "by kind": {"kind": "counter"}, "anybody": {}}[addressed]
    wish = world.request(**{"kind": None, "type": "count", **to})
    if may:
        assert (await world.ask(wish)).owner == "nurse"
    else:
        fault = await world.refused(wish)
        assert (fault.kind, fault.facts["source_domain"], fault.facts["target_domain"]) == (
            Kind.FORBIDDEN, "shop", "ward",
        )  # fmt: skip
        assert nurse.work == []
    for own in ({"principal": ADMIN}, {"principal": AgentId("nurse"), "kind": "counter"}):  # people; one's own domain
        await world.submit(**{"kind": None, "type": "count", **to, **own})
    await world.intake.stop()


async def test_an_agent_without_a_domain_is_of_the_default_one_and_bound_by_its_policies(world):
    await world.connect("data")
    await world.add("boss", "orchestrator", capabilities=("read:data",))
    wish = {"pinned": "data", "type": "provision", "input": {"rows": 1}}
    assert (await world.submit(None, **wish)).owner == "data"  # that research may ask the clinic shuts nobody out
    await world.ask(SetDomainPolicy(principal=ADMIN, source="default", target="clinic", allow=False))
    fault = await world.refused(world.request(None, **wish))
    assert (fault.kind, fault.facts["source_domain"]) == (Kind.FORBIDDEN, "default")


async def test_work_that_waits_for_anybody_is_not_given_over_a_closed_border(world):
    await world.add("boss", "orchestrator", domain="shop")
    task = await world.submit(None, type="weigh", kept_for_anybody=True)
    await world.add("scales", protocol="forge", domain="clinic")
    scales = await world.connect("scales")
    fault = await world.refused(Claim(principal=AgentId("scales"), task_id=task.id))
    assert (scales.work, fault.kind) == ([], Kind.NOT_FOUND)
    await world.add("balance", protocol="forge", domain="shop")
    assert (await world.connect("balance")).work == [task.id]


async def test_a_border_that_wants_encryption_wants_it_of_contracts_that_stand(world):
    contract = await agreed(world)
    ask = {"principal": "lab", "protocol": "a2acp", "type": "provision", "contract": contract.id, "input": {"rows": 1}}
    await world.submit(None, **ask)
    await world.ask(SetDomainPolicy(principal=ADMIN, source="research", target="clinic", encrypt=True))
    fault = await world.refused(world.request(None, **ask))
    assert (fault.kind, fault.facts) == (Kind.FORBIDDEN, {"contract_id": contract.id})

"""What a contract, and an offer without one, hold both sides to."""

from __future__ import annotations

import pytest
from tests.support.contracts import SECRET, agreed

from dragoman.core.commands import (
    Cancel,
    RegisterAgent,
    Retry,
)
from dragoman.core.ids import ADMIN, AgentId
from dragoman.core.model.agents import Offer
from dragoman.core.model.contracts import VIOLATIONS_KEPT, Secret
from dragoman.core.model.tasks import Status
from dragoman.messages.faults import Kind


async def test_both_sides_are_held_to_it(world):
    await world.connect("data")
    contract = await agreed(world)
    ask = {"principal": "lab", "protocol": "a2acp", "type": "provision", "contract": contract.id}
    fault = await world.refused(world.request(None, **ask, input={"rows": "many"}))
    assert (fault.kind, fault.facts["faults"][0]["pointer"]) == (Kind.CONTRACT, "/rows")
    assert "many" not in str(fault.facts)
    task = await world.submit(None, **ask, input={"rows": 3})
    assert (task.owner, task.agreement.contract) == ("data", contract.id)
    done = await world.finish("data", task.id, body=b'{"result":{"dataset_id":"d-1"}}')
    assert done.status is Status.COMPLETED
    broken = await world.submit(None, **ask, input={"rows": 3})
    fault = await world.refused_with("data", broken.id, b'{"result":{"other":1}}')
    assert fault.kind is Kind.CONTRACT
    failed = await world.task(broken.id)
    assert (failed.status, failed.outcome.fault.kind) == (Status.FAILED, Kind.CONTRACT)


async def test_a_contract_has_what_its_parties_did_against_it(world):
    """Not what they did against another contract, nor what others did."""
    await world.connect("data")
    contract, other = await agreed(world), await agreed(world, intent="patient", secret=SECRET)
    ask = {"principal": "lab", "protocol": "a2acp", "type": "provision", "contract": contract.id}
    await world.refused(world.request(None, **ask, input={"rows": "many"}))
    await world.refused(world.request(None, **(ask | {"contract": other.id}), input={"rows": 3}))
    await world.add("boss", "orchestrator", protocol="a2acp", domain="research")
    await world.refused(world.request(None, **(ask | {"principal": "boss"}), input={"rows": 3}))
    task = await world.submit(None, **ask, input={"rows": 3})
    await world.refused_with("data", task.id, b'{"result":{"other":1}}')
    held, beside = await world.store.contract(contract.id), await world.store.contract(other.id)
    assert [(one.by, one.action, one.task) for one in held.violations] == [
        ("lab", "task.submit", None),
        ("data", "task.finish", task.id),
    ]
    assert "does not fit the input schema" in held.violations[0].reason
    assert [one.reason for one in beside.violations] == [
        "the contract is about 'patient', not 'provision'; shake hands for that"
    ]
    assert (held.violated, beside.violated) == (2, 1)


async def test_a_contract_keeps_its_newest_violations_and_counts_the_others(world):
    contract = await agreed(world)
    for number in range(VIOLATIONS_KEPT + 3):
        ask = {"principal": "lab", "protocol": "a2acp", "type": f"wrong-{number}", "contract": contract.id}
        await world.refused(world.request(None, **ask, input={}))
    held = await world.store.contract(contract.id)
    assert (held.violated, len(held.violations)) == (VIOLATIONS_KEPT + 3, VIOLATIONS_KEPT)
    assert f"wrong-{VIOLATIONS_KEPT + 2}" in held.violations[-1].reason


async def test_so_is_a_person_who_edits_what_was_asked(world):
    await world.connect("data")
    contract = await agreed(world)
    ask = {"principal": "lab", "protocol": "a2acp", "type": "provision", "contract": contract.id}
    task = await world.submit(None, **ask, input={"rows": 3})
    await world.ask(Cancel(principal=ADMIN, task_id=task.id))
    fault = await world.refused(Retry(principal=ADMIN, task_id=task.id, input=b'{"rows":"many"}'))
    assert (fault.kind, fault.facts["faults"][0]["pointer"]) == (Kind.CONTRACT, "/rows")
    assert (await world.task(task.id)).status is Status.CANCELLED
    assert (await world.ask(Retry(principal=ADMIN, task_id=task.id, input=b'{"rows":4}'))).owner == "data"


async def test_a_person_cannot_replace_a_ciphertext_by_plain_input(world):
    """They would leave in clear, in an envelope that says they are sealed."""
    await world.connect("data")
    contract = await agreed(world, end_to_end=True, secret=Secret(kid="k1", source_key="sk"))
    ask = {"principal": "lab", "protocol": "a2acp", "type": "provision", "contract": contract.id, "sealed": True}
    task = await world.submit(None, **ask, input={"ciphertext": "c"})
    await world.ask(Cancel(principal=ADMIN, task_id=task.id))
    assert (await world.refused(Retry(principal=ADMIN, task_id=task.id, input=b"{}"))).kind is Kind.FORBIDDEN
    assert (await world.ask(Retry(principal=ADMIN, task_id=task.id))).owner == "data"


async def test_a_caller_of_another_protocol_is_held_to_the_offer(world):
    await world.connect("data")
    await world.add("boss", "orchestrator", domain="research", capabilities=("read:data",))
    fault = await world.refused(world.request(None, pinned="data", type="provision", input={}))
    assert fault.kind is Kind.INVALID
    await world.submit(None, pinned="data", type="provision", input={"rows": 1})


async def test_the_offer_holds_also_for_what_is_asked_of_its_kind_or_of_anybody(world):
    """A name in front of the work is not what makes it personal, nor what makes it fit."""
    await world.add("boss", "orchestrator", domain="research", capabilities=("read:data",))
    data = await world.connect("data")
    fault = await world.refused(world.request("data", type="provision", input={"rows": "many"}))
    assert (fault.kind, fault.facts["faults"][0]["pointer"]) == (Kind.INVALID, "/rows")
    assert (await world.submit("data", type="provision", input={"rows": 1})).owner == "data"
    fault = await world.refused(world.request("data", type="patient", input={"name": "Erika"}))
    assert (fault.kind, fault.facts) == (Kind.FORBIDDEN, {"pii": True})
    anybody = await world.submit(None, type="patient", input={"name": "Erika"})  # the lab, which declared nothing
    assert (anybody.status, anybody.agreement.personal) == (Status.QUEUED, True)
    assert len(data.work) == 1


async def test_work_for_anybody_goes_past_those_whose_terms_it_does_not_meet(world):
    await world.add("boss", "orchestrator")
    for name, schema in (("old", {"required": ["rows"]}), ("new", {"required": ["rows", "form"]})):
        await world.add(name, "counter", work_types=("count",))
        offer = Offer(intent="count", input_schema=schema)
        await world.ask(RegisterAgent(principal=AgentId(name), work_types=("count",), offers=(offer,)))
        await world.connect(name)
    given = [await world.submit("counter", type="count", input={"rows": n}) for n in range(3)]
    assert {task.owner for task in given} == {"old"}
    assert (await world.submit("counter", type="count", input={"rows": 1, "form": "a"})).owner == "new"
    fault = await world.refused(world.request("counter", type="count", input={}))
    assert fault.kind is Kind.INVALID


async def test_a_task_queued_in_clear_is_not_assigned_to_an_agent_that_declares_it_personal_later(world):
    await world.add("boss", "orchestrator")
    task = await world.submit(None, type="weigh", input={"name": "Erika"}, kept_for_anybody=True)
    for name, protocol in (("scales", "forge"), ("balance", "a2acp")):
        await world.add(name, protocol=protocol)
        terms = (Offer(intent="weigh", pii=True),)
        await world.ask(RegisterAgent(principal=AgentId(name), work_types=("weigh",), offers=terms))
        peer = await world.connect(name)
        assert peer.work == []
    assert (await world.task(task.id)).owner is None
    again = await world.submit(None, type="weigh", input={"name": "Erika"}, kept_for_anybody=True)
    assert (again.owner, again.agreement.personal) == ("scales", True)


@pytest.mark.parametrize("addressed", [{"pinned": "data"}, {"kind": "data"}], ids=["by name", "by kind"])
async def test_what_an_offer_requires_is_required_of_callers_of_every_protocol(world, addressed):
    await world.connect("data")
    await world.add("boss", "orchestrator", domain="research")
    wish = {"type": "provision", "input": {"rows": 1}, "kind": None, **addressed}
    await world.ask(RegisterAgent(principal=AgentId("boss"), capabilities=("read:data",)))  # its own word is no grant
    fault = await world.refused(world.request(**wish))
    assert (fault.kind, fault.facts) == (Kind.FORBIDDEN, {"missing": ["read:data"]})
    await world.add("chief", "orchestrator", domain="research", capabilities=("read:data",))
    assert (await world.submit(**wish, principal="chief")).owner == "data"
    assert (await world.submit(**wish, principal=ADMIN)).owner == "data"

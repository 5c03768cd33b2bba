"""What is over: contracts that ended, agents that were removed, tokens that were revoked."""

from __future__ import annotations

import pytest
from tests.support.contracts import PROVISION, agreed, shakes
from tests.support.world import World

from dragoman.core.commands import (
    Cancel,
    EndContract,
    RemoveAgent,
    Retry,
    RevokeToken,
    SetDomainPolicy,
)
from dragoman.core.ids import ADMIN, HOUR, MINUTE, SECOND, AgentId, Instant
from dragoman.core.model.contracts import Standing
from dragoman.core.model.deliveries import MessageKind
from dragoman.core.model.tasks import Status
from dragoman.messages.faults import Kind


@pytest.mark.parametrize("over", ["ended", "expired", "closed"])
async def test_nothing_is_retried_on_a_contract_that_is_over(world, over):
    await world.connect("data")
    contract = await agreed(world)
    ask = {"principal": "lab", "protocol": "a2acp", "type": "provision", "contract": contract.id}
    task = await world.submit(None, **ask, input={"rows": 3})
    await world.ask(Cancel(principal=ADMIN, task_id=task.id))
    if over == "ended":
        await world.ask(EndContract(principal=AgentId("data"), collaboration=contract.collaboration))
    elif over == "expired":
        world.time = Instant(world.time + 25 * HOUR)
    else:
        await world.ask(SetDomainPolicy(principal=ADMIN, source="research", target="clinic", allow=False))
    fault = await world.refused(Retry(principal=ADMIN, task_id=task.id))
    assert fault.kind is (Kind.FORBIDDEN if over == "closed" else Kind.CONTRACT)
    assert (await world.task(task.id)).status is Status.CANCELLED


async def test_a_foreign_an_ended_and_an_expired_contract(world):
    data = await world.connect("data")
    contract = await agreed(world)
    await world.add("spy", protocol="a2acp", domain="research")
    ask = {"protocol": "a2acp", "type": "provision", "contract": contract.id, "input": {"rows": 1}}
    assert (await world.refused(world.request(None, principal="spy", **ask))).kind is Kind.CONTRACT
    assert (
        await world.refused(EndContract(principal=AgentId("spy"), collaboration=contract.collaboration))
    ).kind is Kind.NOT_FOUND
    data.take()
    await world.ask(EndContract(principal=AgentId("lab"), collaboration=contract.collaboration, reason="done"))
    [told] = data.take()
    assert (told.contract.standing, told.contract.reason) == (Standing.TERMINATED, "done")
    assert (await world.refused(world.request(None, principal="lab", **ask))).facts["standing"] == "terminated"
    other = await agreed(world)
    world.time = Instant(world.time + 25 * HOUR)
    late = await world.refused(world.request(None, principal="lab", **{**ask, "contract": other.id}))
    assert late.facts["standing"] == "expired"


@pytest.mark.parametrize(("gone", "left"), [("lab", "data"), ("data", "lab")])
async def test_contracts_end_with_an_agent_that_is_removed(world, gone, left):
    contract, other = await agreed(world), await agreed(world)
    over = await world.ask(EndContract(principal=AgentId("lab"), collaboration=other.collaboration, reason="enough"))
    peer = await world.connect(left)
    peer.take()
    await world.ask(RemoveAgent(principal=ADMIN, agent=AgentId(gone)))
    ended = await world.store.contract(contract.id)
    assert (ended.standing, ended.by, ended.reason) == (Standing.TERMINATED, ADMIN, f"{gone} was removed")
    assert [outgoing.contract for outgoing in peer.take() if outgoing.delivery.kind is MessageKind.CONTRACT] == [ended]
    assert await world.store.contract(other.id) == over
    records = await world.store.audit(subject=contract.collaboration)
    assert [(r.action, r.principal, r.reason) for r in records] == [("contract.end", ADMIN, f"{gone} was removed")]


@pytest.mark.parametrize("stopped", [False, True])
async def test_however_many_contracts_end_also_after_a_stop_and_none_of_the_next_agent_of_the_name(stopped):
    world = await World().start()
    await world.add("lab", protocol="a2acp", domain="research")
    await world.add("data", protocol="chiffon", domain="research", work_types=("count",))
    asks = {"intent": "count", "granted": ()}
    for _ in range(200):
        await world.ask(shakes(world, **asks))
    await world.ask(RemoveAgent(principal=ADMIN, agent=AgentId("data")))
    if stopped:
        await world.restart()
    else:
        world.time = Instant(world.time + SECOND)
        await world.add("data", protocol="chiffon", domain="research", work_types=("count",))
        await world.ask(shakes(world, **asks))
    await world.settle()
    standings = [row.standing for row in await world.store.contracts(limit=999)]
    assert standings == [Standing.ACTIVE] * (not stopped) + [Standing.TERMINATED] * 200
    await world.intake.stop()


@pytest.mark.parametrize("gone", ["lab", "data"])
async def test_another_agent_of_the_name_inherits_no_contract(world, gone):
    contract = await agreed(world)
    await world.ask(RemoveAgent(principal=ADMIN, agent=AgentId(gone)))
    world.time = Instant(world.time + SECOND)
    domain = {"lab": "research", "data": "clinic"}[gone]
    await world.add(gone, protocol="a2acp", domain=domain, offers=(PROVISION,))
    wish = world.request(None, principal=AgentId("lab"), type="provision", contract=contract.id, input={"rows": 1})
    fault = await world.refused(wish)
    assert (fault.kind, fault.facts["standing"]) == (Kind.CONTRACT, "terminated")
    ends = EndContract(principal=AgentId(gone), collaboration=contract.collaboration)
    assert (await world.refused(ends)).facts["standing"] == "terminated"


@pytest.mark.parametrize(("gone", "status"), [
    ("lab", Status.QUEUED), ("data", Status.QUEUED), ("data", Status.ASSIGNED),
])  # fmt: skip
async def test_what_was_asked_on_a_contract_is_given_to_nobody_after_one_of_the_two_was_removed(world, gone, status):
    """Not to another agent of the name either: that one agreed to nothing, and may be of another domain."""
    contract = await agreed(world)
    if status is Status.ASSIGNED:
        await world.connect("data")
    ask = {"principal": "lab", "protocol": "a2acp", "type": "provision", "contract": contract.id, "pinned": "data"}
    task = await world.submit(None, **ask, input={"rows": 3})
    assert task.status is status
    await world.ask(RemoveAgent(principal=ADMIN, agent=AgentId(gone)))
    world.time = Instant(world.time + 1)
    await world.add(gone, protocol="a2acp", domain="elsewhere", offers=(PROVISION,))
    peer = await world.connect("data")
    await world.advance(2)
    assert peer.work == []
    over = await world.task(task.id)
    assert (over.status, over.outcome.fault.kind) == (Status.FAILED, Kind.CONTRACT)
    assert over.outcome.fault.facts == {"contract_id": contract.id, "standing": "terminated"}


@pytest.mark.parametrize("status", [Status.QUEUED, Status.ASSIGNED, Status.RUNNING])
async def test_the_caller_learns_at_once_that_its_target_was_removed(world, status):
    lab = await world.connect("lab")
    contract = await agreed(world)
    if status is not Status.QUEUED:
        await world.connect("data")
    ask = {"principal": "lab", "protocol": "a2acp", "type": "provision", "contract": contract.id, "pinned": "data"}
    tasks = [await world.submit(None, **ask, input={"rows": n + 1}) for n in range(100 if status == "queued" else 3)]
    for task in tasks if status is Status.RUNNING else ():
        await world.progress("data", task.id)
    lab.take()
    await world.ask(RemoveAgent(principal=ADMIN, agent=AgentId("data")))
    await world.settle()
    told = {
        outgoing.task.id: outgoing.task.outcome.fault
        for outgoing in lab.take()
        if outgoing.delivery.kind is MessageKind.FAILURE
    }
    assert set(told) == {task.id for task in tasks}
    assert {(fault.kind, fault.facts["standing"]) for fault in told.values()} == {(Kind.CONTRACT, "terminated")}


async def test_a_handshake_ends_at_once_with_the_agent_that_it_was_put_to(world):
    lab = await world.connect("lab")
    question = await world.ask(shakes(world))
    await world.ask(RemoveAgent(principal=ADMIN, agent=AgentId("data")))
    [told] = lab.take()
    assert (told.delivery.kind, told.content.id) == (MessageKind.ANSWER, question.id)
    assert told.question.answer["fault"]["kind"] == (await world.refused(shakes(world))).kind == Kind.NOT_FOUND
    await world.advance(10)
    assert lab.take() == []  # and not again when its time is over


async def test_the_end_of_a_collaboration_ends_all_its_contracts(world):
    first = await agreed(world)
    for _ in range(10):
        await agreed(world, collaboration=first.collaboration)
    await world.ask(EndContract(principal=AgentId("data"), collaboration=first.collaboration, reason="enough"))
    assert {row.standing for row in await world.store.contracts()} == {Standing.TERMINATED}
    ask = world.request(None, principal="lab", type="provision", contract=first.id, input={"rows": 1})
    assert (await world.refused(ask)).facts["standing"] == "terminated"


@pytest.mark.parametrize("over", ["terminated", "expired"])
async def test_ending_what_is_over_already_is_a_conflict_as_with_a_task(world, over):
    contract = await agreed(world)
    ends = EndContract(principal=ADMIN, collaboration=contract.collaboration)
    if over == "terminated":
        await world.ask(ends)
    else:
        world.time = Instant(world.time + 25 * HOUR)
    fault = await world.refused(ends)
    assert (fault.kind, fault.message) == (Kind.CONFLICT, f"the contract is already {over}")


async def test_a_revoked_token_is_remembered_over_a_restart_and_forgotten_when_it_would_be_over():
    world = await World().start()
    await world.add("lab", protocol="a2acp", domain="research")

    def revoke(jti: str, seconds: int) -> RevokeToken:
        until = Instant(world.time + seconds * SECOND)
        return RevokeToken(principal=ADMIN, agent=AgentId("lab"), jti=jti, until=until)

    await world.ask(revoke("old", 60))
    await world.ask(revoke("new", 600))
    await world.restart()
    assert [one.jti for one in world.intake.agent(AgentId("lab")).revoked] == ["old", "new"]
    world.time = Instant(world.time + MINUTE)
    await world.ask(revoke("new", 600))
    assert [one.jti for one in world.intake.agent(AgentId("lab")).revoked] == ["new"]
    for n in range(255):
        await world.ask(revoke(f"t{n}", 600))
    assert (await world.refused(revoke("one more", 600))).kind is Kind.CONFLICT
    await world.intake.stop()

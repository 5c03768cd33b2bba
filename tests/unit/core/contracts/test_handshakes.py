"""How two agents come to a contract, renew it, and change its key."""

from __future__ import annotations

import msgspec
import pytest
from tests.support.contracts import SECRET, agreed, shakes

from dragoman.core.commands import (
    AnswerHandshake,
    EndContract,
    RemoveAgent,
    RotateKey,
)
from dragoman.core.ids import ADMIN, MINUTE, AgentId, Instant
from dragoman.core.model.contracts import Secret, Standing
from dragoman.core.model.deliveries import MessageKind
from dragoman.core.model.tasks import QuestionStatus
from dragoman.messages.error_table import sentence
from dragoman.messages.faults import Fault, Kind


async def test_the_five_steps(world):
    lab, data = await world.connect("lab"), await world.connect("data")
    question = await world.ask(shakes(world))
    [proposal] = data.take()
    assert (proposal.delivery.kind, proposal.content.id) == (MessageKind.PROPOSAL, question.id)
    await world.ask(AnswerHandshake(principal=AgentId("data"), question=question.id, accepted=True))
    [told] = data.take()
    assert (told.delivery.kind, told.contract.standing) == (MessageKind.CONTRACT, Standing.ACTIVE)
    [answer] = lab.take()
    assert answer.question.answer == {"contract_id": told.content.id}
    assert (told.contract.source.domain, told.contract.target.domain) == ("research", "clinic")


async def test_a_no_and_no_answer(world):
    lab = await world.connect("lab")
    await world.connect("data")
    question = await world.ask(shakes(world))
    await world.ask(AnswerHandshake(principal=AgentId("data"), question=question.id, accepted=False, reason="busy"))
    assert lab.take()[0].question.answer["fault"]["kind"] == "contract"
    late = await world.ask(shakes(world))
    await world.advance(5)
    assert lab.take()[-1].question.answer["fault"]["kind"] == "timeout"
    refused = AnswerHandshake(principal=AgentId("data"), question=late.id, accepted=True)
    assert (await world.refused(refused)).kind is Kind.CONFLICT
    assert (await world.store.question(late.id)).status is QuestionStatus.ANSWERED


@pytest.mark.parametrize("how", ["declined", "late", "removed"])
async def test_a_failed_handshake_names_the_agents_id_as_it_is_written(world, how):
    lab = await world.connect("lab")
    question = await world.ask(shakes(world))
    if how == "declined":
        await world.ask(AnswerHandshake(principal=AgentId("data"), question=question.id, accepted=False))
    elif how == "late":
        await world.advance(5)
    else:
        await world.ask(RemoveAgent(principal=ADMIN, agent=AgentId("data")))
    [told] = lab.take()
    assert sentence(msgspec.convert(told.question.answer["fault"], Fault)).startswith("data ")


async def test_a_handshake_that_is_over_is_put_to_nobody_any_more(world):
    missed = await world.ask(shakes(world))
    await world.advance(5)
    assert (await world.store.question(missed.id)).status is QuestionStatus.ANSWERED
    answered = await world.ask(shakes(world))
    await world.ask(AnswerHandshake(principal=AgentId("data"), question=answered.id, accepted=False))
    open_still = await world.ask(shakes(world))
    data = await world.connect("data")
    assert [outgoing.content.id for outgoing in data.take()] == [open_still.id]


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"target": "nobody"}, Kind.NOT_FOUND),
        ({"intent": "fly"}, Kind.UNSUPPORTED_WORK),
        ({"target_version": "1.0.0"}, Kind.UNSUPPORTED_VERSION),
        ({"domain": "elsewhere"}, Kind.FORBIDDEN),
        ({"granted": ()}, Kind.UNAUTHENTICATED),
        ({"request_schema": {"type": "object", "properties": {"rows": {"type": "string"}}}}, Kind.INVALID),
        ({"intent": "patient"}, Kind.FORBIDDEN),  # personal, and no key
    ],
)
async def test_why_there_is_no_contract(world, fields, kind):
    assert (await world.refused(shakes(world, **fields))).kind is kind


async def test_a_schema_that_is_narrower_fits(world):
    narrow = {"type": "object", "properties": {"rows": {"type": "integer", "minimum": 5}}, "required": ["rows"]}
    assert (await agreed(world, request_schema=narrow)).intent == "provision"


async def test_an_agent_of_another_protocol_agreed_when_it_declared(world):
    await world.add("cov", protocol="coven", domain="clinic", work_types=("provision",))
    await world.connect("cov")
    question = await world.ask(shakes(world, target="cov"))
    assert question.status is QuestionStatus.ANSWERED
    task = await world.submit(
        None, principal="lab", protocol="a2acp", type="provision", contract=question.answer["contract_id"]
    )
    assert task.owner == "cov"


async def test_a_handshake_with_an_agent_that_was_removed_meanwhile_comes_to_nothing(world):
    question = await world.ask(shakes(world))
    await world.ask(RemoveAgent(principal=ADMIN, agent=AgentId("lab")))
    fault = await world.refused(AnswerHandshake(principal=AgentId("data"), question=question.id, accepted=True))
    assert (fault.kind, await world.store.contracts()) == (Kind.CONTRACT, [])
    assert (await world.store.question(question.id)).status is QuestionStatus.ANSWERED


async def test_a_target_that_brings_no_key_where_one_is_needed_learns_so_as_well(world):
    lab = await world.connect("lab")
    question = await world.ask(shakes(world, intent="patient", secret=SECRET))
    fault = await world.refused(AnswerHandshake(principal=AgentId("data"), question=question.id, accepted=True))
    [told] = lab.take()
    assert (fault.kind, told.question.answer["fault"]) == (Kind.FORBIDDEN, msgspec.to_builtins(fault))
    assert await world.store.contracts() == []


async def test_renewal_keeps_the_relation_and_the_old_terms_for_what_is_on_its_way(world):
    await world.connect("data")
    old = await agreed(world)
    new = await agreed(world, collaboration=old.collaboration)
    assert (new.collaboration, new.id != old.id) == (old.collaboration, True)
    assert (await world.store.contract(old.id)).standing is Standing.SUPERSEDED
    ask = {"principal": "lab", "protocol": "a2acp", "type": "provision", "contract": old.id, "input": {"rows": 1}}
    await world.submit(None, **ask)
    world.time = Instant(world.time + MINUTE)
    assert (await world.refused(world.request(None, **ask))).kind is Kind.CONTRACT


@pytest.mark.parametrize("ended", [False, True])
async def test_what_is_over_when_a_renewal_is_agreed_on_is_not_brought_back(world, ended):
    old = await agreed(world)
    asked = await world.ask(shakes(world, collaboration=old.collaboration))
    if ended:
        await world.ask(EndContract(principal=AgentId("lab"), collaboration=old.collaboration))
    else:
        await agreed(world, collaboration=old.collaboration)
    lab = await world.connect("lab")
    lab.take()
    fault = await world.refused(AnswerHandshake(principal=AgentId("data"), question=asked.id, accepted=True))
    standing = Standing.TERMINATED if ended else Standing.SUPERSEDED
    assert (fault.kind, fault.facts) == (Kind.CONTRACT, {"standing": standing})
    [told] = lab.take()
    assert told.question.answer["fault"] == msgspec.to_builtins(fault)  # both are told the same


async def test_a_renewal_in_another_mode_needs_a_key_of_its_own(world):
    old = await agreed(world, intent="patient", end_to_end=True, secret=Secret(kid="k0", source_key="sk"))
    renewal = {"intent": "patient", "collaboration": old.collaboration}
    fault = await world.refused(shakes(world, **renewal))
    assert (fault.kind, fault.field) == (Kind.FORBIDDEN, "public_key")
    new = await agreed(world, **renewal, secret=SECRET)
    assert (new.end_to_end, new.secret.kid) == (False, "k1")
    late = RotateKey(principal=AgentId("lab"), collaboration=old.collaboration, secret=Secret(kid="k2"))
    assert (await world.refused(late)).kind is Kind.CONFLICT  # made for the contract before


@pytest.mark.parametrize(("brings", "same"), [(None, True), ("tk", True), ("tk-2", False)])
async def test_a_key_that_the_target_changes_in_a_renewal_has_a_name_of_its_own(world, brings, same):
    """Between the two alone the key follows from both public ones; what is on its way is sealed with the former."""
    old = await agreed(world, intent="patient", end_to_end=True, secret=Secret(kid="k0", source_key="sk"))
    renewal = {"intent": "patient", "collaboration": old.collaboration, "end_to_end": True}
    asked = await world.ask(shakes(world, **renewal))
    answer = AnswerHandshake(principal=AgentId("data"), question=asked.id, accepted=True, public_key=brings)
    new = await world.store.contract((await world.ask(answer)).answer["contract_id"])
    assert (new.secret.kid == "k0", new.secret.source_key, new.secret.target_key) == (same, "sk", brings or "tk")


async def test_a_key_that_was_rotated_during_a_renewal_stays_rotated(world):
    old = await agreed(world, intent="patient", secret=SECRET)
    asked = await world.ask(shakes(world, intent="patient", collaboration=old.collaboration))
    new = Secret(kid="k2", locked="y")
    await world.ask(RotateKey(principal=AgentId("lab"), collaboration=old.collaboration, secret=new))
    done = await world.ask(AnswerHandshake(principal=AgentId("data"), question=asked.id, accepted=True))
    assert (await world.store.contract(done.answer["contract_id"])).secret.kid == "k2"


async def test_a_rotated_key_opens_what_was_on_its_way(world):
    await world.connect("data")
    contract = await agreed(world, intent="patient", secret=SECRET)
    assert (contract.encrypted, contract.secret.target_key) == (True, "tk")
    new = Secret(kid="k2", locked="y")
    rotated = await world.ask(RotateKey(principal=AgentId("lab"), collaboration=contract.collaboration, secret=new))
    assert [secret.kid for secret in rotated.secrets(world.time)] == ["k2", "k1"]
    assert [secret.kid for secret in rotated.secrets(Instant(world.time + MINUTE))] == ["k2"]
    assert rotated.secret.source_key == "sk"

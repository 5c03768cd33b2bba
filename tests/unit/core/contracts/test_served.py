"""Discovery and the handshake agree: whatever is listed can be shaken hands on, where the domain
policies allow it, and nothing else can."""

from __future__ import annotations

import itertools

from tests.support.contracts import PATIENT, PROVISION, shakes
from tests.support.world import World

from dragoman.core.agreements.domain_policy import are_open, domain_of
from dragoman.core.commands import SetDomainPolicy
from dragoman.core.ids import ADMIN, AgentId
from dragoman.core.model.contracts import Secret, listed
from dragoman.messages.faults import Kind, Refused

AGENTS = {
    "asker": {"protocol": "a2acp", "domain": "lab", "offers": (PROVISION,)},
    "a2acp-offers": {"protocol": "a2acp", "domain": "lab", "offers": (PROVISION, PATIENT)},
    "a2acp-work-types": {"protocol": "a2acp", "domain": "lab", "work_types": ("paint",)},
    "a2acp-silent": {"protocol": "a2acp", "domain": "lab"},
    "chiffon-work-types": {"protocol": "chiffon", "domain": "lab", "work_types": ("paint",)},
    "chiffon-both": {"protocol": "chiffon", "domain": "lab", "work_types": ("paint",), "offers": (PROVISION,)},
    "forge-offers": {"protocol": "forge", "domain": "lab", "offers": (PROVISION,)},
    "coven-silent": {"protocol": "coven", "domain": "lab"},
    "agentmsg-idle": {"protocol": "agentmsg", "domain": "lab", "work_types": ()},
    "abroad": {"protocol": "chiffon", "domain": "clinic", "work_types": ("paint",)},
    "allied": {"protocol": "chiffon", "domain": "ward", "work_types": ("paint", "provision")},
    "hostile": {"protocol": "chiffon", "domain": "pit", "work_types": ("paint",)},
}
INTENTS = ("provision", "patient", "paint", "fly", "*")


async def test_what_is_listed_and_what_can_be_agreed_on_are_the_same():
    world = await World().start()
    for id, fields in AGENTS.items():
        await world.add(id, **fields)
    await world.ask(SetDomainPolicy(principal=ADMIN, source="lab", target="ward", intents=("paint",)))
    await world.ask(SetDomainPolicy(principal=ADMIN, source="*", target="pit", allow=False))
    told, agreed, kept_out = set(), set(), set()
    for id, intent in itertools.product(AGENTS, INTENTS):
        agent = world.intake.agent(AgentId(id))
        assert agent is not None
        by_name = {offer.intent for offer in listed(agent, intent)}
        assert by_name <= {intent, "*"}
        if by_name and id != "asker":
            told.add((id, intent))
        assert (intent in {offer.intent for offer in listed(agent, None)}) <= bool(by_name)
        secret = Secret(kid=world.uuid(), locked="x", source_key="k")
        named = {"principal": AgentId("asker"), "target": AgentId(id), "intent": intent, "domain": "lab"}
        try:
            await world.ask(shakes(world, secret=secret, **named))
            why = None
        except Refused as refused:
            why = refused.fault.kind
        assert why in (None, Kind.NOT_FOUND, Kind.UNSUPPORTED_WORK, Kind.FORBIDDEN)
        if why in (None, Kind.FORBIDDEN):
            assert are_open(world.intake.policy.domain_policies, "lab", domain_of(agent), intent) is (why is None)
            (agreed if why is None else kept_out).add((id, intent))
    assert told == agreed | kept_out
    assert kept_out == {("abroad", "paint"), ("allied", "provision"), ("hostile", "paint")}
    assert {id for id, _ in agreed} == set(AGENTS) - {
        "asker", "a2acp-work-types", "a2acp-silent", "agentmsg-idle", "abroad", "hostile",
    }  # fmt: skip
    await world.intake.stop()

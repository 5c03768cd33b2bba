"""What each end of a link may say, and when: the rules that the broker checks before everything else."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec
import pytest
from tests.conformance.a2acp.samples import ADA, BOB, BODIES, BROKER, START, tree

from dragoman.protocols.a2acp import codec, intents
from dragoman.protocols.a2acp.errors import Code
from dragoman.protocols.a2acp.intents import misspoken, untimely
from dragoman.protocols.a2acp.types import Message, MessageType, Stamp
from dragoman.wire import Role


def said(kind: str, intent: str, body: Any, speaker: Role) -> Message:
    source, target = (ADA, BROKER) if speaker is Role.AGENT else (BROKER, ADA)
    stamp = Stamp("11111111-1111-4111-8111-111111111111", START, "token")
    payload = intents.payload(body)
    return codec.message(MessageType(kind), stamp, source=source, target=target, intent=intent, payload=payload)


@pytest.mark.requirement("A2-LNK-1", "a2acp-D14", "A2-HSK-1", "A2-HSK-3")
@pytest.mark.parametrize(("intent", "kind", "speaker", "body"), BODIES)
def test_each_end_says_its_own_part_of_the_brokers_intents(intent: str, kind: str, speaker: Role, body: Any) -> None:
    for role in Role:
        fault = misspoken(said(kind, intent, body, role), role, ADA, BROKER)
        if role is speaker or intent == intents.CANCEL:
            assert fault is None
        else:
            assert fault is not None
            assert (fault[0], fault[2]) == ("intent", Code.SCHEMA_MISMATCH)


@pytest.mark.requirement("A2-LNK-1", "a2acp/all-D1", "A2-TOK-3")
@pytest.mark.parametrize("claimed", [{"agent_id": "eve"}, {"domain": "ward"}])
def test_an_agent_speaks_only_for_itself(claimed: dict[str, str]) -> None:
    message = codec.interpret(tree(source_agent={**msgspec.to_builtins(ADA), **claimed}))
    fault = misspoken(message, Role.AGENT, ADA, BROKER)
    assert fault is not None
    assert (fault[0], fault[2]) == ("source_agent", Code.AUTH_FAILED)


@pytest.mark.requirement("A2-LNK-1")
def test_the_broker_is_asked_as_the_broker_and_speaks_to_who_is_connected() -> None:
    asked = msgspec.structs.replace(said("request", intents.DISCOVER, intents.Discover(), Role.AGENT), target_agent=BOB)
    wrong = misspoken(asked, Role.AGENT, ADA, BROKER)
    assert wrong is not None
    assert wrong[0] == "target_agent.agent_id"
    stray = misspoken(codec.interpret(tree()), Role.HUB, ADA, BROKER)
    assert stray is not None
    assert stray[0] == "target_agent.agent_id"


@pytest.mark.requirement("a2acp-D15")
def test_a_message_counts_only_in_its_time() -> None:
    reasons = []
    for seconds in (-61, -60, 300, 300.1):
        found = untimely(START, START + timedelta(seconds=seconds))
        reasons.append(found and found.details["reason"])
    assert reasons == ["in_the_future", None, None, "too_old"]

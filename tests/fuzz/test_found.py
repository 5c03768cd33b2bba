"""What made-up input has found, each as a test of its own."""

from __future__ import annotations

import msgspec
import pytest

from dragoman.core.commands import Beat, ChangeState, Command, ReportError, Severity
from dragoman.core.ids import AgentId
from dragoman.core.model.state import Operation, Registry
from dragoman.core.queries.state import StateView
from dragoman.messages.faults import Fault, Kind
from dragoman.protocols.a2acp import flow
from dragoman.protocols.agentmsg.records import SharedState
from tests.support.world import World

ADA = AgentId("ada")
FIRST_WORDS: dict[str, Command] = {
    "an error": ReportError(
        principal=ADA,
        report={"error_id": "e-1"},
        severity=Severity.LOW,
        fault=Fault(kind=Kind.TIMEOUT, message="late"),
        message_id="m-1",
    ),
    "a heartbeat in trouble": Beat(principal=ADA, state="ERROR"),
    "a heartbeat, and silence": Beat(principal=ADA),
}


@pytest.mark.parametrize("first", FIRST_WORDS)
async def test_the_state_is_whole_whatever_an_agent_says_first(first: str) -> None:
    """An agent that never reported its status was shown without what the document has of every agent."""
    world = await World().start()
    await world.add("ada", protocol="agentmsg")
    await world.ask(FIRST_WORDS[first])
    await world.advance(60)
    state = await StateView(world.store, world.intake, world.rules).whole(ADA)
    told = msgspec.convert(msgspec.to_builtins(state), SharedState, strict=False)
    assert (told.agent_registry["ada"].capability_level, told.agent_registry["ada"].error_rate) == (100, 0)


@pytest.mark.parametrize("time", ["9999-12-31T23:59:59-23:59", "0001-01-01T00:00:00+23:59"])
@pytest.mark.parametrize("field", ["next_available", "last_heartbeat"])
async def test_a_time_outside_of_the_calendar_is_refused_by_name(time: str, field: str) -> None:
    """It was an internal error: such a time is well formed, and has no form in UTC."""
    world = await World().start()
    await world.add("ada", protocol="agentmsg")
    fault = await world.refused(
        ChangeState(
            principal=ADA, operation=Operation.UPDATE, entity=Registry.AGENT, entity_id="ada", changes={field: time},
            version=0,
        )
    )  # fmt: skip
    assert (fault.kind, fault.field) == (Kind.INVALID, f"changes.{field}")


def test_a_flow_that_is_nested_without_end_is_refused() -> None:
    """It ended the reader with a RecursionError."""
    with pytest.raises(ValueError, match="nested deeper"):
        flow.read(b"[" * 100_000)

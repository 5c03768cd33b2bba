"""Contracts as people see them."""

from __future__ import annotations

import pytest

from dragoman.api.contracts import contract_out
from dragoman.core.ids import HOUR, AgentId, Instant
from dragoman.core.model.agents import Offer
from dragoman.core.model.contracts import Contract, Party
from dragoman.server.a2acp.contracts import held_of


@pytest.mark.parametrize(("sandbox", "seconds"), [(None, 30.0), ("bubblewrap", 60.0)])
def test_people_see_the_time_that_the_agents_were_promised(sandbox: str | None, seconds: float) -> None:
    row = Contract(
        id="contract-1",
        collaboration="collaboration-1",
        source=Party(AgentId("lab"), "research", "1.0.0"),
        target=Party(AgentId("data"), "clinic", "2.1.0"),
        offer=Offer(intent="provision"),
        created_at=Instant(0),
        expires_at=Instant(HOUR),
        since=Instant(0),
        sandbox=sandbox,
    )
    assert contract_out(row, Instant(1)).timeout_seconds == seconds == held_of(row).contract.timeout_seconds

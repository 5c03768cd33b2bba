"""The delays between attempts, whatever the configuration; and two ends over a connection that loses what it likes."""

from __future__ import annotations

import uuid
from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st
from tests.conformance.agentmsg.samples import START

from dragoman.protocols.agentmsg import records, routing
from dragoman.protocols.agentmsg.connection import (
    Acknowledged,
    Connection,
    DeadLetter,
    Outbox,
    Received,
    Repeated,
    SendAgain,
)
from dragoman.protocols.agentmsg.types import Stamp, TaskComplete
from dragoman.wire import Role

CONFIGS = st.builds(
    records.RetryConfig,
    max_attempts=st.integers(1, 20),
    base_delay_ms=st.integers(0, 10**6) | st.floats(0, 1e6),
    max_delay_ms=st.integers(0, 10**7) | st.floats(0, 1e7),
    backoff_multiplier=st.integers(1, 1000) | st.floats(1, 1000),
    jitter=st.booleans(),
)


@given(CONFIGS, st.integers(1, 10**6), st.floats(0, 1, exclude_max=True))
def test_a_delay_never_shrinks_nor_passes_its_bound(config: records.RetryConfig, attempt: int, chance: float) -> None:
    wait = routing.delay(config, attempt, chance)
    assert 0 <= wait <= config.max_delay_ms
    assert routing.delay(config, attempt + 1, chance) >= wait
    whole = routing.delay(config, attempt, 1.0)
    assert whole / 2 <= wait <= whole


def fate(losses: list[bool], jitter: float) -> tuple[int, int, int]:
    """One message over a connection that loses what `losses` says: how often it was received, acknowledged, given
    up."""
    agent, hub = Connection(Role.AGENT, "ada", outbox=Outbox()), Connection(Role.HUB, "ada")
    lost = iter(losses)
    now, received, acknowledged, dead = START, 0, 0, 0
    number = iter(range(1, 1000))

    def stamp() -> Stamp:
        return Stamp(str(uuid.UUID(int=next(number), version=4)), now)

    frame: bytes | None = agent.send_payload(TaskComplete(task_id="t", result=1), stamp(), chance=jitter)
    while True:
        if frame is not None and not next(lost, False):
            [event] = hub.receive(frame)
            received += isinstance(event, Received)
            assert isinstance(event, Received | Repeated)
            answer = hub.acknowledge([event.message], stamp())
            if not next(lost, False):
                [heard] = agent.receive(answer)
                assert isinstance(heard, Acknowledged)
                acknowledged += len(heard.message_ids)
        due = agent.next_due
        if due is None:
            return received, acknowledged, dead
        now = max(now, due) + timedelta(microseconds=1)
        frame = None
        for late in agent.late(now, jitter):
            if isinstance(late, SendAgain):
                frame = late.data
            dead += isinstance(late, DeadLetter)


@given(st.lists(st.booleans(), max_size=12), st.floats(0, 1, exclude_max=True))
def test_a_message_is_acted_on_once_and_ends_acknowledged_or_dead(losses: list[bool], jitter: float) -> None:
    received, acknowledged, dead = fate(losses, jitter)
    assert received <= 1
    assert acknowledged + dead == 1
    assert received >= acknowledged  # nothing is acknowledged that did not arrive

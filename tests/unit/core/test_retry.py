"""How long an acknowledgment is waited for: as the letter says, else as the policy says, else as the settings say."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tests.unit.core.state.conftest import SharedWorld

from dragoman.core.delivery import redelivery
from dragoman.core.ids import ADMIN, HOUR, MILLISECOND, SECOND, AgentId, Instant
from dragoman.core.model.deliveries import (
    LONGEST,
    OWN,
    SHORTEST,
    Backoff,
    DeadLetter,
    Delivery,
    MessageKind,
    grown,
    wait_of,
)
from dragoman.core.model.policy import backoff_in
from dragoman.core.model.state import Registry
from dragoman.core.rules import Rules
from dragoman.messages.faults import Kind
from dragoman.protocols.agentmsg import records, routing
from dragoman.stores.memory import MemoryStore

pytestmark = pytest.mark.requirement("AM-RTY-2")

FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "base_delay_ms": st.integers(0, 10**6) | st.floats(0, 1e6),
    "max_delay_ms": st.integers(0, 10**7) | st.floats(0, 1e7),
    "backoff_multiplier": st.integers(1, 1000) | st.floats(1, 1000),
    "jitter": st.booleans(),
}
CONFIGS = st.fixed_dictionaries({}, optional=FIELDS)
SETTINGS = Rules(direct_message_jitter=False)


def in_force(own: dict[str, Any], policy: dict[str, Any]) -> records.RetryConfig:
    """The protocol's configuration, one over the other; the settings of these tests are its defaults without jitter."""
    return msgspec.structs.replace(records.RetryConfig(jitter=False), **{**policy, **own})


@pytest.mark.parametrize("policy", [None, Backoff(base=SECOND)])
def test_what_left_together_does_not_come_back_together(policy):
    waits = [wait_of(Rules(), f"id {n}", 3, policy) for n in range(100)]
    assert len(set(waits)) > 90
    assert all(2 * SECOND <= wait <= 4 * SECOND for wait in waits)


@given(CONFIGS, CONFIGS, st.integers(1, OWN))
@example({}, {"jitter": False, "base_delay_ms": 6e-8, "max_delay_ms": 103, "backoff_multiplier": 204}, 5)
def test_a_wait_is_the_protocols_formula_within_the_hubs_bounds(own, policy, attempt):
    wait = wait_of(SETTINGS, "some id", attempt, backoff_in(policy), backoff_in(own))
    if not own and not policy:
        assert wait == routing.delay(records.RetryConfig(jitter=False), attempt, 0) * MILLISECOND
        return
    config = in_force(own, policy)
    least, most = (routing.delay(config, attempt, chance) * MILLISECOND for chance in (0, 1))
    slack = 2 * MILLISECOND + most * 1e-6
    assert SHORTEST <= wait <= LONGEST
    assert max(SHORTEST, min(least, LONGEST)) - slack <= wait <= max(SHORTEST, min(most, LONGEST)) + slack


@given(st.integers(1, 10**9), st.floats(1, 1000))
def test_a_wait_never_shrinks_however_many_attempts_there_were(attempt, factor):
    assert 1000 <= grown(1000, 30_000, factor, attempt) <= grown(1000, 30_000, factor, attempt + 1) <= 30_000


def test_after_a_hundred_attempts_a_message_waits_as_others_do():
    own = Backoff(base=SECOND, most=SECOND)
    waits = [wait_of(SETTINGS, "id", attempt, None, own) for attempt in (1, OWN, OWN + 1)]
    assert waits == [SECOND, SECOND, 30 * SECOND]


async def stage(immediate: bool = True, rules: Rules = SETTINGS) -> SharedWorld:
    world = SharedWorld(MemoryStore(immediate=immediate), rules)
    await world.start()
    for id in ("ann", "bob"):
        await world.join(id)
    return world


@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_what_is_never_acknowledged_leaves_exactly_when_the_configuration_says(data):
    """Over hours of a simulated clock, and through a change of the policy: from then on it waits anew."""
    draw = data.draw

    async def history() -> None:
        world = await stage(immediate=draw(st.booleans()))
        own, attempts = draw(CONFIGS), draw(st.integers(1, 6))
        policies = [draw(CONFIGS), draw(CONFIGS)]
        if policies[0]:
            await world.policy(retry_config=policies[0])
        bob = await world.connect("bob", acknowledges=True)
        await world.ask(world.tell("ann", "bob", attempts=attempts, retry=backoff_in(own)))
        change_at, policy = draw(st.integers(1, attempts)), policies[0]
        for attempt in range(1, attempts + 1):
            [outgoing] = bob.take()
            assert outgoing.delivery.attempt == attempt
            since = world.time
            if attempt == change_at:
                await world.advance(0.05)
                before, gone = backoff_in(policy), {name: None for name in policy if name not in policies[1]}
                policy = policies[1]
                await world.policy(retry_config={**gone, **policy})
                await world.settle()
                since = since if backoff_in(policy) == before else world.time
            wait = wait_of(SETTINGS, outgoing.delivery.id, attempt, backoff_in(policy), backoff_in(own))
            [row] = world.store.rows(Delivery)
            assert row.wake_at == since + wait
            world.time = Instant(row.wake_at - 1)
            await world.settle()
            assert bob.take() == []
            world.time = Instant(row.wake_at)
            await world.settle()
        assert bob.take() == []
        [dead] = [one for one in world.store.rows(DeadLetter) if one.kind is MessageKind.DIRECT_MESSAGE]
        assert dead.attempts == attempts
        await world.intake.stop()

    asyncio.run(history())


@pytest.mark.parametrize("immediate", [True, False])
async def test_the_policys_config_holds_at_once_for_what_waits(immediate, monkeypatch):
    """For letters and work orders, over links and by polls, page by page; a letter's own word stays its own."""
    monkeypatch.setattr(redelivery, "MANY", 2)
    world = await stage(immediate)
    await world.add("boss", "orchestrator")
    bob = await world.connect("bob", acknowledges=True)
    for _ in range(5):
        await world.ask(world.tell("ann", "bob"))
    own = await world.ask(world.tell("ann", "bob", retry=Backoff(base=7 * SECOND, most=9 * SECOND, factor=2)))
    await world.submit(None, pinned=AgentId("bob"))
    await world.ask(world.tell("bob", "ann"))
    assert own is None
    assert len(await world.poll("ann")) == 1
    assert len(bob.take()) == 7
    await world.advance(0.5)
    await world.policy(retry_config={"base_delay_ms": 4000, "max_attempts": 2})
    await world.settle()
    due = sorted(row.wake_at - world.time for row in world.store.rows(Delivery) if row.wake_at is not None)
    assert due == [4 * SECOND] * 7 + [7 * SECOND]
    await world.policy(retry_config={"base_delay_ms": 200})
    await world.advance(0.2)
    assert len(bob.take()) == 6
    await world.intake.stop()


async def test_the_policys_attempts_are_those_of_notices_and_what_it_takes_back_is_the_settings_again():
    world = await stage()
    await world.policy(retry_config={"max_attempts": 1, "base_delay_ms": 500})
    await world.connect("ann", acknowledges=True)
    await world.connect("bob", acknowledges=True)
    await world.ask(world.tell("ann", "bob", attempts=1))
    await world.advance(0.5)  # the letter is dead, and ann is told, once
    await world.advance(0.5)
    assert sorted(dead.kind for dead in world.store.rows(DeadLetter)) == [
        MessageKind.DIRECT_MESSAGE,
        MessageKind.UNDELIVERED,
    ]
    changed = await world.policy(retry_config=None)
    assert "retry_config" not in changed.value
    await world.ask(world.tell("ann", "bob"))
    [row] = world.store.rows(Delivery)
    assert row.wake_at == world.time + SECOND
    await world.intake.stop()


async def test_other_changes_of_the_policy_let_waits_alone():
    world = await stage()
    await world.connect("bob", acknowledges=True)
    await world.ask(world.tell("ann", "bob"))
    await world.advance(0.5)
    await world.policy(enabled_chains=["A"])
    await world.settle()
    [row] = world.store.rows(Delivery)
    assert row.wake_at == world.time + SECOND // 2
    await world.intake.stop()


@pytest.mark.parametrize(
    ("config", "field"),
    [
        ({"max_attempts": 0}, "max_attempts"),
        ({"base_delay_ms": -1}, "base_delay_ms"),
        ({"max_delay_ms": 1e13}, "max_delay_ms"),
        ({"backoff_multiplier": 0.5}, "backoff_multiplier"),
        ({"jitter": "yes"}, "jitter"),
    ],
)
async def test_a_write_is_refused_with_who_may_write_or_what_does_not_fit(config, field):
    world = await stage()
    fault = await world.refused(world.change(ADMIN, Registry.POLICY, "policy", {"retry_config": config}, 1))
    assert (fault.kind, fault.field) == (Kind.INVALID, f"changes.retry_config.{field}")
    good = world.change("ann", Registry.POLICY, "policy", {"retry_config": {"jitter": False}}, 1)
    assert (await world.refused(good)).kind is Kind.FORBIDDEN
    await world.ask(msgspec.structs.replace(good, principal=ADMIN))
    audited = [r for r in await world.store.audit(after=0, limit=100) if r.action == "state.change"]
    assert [(r.principal, r.outcome) for r in audited][-2:] == [("ann", "refused"), (ADMIN, "accepted")]
    await world.intake.stop()


async def test_a_messages_own_time_to_live_still_ends_it():
    world = await stage()
    await world.connect("bob", acknowledges=True)
    end = Instant(world.time + 2 * SECOND)
    await world.ask(world.tell("ann", "bob", expires_at=end, retry=Backoff(base=HOUR, most=HOUR)))
    [row] = world.store.rows(Delivery)
    assert row.wake_at == end
    await world.intake.stop()

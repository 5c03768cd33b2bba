"""Limits of rate: a sliding minute for each agent, each collaboration and the broker, and how long to wait."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.conformance.a2acp.samples import START

from dragoman.core.directory import MINUTES, Directory
from dragoman.core.ids import Instant
from dragoman.core.model.ratelimit import BROKER, SECOND, Exceeded, Limits, Minute, keys, take
from dragoman.core.ports import Recovered

NOON = int(START.timestamp()) * SECOND


class Meter:
    """Everybody's minutes."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self.minutes: dict[Any, Minute] = {}

    def admit(self, principal: str, now: int, collaboration: str | None = None) -> Exceeded | None:
        outcome = take(self.minutes.get, keys(principal, collaboration), self.limits, now)
        if isinstance(outcome, Exceeded):
            return outcome
        self.minutes.update(outcome)
        return None


def flood(meter: Meter, count: int, now: int, who: str = "ada", where: str | None = None) -> list[Exceeded]:
    return [found for _ in range(count) if (found := meter.admit(who, now, where)) is not None]


@pytest.mark.requirement("A2-LIM-1", "A2-LIM-2", "A2-LIM-3", "a2acp-D16")
def test_each_limit_holds_and_says_how_long_to_wait() -> None:
    meter = Meter()
    assert len(flood(meter, 101, NOON, where="l-1")) == 1
    [met] = flood(meter, 1, NOON + 30 * SECOND, where="l-1")
    assert (met.scope, met.limit, met.retry_after) == ("collaboration", 100, 30)
    assert flood(meter, 900, NOON + SECOND) == []
    [met] = flood(meter, 1, NOON + SECOND)
    assert (met.scope, met.limit, met.retry_after) == ("agent", 1000, 59)
    for number in range(9):
        assert flood(meter, 1000, NOON + SECOND, f"a{number}") == []
    [met] = flood(meter, 1, NOON + SECOND, "fresh")
    assert (met.scope, met.limit) == ("broker", 10_000)
    assert flood(meter, 100, NOON + 60 * SECOND, where="l-1") == []


@pytest.mark.requirement("a2acp-D16")
def test_a_refused_message_takes_from_nobody() -> None:
    limits = Limits(agent=5, collaboration=1, broker=9)
    meter = Meter(limits)
    flood(meter, 3, NOON, where="l-1")
    assert {key: minute.total for key, minute in meter.minutes.items()} == {
        ("agent", "ada"): 1, ("collaboration", "l-1"): 1, BROKER: 1,
    }  # fmt: skip
    assert flood(Meter(Limits(agent=0, broker=0)), 2000, NOON) == []


@pytest.mark.requirement("a2acp-D16")
@given(st.integers(1, 8), st.lists(st.integers(0, 30 * SECOND), min_size=1, max_size=60))
def test_no_sliding_minute_holds_more_than_the_limit(limit: int, pauses: list[int]) -> None:
    meter, now, passed = Meter(Limits(agent=limit, broker=0)), NOON, []
    for pause in pauses:
        now += pause
        met = meter.admit("ada", now)
        if met is None:
            passed.append(now)
        else:
            assert 1 <= met.retry_after <= 60
    for start in passed:
        assert len([at for at in passed if start <= at < start + 60 * SECOND]) <= limit


@given(st.integers(1, 5), st.lists(st.integers(0, 20 * SECOND), min_size=1, max_size=40))
def test_a_client_that_waits_as_asked_passes(limit: int, pauses: list[int]) -> None:
    minute, now = Minute(), NOON
    for pause in pauses:
        now += pause
        now += minute.wait(limit, now)
        assert minute.wait(limit, now) == 0
        minute = minute.taken(now)
        assert len(minute.slots) <= 61


@pytest.mark.requirement("A2-LNK-4")
def test_empty_minutes_are_forgotten() -> None:
    directory = Directory(Recovered())
    once = Minute().taken(NOON)
    directory.note_minutes({("agent", f"a{number}"): once for number in range(MINUTES + 1)}, Instant(NOON))
    assert len(directory.minutes) == MINUTES + 1
    for number in range(MINUTES + 2):  # looked for now and then, not with every one that comes
        directory.note_minutes({("agent", f"b{number}"): once}, Instant(NOON + 61 * SECOND))
    assert not directory.minutes
    back = Minute().taken(NOON).taken(NOON - 5 * SECOND)  # a clock that was set back
    assert back.slots == ((NOON, 2),)

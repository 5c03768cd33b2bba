"""The circuit breaker of one agent, as a value.

    closed ──5 failures in a row──▶ open ──60 s──▶ half open ──health check answered──▶ closed
                                      ▲                     │
                                      └────── it failed ────┘

An agent with an open breaker gets no new work; it goes on with what it has (chiffon-D7). Only timeouts and broken links
count, never faults of the caller. For agents that converse the policy sets the limits (agentmsg-D11), for others the
hub's rules.
"""

from __future__ import annotations

from dragoman.core.ids import Instant
from dragoman.core.model.agents import Breaker, BreakerState

CLOSED = Breaker()


def failed(breaker: Breaker, now: Instant, threshold: int, pause: int) -> Breaker:
    """Count one more failure. `threshold` failures in a row open the breaker for `pause`."""
    failures = breaker.failures + 1
    if breaker.state is BreakerState.HALF_OPEN or failures >= threshold:
        if breaker.state is BreakerState.OPEN:
            return Breaker(state=breaker.state, failures=failures, until=breaker.until)
        return Breaker(state=BreakerState.OPEN, failures=failures, until=Instant(now + pause))
    return Breaker(state=breaker.state, failures=failures, until=breaker.until)


def answered(breaker: Breaker, *, probe: bool) -> Breaker:
    """The agent answered. Only a health check closes a breaker that has opened."""
    if probe or breaker.state is BreakerState.CLOSED:
        return CLOSED
    return breaker


def rested(breaker: Breaker, now: Instant) -> Breaker:
    """Half open, once its pause is over."""
    if breaker.state is BreakerState.OPEN and breaker.until is not None and now >= breaker.until:
        return Breaker(state=BreakerState.HALF_OPEN, failures=breaker.failures)
    return breaker

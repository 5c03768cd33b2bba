"""The circuit breaker of one agent, as a value.

    closed ──5 failures in a row──▶ open ──60 s──▶ half open ──health check answered──▶ closed
                                      ▲                     │
                                      └────── it failed ────┘

An open breaker keeps new work away; what the agent already has goes on (chiffon-D7). Only timeouts and broken
links count: faults of the caller never do. For agents that converse the policy says how many and how long
(agentmsg-D11), for the others the hub's rules.
"""

from __future__ import annotations

from dragoman.core.ids import Instant
from dragoman.core.model.agents import Breaker, BreakerState

CLOSED = Breaker()


def failed(breaker: Breaker, now: Instant, threshold: int, pause: int) -> Breaker:
    """One more failure. So many in a row open it, for so long."""
    failures = breaker.failures + 1
    if breaker.state is BreakerState.HALF_OPEN or failures >= threshold:
        if breaker.state is BreakerState.OPEN:
            return Breaker(state=breaker.state, failures=failures, until=breaker.until)
        return Breaker(state=BreakerState.OPEN, failures=failures, until=Instant(now + pause))
    return Breaker(state=breaker.state, failures=failures, until=breaker.until)


def answered(breaker: Breaker, *, probe: bool) -> Breaker:
    """The agent did answer. Only a health check closes a breaker that has opened."""
    if probe or breaker.state is BreakerState.CLOSED:
        return CLOSED
    return breaker


def rested(breaker: Breaker, now: Instant) -> Breaker:
    """Half open, once its pause is over."""
    if breaker.state is BreakerState.OPEN and breaker.until is not None and now >= breaker.until:
        return Breaker(state=BreakerState.HALF_OPEN, failures=breaker.failures)
    return breaker

"""The table of the election, row by row: what a node knows, and what it does."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.app.cluster.election import (
    FARTHEST,
    LOOK_EVERY,
    MARGIN,
    RENEW_EVERY,
    TTL,
    Follow,
    Known,
    Lead,
    StepDown,
    Stream,
    Take,
    Verdict,
    Wait,
    Why,
    decide,
    look_again,
)
from dragoman.core.ids import Instant
from dragoman.stores.postgres.lease import Lease

NOW = 1000.0


def lease(epoch: int = 7, holder: str = "b", *, left: float = 2.0, alive: bool = True) -> Lease:
    return Lease(
        realm="default", epoch=epoch, holder=holder, url=f"{holder}:1", backend="1/1", ttl=TTL,
        expires_at=NOW + left, now=NOW, backend_alive=alive, last_unit=3, last_instant=Instant(5),
    )  # fmt: skip


NOBODY = lease(0, "", left=float("-inf"), alive=False)
TO_B = Follow(7, "b", "b:1")


def knows(of: Lease | None, **more: Any) -> Known:
    return Known(me="a", lease=of, **{"now": 10.0, **more})


def leads(of: Lease | None, *, left: float = 2.0, **more: Any) -> Known:
    return knows(of, leads=7, led=6, sure_until=10.0 + left, **more)


TABLE: dict[str, tuple[Known, Verdict]] = {
    # leading
    "a leader whose lease holds goes on": (leads(lease(7, "a")), Lead()),
    "a leader goes on while PostgreSQL is silent for a moment": (leads(None), Lead()),
    "a leader that sees a later epoch is over": (leads(lease(8, "b")), StepDown(Why.FENCED)),
    "a leader steps down before its lease ends": (leads(None, left=MARGIN), StepDown(Why.LEASE_ENDS)),
    "a leader that woke after its lease ended steps down": (leads(lease(7, "a"), left=-60), StepDown(Why.LEASE_ENDS)),
    "a leader whose clock is ahead steps down": (leads(lease(7, "a"), off=FARTHEST + 0.1), StepDown(Why.CLOCK)),
    "a leader whose clock is behind steps down": (leads(lease(7, "a"), off=-FARTHEST - 0.1), StepDown(Why.CLOCK)),
    # not leading
    "nobody has led yet": (knows(NOBODY), Take(0)),
    "the lease has ended": (knows(lease(left=0)), Take(7)),
    "the lease has ended though the stream is open": (knows(lease(left=-1), stream=Stream.OPEN), Take(7)),
    "a leader is there": (knows(lease()), TO_B),
    "a leader is there, and the stream is open": (knows(lease(), stream=Stream.OPEN), TO_B),
    "the stream broke, and the leader's session is alive": (knows(lease(), stream=Stream.BROKEN), TO_B),
    "the stream broke, and the leader's session is gone": (knows(lease(alive=False), stream=Stream.BROKEN), Take(7)),
    "the session is gone, and nobody tried the stream": (knows(lease(alive=False)), TO_B),
    "the session is gone, and the stream is open": (knows(lease(alive=False), stream=Stream.OPEN), TO_B),
    "the leader went on to the next epoch by itself": (
        knows(lease(8), following=TO_B, stream=Stream.OPEN), TO_B,
    ),
    "the leader went on, and the stream broke": (
        knows(lease(8), following=TO_B, stream=Stream.BROKEN), Follow(8, "b", "b:1"),
    ),
    "another node leads, and the stream to the last one is open": (
        knows(lease(8, "c"), following=TO_B, stream=Stream.OPEN), Follow(8, "c", "c:1"),
    ),
    "its own term ended without a release": (knows(lease(7, "a"), led=7), Take(7)),
    "its process before died": (knows(lease(7, "a", alive=False)), Take(7)),
    "another process leads under its name": (knows(lease(7, "a")), Wait(Why.NAME_TAKEN)),
    "PostgreSQL is silent": (knows(None), Wait(Why.NO_DATABASE)),
    "PostgreSQL is silent for this node alone": (knows(None, following=TO_B, stream=Stream.OPEN), TO_B),
    "PostgreSQL is silent, and the leader gone": (
        knows(None, following=TO_B, stream=Stream.BROKEN), Wait(Why.NO_DATABASE),
    ),
    "the lease has ended, and the clock is off": (knows(lease(left=0), off=-6), Wait(Why.CLOCK)),
    "a clock that is nearly right": (knows(lease(left=0), off=FARTHEST), Take(7)),
    "it was told to step down a moment ago": (knows(lease(7, "a", left=0), yields_until=11), Wait(Why.YIELDS)),
    "it was told to step down, and nobody else came": (knows(lease(7, "a", left=0), yields_until=10), Take(7)),
    "it yields, and another leads": (knows(lease(8, "b"), yields_until=11), Follow(8, "b", "b:1")),
}  # fmt: skip


@pytest.mark.parametrize("row", TABLE)
def test_each_row_of_the_table(row: str) -> None:
    known, verdict = TABLE[row]
    assert decide(known) == verdict


def test_the_table_has_every_verdict_and_every_reason() -> None:
    verdicts = [verdict for _, verdict in TABLE.values()]
    assert {type(one) for one in verdicts} == {Lead, Take, Follow, Wait, StepDown}
    assert {one.why for one in verdicts if isinstance(one, Wait | StepDown)} == set(Why)


@given(
    known=st.builds(
        Known,
        me=st.just("a"),
        lease=st.none()
        | st.builds(
            lease, st.integers(0, 9), st.sampled_from(["", "a", "b"]), left=st.floats(-9, 9), alive=st.booleans()
        ),
        leads=st.none() | st.integers(1, 9),
        led=st.integers(0, 9),
        now=st.floats(0, 20),
        sure_until=st.floats(0, 20),
        yields_until=st.floats(0, 20),
        stream=st.sampled_from(Stream),
        following=st.none() | st.just(TO_B),
        off=st.floats(-9, 9),
    )
)
def test_no_node_leads_or_takes_the_lead_that_must_not(known: Known) -> None:
    verdict = decide(known)
    if isinstance(verdict, Lead):
        assert known.leads is not None
        assert known.now < known.sure_until
    if isinstance(verdict, Lead | Take):
        assert abs(known.off) <= FARTHEST
    if isinstance(verdict, Take):
        assert known.lease is not None
        assert verdict.seen == known.lease.epoch
        assert known.leads is None
    assert 0 < look_again(known, verdict) <= RENEW_EVERY


def test_a_follower_looks_again_when_the_lease_ends() -> None:
    known = knows(lease(left=0.2), stream=Stream.OPEN)
    assert 0.2 < look_again(known, decide(known)) < LOOK_EVERY

"""Whether this node leads: a pure decision over what it knows at one moment.

A lease in PostgreSQL names the leader and its epoch. Safety does not hang on anything here: every commit names its
epoch, and PostgreSQL refuses those of an epoch that is over. What is decided here is how soon another node leads after
a failure, and that no two nodes take the lease from each other for nothing.

While this node leads (`leads` is its epoch):

    PostgreSQL    the lease           otherwise                          →
    ------------  ------------------  ---------------------------------  -------------------------
    answers       a later epoch       –                                  step down: FENCED
    –             –                   its clock is off                   step down: CLOCK
    –             –                   its lease may end within `MARGIN`  step down: LEASE_ENDS
    –             own epoch, or not   –                                  lead
                  known

While it does not lead:

    PostgreSQL    the lease           the leader                         →
    ------------  ------------------  ---------------------------------  -------------------------
    no answer     –                   its stream is open                 follow on
    no answer     –                   –                                  wait: NO_DATABASE
    answers       holds               its stream is open, or untried     follow; on, where the same leader went on to
                                                                         a later epoch (a commit was in doubt)
    answers       holds               this very process, in a term that  take
                                      ended without a release
    answers       holds               another process under this name    wait: NAME_TAKEN
    answers       holds               stream broken, session alive       follow (connect again)
    answers       holds               stream broken, session gone        take
    answers       ended, or nobody's  –                                  take

Instead of taking the lease a node waits: CLOCK where its clock is off, YIELDS for a while after it was told to step
down, so that another node is faster.
"""

from __future__ import annotations

import enum

import msgspec

from dragoman.stores.postgres.lease import Lease

TTL = 3.0
"""Seconds that the lease lasts after it was taken or renewed."""
RENEW_EVERY = 1.0
MARGIN = 0.5
"""A leader that could not renew its lease steps down so many seconds before the lease may end."""
FARTHEST = 5.0
"""Seconds that a leader's clock may be off PostgreSQL's."""
YIELD = 2 * TTL
"""For so long a node that was told to step down leaves the lease to others."""

LOOK_EVERY = 0.5
"""How often a node that follows looks at the lease. It looks also when the stream breaks, and when the lease ends."""
LOOK_SOON = 0.05
"""How often it looks while there may be a lead to take."""


class Stream(enum.Enum):
    """The stream to the leader that the lease shows."""

    UNTRIED = "untried"
    OPEN = "open"
    BROKEN = "broken"


class Why(enum.Enum):
    """Why a node waits, or steps down; the sentence is for people."""

    NO_DATABASE = "PostgreSQL does not answer"
    CLOCK = "this machine's clock is off PostgreSQL's by more than 5 s: correct it (NTP)"
    NAME_TAKEN = "another process leads under this node's name: give each node a name of its own (--node)"
    YIELDS = "this node was told to step down, and leaves the lead to others for a moment"
    FENCED = "another node leads"
    LEASE_ENDS = "the lease could not be renewed in time"


class Known(msgspec.Struct, frozen=True, kw_only=True):
    """What a node knows. `now` and `sure_until` are of its own monotonic clock, in seconds."""

    me: str
    lease: Lease | None
    """As PostgreSQL showed it just now; None: it did not answer."""
    leads: int | None = None
    """The epoch that this process leads."""
    led: int = 0
    """The last epoch that it led."""
    now: float
    sure_until: float = 0.0
    """Its lease lasts at least until then: reckoned from before the renewal was sent."""
    yields_until: float = 0.0
    stream: Stream = Stream.UNTRIED
    following: Follow | None = None
    """Whom it follows now."""
    off: float = 0.0
    """Seconds that its clock is ahead of PostgreSQL's; below 0: behind."""


class Lead(msgspec.Struct, frozen=True):
    """Go on leading."""


class Take(msgspec.Struct, frozen=True):
    """Take the lease that shows this epoch."""

    seen: int


class Follow(msgspec.Struct, frozen=True):
    epoch: int
    holder: str
    url: str
    """Where the leader takes the other nodes' streams."""


class Wait(msgspec.Struct, frozen=True):
    why: Why


class StepDown(msgspec.Struct, frozen=True):
    why: Why


Verdict = Lead | Take | Follow | Wait | StepDown


def decide(known: Known) -> Verdict:
    return _as_leader(known) if known.leads is not None else _as_another(known)


def _as_leader(known: Known) -> Verdict:
    if known.lease is not None and known.lease.epoch != known.leads:
        return StepDown(Why.FENCED)
    if abs(known.off) > FARTHEST:
        return StepDown(Why.CLOCK)
    if known.now >= known.sure_until - MARGIN:
        return StepDown(Why.LEASE_ENDS)
    return Lead()


def _as_another(known: Known) -> Verdict:
    lease = known.lease
    if lease is None:
        if known.following is not None and known.stream is Stream.OPEN:
            return known.following
        return Wait(Why.NO_DATABASE)
    if not lease.holder or lease.now >= lease.expires_at:
        return _take(known, lease)
    if lease.holder == known.me:
        if lease.epoch == known.led or not lease.backend_alive:
            return _take(known, lease)
        return Wait(Why.NAME_TAKEN)
    if known.stream is Stream.BROKEN and not lease.backend_alive:
        return _take(known, lease)
    on = known.following
    if on is not None and known.stream is Stream.OPEN and (on.holder, on.url) == (lease.holder, lease.url):
        return on
    return Follow(lease.epoch, lease.holder, lease.url)


def _take(known: Known, lease: Lease) -> Verdict:
    if abs(known.off) > FARTHEST:
        return Wait(Why.CLOCK)
    if known.now < known.yields_until:
        return Wait(Why.YIELDS)
    return Take(lease.epoch)


def look_again(known: Known, verdict: Verdict) -> float:
    """Seconds until the lease is to be looked at again."""
    match verdict:
        case Lead():
            return RENEW_EVERY if known.lease is not None else RENEW_EVERY / 4
        case Follow():
            if known.lease is None:
                return LOOK_EVERY
            if known.stream is Stream.BROKEN:
                return LOOK_SOON
            return max(LOOK_SOON, min(LOOK_EVERY, known.lease.expires_at - known.lease.now + LOOK_SOON))
        case Wait(why) if why is not Why.NO_DATABASE:
            return LOOK_EVERY
        case _:
            return LOOK_SOON

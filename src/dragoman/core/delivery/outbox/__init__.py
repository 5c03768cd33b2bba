"""How news reaches whoever must hear it.

`offer` puts a notice into its lane and, if the receiver can be reached and the lane allows it, on its way at once;
`acknowledge` takes it out and lets the next one leave; `pump` gives a fresh link what waited for it. Leases:

- over a link that keeps order, a delivery is held by the link. When the link breaks the lease is worth nothing, and
  the delivery leaves again over the next one.
- a poll takes one or several consecutive ones of a lane, which its answer has in order, and holds each until `wake_at`.
  Then it is offered again, and what left behind it in that answer behind it again. A work order that a poll took is
  watched by its task's idle clock, which makes a new attempt of it; only where that clock is set longer than usual does
  such a lease end before.
- a request that waits for its own answer is a poll of that alone. While it stands the answer goes there and nowhere
  else, and the request hears of nothing before it; when it is gone the answer takes the way of everything else.
- an agent that converses (`Agent.converses`) is promised more: what it does not acknowledge until `wake_at` leaves
  again, over whatever link, after growing waits. What it is promised at most once is gone when it leaves.

In every case each offer is an attempt, and after the last one the delivery is a dead letter.

    file      what it is about
    --------  ------------------------------------------------------------------------------
    leases    over which link a delivery may leave, and how long it is held there
    lanes     what stands before what: leaving in order, arriving, making way
    offers    news of tasks and questions, and the requests that wait for their answer
    ends      what will not arrive: expired, never acknowledged, given up
    again     offering again: a fresh link, room on an old one, a lease that ran out or runs otherwise now

Each imports only from those above it.
"""

from __future__ import annotations

from dragoman.core.delivery.outbox.again import (
    NOTHING_YET,
    after_a_stop,
    lease_expired,
    order_goes_on,
    pump,
    wait_anew,
)
from dragoman.core.delivery.outbox.ends import bury, give_up, tell_sender
from dragoman.core.delivery.outbox.lanes import acknowledge, put_on_its_way, settle, withdraw
from dragoman.core.delivery.outbox.leases import lease, leaves_once, waiting_again
from dragoman.core.delivery.outbox.offers import (
    NOBODY,
    OUTCOME_KINDS,
    OUTCOMES,
    await_answer,
    offer,
    offer_answer,
    repeat,
)

__all__ = (
    "NOBODY",
    "NOTHING_YET",
    "OUTCOMES",
    "OUTCOME_KINDS",
    "acknowledge",
    "after_a_stop",
    "await_answer",
    "bury",
    "give_up",
    "lease",
    "lease_expired",
    "leaves_once",
    "offer",
    "offer_answer",
    "order_goes_on",
    "pump",
    "put_on_its_way",
    "repeat",
    "settle",
    "tell_sender",
    "wait_anew",
    "waiting_again",
    "withdraw",
)

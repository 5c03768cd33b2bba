"""Whether a child that ended is started again, and when: a pure decision (forge-D11).

    policy       clean exit (0)    any other end
    ----------   ---------------   ----------------------------------------------------
    never        stopped           crashed
    on-failure   stopped           started again after a pause, at most 5 times in 10 minutes, then crashed
    always       started again, likewise

What could not be started at all, because there is no such program or directory, is crashed at once.

The pause grows with the ends of the last ten minutes. A child that has run for longer than that begins afresh.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from dragoman.core.ids import MINUTE, SECOND, Instant

Policy = Literal["never", "on-failure", "always"]

MOST = 5
WITHIN = 10 * MINUTE
PAUSES = (SECOND // 4, SECOND, 2 * SECOND, 5 * SECOND, 10 * SECOND)
"""Before the first restart, the second, …"""


class Exit(msgspec.Struct, frozen=True, kw_only=True):
    at: Instant
    clean: bool
    permanent: bool = False


class Restart(msgspec.Struct, frozen=True):
    """Start it at this moment. `number` counts the restarts of the last ten minutes, this one included."""

    at: Instant
    number: int


Decision = Restart | Literal["stopped", "crashed"]


def decide(policy: Policy, exits: Sequence[Exit], now: Instant) -> Decision:
    """`exits` are this child's ends, the last one last; at least one."""
    last = exits[-1]
    if last.permanent:
        return "crashed"
    if policy == "never" or (policy == "on-failure" and last.clean):
        return "stopped" if last.clean else "crashed"
    recent = sum(now - exit.at < WITHIN for exit in exits)
    if recent > MOST:
        return "crashed"
    return Restart(Instant(now + PAUSES[max(0, recent - 1)]), max(1, recent))


def recent_exits(exits: Sequence[Exit], now: Instant) -> tuple[Exit, ...]:
    """Those that can still matter."""
    return tuple(exit for exit in exits if now - exit.at < WITHIN)[-(MOST + 1) :]

"""Which refusals are audit records of their own, and which are only counted.

A record takes disk space for ever, and a refusal costs its sender nothing. So each sender has an allowance of records,
which fills up again with time. Refusals beyond it are counted, and the count becomes a record once a minute
(`CountRefusals`) and when the hub stops in order. A hub that is killed loses the counts of the last minute, never a
record. Senders without a credential are distinguished by their address, and share an allowance besides.

    whose                            at once    then
    -------------------------------  ---------  ---------------------
    an address without credentials   20         one in 30 seconds
    all of those together            1,000      one a second
    an agent, or a person            500        one a second

The chain stays whole: refusals without a record do not break it.
"""

from __future__ import annotations

import ipaddress
from typing import NamedTuple

import msgspec

from dragoman.core.ids import NOBODY, SECOND, Instant
from dragoman.messages.faults import Kind

STRANGERS = "strangers"
OTHERS = "others"
"""In place of a sender, where too many are known already."""
MOST_SENDERS = 10_000
MOST_COUNTS = 2_000

LONGEST_REASON = 1000


class Rate(NamedTuple):
    """So many at once, then one in so many microseconds."""

    burst: int
    every: int


ADDRESS = Rate(20, 30 * SECOND)
ALL_STRANGERS = Rate(1000, SECOND)
KNOWN = Rate(500, SECOND)


class Allowance(msgspec.Struct, frozen=True, gc=False):
    """How many records a sender has left, as of a moment."""

    left: int
    at: int

    def now(self, rate: Rate, now: int) -> Allowance:
        grown = (now - self.at) // rate.every
        if self.left + grown >= rate.burst:
            return Allowance(rate.burst, now)
        return Allowance(self.left + grown, self.at + grown * rate.every) if grown > 0 else self


class RefusalKey(NamedTuple):
    """What is counted together."""

    sender: str
    action: str
    kind: Kind


class RefusalCount(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """Refusals that are no records yet."""

    principal: str
    protocol: str | None
    count: int
    since: Instant
    reason: str


def sender_of(principal: str, address: str | None) -> str:
    """What distinguishes senders: a principal, or the address of a sender without one. For IPv6 it is the network."""
    if principal != NOBODY:
        return principal
    try:
        known = ipaddress.ip_address((address or "").partition("%")[0])
    except ValueError:
        return f"@{address or 'somewhere'}"
    if isinstance(known, ipaddress.IPv6Address):
        if known.ipv4_mapped is not None:
            return f"@{known.ipv4_mapped}"
        return f"@{ipaddress.ip_network((known, 64), strict=False)}"
    return f"@{known}"


def rates_of(sender: str) -> tuple[tuple[str, Rate], ...]:
    """The allowances that a record takes from."""
    if sender.startswith("@"):
        return (sender, ADDRESS), (STRANGERS, ALL_STRANGERS)
    return ((sender, KNOWN),)


def in_words(key: RefusalKey, count: RefusalCount) -> str:
    """The text of the record of a count."""
    where = f" from {key.sender[1:]}" if key.sender.startswith("@") else ""
    return f"{count.count} more were refused{where}, the last: {count.reason[:LONGEST_REASON]}"

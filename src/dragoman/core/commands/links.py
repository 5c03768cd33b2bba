"""How agents come and go, and what they have received."""

from __future__ import annotations

from typing import Any

from dragoman.core.commands.base import Command
from dragoman.core.ids import DeliveryId, SessionId
from dragoman.core.lookups import (
    PAGE,
    Claims,
    DeliveryById,
    Inbox,
    LeasedTo,
    Lookup,
)
from dragoman.messages.faults import Fault


class OpenLink(Command, frozen=True, gc=False, kw_only=True):
    """An agent can be reached: over a link that keeps order, or by one poll that takes up to `credit` outgoing
    messages.

    What waits for it leaves after the commit, through the link. A second ordered link of the same agent replaces
    the first. Outcome: the number of outgoing messages under way at once (a poll with none is parked).

    `fresh`: the agent starts with an empty head, so what it held over an earlier link is lost. `instance`: which
    process of the agent this is, where it says so; another one than the last is `fresh`, too. `vouches`: while this
    link stands, the agent is alive, however silent it works. `paced`: the link says how far its peer has read
    (`PaceLink`), and is not given more than that allows.
    """

    session: SessionId
    ordered: bool
    credit: int = 0
    acknowledges: bool = False
    fresh: bool = False
    instance: str | None = None
    vouches: bool = False
    paced: bool = False

    def wants(self) -> tuple[Lookup[Any], ...]:
        inbox = Inbox(self.principal, PAGE if self.ordered else max(1, min(self.credit, PAGE)))
        return (inbox, LeasedTo(self.principal, PAGE)) if self.ordered else (inbox,)


class CloseLink(Command, frozen=True, gc=False, kw_only=True):
    """The link is gone. A poll that was answered or given up is closed too."""

    session: SessionId
    lost: bool = True
    """False for a poll that simply ended: nothing was lost with it."""
    fault: Fault | None = None
    """The agent itself is gone, for this reason: what it held over the link fails at once, without a grace time."""


class PartLink(Command, frozen=True, gc=False, kw_only=True):
    """The agent at the other end of a link was asked to end: it may finish what it has, and is given nothing new."""

    session: SessionId


class RefillLink(Command, frozen=True, gc=False, kw_only=True):
    """An ordered link has room again: more of what waits may leave."""

    session: SessionId

    def wants(self) -> tuple[Lookup[Any], ...]:
        return (Inbox(self.principal, PAGE),)


class PaceLink(Command, frozen=True, gc=False, kw_only=True):
    """So much of what an ordered link was given has been written to its peer, altogether (`Outgoing.weight`): where it
    was full, more of what waits may leave."""

    session: SessionId
    written: int

    def wants(self) -> tuple[Lookup[Any], ...]:
        return (Inbox(self.principal, PAGE),)


class TellAgain(Command, frozen=True, gc=False, kw_only=True):
    """Whoever asked under this id has not seen the answer: it is delivered anew, if it is there, or offered at once, if
    it waits for an acknowledgment that will not come. Refused with NOT_FOUND if they never asked so."""

    request_id: str

    def wants(self) -> tuple[Lookup[Any], ...]:
        return (Claims(self.principal, self.request_id),)


class Acknowledge(Command, frozen=True, gc=False, kw_only=True):
    """The receiver has these. Unknown ids are ignored: they were acknowledged before. Outcome: how many were known.

    On an ordered link (`session` given) an acknowledgment covers what went before it in the same lane.
    """

    deliveries: tuple[DeliveryId, ...]
    session: SessionId | None = None

    def wants(self) -> tuple[Lookup[Any], ...]:
        return tuple(DeliveryById(id) for id in self.deliveries)

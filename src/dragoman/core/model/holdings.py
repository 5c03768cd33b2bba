"""What each principal has in the store that is unfinished: derived from rows, for its quotas.

    row                                    whose                bytes                         counts as
    -------------------------------------  -------------------  ----------------------------  ---------
    an unfinished task                     its caller           its request, as it came       –
    an unacknowledged direct message       its sender           its raw message               a message
    a task that agents keep in the state   its creator          its value                     an entity

The hub counts them at its start and updates the counts after each commit, by the rows that changed.
"""

from __future__ import annotations

from typing import Any

import msgspec

from dragoman.core.ids import AgentId
from dragoman.core.model.deliveries import Delivery, MessageKind
from dragoman.core.model.state import Entity, Registry
from dragoman.core.model.tasks import Task

_encode = msgspec.json.Encoder().encode


class Holding(msgspec.Struct, frozen=True, gc=False):
    bytes: int = 0
    direct_messages: int = 0
    entities: int = 0

    def plus(self, other: Holding, times: int = 1) -> Holding:
        return Holding(
            self.bytes + times * other.bytes,
            self.direct_messages + times * other.direct_messages,
            self.entities + times * other.entities,
        )


NOTHING = Holding()


def holding_of(row: Any) -> tuple[AgentId, Holding] | None:
    """What a row adds to which principal's holding, if anything."""
    kind = type(row)
    if kind is Task:
        return None if row.final else (row.origin.principal, Holding(bytes=row.origin.bytes))
    if kind is Delivery:
        if row.direct_message is None or row.kind is not MessageKind.DIRECT_MESSAGE:
            return None
        return row.direct_message.sender, Holding(bytes=row.size, direct_messages=1)
    if kind is Entity and row.registry is Registry.TASK:
        return row.created_by, Holding(bytes=len(_encode(row.value)), entities=1)
    return None

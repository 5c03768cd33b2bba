"""What the handler remembers of one agent's messages: those it sent, so that a repeated one is answered alike, and
those it was handed, so that an ACK, which names messages, finds the deliveries.

Both are bounded and only in memory. After a restart of the hub the store still knows what it has accepted, and offers
again what was not acknowledged; then the ACK is understood.

    an ACK names             found by
    -----------------------  -----------------------------------------------------------------------------------------
    a delivery               `metadata.delivery_id` of the ACK, exactly
    a message the hub made   its id, which is the delivery's with another version number
    a message of an agent    what was handed to this agent and not acknowledged yet; of two alike, the elder
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from dragoman.core.ids import DeliveryId
from dragoman.server.agentmsg.names import delivery_named

MOST_HEARD = 1024
"""Messages of one agent that are recognised without asking the store."""
MOST_HELD = 10_000
"""Messages of one agent that are being decided, over all its links and requests."""
MOST_HANDED = 4096


class Handed:
    """What one agent was given and has not acknowledged."""

    def __init__(self) -> None:
        self._deliveries: dict[str, deque[DeliveryId]] = {}

    def __len__(self) -> int:
        return len(self._deliveries)

    def give(self, message_id: str, delivery: DeliveryId) -> None:
        if delivery_named(message_id) == delivery:
            return  # it needs no memory
        same = self._deliveries.setdefault(message_id, deque(maxlen=16))
        if delivery not in same:
            same.append(delivery)
        if len(self._deliveries) > MOST_HANDED:
            del self._deliveries[next(iter(self._deliveries))]

    def take(self, message_ids: Iterable[str]) -> tuple[DeliveryId, ...]:
        """The deliveries that an ACK of these messages settles."""
        found = []
        for id in message_ids:
            same = self._deliveries.get(id)
            if same is None:
                found.append(delivery_named(id))
                continue
            found.append(same.popleft())
            if not same:
                del self._deliveries[id]
        return tuple(found)

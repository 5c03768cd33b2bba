"""How the SQL stores lay rows out: the keys of events, the slots of deliveries, and used message ids.

Imported by the writer process: the standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping
from struct import Struct

SEQ_BITS = 24
"""An event's key is its task's number, then its own in the low bits: one integer, in time order."""
SEQ_MASK = (1 << SEQ_BITS) - 1

WAITING_HEAD, LEASED, POLLED = 1, 2, 3
"""`delivery.slot`: what may leave for a receiver, what its session holds, what a poll took for a while; NULL: none."""

PAIR = Struct("<QQ")
"""A used message id, and a hash of the content that it stands for."""


def pack(messages: Mapping[int, int]) -> bytes:
    return b"".join([PAIR.pack(id, content) for id, content in messages.items()])

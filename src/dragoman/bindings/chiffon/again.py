"""How work ended whose output came in pieces (D4), told again.

The first time each piece was told as it came, and the event of the ending has only the last one. Whoever asks again has
perhaps none of them, and the last one alone is no outcome (all-D5): all of it is told, in blocks.
"""

from __future__ import annotations

from typing import Any

import msgspec

from dragoman.bindings.chiffon.exchange import PROTOCOL, derived, receipts
from dragoman.bindings.chiffon.outbound import reissued
from dragoman.core.model.agents import Agent
from dragoman.core.model.deliveries import MessageKind, Outgoing
from dragoman.messages.tasks import read_result
from dragoman.protocols.chiffon import chunks, codec

_ENDINGS = frozenset({MessageKind.RESULT, MessageKind.FAILURE})
_parse = msgspec.json.Decoder(dict[str, Any]).decode


def in_pieces(outgoing: Outgoing) -> bool:
    """Whether it needs the whole output (`wire_again`). What is told the first time is told in the commit of its
    event."""
    delivery, event = outgoing.delivery, outgoing.event
    if delivery.kind not in _ENDINGS or delivery.created_at == event.at or event.protocol != PROTOCOL:
        return False
    place = read_result(event.body).chunk
    return place is not None and place[0] > 0


def wire_again(outgoing: Outgoing, receiver: Agent, whole: str) -> tuple[bytes, ...]:
    """What the agent said last, once for each block of all that it said."""
    last = reissued(outgoing, receiver)
    payload = _parse(last)["payload"]
    blocks = list(chunks.split(whole))
    ids = receipts(outgoing.delivery.id, len(blocks))
    return tuple(
        codec.reissue(
            last,
            {
                "message_id": derived(outgoing.delivery.id, index),
                "payload": {**payload, "output": block.text, "output_chunk": str(block.label)},
            },
            {"delivery_id": ids[index]},
        )
        for index, block in enumerate(blocks)
    )

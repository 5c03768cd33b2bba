"""A task that was handed over to an agent of another protocol comes with all that is known of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec
from tests.unit.server.agentmsg.samples import BOB, NOW

from dragoman.core.model.deliveries import MessageKind
from dragoman.core.model.outgoing import Outgoing
from dragoman.core.model.tasks import EventKind
from dragoman.server.chiffon import outbound as chiffon
from dragoman.server.coven.outbound import message_of
from dragoman.server.forge import outbound as forge

HANDOVER = {"from": "ada", "to": "bob", "reason": "rate_limit", "metadata": {"repo": "x"}, "story": []}
BODY = {"input": {"content": "go on"}, "handover": HANDOVER}
Make = Callable[..., Outgoing]


def test_chiffon_has_it_among_the_parameters(outgoing: Make) -> None:
    (frame,) = chiffon.wire_of(outgoing(MessageKind.WORK, EventKind.HANDED_OVER, BODY), BOB, NOW)
    assert json.loads(frame)["payload"]["parameters"] == {"content": "go on", "handover": HANDOVER}


def test_forge_has_it_beside_the_payload(outgoing: Make) -> None:
    (told,) = forge.messages_of(outgoing(MessageKind.WORK, EventKind.HANDED_OVER, BODY), NOW)
    task: dict[str, Any] = msgspec.to_builtins(told)["payload"]["task"]
    assert (task["payload"], task["handover"]) == ({"content": "go on"}, HANDOVER)


def test_coven_has_it_behind_the_text(outgoing: Make) -> None:
    words, _, rest = message_of(outgoing(MessageKind.WORK, EventKind.HANDED_OVER, BODY)).content.partition("\n\n")
    assert (words, json.loads(rest)) == ("go on", {"handover": HANDOVER})

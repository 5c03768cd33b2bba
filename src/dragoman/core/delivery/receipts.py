"""A message that came before has its first outcome again, and other words under its id are refused (all-D5).

The store knows (`Heard`), so a hub that died between its commit and its answer does not turn a yes into a no. For what
becomes a task, a question or a direct message, that row knows it; this is for what leaves no row of its own.
"""

from __future__ import annotations

from dragoman.core.ids import AgentId
from dragoman.core.lookups import HeardById
from dragoman.core.model.deliveries import Heard
from dragoman.core.policy.replay import mark_of
from dragoman.core.work import Work
from dragoman.messages.faults import Kind, Refused, refuse


def other_words() -> Refused:
    message = "this message id was used before with other content; use a new id for a new message"
    return refuse(Kind.MISMATCH, message, field="id")


def name_of(sender: AgentId, message_id: str, turn: int = 0) -> str:
    """What a message is remembered by. `turn` tells apart those that reach several agents in turn."""
    return mark_of(sender, message_id, str(turn))


def receipt(work: Work, sender: AgentId, message_id: str, digest: str) -> str | None:
    """What was noted when this message came before; None if it did not."""
    heard = work.one(HeardById(name_of(sender, message_id)))
    if heard is None:
        return None
    said, _, outcome = heard.digest.partition(" ")
    if said != digest:
        raise other_words()
    return outcome


def note(work: Work, sender: AgentId, message_id: str, digest: str, outcome: str = "") -> None:
    """It came, and what it came to, in a word."""
    said = f"{digest} {outcome}" if outcome else digest
    work.put(Heard(id=name_of(sender, message_id), digest=said, at=work.now))

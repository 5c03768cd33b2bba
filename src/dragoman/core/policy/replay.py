"""What a message id was used for, and the store knows: a restart forgets nothing.

A message of a2acp counts once (a2acp-D15). A task knows the request that asked for it (`Claims`), so that request is no
row of its own; `submit`, which asks for those claims in any case, refuses it when it comes again. Every other message
is a row (`SeenMessage`).

A message of chiffon may come again, and only other content under its id is refused (all-D5). Nearly all of the hub's
messages are such, so they are no rows: the hub has the last `ports.USED` of them in memory, and the store keeps them
with the commit that accepted them (ADR 40).

A message that came before has its first outcome again, and other words under its id are refused (all-D5).

The store knows (`SeenMessage`), so a hub that died between its commit and its answer does not turn a yes into a no. For
what becomes a task, a question or a direct message, that row knows it; this is for what leaves no row of its own.
"""

from __future__ import annotations

from hashlib import blake2b

from dragoman.core.commands import Command, Submit
from dragoman.core.ids import AgentId, Instant
from dragoman.core.lookups import Claims, SeenMessageById
from dragoman.core.model.deliveries import SeenMessage
from dragoman.core.work import Work
from dragoman.messages.faults import Kind, Refused, refuse


def replayed() -> Refused:
    message = "this message_id was used before; send a new message under a new id"
    return refuse(Kind.UNAUTHENTICATED, message, field="message_id", reason="replayed", token_status="valid")


def first_time(work: Work, command: Command) -> None:
    """Refuses a message that came before; from now on this one did."""
    assert command.seen is not None
    id = mark_of(command.principal, command.seen)
    its_own_claim = type(command) is Submit and command.request_id == command.seen
    if work.one(SeenMessageById(id)) is not None:
        raise replayed()
    if its_own_claim and command.sealed_by is None:
        return  # `submit` will see
    if work.find(Claims(command.principal, command.seen)):
        raise replayed()
    if not its_own_claim:
        remember(work, id)


def marks_of(sender: str, message_id: str, *content: str) -> tuple[int, int]:
    """What is remembered of a message that may come again: 64 bits for its sender and id, 64 for its content."""
    return _short(f"{sender}\n{message_id}"), _short("\n".join(content))


def _short(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little")


def one_content(work: Work, id: int, content: int) -> None:
    """Refuses other content under an id that was used before; from now on the id stands for this content."""
    known = work.used(id)
    if known is None:
        work.note_used(id, content)
    elif known != content:
        message = "this message_id was used before with other content; use a new message_id for a new message"
        raise refuse(Kind.MISMATCH, message, field="message_id")


def sealed_once(work: Work, seal: str) -> None:
    """A nonce counts once for its key (a2acp-D12), whatever message it comes with, and a restart forgets none.

    The same message again never gets here: its id counts once, and its seal opens under no other. This is for senders
    that are broken. While it runs the door remembers nonces too, also of what was then refused.
    """
    id = mark_of("seal", seal)
    if work.one(SeenMessageById(id)) is not None:
        message = "this nonce was used before under this key; draw a new one for every message"
        raise refuse(Kind.FORBIDDEN, message, field="payload.nonce", reason="nonce")
    remember(work, id)


def mark_of(*words: str) -> str:
    """What is remembered of somebody's message, instead of it."""
    return blake2b("\n".join(words).encode(), digest_size=16).hexdigest()


def remember(work: Work, mark: str) -> None:
    """For `Rules.replay_memory`: among the direct messages, which are remembered for longer, it counts as one of
    before."""
    spent = work.rules.request_memory - work.rules.replay_memory
    work.put(SeenMessage(id=mark, digest="", at=Instant(work.now - spent)))


def other_words() -> Refused:
    message = "this message id was used before with other content; use a new id for a new message"
    return refuse(Kind.MISMATCH, message, field="id")


def name_of(sender: AgentId, message_id: str, turn: int = 0) -> str:
    """What a message is remembered by. `turn` tells apart those that reach several agents in turn."""
    return mark_of(sender, message_id, str(turn))


def receipt(work: Work, sender: AgentId, message_id: str, digest: str) -> str | None:
    """What was noted when this message came before; None if it did not."""
    seen = work.one(SeenMessageById(name_of(sender, message_id)))
    if seen is None:
        return None
    known, _, outcome = seen.digest.partition(" ")
    if known != digest:
        raise other_words()
    return outcome


def note(work: Work, sender: AgentId, message_id: str, digest: str, outcome: str = "") -> None:
    """It came, and what it came to, in a word."""
    mark = f"{digest} {outcome}" if outcome else digest
    work.put(SeenMessage(id=name_of(sender, message_id), digest=mark, at=work.now))

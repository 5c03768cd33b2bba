"""A message counts once (a2acp-D15), and the store knows which did: a restart forgets nothing.

A task knows the request that asked for it (`Claims`), so that request is no row of its own; `submit`, which asks for
those claims in any case, refuses it when it comes again. Every other message is a row (`Heard`).
"""

from __future__ import annotations

from hashlib import blake2b

from dragoman.core.commands import Command, Submit
from dragoman.core.ids import Instant
from dragoman.core.lookups import Claims, HeardById
from dragoman.core.model.deliveries import Heard
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
    if work.one(HeardById(id)) is not None:
        raise replayed()
    if its_own_claim and command.sealed_by is None:
        return  # `submit` will see
    if work.find(Claims(command.principal, command.seen)):
        raise replayed()
    if not its_own_claim:
        remember(work, id)


def sealed_once(work: Work, seal: str) -> None:
    """A nonce counts once for its key (a2acp-D12), whatever message it comes with, and a restart forgets none.

    The same message again never gets here: its id counts once, and its seal opens under no other. This is for senders
    that are broken. While it runs the door remembers nonces too, also of what was then refused.
    """
    id = mark_of("seal", seal)
    if work.one(HeardById(id)) is not None:
        message = "this nonce was used before under this key; draw a new one for every message"
        raise refuse(Kind.FORBIDDEN, message, field="payload.nonce", reason="nonce")
    remember(work, id)


def mark_of(*words: str) -> str:
    """What is remembered of somebody's message, instead of it."""
    return blake2b("\n".join(words).encode(), digest_size=16).hexdigest()


def remember(work: Work, mark: str) -> None:
    """For `Rules.replay_memory`: among the letters, which are remembered for longer, it counts as one of before."""
    spent = work.rules.request_memory - work.rules.replay_memory
    work.put(Heard(id=mark, digest="", at=Instant(work.now - spent)))

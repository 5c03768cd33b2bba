"""Replays: what a message id was used for. The store keeps it, so a restart forgets nothing.

A message of a2acp counts once (a2acp-D15). A task knows its request (`Claims`), so that request is no row of its own:
`submit`, which loads those claims in any case, refuses it when it comes again. Every other message is a row
(`SeenMessage`).

A message of chiffon may come again; only another content under its id is refused (all-D5). Nearly all messages of the
hub are such, so they are no rows: the hub has the last `ports.USED` of them in memory, and the store keeps them with
the commit that accepted them (ADR 40).

A repeated message gets its first outcome again. If the hub died between the commit and the answer, a yes does not
become a no. A task, a question or a direct message has a row that knows this; `receipt` and `note` are for messages
that leave no row of their own.
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
    return refuse(
        Kind.UNAUTHENTICATED,
        "this message id was used before",
        next="send a new message under a new id",
        field="message_id",
        reason="replayed",
        token_status="valid",
    )


def first_time(work: Work, command: Command) -> None:
    """Refuse a message that came before, and remember this one."""
    assert command.seen is not None
    id = mark_of(command.principal, command.seen)
    its_own_claim = type(command) is Submit and command.request_id == command.seen
    if work.one(SeenMessageById(id)) is not None:
        raise replayed()
    if its_own_claim and command.sealed_by is None:
        return  # `submit` refuses it
    if work.find(Claims(command.principal, command.seen)):
        raise replayed()
    if not its_own_claim:
        remember(work, id)


def marks_of(sender: str, message_id: str, *content: str) -> tuple[int, int]:
    """What the hub remembers of a message that may come again: 64 bits for its sender and id, 64 for its content."""
    id = blake2b(f"{sender}\n{message_id}".encode(), digest_size=8).digest()
    meant = blake2b("\n".join(content).encode(), digest_size=8).digest()
    return _number(id, "little"), _number(meant, "little")


_number = int.from_bytes


def one_content(work: Work, id: int, content: int) -> None:
    """Refuse another content under an id that was used before, and remember this one."""
    known = work.used(id)
    if known is None:
        work.note_used(id, content)
    elif known != content:
        raise refuse(
            Kind.MISMATCH,
            "this message id was used before with other content",
            next="use a new message id for a new message",
            field="message_id",
        )


def sealed_once(work: Work, seal: str) -> None:
    """A nonce counts once for its key (a2acp-D12), in any message, also over a restart.

    A repeated message never gets here: its id counts once, and its seal opens under no other id. This is for faulty
    senders. The running endpoint remembers nonces, too, also those of refused messages.
    """
    id = mark_of("seal", seal)
    if work.one(SeenMessageById(id)) is not None:
        raise refuse(
            Kind.FORBIDDEN,
            "this nonce was used before under this key",
            next="draw a new one for every message",
            field="payload.nonce",
            reason="nonce",
        )
    remember(work, id)


def mark_of(*content: str) -> str:
    """The digest of a message that the hub remembers."""
    return blake2b("\n".join(content).encode(), digest_size=16).hexdigest()


def remember(work: Work, mark: str) -> None:
    """Remember this for `Rules.replay_memory`. Direct messages are remembered for longer: among them, it counts as an
    older one."""
    spent = work.rules.request_memory - work.rules.replay_memory
    work.put(SeenMessage(id=mark, digest="", at=Instant(work.now - spent)))


def other_words() -> Refused:
    message = "this message id was used before with other content"
    return refuse(Kind.MISMATCH, message, next="use a new id for a new message", field="id")


def name_of(sender: AgentId, message_id: str, turn: int = 0) -> str:
    """The key under which a message is remembered. `turn` distinguishes messages that reach several agents one after
    the other."""
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
    """Note that the message came, and its outcome in a word."""
    mark = f"{digest} {outcome}" if outcome else digest
    work.put(SeenMessage(id=name_of(sender, message_id), digest=mark, at=work.now))

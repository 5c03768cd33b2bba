"""Personal data at rest: the content of personal events, direct messages and questions is stored encrypted, and so are
the texts in the head of a personal task (`HEAD`). A reader who has only the database reads none of it.

The key is not in the store (`core.ports.Vault`). Without one, the hub accepts nothing personal, and what it has stays
encrypted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from dragoman.core.lookups import Row
from dragoman.core.model.deliveries import DeadLetter, Delivery, DirectMessage
from dragoman.core.model.tasks import Event, Question, QuestionDetails, Task
from dragoman.core.ports import Changes, StoreFailed, Vault

SHUT = msgspec.Raw(b'{"personal":true}')
"""Stands for the content where there is no key."""
WITH_DIRECT_MESSAGES = frozenset({Delivery, Question, DeadLetter})
KEPT = WITH_DIRECT_MESSAGES | {Event, Task}
QUESTION_FIELDS = ("question", "options", "default", "answer", "note", "details")
"""The encrypted fields of a question."""
HEAD = ("name", "description", "metadata")
"""The texts in the head of a task; its thread is one, too. The head of a personal task never has names of files
(`core.tasks.output`)."""
NO_HEAD: dict[str, Any] = dict.fromkeys(HEAD)
EMPTY_QUESTION: dict[str, Any] = {
    "question": "[personal]",
    "options": (),
    "default": None,
    "answer": None,
    "note": None,
}


def is_personal(row: Any) -> bool:
    kind = type(row)
    if kind is Task:
        return bool(row.agreement.personal)
    if kind is Event or (kind is Question and row.personal):
        return bool(row.personal)
    return kind in WITH_DIRECT_MESSAGES and row.direct_message is not None and row.direct_message.personal


def any_personal(rows: Sequence[Any]) -> bool:
    """Whether any row is personal. Few are, and every row is checked, so this must be fast."""
    for row in rows:
        kind = type(row)
        if kind is Event:
            if row.personal:
                return True
        elif kind is Task:
            if row.agreement.personal:
                return True
        elif kind in WITH_DIRECT_MESSAGES and (row.direct_message is not None or kind is Question) and is_personal(row):
            return True
    return False


def shut(changes: Changes, vault: Vault | None) -> Changes:
    """The changes as they are written, with personal content encrypted."""
    if not any_personal(changes.added) and not any_personal(changes.changed):
        return changes
    return msgspec.structs.replace(
        changes,
        added=[_shut(row, vault) for row in changes.added],
        changed=[_shut(row, vault) for row in changes.changed],
    )


def opened(rows: Sequence[Any], vault: Vault | None) -> list[Any]:
    """Rows as the hub reads them, with personal content decrypted."""
    return [_opened(row, vault) if is_personal(row) else row for row in rows]


def _shut(row: Row, vault: Vault | None) -> Row:
    if not is_personal(row):
        return row
    if vault is None:
        raise StoreFailed("there is no key to keep personal data with; start the hub with its master key")
    if isinstance(row, Task):
        return _headless(row, vault)
    if isinstance(row, Event):
        raw = None if row.raw is None else vault.lock(row.raw, _of_event(row, "raw"))
        return msgspec.structs.replace(row, body=_sealed(vault, row.body, _of_event(row, "body")), raw=raw)
    if isinstance(row, Question) and row.personal:
        fields = msgspec.Raw(msgspec.json.encode({name: getattr(row, name) for name in QUESTION_FIELDS}))
        sealed = msgspec.json.decode(_sealed(vault, fields, _of_question(row)))
        row = msgspec.structs.replace(row, **EMPTY_QUESTION, details=QuestionDetails(sealed=sealed))
    direct_message: DirectMessage | None = row.direct_message  # type: ignore[union-attr]
    if direct_message is None or not direct_message.personal:
        return row
    direct_message = msgspec.structs.replace(
        direct_message, raw=_sealed(vault, direct_message.raw, _of_direct_message(direct_message))
    )
    return msgspec.structs.replace(row, direct_message=direct_message)


def _headless(row: Task, vault: Vault) -> Task:
    texts: dict[str, Any] = {name: value for name in HEAD if (value := getattr(row, name)) is not None}
    lineage = row.lineage
    if lineage.thread is not None:
        texts["thread"] = lineage.thread
        lineage = msgspec.structs.replace(lineage, thread=None)
    if not texts:
        return row
    locked = vault.lock(msgspec.json.encode(texts), _of_head(row))
    return msgspec.structs.replace(row, **NO_HEAD, lineage=lineage, shut=locked)


def _with_head(row: Task, vault: Vault | None) -> Task:
    """The task with its head decrypted. Tasks of older stores may have an unencrypted head, which stays as it is."""
    if row.shut is None:
        return row
    if vault is None:
        return msgspec.structs.replace(row, shut=None)
    texts = msgspec.json.decode(vault.unlock(row.shut, _of_head(row)))
    lineage = msgspec.structs.replace(row.lineage, thread=texts.pop("thread", None))
    return msgspec.structs.replace(row, **texts, lineage=lineage, shut=None)


def _opened(row: Any, vault: Vault | None) -> Any:
    if type(row) is Task:
        return _with_head(row, vault)
    if type(row) is Event:
        if vault is None:
            return msgspec.structs.replace(row, body=SHUT, raw=None)
        raw = None if row.raw is None else vault.unlock(row.raw, _of_event(row, "raw"))
        return msgspec.structs.replace(row, body=_unsealed(vault, row.body, _of_event(row, "body")), raw=raw)
    if type(row) is Question and row.personal:
        row = _asked(row, vault)
    if row.direct_message is None or not row.direct_message.personal:
        return row
    raw = SHUT if vault is None else _unsealed(vault, row.direct_message.raw, _of_direct_message(row.direct_message))
    return msgspec.structs.replace(row, direct_message=msgspec.structs.replace(row.direct_message, raw=raw))


def _asked(row: Question, vault: Vault | None) -> Question:
    sealed = row.details.sealed
    if sealed is None:  # written before questions were sealed
        return row
    if vault is None:
        return msgspec.structs.replace(row, details=QuestionDetails())
    fields = msgspec.json.decode(_unsealed(vault, msgspec.Raw(msgspec.json.encode(sealed)), _of_question(row)))
    details = msgspec.convert(fields["details"], QuestionDetails)
    return msgspec.structs.replace(row, **{**fields, "options": tuple(fields["options"]), "details": details})


def _sealed(vault: Vault, body: msgspec.Raw, about: dict[str, str]) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(vault.lock(bytes(body), about)))


def _unsealed(vault: Vault, body: msgspec.Raw, about: dict[str, str]) -> msgspec.Raw:
    return msgspec.Raw(vault.unlock(msgspec.json.decode(body, type=bytes), about))


def _of_head(row: Task) -> dict[str, str]:
    return {"task": row.id, "part": "head"}


def _of_event(row: Event, part: str) -> dict[str, str]:
    return {"task": row.task, "seq": str(row.seq), "part": part}


def _of_question(row: Question) -> dict[str, str]:
    return {"question": row.id, "agent": row.agent}


def _of_direct_message(direct_message: DirectMessage) -> dict[str, str]:
    return {"letter": direct_message.message_id, "sender": direct_message.sender}

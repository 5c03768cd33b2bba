"""Versions never go back: what is created again under a name goes on counting where it was deleted (agentmsg-D9).

If it began at 1 again, a writer that read version 1 before the deletion could change the new thing as if it were the
old one, and a watcher that knows a version would take the new one for a repetition. So the last version of what is gone
is remembered among the letters (`Heard`), for as long as finished tasks are kept.
"""

from __future__ import annotations

from hashlib import blake2b

from dragoman.core.delivery.model import Heard
from dragoman.core.ids import AgentId, Instant
from dragoman.core.lookups import HeardById
from dragoman.core.state.model import Change, Entity, Operation, Registry
from dragoman.core.work import Work

FOR_EVER = Instant(1 << 62)


def next_version(work: Work, registry: Registry, name: str, was: Entity | None) -> int:
    """The version of an entity after this change. `was` of version 0 is what the hub knows without being told."""
    if was is not None and was.version:
        return was.version + 1
    gone = work.one(HeardById(mark_of(registry, name)))
    if gone is None:
        return 1
    work.remove(gone)
    return int(gone.digest) + 1


def delete(work: Work, entity: Entity, by: AgentId) -> int:
    """Take an entity out of the shared state; returns the version that its end is."""
    version, rules = entity.version + 1, work.rules
    keep = max(rules.keep_finished, rules.request_memory)
    at = Instant(work.now + keep - rules.request_memory) if rules.keep_finished else FOR_EVER
    work.put(Heard(id=mark_of(entity.registry, entity.name), digest=str(version), at=at))
    work.share(Change(Operation.DELETE, entity.registry, entity.name, version, {}, by), None, entity)
    return version


def mark_of(registry: Registry, name: str) -> str:
    return blake2b(f"{registry.value}/{name}".encode(), digest_size=16, person=b"gone").hexdigest()

"""Versions never go back: an entity that is created again under a name counts on from where it was deleted
(agentmsg-D9).

If it began at 1 again, a writer that read version 1 before the deletion could change the new entity as if it were the
old one, and a watcher would take the new version for a repetition. So the hub remembers the last version of a deleted
entity among the direct messages (`SeenMessage`), as long as it keeps finished tasks.

The entry of an agent exists as long as the agent: it shows at least what the hub sees. So its deletion leaves an empty
entry with the version of the deletion; an agent that is added again under its old name starts with such an entry.
"""

from __future__ import annotations

from hashlib import blake2b

from msgspec.structs import replace

from dragoman.core.ids import HUB, AgentId, Instant
from dragoman.core.lookups import SeenMessageById
from dragoman.core.model.deliveries import SeenMessage
from dragoman.core.model.state import Change, Entity, Operation, Registry
from dragoman.core.work import Work

FOR_EVER = Instant(1 << 62)


def next_version(work: Work, registry: Registry, name: str, was: Entity | None) -> int:
    """The version of an entity after this change. `was` with version 0 is what the hub shows without a report."""
    if was is not None and was.version:
        return was.version + 1
    gone = work.one(SeenMessageById(mark_of(registry, name)))
    if gone is None:
        return 1
    work.remove(gone)
    return int(gone.digest) + 1


def take_back(work: Work, entry: Entity, by: AgentId) -> int:
    """Delete an agent's own report while the agent exists; returns the version of the deletion."""
    version = entry.version + 1
    emptied = replace(entry, version=version, value={}, past=(), updated_at=work.now, updated_by=by)
    work.share(Change(Operation.DELETE, entry.registry, entry.name, version, {}, by), emptied)
    return version


def go_on_counting(work: Work, agent: AgentId) -> None:
    """An agent is added under an earlier name: its entry counts on from its last version."""
    gone = work.one(SeenMessageById(mark_of(Registry.AGENT, agent)))
    if gone is None:
        return
    work.remove(gone)
    work.put(
        Entity(
            registry=Registry.AGENT, name=agent, version=int(gone.digest), value={}, created_at=work.now,
            updated_at=work.now, created_by=agent, updated_by=HUB,
        )
    )  # fmt: skip


def delete(work: Work, entity: Entity, by: AgentId) -> int:
    """Delete an entity of the shared state; returns the version of the deletion."""
    version, rules = entity.version + 1, work.rules
    keep = max(rules.keep_finished, rules.request_memory)
    at = Instant(work.now + keep - rules.request_memory) if rules.keep_finished else FOR_EVER
    work.put(SeenMessage(id=mark_of(entity.registry, entity.name), digest=str(version), at=at))
    work.share(Change(Operation.DELETE, entity.registry, entity.name, version, {}, by), None, entity)
    return version


def mark_of(registry: Registry, name: str) -> str:
    return blake2b(f"{registry.value}/{name}".encode(), digest_size=16, person=b"gone").hexdigest()

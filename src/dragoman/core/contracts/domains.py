"""Which domains may ask which (a2acp-D19): entries of the shared policy, versioned and audited with it.

One that forbids beats all that allow. Within one domain nothing has to allow it. `*` is any domain; no intents means
all of them; `encrypt` wants what passes between them encrypted.
"""

from __future__ import annotations

from typing import Any

import msgspec

from dragoman.core.commands import ChangeState, SetDomainPolicy
from dragoman.core.errors import Kind, refuse
from dragoman.core.state.changes import change_state, policy_entity
from dragoman.core.state.model import Entity, Operation, Registry
from dragoman.core.state.policy import NAME
from dragoman.core.work import Work

FIELD = "domains"
ANY = "*"


class Entry(msgspec.Struct, frozen=True, omit_defaults=True):
    source: str
    target: str
    allow: bool = True
    intents: tuple[str, ...] = ()
    encrypt: bool = False

    def covers(self, source: str, target: str, intent: str) -> bool:
        named = self.source in (ANY, source) and self.target in (ANY, target)
        return named and (not self.intents or intent in self.intents)


def entries(work: Work) -> list[Entry]:
    said: Any = policy_entity(work).value.get(FIELD, [])
    try:
        return msgspec.convert(said, list[Entry])
    except msgspec.ValidationError:
        return []  # written by hand, and wrongly: nothing is allowed by it


def check(work: Work, source: str, target: str, intent: str) -> bool:
    """Whether what passes must be encrypted; refused if no policy lets them work together."""
    found = [entry for entry in entries(work) if entry.covers(source, target, intent)]
    if not all(entry.allow for entry in found) or not (found or source == target):
        raise refuse(
            Kind.FORBIDDEN,
            f"no domain policy lets {source} ask {target} for {intent}; see `dragoman policy allow`",
            source_domain=source,
            target_domain=target,
            intent=intent,
        )
    return any(entry.encrypt for entry in found)


def set_domain_policy(work: Work, command: SetDomainPolicy) -> Entity:
    """Allow or forbid a pair of domains; the newest word about a pair replaces the one before."""
    policy = policy_entity(work)
    kept = [entry for entry in entries(work) if (entry.source, entry.target) != (command.source, command.target)]
    if command.allow is not None:
        kept.append(
            Entry(command.source, command.target, command.allow, tuple(sorted(command.intents)), command.encrypt)
        )
    return change_state(
        work,
        ChangeState(
            principal=command.principal,
            operation=Operation.UPDATE,
            entity=Registry.POLICY,
            entity_id=NAME,
            changes={FIELD: msgspec.to_builtins(kept)},
            version=policy.version,
        ),
    )

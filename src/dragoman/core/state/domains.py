"""People say which domains may ask which (`domain_policy`)."""

from __future__ import annotations

import msgspec

from dragoman.core.commands import ChangeState, SetDomainPolicy
from dragoman.core.model.policy import DOMAINS, NAME, Border
from dragoman.core.model.state import Entity, Operation, Registry
from dragoman.core.state.changes import change_state, policy_entity
from dragoman.core.work import Work


def set_domain_policy(work: Work, command: SetDomainPolicy) -> Entity:
    """Allow or forbid a pair of domains; the newest word about a pair replaces the one before."""
    policy = policy_entity(work)
    pair = (command.source, command.target)
    kept = [border for border in work.policy.borders if (border.source, border.target) != pair]
    if command.allow is not None:
        kept.append(Border(*pair, command.allow, tuple(sorted(command.intents)), command.encrypt))
    return change_state(
        work,
        ChangeState(
            principal=command.principal,
            operation=Operation.UPDATE,
            entity=Registry.POLICY,
            entity_id=NAME,
            changes={DOMAINS: msgspec.to_builtins(kept)},
            version=policy.version,
        ),
    )

"""Domain policies: which domains may ask which (a2acp-D19). They are part of the shared policy, versioned and audited
with it.

    a request                      is allowed if
    -----------------------------  ----------------------------------------------------------------------------------
    under a contract               a policy allows the pair of domains; within one domain none is needed
    without one, from a domain     a policy allows the pair, if any policy allows asking the target's domain; if none
                                   does, unless a policy forbids it
    without one, from no domain    no policy forbids it

A policy that forbids beats all that allow. `encrypt` demands encryption, which requests without a contract do not have.
An agent without a domain belongs to `HOME`; people belong to no domain and may ask any. A new policy holds for existing
contracts, too.
"""

from __future__ import annotations

from collections.abc import Sequence

from dragoman.core.ids import ADMIN, HUB, AgentId
from dragoman.core.model.agents import Agent
from dragoman.core.model.contracts import Contract
from dragoman.core.model.policy import ANY, DomainPolicy
from dragoman.core.work import Work
from dragoman.messages.faults import Kind, refuse

HOME = "default"
"""The domain of agents that have none."""

View = tuple[tuple[str, bool | None], ...]
"""For a caller without a contract: each domain, and whether the caller may ask it; None: only others may."""


def domain_of(agent: Agent) -> str:
    return agent.domain or HOME


def are_open(drawn: Sequence[DomainPolicy], source: str, target: str, intent: str) -> bool:
    """Whether the policies let two domains work together under a contract."""
    found = [policy for policy in drawn if policy.covers(source, target, intent)]
    return all(policy.allow for policy in found) and (bool(found) or source == target)


def check(work: Work, source: str, target: str, intent: str) -> bool:
    """Whether messages between the two domains must be encrypted; refused if no policy lets them work together."""
    drawn = work.policy.domain_policies
    if not are_open(drawn, source, target, intent):
        raise refuse(
            Kind.FORBIDDEN,
            f"no domain policy lets {source} ask {target} for {intent}",
            next="see `dragoman policy allow`",
            source_domain=source,
            target_domain=target,
            intent=intent,
        )
    return any(policy.encrypt for policy in drawn if policy.covers(source, target, intent))


def check_standing(work: Work, contract: Contract) -> None:
    """Refuse where the policies do not let these two work together on these terms any more."""
    source, target = contract.source.domain, contract.target.domain
    if check(work, source, target, contract.intent) and not contract.encrypted:
        raise refuse(
            Kind.FORBIDDEN,
            f"the domain policy wants what passes from {source} to {target} encrypted by now",
            next="shake hands again",
            field="contract_id",
            contract_id=contract.id,
        )


# -- without a contract ------------------------------------------------------------------------------------------


def view(work: Work, asker: AgentId, intent: str) -> View:
    """The domains that an agent may ask. Empty for people, who may ask any."""
    domain_policies = work.policy.domain_policies
    agent = work.agent(asker) if domain_policies and asker not in (ADMIN, HUB) else None
    if agent is None:
        return ()
    source = domain_of(agent)
    may: dict[str, bool | None] = {source: True}
    for policy in domain_policies:
        if policy.concerns(source, intent):
            may[policy.target] = policy.allow and not policy.encrypt and may.get(policy.target) is not False
        elif policy.allow and agent.domain is not None:
            may.setdefault(policy.target, None)
    return tuple(sorted(may.items()))


def is_open(domains: View, domain: str) -> bool:
    answers = {may for name, may in domains if name in (ANY, domain)}
    return False not in answers and (True in answers or not answers)


def check_open(work: Work, asker: AgentId, target: Agent, intent: str) -> None:
    """Refuse where an agent may not ask another without a contract."""
    domains = view(work, asker, intent)
    if not domains or is_open(domains, domain_of(target)):
        return
    agent = work.agent(asker)
    assert agent is not None
    source, domain = domain_of(agent), domain_of(target)
    if check(work, source, domain, intent):
        what = f"the domain policy wants what passes from {source} to {domain} encrypted: it takes an a2acp contract"
        raise refuse(Kind.FORBIDDEN, what, source_domain=source, target_domain=domain, intent=intent)

"""Which agents may take a task over, and which of them the hub asks first where the owner names none.

    reason             among those that can, first
    -----------------  ----------------------------------
    capability_limit   the one with most declared capabilities
    rate_limit         the one with most budget left
    load_balancing     the one with most free seats
    error_recovery     the one that failed least
    escalation         planners, then the one that failed least

Before that rule: agents that have not had the task yet, then agents that declared such work. After it: the agent that
reports the lowest error rate. The hub does not ask agents that cannot go on with the task (`can_go_on`), that report
that they take no work, or that have no room for it in their allocations (`handover.ask_next`). The caller's wishes
still hold (an agent other than itself, a kind, a role, capabilities), except for a planner to which the task is
escalated. The task stays within the domains that its caller may ask (a2acp-D19).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dragoman.core.agreements import domain_policy
from dragoman.core.agreements.domain_policy import domain_of
from dragoman.core.agreements.terms import may_pass_to
from dragoman.core.budgets import budget
from dragoman.core.budgets.capacity import lacking, needs_in
from dragoman.core.commands import Handing
from dragoman.core.ids import AgentId
from dragoman.core.model.agents import PLANNER, Agent
from dragoman.core.model.tasks import Question, Task
from dragoman.core.routing.routes import can_be_asked, present, route_of, weight_of
from dragoman.core.work import Work
from dragoman.messages.faults import Kind, Refused, refuse


def _trouble(work: Work, agent: Agent) -> tuple[Any, ...]:
    return (agent.breaker.failures, *weight_of(work.standing(agent.id)), work.load_of(agent.id))


def _thrift(work: Work, agent: Agent) -> tuple[Any, ...]:
    left = budget.left_to_spend(work, agent.id)
    return (min(left) <= 0, *(-amount for amount in left), work.load_of(agent.id))


ORDER: dict[Handing, Callable[[Work, Agent], tuple[Any, ...]]] = {
    Handing.CAPABILITY_LIMIT: lambda work, agent: (-len(agent.capabilities), work.load_of(agent.id)),
    Handing.RATE_LIMIT: _thrift,
    Handing.LOAD_BALANCING: lambda work, agent: (work.load_of(agent.id) / agent.max_concurrent,),
    Handing.ERROR_RECOVERY: _trouble,
    Handing.ESCALATION: lambda work, agent: (agent.role != PLANNER, *_trouble(work, agent)),
}


def candidates(work: Work, question: Question, task: Task) -> list[Agent]:
    named = question.details.named
    tried = {question.agent, *question.asked_before}
    if named is not None:
        agent = work.agent(AgentId(named))
        return [] if agent is None or agent.id in tried else [agent]
    needed, reason = question.details.capabilities, Handing(question.details.reason)
    able = [
        agent
        for agent in work.all_agents()
        if agent.id not in tried
        and (is_as_asked_for(work, task, agent) or (reason is Handing.ESCALATION and agent.role == PLANNER))
        and (question.agent, agent.id) not in task.lineage.handed
        and can_go_on(work, task, agent)
        and all(capability in agent.capabilities for capability in needed)
        and can_be_asked(work, agent)
        and is_allowed(work, task, agent)
        and (reason is not Handing.ESCALATION or present(work, agent.id))  # a person is at hand before an absent agent
    ]
    order = ORDER[reason]
    had = {giver for giver, _ in task.lineage.handed}

    def place(agent: Agent) -> tuple[Any, ...]:
        weight = weight_of(work.standing(agent.id))
        undeclared = agent.work_types is None
        return (not present(work, agent.id), agent.id in had, undeclared, *order(work, agent), *weight, agent.id)

    return sorted(able, key=place)


def can_go_on(work: Work, task: Task, agent: Agent) -> bool:
    """Whether an agent does such work, has the resources for it, and may be given it on its terms and the task's."""
    if not agent.can_do(task.type):
        return False
    if lacking(agent, needs_in(task.agreement.constraints)):
        return False
    return may_pass_to(work, task, agent)


def is_as_asked_for(work: Work, task: Task, agent: Agent) -> bool:
    """Whether an agent is one that the caller wanted, apart from a name: the owner may choose another name. An agent
    without a kind is addressed by its name as by a kind."""
    route = route_of(task.routing.route)
    if agent.id == task.origin.principal or (route.role is not None and agent.role != route.role):
        return False
    kind = task.routing.kind  # also where the caller named an agent of that kind: the route then has only the name
    if kind not in (None, agent.kind) and any(one.kind for one in work.agents_of_kind(kind)):
        return False
    return all(capability in agent.capabilities for capability in task.routing.required_capabilities)


def check_domain(work: Work, task: Task, agent: Agent) -> None:
    """The new owner must be an agent that the caller may ask; under a contract, on its terms."""
    contract = None if task.agreement.contract is None else work.contract(task.agreement.contract)
    if contract is None:
        domain_policy.check_open(work, task.origin.principal, agent, task.type)
        return
    if agent.id in contract.parties:
        return
    source, target = contract.source.domain, domain_of(agent)
    if domain_policy.check(work, source, target, contract.intent) and not contract.encrypted:
        raise refuse(
            Kind.FORBIDDEN,
            f"the domain policy wants what passes from {source} to {target} encrypted",
            next="hand it to another agent",
            field="to_agent",
            contract_id=contract.id,
        )


def is_allowed(work: Work, task: Task, agent: Agent) -> bool:
    try:
        check_domain(work, task, agent)
    except Refused:
        return False
    return True

"""How much an agent has of each resource of `core.model.agents`, and how much of it is free.

An agent declares this when it registers (chiffon). It concerns routes, not budgets: the hub counts what the agent's
tasks may need, and an agent that declared no limit takes any task. A task that names no need counts as 0. The hub
refuses a need that no known agent could ever meet; a task that only has to wait for others is in a queue of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from dragoman.core.budgets.budget import Account, exceeds
from dragoman.core.model.agents import RESOURCES, Agent, Resource
from dragoman.core.model.tasks import Task
from dragoman.messages.faults import Kind, Refused, refuse

Needs = Mapping[str, int]
"""How much a task may need, by the name of the resource."""
NO_NEEDS: Needs = {}


def needs_in(constraints: dict[str, Any]) -> Needs:
    """What a task may need of its agent, by its constraints."""
    if not constraints:
        return NO_NEEDS
    asked = {resource.name: _amount(resource, constraints) for resource in RESOURCES}
    return {name: amount for name, amount in asked.items() if amount}


def _amount(resource: Resource, constraints: dict[str, Any]) -> int:
    amount = constraints.get(resource.constraint, 0)
    if amount is None:
        return 0
    if type(amount) is not int or amount < 0:
        message = f"{resource.constraint} must be a whole number, 0 or more"
        raise refuse(Kind.INVALID, message, field=f"constraints.{resource.constraint}")
    return amount


def account_of(agent: Agent, resource: Resource, held: Iterable[Task]) -> Account:
    """What an agent has of a resource, given the tasks that it holds. A stored need that is no number counts as 0, so
    that no other caller is refused for it."""
    amounts = (task.agreement.constraints.get(resource.constraint) for task in held)
    reserved = sum(amount for amount in amounts if type(amount) is int and amount > 0)
    return Account(resource.name, getattr(agent, resource.name), 0, reserved, 0)


def accounts_of(agent: Agent, held: Iterable[Task]) -> tuple[Account, ...]:
    """The same for all resources for which an agent declared a limit."""
    tasks = tuple(held)
    return tuple(
        account_of(agent, resource, tasks) for resource in RESOURCES if getattr(agent, resource.name) is not None
    )


def lacking(agent: Agent, needs: Needs) -> tuple[Resource, ...]:
    """The resources of which an agent has less than is needed, even if it holds no task."""
    return tuple(
        [
            resource
            for resource in RESOURCES
            if (has := getattr(agent, resource.name)) is not None and has < needs.get(resource.name, 0)
        ]
    )


def nobody_has(agents: Iterable[Agent], needs: Needs) -> Refused:
    """The refusal of a task that each of these agents lacks something for. It has the figures of the agent that comes
    nearest: the one that lacks the fewest resources, and of these the one that has most."""
    best: tuple[tuple[int, int], Agent, Resource] | None = None
    for agent in agents:
        short = lacking(agent, needs)
        rank = -len(short), getattr(agent, short[0].name)
        if best is None or rank > best[0]:
            best = rank, agent, short[0]
    assert best is not None
    _, nearest, resource = best
    return exceeds(resource.name, nearest.id, needs[resource.name], account_of(nearest, resource, ()))

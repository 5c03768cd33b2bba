"""Budgets: set aside before work begins, settled by what was used, given back if it was not (agentmsg-D10).

Every agent has an account for each kind of resource that it used or was allotted: the shared entity
`agent_id:resource_type`. The hub's own accounts (`hub:budget`, …) sum them up. Fields that the hub keeps:

    reserved    what is set aside for unfinished tasks. It is part of `allocated`; a planner set the rest of that aside
                by hand, for whatever is no task.
    settled     what tasks used, by their results
    figure      the most that the agent itself ever reported as its total, by a status report
    reported    by how much that grew since the account was opened or corrected
    consumed    the larger of settled and reported. An agent's own total includes its tasks, so the two are not added;
                it starts again at 0 with the agent, so it never lowers anything. What the agent used apart from tasks
                after a restart counts when its total passes the old one.

For a task that names no amount of USD, the hub sets aside what policy `per_task` allows; without such a limit, nothing.

    a task may have so much                 of                limit
    --------------------------------------  ----------------  -----------------------------------------------------
    per task                                budget            policy `per_task`
    per agent: limit - consumed - allocated  every kind       the account's `limit`; of budget else policy `per_agent`
    in total: the same, of the hub's account  every kind      its `limit`; of budget else policy `total`

`cpu` and `memory` are not used up: consumed is what is in use now, and the larger of that and what is allocated counts.
The megabytes of an agent are no budget: see `core.budgets.capacity`. After `expires_at` what was set aside by hand is
free. The limit stays until a planner or a person changes it or deletes the account: an agent that has used up its
allocation must not spend because the allocation ended.

A task that could not be assigned even if nothing else were under way is refused at once. A task that must wait for
others is in a queue of its own (`Route.budgeted`), so that tasks without a budget do not wait behind it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from dragoman.core.ids import HUB, AgentId, Instant
from dragoman.core.model.agents import CONSTRAINTS, RESOURCES, Agent
from dragoman.core.model.policy import UNLIMITED, Policy, limit_in
from dragoman.core.model.state import Change, Entity, Operation, Registry, difference, moment_of
from dragoman.core.model.tasks import Reserved, Task
from dragoman.core.versions import next_version
from dragoman.core.work import Work
from dragoman.messages.faults import Kind, Refused, refuse

#        kind       a task's constraint   in the usage of a result   in a status report
KINDS = {
    "budget": ("budget_usd", "cost_usd", "cost_usd"),
    "tokens": ("max_tokens", "tokens_used", "tokens_used"),
    "cpu": ("cpu", None, "cpu_usage"),
    "memory": ("memory", None, "memory_usage"),
}  # fmt: skip
NAMES = {kind: names[0] for kind, names in KINDS.items()} | {each.name: each.constraint for each in RESOURCES}
"""The constraint by which a task asks for each kind."""
GAUGES = frozenset({"cpu", "memory"})
USED_UP = ("budget", "tokens")
UNITS = {"budget": "USD", "tokens": "tokens", "cpu": "cpu", "memory": "memory"} | {
    each.name: each.unit for each in RESOURCES
}
LEDGER = frozenset({"reserved", "settled", "reported", "figure"})

NOTHING: Mapping[str, float] = {}

Amounts = Mapping[str, float]


class Account(msgspec.Struct, frozen=True, gc=False):
    """One kind of resource of one agent."""

    kind: str
    limit: float | None
    consumed: float
    reserved: float
    by_hand: float

    @property
    def free(self) -> float:
        """What can be set aside now."""
        if self.limit is None:
            return UNLIMITED
        allocated = self.reserved + self.by_hand
        in_use = max(self.consumed, allocated) if self.kind in GAUGES else self.consumed + allocated
        return _rounded(self.limit - in_use)

    @property
    def left(self) -> float:
        """What could be set aside if no task were under way."""
        if self.limit is None:
            return UNLIMITED
        return _rounded(self.limit - self.by_hand - (0 if self.kind in GAUGES else self.consumed))


def account(work: Work, agent: AgentId, kind: str) -> Account:
    entity = work.entity(Registry.RESOURCE, f"{agent}:{kind}")
    return account_in({} if entity is None else entity.value, agent, kind, work.policy, work.now)


def account_in(value: dict[str, Any], agent: AgentId, kind: str, policy: Policy, now: Instant) -> Account:
    """The account of an entity."""
    limit = None
    expires_at = moment_of(value.get("expires_at"))
    expired = expires_at is not None and expires_at <= now
    if "limit" in value:
        limit = limit_in(value, "limit")
    elif kind == "budget":
        limit = policy.total if agent == HUB else policy.per_agent
    reserved = value.get("reserved", 0)
    by_hand = 0 if expired else max(0, value.get("allocated", 0) - reserved)
    return Account(kind, limit, value.get("consumed", 0), reserved, by_hand)


# -- what a task asks for ------------------------------------------------------------------------------------------


def needs(constraints: dict[str, Any]) -> Amounts:
    """How much a task may use of each kind, by its constraints. `budget` comes from the management API: USD, or
    both."""
    if constraints.keys() <= CONSTRAINTS:
        return NOTHING
    budget = constraints.get("budget")
    if isinstance(budget, dict):
        constraints = {"budget_usd": budget.get("usd"), "max_tokens": budget.get("tokens")} | constraints
    elif budget is not None:
        constraints = {"budget_usd": budget} | constraints
    asked: dict[str, float] = {}
    for kind, (name, _, _) in KINDS.items():
        amount = constraints.get(name)
        if amount is None:
            continue
        if isinstance(amount, bool) or not isinstance(amount, int | float) or not 0 <= amount < UNLIMITED:
            raise refuse(Kind.INVALID, f"{name} must be a number, 0 or more", field=f"constraints.{name}")
        if amount:
            asked[kind] = amount
    return asked


def set_aside(constraints: dict[str, Any], per_task: float | None) -> Amounts:
    """How much is set aside for a task: what it asks for; of USD, if it names no amount, the limit per task."""
    asked = needs(constraints)
    if not per_task or names_usd(constraints):
        return asked
    return {**asked, "budget": per_task}


def names_usd(constraints: dict[str, Any]) -> bool:
    """Whether a task names how many USD it may use, even if it is 0."""
    budget = constraints.get("budget")
    limit = budget.get("usd") if isinstance(budget, dict) else budget
    return limit is not None or constraints.get("budget_usd") is not None


def needed(work: Work, task: Task) -> Amounts:
    """What must be set aside for the next attempt of a task: what it may use, less what it used. The hub's own health
    checks cost nothing."""
    per_task = work.policy.per_task
    if (not task.agreement.constraints and per_task is None) or task.origin.principal == HUB:
        return NOTHING
    asked = set_aside(task.agreement.constraints, per_task)
    return asked if task.spending.spent is None else less(asked, task.spending.spent.before)


def less(asked: Amounts, spent: Amounts) -> Amounts:
    left = {kind: _rounded(amount - spent.get(kind, 0)) for kind, amount in asked.items()}
    return {kind: amount for kind, amount in left.items() if amount > 0}


def check(work: Work, asked: Amounts, could: Iterable[Agent], *, named: bool = True) -> None:
    """Refuse, with the figures, a task that could never be assigned to any agent that could do it. `named`: it names
    itself how many USD it may use.

    Where nothing is left at all, a task that asks for nothing is refused, too: whatever it used would be too much.
    """
    check_task(work, asked)
    if not asked and not work.limits:
        return
    short = first_short(work, HUB, asked)
    if short is not None:
        sent = named or short.kind != "budget"
        raise exceeds(short.kind, "all tasks together", asked.get(short.kind, 0), short, sent=sent)
    best: tuple[float, AgentId, Account] | None = None
    for agent in could:
        short = first_short(work, agent.id, asked)
        if short is None:
            return
        if best is None or short.left > best[0]:
            best = short.left, agent.id, short
    if best is not None:
        sent = named or best[2].kind != "budget"
        raise exceeds(best[2].kind, best[1], asked.get(best[2].kind, 0), best[2], sent=sent)


def check_task(work: Work, asked: Amounts, before: Amounts = NOTHING) -> None:
    """Refuse a task that asks for more than any task may use; a task that asked for as much `before` goes on."""
    per_task, amount = work.policy.per_task, asked.get("budget", 0)
    if per_task is not None and amount > max(per_task, before.get("budget", 0)):
        raise exceeds("budget", "a task", amount, Account("budget", per_task, 0, 0, 0))


def first_short(work: Work, agent: AgentId, asked: Amounts) -> Account | None:
    """An account of this agent that could never hold this amount."""
    for kind in dict.fromkeys((*USED_UP, *asked)):
        of = account(work, agent, kind)
        if of.limit is not None and (of.left < asked.get(kind, 0) or (of.left <= 0 and kind in USED_UP)):
            return of
    return None


def exceeds(kind: str, whose: str, asked: float, of: Account, *, sent: bool = True) -> Refused:
    """`sent`: the refused caller sent the amount; else the fault names no field."""
    unit = UNITS[kind]
    remaining = max(0.0, of.left)
    wish = f"it asks for {_written(asked)} {unit}, and " if asked else ""
    if asked and not sent:
        wish = f"it names no budget, so {_written(asked)} {unit} would be set aside for it (`per_task`), and "
    set_aside = _rounded(of.reserved + of.by_hand)
    advice = "ask for less, or raise the limit" if asked else "raise the limit, or have another agent do it"
    if asked and not sent:
        advice = "name a smaller budget, or raise the limit"
    return refuse(
        Kind.RESOURCES,
        f"{wish}{whose} may use {_written(of.limit)} {unit}: {_written(of.consumed)} are used, {_written(set_aside)} "
        f"set aside for tasks under way (`allocated`), {_written(remaining)} remain",
        next=advice,
        field=f"constraints.{NAMES[kind]}" if asked and sent else None,
        resource=kind,
        whose=whose,
        asked=asked,
        limit=of.limit,
        consumed=of.consumed,
        reserved=set_aside,
        remaining=remaining,
    )


def may_take(work: Work, agent: AgentId, asked: Amounts) -> bool:
    """Whether an agent can be given this now. This runs for every candidate of every task: without limits it is
    fast."""
    if not asked and not work.limits:
        return True
    return all(fits(work, whose, asked) for whose in (agent, HUB))


def fits(work: Work, whose: AgentId, asked: Amounts) -> bool:
    return not any(
        is_short(account(work, whose, kind), asked.get(kind, 0)) for kind in dict.fromkeys((*USED_UP, *asked))
    )


def is_short(of: Account, amount: float) -> bool:
    """Whether an account cannot hold this amount now. An account that is used up cannot hold even 0."""
    if of.limit is None:
        return False
    return amount > of.free if amount else of.left <= 0 and of.kind in USED_UP


def left_to_spend(work: Work, agent: AgentId) -> tuple[float, ...]:
    """The USD and tokens that an agent could be given now."""
    return tuple(account(work, agent, kind).free for kind in USED_UP)


# -- keeping the books ---------------------------------------------------------------------------------------------


def reserve(work: Work, task: Task, agent: AgentId) -> Task:
    """Set aside what a task may use, for the agent that gets it (the task is not yet put)."""
    asked = needed(work, task)
    if not asked:
        return task
    task = release(work, task)
    for kind, amount in asked.items():
        for whose in (agent, HUB):
            book(work, whose, kind, reserved=amount)
    return replace(task, spending=replace(task.spending, reserved=Reserved(agent, dict(asked))))


def release(work: Work, task: Task) -> Task:
    """Give back what was set aside and is not needed any more (the task is not yet put)."""
    if task.spending.reserved is None:
        return task
    for kind, amount in task.spending.reserved.amounts.items():
        for whose in (task.spending.reserved.agent, HUB):
            book(work, whose, kind, reserved=-amount)
    return replace(task, spending=replace(task.spending, reserved=None))


def moved(work: Work, task: Task, agent: AgentId) -> Task:
    """A task changes its owner: what was set aside moves to the new owner (not yet put). `no_room` has checked that it
    has room."""
    return reserve(work, release(work, task), agent)


def no_room(work: Work, task: Task, agent: AgentId, asked: Amounts) -> Refused | None:
    """Why a task cannot change its owner with this amount. Its share of the total it has already."""
    if not asked and not work.limits:
        return None
    had = NOTHING if task.spending.reserved is None else task.spending.reserved.amounts
    more = {kind: max(0.0, _rounded(amount - had.get(kind, 0))) for kind, amount in asked.items()}
    for whose, amounts in ((agent, asked), (HUB, more)):
        for kind in dict.fromkeys((*USED_UP, *asked)):
            of = account(work, whose, kind)
            if is_short(of, amounts.get(kind, 0)):
                refusal = exceeds(kind, whose, amounts.get(kind, 0), of)
                return Refused(replace(refusal.fault, field=None))  # the receiver of this fault sent no amount
    return None


def spend(work: Work, agent: AgentId | None, usage: Mapping[str, Any]) -> bool:
    """Count what a result reports as used. True if it was anything."""
    if agent is None:
        return False
    spent = False
    for kind in USED_UP:
        name = KINDS[kind][1]
        amount = None if name is None else _amount(usage.get(name))
        if amount:
            grown = book(work, agent, kind, settled=amount)
            book(work, HUB, kind, settled=grown)
            spent = True
    return spent


def reported(work: Work, agent: AgentId, usage: Mapping[str, Any], before: Mapping[str, Any]) -> Amounts:
    """An agent reports its total; `before` is its last one. Returns by how much more is used than was known.

    A gauge (what is in use now) counts only where the agent has an account for it.
    """
    more: dict[str, float] = {}
    for kind, (_, _, name) in KINDS.items():
        amount = _amount(usage.get(name))
        entity = work.entity(Registry.RESOURCE, f"{agent}:{kind}")
        if amount is None or (kind in GAUGES and entity is None):
            continue
        value: dict[str, Any] = {} if entity is None else entity.value
        known = value.get("figure", _amount(before.get(name)) or 0)  # in an account that was deleted it was counted
        if kind in GAUGES:
            book(work, agent, kind, in_use=amount)
        elif amount > known and (grown := book(work, agent, kind, figure=amount, reported=amount - known)):
            book(work, HUB, kind, settled=grown)
            more[kind] = grown
    return more


def used(usage: Mapping[str, Any]) -> Amounts:
    """What a report about a task says was used, of the kinds that are used up."""
    amounts = {kind: _amount(usage.get(KINDS[kind][1] or "")) for kind in USED_UP}
    return {kind: amount for kind, amount in amounts.items() if amount}


def _amount(value: Any) -> float | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < UNLIMITED else None


def book(
    work: Work,
    whose: AgentId,
    kind: str,
    *,
    reserved: float = 0,
    settled: float = 0,
    reported: float = 0,
    figure: float | None = None,
    in_use: float | None = None,
) -> float:
    """Change an account, and open it if there is none. Returns by how much `consumed` grew."""
    name = f"{whose}:{kind}"
    was = work.entity(Registry.RESOURCE, name)
    old: dict[str, Any] = {} if was is None else was.value
    value: dict[str, Any] = {"agent_id": whose, "resource_type": kind, "allocated": 0, "consumed": 0} | old
    consumed: float = value["consumed"]
    if reserved:
        held = value.get("reserved", 0)
        now = _rounded(max(0, held + reserved))
        value["allocated"] = _rounded(max(0, value["allocated"] - held) + now)
        value["reserved"] = now
    if settled:
        value["settled"] = _rounded(value.get("settled", 0) + settled)
    if reported:
        value["reported"] = _rounded(value.get("reported", 0) + reported)
    if figure is not None:
        value["figure"] = figure
    if in_use is not None:
        value["reported"] = value["consumed"] = in_use
    if kind not in GAUGES:
        value["consumed"] = max(consumed, value.get("settled", 0), value.get("reported", 0))
    if value == old:
        return 0
    put(work, name, was, value)
    return _rounded(value["consumed"] - consumed)


def _rounded(amount: float) -> float:
    """Sums and differences of cents must come out even."""
    return round(amount, 9)


def _written(amount: float | None) -> str:
    """A number with all its digits, so that a small excess is visible."""
    return "any number of" if amount is None else f"{amount:.15g}"


def put(work: Work, name: str, was: Entity | None, value: dict[str, Any]) -> Entity:
    entity = Entity(
        registry=Registry.RESOURCE,
        name=name,
        version=next_version(work, Registry.RESOURCE, name, was),
        value=value,
        created_at=work.now if was is None else was.created_at,
        updated_at=work.now,
        created_by=HUB if was is None else was.created_by,
        updated_by=HUB,
    )
    patch = difference({} if was is None else was.value, value)
    operation = Operation.CREATE if was is None else Operation.UPDATE
    work.share(Change(operation, Registry.RESOURCE, name, entity.version, patch, HUB), entity)
    return entity


def written(old: dict[str, Any], value: dict[str, Any], *, by_itself: bool) -> dict[str, Any]:
    """An account as a writer changed it, with the hub's own fields in order. `by_itself`: the writer is its agent,
    which may only report what it has used. A person or a planner may correct that; then the account counts from there,
    and the agent's next report counts by what it is more than the last."""
    value = {"allocated": 0, "consumed": 0} | value
    consumed, allocated = value["consumed"], value["allocated"]
    if consumed != old.get("consumed", 0) and isinstance(consumed, int | float):
        if by_itself and value["resource_type"] not in GAUGES and consumed < old.get("consumed", 0):
            message = f"what was used does not become less: {old.get('consumed', 0):g} are counted"
            raise refuse(Kind.INVALID, message, field="changes.consumed")
        value["reported"] = consumed
        if not by_itself:
            value["settled"] = consumed
        elif value["resource_type"] not in GAUGES:
            value["figure"] = max(consumed, old.get("figure", 0))
    if isinstance(allocated, int | float):
        value["allocated"] = max(allocated, value.get("reserved", 0))
    return value


def grown(work: Work, old: dict[str, Any], value: dict[str, Any]) -> None:
    """An agent reported itself that it used more: that counts in total, too."""
    more = value["consumed"] - old.get("consumed", 0)
    if more > 0 and value["resource_type"] in USED_UP:
        book(work, HUB, value["resource_type"], settled=more)


def lapsed(work: Work, entity: Entity) -> None:
    """The allocation has expired: what was set aside by hand is free. Its limit stays, and so does what is used up."""
    value = {name: kept for name, kept in entity.value.items() if name != "expires_at"}
    value["allocated"] = value.get("reserved", 0)
    put(work, entity.name, entity, value)

"""A caller submits a task, repeats a request, or asks for an answer that was lost with its connection.

Above: `hub`, which calls these functions. Below: routing, delivery and budgets. A request is checked here once, before
it becomes a task: later decisions rely on it.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from msgspec.structs import replace

from dragoman.core.agreements.domain_policy import check_open, domain_of, is_open, view
from dragoman.core.agreements.terms import agreed, check_granted, check_input, check_sealed, granted, offer_for
from dragoman.core.budgets import admission, budget
from dragoman.core.budgets.budget import NOTHING
from dragoman.core.budgets.capacity import needs_in, nobody_has
from dragoman.core.commands import Submit, TellAgain
from dragoman.core.delivery.direct_messages import rank_of
from dragoman.core.delivery.outbox import (
    OUTCOME_KINDS,
    OUTCOMES,
    await_answer,
    offer,
    offer_answer,
    repeat,
    waiting_again,
)
from dragoman.core.ids import ADMIN, HOUR, HUB, SECOND, AgentId, Instant, TaskId
from dragoman.core.lookups import Claims, Lane, QuestionById
from dragoman.core.model.agents import Agent, Offer
from dragoman.core.model.authorization import is_namesake, is_party
from dragoman.core.model.deliveries import DeliveryState, MessageKind
from dragoman.core.model.tasks import (
    EventKind,
    Origin,
    Status,
    Task,
    TaskAgreement,
    TaskLineage,
    TaskRouting,
    TaskTiming,
    Waiting,
)
from dragoman.core.policy import quotas
from dragoman.core.policy.replay import replayed
from dragoman.core.routing.dispatch import assign, place
from dragoman.core.routing.routes import Route, addressed, choose, is_able, serves
from dragoman.core.tasks.control import redo
from dragoman.core.tasks.dependencies import be_waited_for
from dragoman.core.tasks.outcome import fail_for
from dragoman.core.tasks.output import take_files
from dragoman.core.tasks.questions import question_id, resume_with
from dragoman.core.work import Work
from dragoman.messages.faults import Kind, Refused, refuse
from dragoman.messages.tasks import written

ERRORS = frozenset(Kind) - {Kind.WORK_FAILED, Kind.CANCELLED, Kind.DEPENDENCY}
"""Failures that say nothing about the work itself: the same request may start the task again. A cancelled task is not
started again, because a caller or a person wanted that; nor is a task that depends on failed work."""

LONGEST = 10 * 365 * 24 * HOUR
"""No timer of the hub is set further ahead than this, whatever a hint asks for."""

ENVELOPE = 64 * 1024
"""Bytes of a work order beside its input and its attachments."""


def submit(work: Work, command: Submit) -> Task:
    claims = Claims(command.principal, command.request_id, command.task_id)
    for claimed in work.find(claims):
        if claims.asked(claimed):
            if is_namesake(work.agent(command.principal), claimed):
                raise refuse(
                    Kind.MISMATCH,
                    "this request id was used by an agent of this name that was removed",
                    next="use a new one",
                    field="request_id",
                )
            if command.seen == command.request_id:  # its message counts once
                raise replayed()
            return again(work, command, claimed)
        if command.answer is not None and claimed.origin.principal == command.principal:
            return go_on(work, command, claimed, command.answer)
        raise refuse(
            Kind.CONFLICT,
            "this task_id is already in use",
            next="choose a new one, or repeat the first request to hear of it again",
            field="task_id",
        )
    asked = NOTHING
    per_task = None if command.principal == HUB else work.policy.per_task
    if command.constraints:
        admission.check(work, command.constraints)
    if command.constraints or per_task is not None:
        asked = budget.set_aside(command.constraints, per_task)
    check_pin(work, command)
    contract = agreed(work, command)
    if contract is not None:
        limit = contract.offer.timeout / SECOND
        command = replace(
            command,
            routing=replace(command.routing, pinned=contract.target.agent),
            timing=replace(command.timing, total_seconds=command.timing.total_seconds or limit),
        )
    offer = offer_for(work, command, contract)
    check_input(command, offer, contract)
    routing = command.routing
    pinned = routing.pinned
    route = Route(
        type=command.type,
        kind=None if pinned else routing.kind,
        pinned=pinned,
        role=routing.required_role or command.constraints.get("required_role"),
        capabilities=tuple(sorted(routing.required_capabilities)),
        besides=None if pinned or routing.kind or command.principal in (ADMIN, HUB) else command.principal,
        budgeted=bool(asked),
        domains=() if pinned else view(work, command.principal, command.type),
    )
    if needs := needs_in(command.constraints):
        route = replace(route, **needs)
    if pinned is None and work.is_offered(command.type):
        route = without_unfit(work, command, route)
    if command.files:
        check_carried(work, command, route)
    chosen, waiting = None, work.backlog(route.queue)
    if not (waiting or command.lineage.dependencies or "risk" in command.constraints):
        chosen = choose(work, route, asked)
    if chosen is None:
        check_any_could(work, command, route)
    if command.principal != HUB:
        could = (agent for agent in addressed(work, route) if serves(agent, route))
        budget.check(work, asked, could, named=budget.names_usd(command.constraints))
    if waiting >= work.rules.max_backlog:
        raise refuse(
            Kind.OVERLOADED,
            f"{waiting} tasks already wait for {route.kind or route.pinned}",
            next="try again later",
            retryable=True,
        )
    body = written(command.content)
    size = len(bytes(body)) + len(command.raw or b"")
    quotas.check(work, command.principal, bytes=size)
    task = newborn(work, command, route, size)
    if command.reply.awaited is not None:
        await_answer(work, command.principal, command.reply.awaited)
    personal = command.agreement.personal or route.personal or (offer is not None and offer.pii)
    if personal or offer is not None:
        task = replace(
            task,
            agreement=replace(task.agreement, contract=command.agreement.contract, personal=personal),
        )
    if task.agreement.personal:  # the audit record names everyone who handled personal data (a2acp-D13)
        about = task.agreement.contract or task.id
        work.audit(principal=command.principal, action="pii.request", protocol=command.protocol, subject=about)
    task = take_files(work, task, command.files)
    task = work.record(task, EventKind.SUBMITTED, body, protocol=command.protocol, raw=command.raw)
    if "risk" in task.agreement.constraints:
        task = admission.mark(work, task)
    if task.lineage.parent is not None:
        adopt(work, task)
    if chosen is not None:
        return assign(work, task, *chosen)
    if not task.lineage.blocked_by:
        return place(work, task)
    failed = next(
        (d for d in work.tasks(task.lineage.blocked_by) if d.status in (Status.FAILED, Status.CANCELLED)), None
    )
    work.put(task)
    if failed is not None:
        return fail_for(work, task, failed)
    be_waited_for(work, work.tasks(task.lineage.blocked_by))
    return task


def newborn(work: Work, command: Submit, route: Route, size: int = 0) -> Task:
    """A new task that is in no queue yet. `size`: the bytes of the request."""
    rules, now = work.rules, work.now
    routing, timing, lineage = command.routing, command.timing, command.lineage
    blocking = unfinished(work, command) if lineage.dependencies else []
    total = limit_of(timing.total_seconds)
    idle = limit_of(timing.idle_seconds) or 0
    patience = max(rules.total_limit, total or rules.total_limit)
    deadline = Instant(now + patience)
    if timing.deadline is not None:
        deadline = min(deadline, timing.deadline)
        if deadline <= now:
            raise refuse(Kind.INVALID, "the deadline has passed already", next="send a later one", field="deadline")
    parent = parent_of(work, command)
    hops = parent.lineage.hops + 1 if parent else 0
    if hops > rules.hop_limit:
        raise refuse(
            Kind.CONFLICT, f"more than {rules.hop_limit} tasks deep", next="this looks like a loop", field="parent"
        )
    return Task(
        id=command.task_id or TaskId(work.mint()),
        type=command.type,
        status=Status.WAITING if blocking else Status.QUEUED,
        waiting=Waiting.DEPENDENCY if blocking else None,
        origin=Origin(
            principal=command.principal,
            protocol=command.protocol or "api",
            request_id=command.request_id,
            digest=command.digest,
            protocol_version=command.protocol_version,
            follows=command.reply.follows,
            awaited=command.reply.awaited,
            called=command.called,
            priority=command.own_priority,
            bytes=size,
        ),
        created_at=now,
        updated_at=now,
        rank=rank_of(work, command.priority),
        wake_at=deadline if timing.firm and blocking else None,
        name=command.name,
        description=command.description,
        priority=command.priority,
        routing=TaskRouting(
            route=route.queue,
            kind=routing.kind,
            pinned=routing.pinned,
            required_capabilities=routing.required_capabilities,
            required_role=route.role,
        ),
        timing=TaskTiming(
            deadline=deadline,
            firm=timing.firm,
            limited=timing.total_seconds is not None or timing.deadline is not None,
            idle_limit=max(rules.idle_limit, idle),
            total_limit=total or rules.total_limit,
            retry=timing.retry,
            expires_at=timing.expires_at,
        ),
        lineage=TaskLineage(
            trace_id=lineage.trace_id or (parent.lineage.trace_id if parent else work.mint().replace("-", "")),
            parent=lineage.parent,
            thread=lineage.thread,
            hops=hops,
            dependencies=lineage.dependencies,
            called_dependencies=lineage.called_dependencies,
            blocked_by=tuple(d.id for d in blocking),
        ),
        agreement=TaskAgreement(constraints=command.constraints),
    )


def unfinished(work: Work, command: Submit) -> list[Task]:
    lineage = command.lineage
    known = {task.id: task for task in work.tasks(lineage.dependencies)}
    if lineage.own_dependencies:  # tasks of other callers do not count
        asker = work.agent(command.principal)
        known = {id: task for id, task in known.items() if is_party(asker, command.principal, task)}
    called = lineage.called_dependencies or lineage.dependencies
    missing = next((name for id, name in zip(lineage.dependencies, called, strict=True) if id not in known), None)
    if missing is not None:
        message = f"it depends on {missing}, which does not exist"
        raise refuse(Kind.NOT_FOUND, message, field="dependencies", task_id=missing)
    return [task for task in known.values() if task.status is not Status.COMPLETED]


def limit_of(seconds: float | None) -> int | None:
    return None if seconds is None else min(int(seconds * SECOND), LONGEST)


def check_pin(work: Work, command: Submit) -> None:
    """A caller that names an agent and a kind wants an agent of that kind (chiffon-D8). An agent without a kind fits
    any: agents of other protocols have none, and callers of chiffon must name one."""
    routing = command.routing
    agent = None if routing.pinned is None or routing.kind is None else work.agent(routing.pinned)
    if agent is None or agent.kind is None or routing.kind in (agent.kind, agent.id):
        return
    raise refuse(
        Kind.INVALID,
        f"{agent.id} is {agent.kind}, and {routing.kind} is asked for",
        next="name one of that kind, or none",
        field="agent",
        agent_id=agent.id,
    )


def check_any_could(work: Work, command: Submit, route: Route) -> None:
    """Refuse a request that no known agent could ever do, instead of keeping it in a queue."""
    whom = route.pinned or route.kind
    if command.principal is HUB or (command.routing.kept_for_anybody and whom is None):
        return
    agents = list(addressed(work, route))
    if not agents:
        missing = "is here" if whom is None else f"{'is called' if route.pinned else 'of kind'} {whom!r}"
        raise refuse(
            Kind.UNAVAILABLE,
            f"no agent {missing}",
            next="add one with `dragoman agent add`",
            field="to_agent",
            retryable=True,
            agent_id=whom or "",
            last_heartbeat=None,
        )
    if not any(serves(agent, route) for agent in agents):
        within = replace(route, domains=())
        for agent in agents:
            if serves(agent, within):
                check_open(work, command.principal, agent, command.type)
        check_resources(agents, route)
        supported = sorted({work_type for agent in agents for work_type in agent.work_types or ()})
        advice = f"ask for what is done: {', '.join(supported)}"
        if not supported or route.type in supported:
            advice = "add an agent that does"
        raise refuse(
            Kind.UNSUPPORTED_WORK,
            f"no agent {whom or 'here'} does {route.type!r}"
            + (f" as {route.role}" if route.role else "")
            + (f" with {', '.join(route.capabilities)}" if route.capabilities else ""),
            next=advice,
            field="work_type",
            work_type_requested=route.type,
            supported_types=supported,
        )


def check_carried(work: Work, command: Submit, route: Route) -> None:
    """Refuse attachments that no message to any fitting agent could carry, instead of an attempt that must fail."""
    size = sum(file.size for file in command.files) + len(bytes(written(command.content))) + ENVELOPE
    room = dict(work.rules.carried)
    able = [agent for agent in addressed(work, route) if serves(agent, route)]
    small = [room[agent.protocol] for agent in able if room.get(agent.protocol, size) < size]
    if not able or len(small) < len(able):
        return
    limit, files = max(small), len(command.files)
    what = f"{files} attachments and the work take {size}" if files > 1 else f"the attachment and the work take {size}"
    raise refuse(
        Kind.TOO_LARGE,
        f"{what} bytes, and a message to {able[0].id} may have {limit}",
        next="attach less, or name where to fetch it",
        field="attachments",
        limit=limit,
        size=size,
    )


def check_resources(agents: list[Agent], route: Route) -> None:
    """Refuse, with the numbers, what the agents could do if they had more memory."""
    needs = route.needs
    modest = replace(route, **dict.fromkeys(needs, 0))
    able = [agent for agent in agents if serves(agent, modest)]
    if needs and able:
        raise nobody_has(able, needs)


def parent_of(work: Work, command: Submit) -> Task | None:
    """The task that this one is a part of. Only its caller and its owner may add a part."""
    if command.lineage.parent is None:
        return None
    parent, asker = work.task(command.lineage.parent), command.principal
    if parent is None or not (asker in (ADMIN, HUB) or is_party(work.agent(asker), asker, parent)):
        raise refuse(Kind.NOT_FOUND, "no such task", field="parent", task_id=command.lineage.parent)
    if parent.final:
        raise refuse(Kind.CONFLICT, f"its parent is already {parent.status.value}", field="parent")
    return parent


def adopt(work: Work, child: Task) -> None:
    assert child.lineage.parent is not None
    parent = work.known_task(child.lineage.parent)
    if not parent.lineage.has_children:
        work.put(replace(parent, lineage=replace(parent.lineage, has_children=True)))


def again(work: Work, command: Submit, first: Task) -> Task:
    """The request was seen before: the same content gets the first outcome again, other content is refused (all-D5)."""
    if first.origin.digest != command.digest:
        raise refuse(
            Kind.MISMATCH,
            "this request id was used before with other content",
            next="use a new request id for a new request",
            field="request_id",
            task_id=first.id,
        )
    if (
        command.reply.forgets_errors
        and first.status is Status.FAILED
        and first.outcome.fault
        and first.outcome.fault.kind in ERRORS
    ):
        return redo(work, first)
    if first.final:
        kind = OUTCOME_KINDS[first.status]
        outcomes = [d for d in work.find(Lane(first.id, command.principal)) if d.kind in OUTCOMES]
        if not outcomes:
            offer(work, first, command.principal, kind, first.outcome.event or first.seq)
        for delivery in outcomes:  # sent or waiting: a caller that asks again has not seen it
            repeat(work, delivery, first)
    return first


def go_on(work: Work, command: Submit, task: Task, answer: bytes) -> Task:
    """Resume a task that waits for its caller's answer. The same answer again changes nothing."""
    mark = f"answer:{command.request_id}"
    if mark in task.output.recent:
        return task
    if task.waiting not in (Waiting.HELD, Waiting.AGENT):
        raise refuse(
            Kind.CONFLICT,
            f"the task is {task.status.value} and waits for no answer of yours",
            next="choose a new task_id for new work",
            field="task_id",
            status=task.status.value,
        )
    recent = (*task.output.recent, mark)[-work.rules.recent_messages :]
    return resume_with(
        work,
        replace(task, output=replace(task.output, recent=recent)),
        msgspec.json.decode(answer),
    )


MOST_UNFIT = 16
"""A route passes over at most so many agents whose terms the request does not meet. Above that, the caller must name
the agent."""


def without_unfit(work: Work, command: Submit, route: Route) -> Route:
    """The route of a request that names no agent, without the agents whose terms it does not meet. Where none is left,
    the hub refuses the request with the fault of the first. The work is personal if any fitting agent says so."""
    fault: Refused | None = None
    unfit: list[AgentId] = []
    taken: list[Offer] = []
    wanted: set[str] = set()
    left = personal = False
    for agent in addressed(work, route):
        if agent.id == route.besides or not is_able(agent, route) or not is_open(route.domains, domain_of(agent)):
            continue
        offer = agent.offer(command.type)
        personal = personal or (offer is not None and offer.pii)
        try:
            if offer is not None and offer not in taken:  # agents of a kind often declare the same offer
                if offer.pii:
                    check_sealed(agent, offer.intent)
                check_granted(work, command, agent, offer)
                check_input(command, offer, None)
                taken.append(offer)
                wanted.update(offer.required_capabilities)
            left = True
        except Refused as refusal:
            fault = fault or refusal
            unfit.append(agent.id)
    if fault is not None and (not left or len(unfit) > MOST_UNFIT):
        raise fault
    given = tuple(sorted(granted(work, command.principal, wanted)))
    return replace(route, personal=personal, unfit=tuple(sorted(unfit)), granted=given)


# -- answers that were lost --------------------------------------------------------------------------------------------


def tell_again(work: Work, command: TellAgain) -> None:
    """Deliver a lost answer again. Where there is no answer yet, nothing happens: it will come."""
    who = command.principal
    task = work.one(Claims(who, command.request_id))
    if task is not None:
        if not under_way(work, task.id, who, OUTCOMES) and task.final:
            offer(work, task, who, OUTCOME_KINDS[task.status], task.outcome.event or task.seq)
        return
    question = work.one(QuestionById(question_id(f"{who}/{command.request_id}")))
    if question is None or question.agent != who:
        raise refuse(
            Kind.NOT_FOUND,
            "you sent no request of that id",
            next="name the one whose answer you miss",
            field="answer_to",
        )
    if not under_way(work, TaskId(question.id), who, (MessageKind.ANSWER,)) and question.answer is not None:
        offer_answer(work, question)


def under_way(work: Work, lane: TaskId, receiver: AgentId, kind: Iterable[MessageKind]) -> bool:
    """Whether a delivery carries the answer already. The lease of a poll does not count: its owner says that it has
    nothing."""
    pending = [one for one in work.find(Lane(lane, receiver)) if one.kind in kind]
    for one in pending:
        if one.state is DeliveryState.LEASED and not one.ordered:
            work.put(waiting_again(one, head=one.head))
    return bool(pending)

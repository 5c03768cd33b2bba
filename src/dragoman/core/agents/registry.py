"""Agents are added, register what they can do, get new tokens, and are removed."""

from __future__ import annotations

from msgspec.structs import replace

from dragoman.core import versions
from dragoman.core.agents import status
from dragoman.core.budgets.wake_times import RESOURCES, with_wake_time
from dragoman.core.commands import (
    AddAgent,
    AdmitGuest,
    ClearOut,
    EndContractsOf,
    PauseAgent,
    RegisterAgent,
    RemoveAgent,
    ResumeAgent,
    RevokeToken,
    RotateToken,
)
from dragoman.core.contracts.handshake import end_contracts_of, end_handshakes_with, is_bound_to, part
from dragoman.core.ids import HUB, AgentId, Instant, TaskId
from dragoman.core.lookups import AskedBy
from dragoman.core.model import breaker
from dragoman.core.model.agents import GUEST, PLANNER, Agent, BreakerState, Revoked
from dragoman.core.model.state import Registry
from dragoman.core.model.tasks import (
    EventKind,
    Origin,
    Priority,
    QuestionStatus,
    Status,
    Task,
    TaskLineage,
    TaskRouting,
    TaskTiming,
)
from dragoman.core.protocol_capabilities import RESERVED
from dragoman.core.routing.dispatch import assign, fill
from dragoman.core.routing.routes import Route, reach
from dragoman.core.tasks.handover import pass_on
from dragoman.core.tasks.outcome import fail_attempt, still_held
from dragoman.core.work import Work
from dragoman.messages.faults import Fault, Kind, refuse
from dragoman.messages.tasks import Request
from dragoman.wire.closing import CloseReason

REVOKED = 256
"""How many revoked tokens the hub remembers per agent."""


def add(work: Work, command: AddAgent) -> Agent:
    agent = replace(command.agent, created_at=work.now)
    if agent.id in RESERVED or work.agent(agent.id) is not None:
        raise refuse(
            Kind.CONFLICT,
            f"there is already an agent {agent.id!r}",
            next="choose another id, or remove that one",
            field="agent_id",
        )
    if work.person(agent.id) is not None:
        raise refuse(Kind.CONFLICT, f"{agent.id!r} is the name of a person", next="choose another id", field="agent_id")
    work.put(agent)
    versions.go_on_counting(work, agent.id)
    return agent


def admit(work: Work, command: AdmitGuest) -> Agent:
    """Admit an agent without a token. An agent that has a token must use it."""
    agent = work.agent(command.principal)
    if agent is None:
        agent = Agent(
            id=command.principal,
            protocol=command.protocol,
            created_at=work.now,
            token_hash=f"{GUEST}{command.principal}",
            name=command.name,
        )
        if agent.id in RESERVED or work.person(agent.id) is not None:
            raise refuse(
                Kind.FORBIDDEN, f"{agent.id!r} is a name of the hub's own", next="choose another", field="agent_id"
            )
        work.put(agent)
        versions.go_on_counting(work, agent.id)
    elif not agent.guest:
        raise refuse(
            Kind.UNAUTHENTICATED, f"{agent.id!r} has a token", next="send it", field="agent_id", agent_id=agent.id
        )
    elif agent.protocol != command.protocol:
        raise refuse(
            Kind.FORBIDDEN,
            f"{agent.id!r} is known as an agent that speaks {agent.protocol}",
            next="choose another id",
            field="agent_id",
            agent_id=agent.id,
        )
    return agent


def known(work: Work, id: AgentId) -> Agent:
    agent = work.agent(id)
    if agent is None:
        raise refuse(Kind.NOT_FOUND, f"there is no agent {id!r}", next="see `dragoman agent ls`", field="agent_id")
    return agent


def remove(work: Work, command: RemoveAgent) -> Agent:
    agent = known(work, command.agent)
    fault = Fault(
        kind=Kind.UNAVAILABLE,
        message=f"{agent.id} was removed",
        retryable=True,
        facts={"agent_id": agent.id, "last_heartbeat": None},
    )
    for task in still_held(work, work.tasks(work.tasks_of(agent.id))):
        if is_bound_to(work, task, agent.id):
            part(work, task)
        else:
            fail_attempt(work, task, fault, counts=False)
    for question in work.find(AskedBy(agent.id)):
        if question.task is None:  # questions about a task stay: its next owner asks them, too
            work.put(replace(question, status=QuestionStatus.WITHDRAWN, wake_at=None))
    for link in work.all_links_of(agent.id):
        work.close_link(link.session, CloseReason.AGENT_REMOVED)
    for registry, name in (
        (Registry.AGENT, agent.id),
        *((Registry.RESOURCE, f"{agent.id}:{kind}") for kind in RESOURCES),
    ):
        entity = work.entity(registry, name)
        if entity is not None:
            versions.delete(work, entity, command.principal)
    work.remove(agent)
    pass_on(work, agent.id, fault.message, for_good=True)
    end_handshakes_with(work, agent.id)
    work.ask_afterwards(ClearOut(agent=agent.id))
    end_contracts_of(work, EndContractsOf(agent=agent.id, until=work.now, by=command.principal))
    return agent


def pause(work: Work, command: PauseAgent) -> Agent:
    agent = replace(known(work, command.agent), paused=True)
    work.put(agent)
    return agent


def resume(work: Work, command: ResumeAgent) -> Agent:
    agent = replace(known(work, command.agent), paused=False)
    work.put(agent)
    fill(work, agent.id)
    return agent


def rotate_token(work: Work, command: RotateToken) -> Agent:
    agent = replace(known(work, command.agent), token_hash=command.token_hash)
    work.put(agent)
    for link in work.all_links_of(agent.id):
        work.close_link(link.session, CloseReason.TOKEN_REPLACED)
    return agent


def revoke_token(work: Work, command: RevokeToken) -> Agent:
    """Revoke one token. Tokens that have expired are forgotten: they are refused in any case."""
    agent = known(work, command.agent)
    kept = tuple(one for one in agent.revoked if one.until > work.now and one.jti != command.jti)
    if len(kept) >= REVOKED:
        raise refuse(
            Kind.CONFLICT,
            f"{REVOKED} tokens of {agent.id} are revoked already",
            next=f"`dragoman agent token {agent.id}` voids all of them",
            field="jti",
            agent_id=agent.id,
        )
    if command.until > work.now:
        kept += (Revoked(command.jti, command.until),)
    agent = replace(agent, revoked=kept)
    work.put(agent)
    return agent


def register(work: Work, command: RegisterAgent) -> Agent:
    """An agent registers. It may fill in what is open, never change who it is."""
    agent = known(work, command.principal)
    if command.kind is not None and agent.kind is not None and command.kind != agent.kind:
        raise refuse(
            Kind.FORBIDDEN,
            f"{agent.id} was added as {agent.kind!r} and cannot register as {command.kind!r}",
            field="agent_type",
            agent_id=agent.id,
            token_status="valid, but for another kind of agent",
        )
    if agent.converses and command.role == PLANNER and agent.role != PLANNER:
        message = (
            f"planners may change what all agents share: a person makes {agent.id} one, by adding it with that role"
        )
        raise refuse(Kind.FORBIDDEN, message, field="role", agent_id=agent.id, token_status="valid, but not for this")
    given = tuple(name for name in agent.capabilities if name not in agent.declared)
    declared = agent.declared if command.capabilities is None else tuple(dict.fromkeys(command.capabilities))
    seats = agent.max_concurrent if agent.added_concurrent is None else agent.added_concurrent
    agent = replace(
        agent,
        kind=command.kind or agent.kind,
        name=command.name or agent.name,
        role=agent.role or command.role,
        version=command.version or agent.version,
        work_types=command.work_types,
        capabilities=tuple(dict.fromkeys((*given, *declared))),
        declared=tuple(name for name in declared if name not in given),
        max_concurrent=command.max_concurrent or seats,  # the limit of an earlier process does not matter
        added_concurrent=None if command.max_concurrent in (None, seats) else seats,
        memory_mb=command.memory_mb,
        gpu_vram_mb=command.gpu_vram_mb,
        protocol_version=command.protocol_version or agent.protocol_version,
        callback_url=command.callback_url,
        registered_at=work.now,
        last_seen_at=work.now,
        details=command.details or agent.details,
        offers=agent.offers if command.offers is None else command.offers,
        domain=agent.domain or command.domain,
    )
    work.put(agent)
    fill(work, agent.id)
    return agent


HEALTH_CHECK = "health_check"


def agent_woke(work: Work, agent: Agent) -> None:
    """A wake time of the agent has come. If its breaker's pause is over, send a health check."""
    agent = status.woke(work, agent)
    rested = breaker.rested(agent.breaker, work.now)
    if rested == agent.breaker:
        return
    work.put(with_wake_time(work, replace(agent, breaker=rested)))
    probe(work, agent.id)


def probe(work: Work, agent_id: AgentId) -> None:
    """Send a health check to an agent whose breaker is half open, if it can be reached and none is under way."""
    agent = known(work, agent_id)
    link = reach(work, agent_id)
    if agent.breaker.state is not BreakerState.HALF_OPEN or link is None:
        return
    if any(task.type == HEALTH_CHECK and task.origin.principal == HUB for task in work.tasks(work.tasks_of(agent_id))):
        return
    task = Task(
        id=TaskId(work.mint()),
        type=HEALTH_CHECK,
        status=Status.QUEUED,
        origin=Origin(principal=HUB, protocol="hub", request_id=work.mint(), digest=""),
        created_at=work.now,
        updated_at=work.now,
        rank=work.now,
        name="health check",
        priority=Priority.CRITICAL,
        routing=TaskRouting(route=Route(type=HEALTH_CHECK, pinned=agent_id).queue, kind=agent.kind, pinned=agent_id),
        timing=TaskTiming(deadline=Instant(work.now + 2 * work.rules.idle_limit), idle_limit=work.rules.idle_limit),
        lineage=TaskLineage(trace_id=work.mint().replace("-", "")),
    )
    task = work.record(task, EventKind.SUBMITTED, Request(input={}))
    assign(work, task, agent, link)

"""Agent status: what agents report of themselves, and what the hub concludes from their silence.

The hub keeps a report as the agent's entry in the shared registry, with the last ones before it. It stores no
heartbeats: a heartbeat is a sign of life, as is every other command of the agent (`Work.seen_from`). The row only has a
wake time: after every three heartbeats the hub checks whether it has seen the agent (agentmsg-D12).

    seen ──30 s of silence──▶ offline: its work goes back, routing passes it over ──any message──▶ seen

A waiting poll and a link that vouches for its agent are lasting signs of life. After a restart of the hub, the time
counts from the start. An agent that was never seen is not there.

Error reports are kept with the agent, and with the task if the agent owns it. A high or critical one counts for the
breaker; a critical one ends the attempt, as an error in answer to the work order would.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from dragoman.core.budgets import budget
from dragoman.core.budgets.wake_times import RESOURCES, with_wake_time
from dragoman.core.commands import Beat, ReportError, ReportStatus, Severity
from dragoman.core.ids import HUB, AgentId, Instant, rfc3339
from dragoman.core.model.agents import Agent, ConnectionEvent
from dragoman.core.model.shapes import fitted
from dragoman.core.model.state import AgentState, Change, Entity, Operation, Registry, difference, moment_of
from dragoman.core.model.tasks import EventKind, Status, Task
from dragoman.core.routing.dispatch import fill, make_room
from dragoman.core.tasks.handover import pass_on
from dragoman.core.tasks.outcome import as_reported, end, fail_attempt, failed, refuse_hopeless, still_held
from dragoman.core.tasks.progress import grew
from dragoman.core.versions import next_version
from dragoman.core.work import Work
from dragoman.messages.faults import Fault, Kind, refuse
from dragoman.messages.tasks import ErrorReported, Failure

COUNTS = frozenset({Severity.HIGH, Severity.CRITICAL})

#: What the shared registry shows of an agent that reported nothing.
UNREPORTED = {"state": AgentState.IDLE.value, "capability_level": 100, "error_rate": 0, "avg_response_time_ms": 0}
OF_THE_HUB = ("errors", "last_error")
PERSONAL = "[personal]"
NOT_IN_THE_PAST = frozenset({"errors", "current_tasks"})


def beat(work: Work, command: Beat) -> None:
    """A heartbeat: `note_sign_of_life` has noted it. A new state in it is a report."""
    agent = work.agent(command.principal)
    if agent is None or command.state is None:
        return
    entity = work.entity(Registry.AGENT, agent.id)
    if entity is not None and entity.value.get("state") == command.state:
        return
    if entity is None and command.state in (AgentState.IDLE, AgentState.BUSY):
        return  # nothing that the hub would not see for itself
    write(work, agent, {**({} if entity is None else entity.value), "state": command.state})
    look_again(work, agent.id)
    fill(work, agent.id)


def report_status(work: Work, command: ReportStatus) -> int:
    agent = known(work, command.principal)
    entity = work.entity(Registry.AGENT, agent.id)
    value: dict[str, Any] = {**command.status, "current_tasks": list(command.current_tasks)}
    if command.usage:
        value["resource_usage"] = command.usage
    if command.health:
        value["health_metrics"] = command.health
    if command.next_available is not None:
        value["next_available"] = rfc3339(command.next_available)
    if entity is not None:
        value |= {name: entity.value[name] for name in OF_THE_HUB if name in entity.value}
    written = write(work, agent, value)
    before = {} if entity is None else entity.value.get("resource_usage", {})
    if more := budget.reported(work, agent.id, command.usage, before):
        refuse_hopeless(work)
        grew(work, agent.id, more, None if entity is None else entity.updated_at)
    forgotten(work, agent.id, command.current_tasks)
    look_again(work, agent.id)
    fill(work, agent.id)
    return written.version


def forgotten(work: Work, agent: AgentId, current: tuple[str, ...]) -> None:
    """An agent has lost a task if it was silent about it for long and does not list it among its current tasks: its
    heartbeats are no sign of life for that task."""
    for task in still_held(work, work.tasks(work.tasks_of(agent))):
        named = task.id in current or task.origin.called in current
        silent = work.now - (task.timing.last_sign_at or task.created_at) >= task.timing.idle_limit
        if task.status in (Status.ASSIGNED, Status.RUNNING) and task.attempt.delivery is None and silent and not named:
            fault = Fault(
                kind=Kind.UNAVAILABLE,
                message=f"{agent} has the task and does not know it any more",
                retryable=True,
                facts={"agent_id": agent, "last_heartbeat": rfc3339(work.now)},
            )
            fail_attempt(work, task, fault, counts=False)


def report_error(work: Work, command: ReportError) -> Task | None:
    agent = work.agent(command.principal)
    task = None if command.task_id is None else work.task(command.task_id)
    if task is not None and task.owner != command.principal:
        task = None  # a missing task and another agent's task are the same
    id = command.report.get("error_id") or command.message_id
    private = task.agreement.personal if task is not None else agent is not None and agent.does_personal_work
    if agent is not None and not note_error(work, agent, command, id, private=private):
        return task  # a repeated report: its receipt got lost
    if command.severity in COUNTS:
        failed(work, command.principal)
    if task is None or task.final:
        return task
    event = ErrorReported(report=command.report, severity=command.severity)
    task = work.record(task, EventKind.ERROR_REPORTED, event, agent=command.principal)
    task = work.sign_of_life(task, acknowledged=False)
    work.put(task)
    if command.severity is not Severity.CRITICAL:
        return task
    fault = as_reported(task, command.fault)
    if fault.kind in work.rules.retried:
        task = fail_attempt(work, task, fault, counts=False)
    else:
        content = Failure(fault=fault, report=command.report)
        task = end(work, task, Status.FAILED, fault=fault, agent=command.principal, content=content)
    fill(work, command.principal)
    return task


def note_error(work: Work, agent: Agent, command: ReportError, id: str | None, *, private: bool) -> bool:
    """Keep an error report in the registry entry of its agent, without its text if that may be personal. False if it is
    there already."""
    entity = work.entity(Registry.AGENT, agent.id)
    value: dict[str, Any] = {"state": AgentState.IDLE.value} if entity is None else entity.value
    errors = value.get("errors", [])
    if id is not None and any(error.get("error_id") == id for error in errors):
        return False
    entry = {
        "error_id": id,
        "at": rfc3339(work.now),
        "severity": command.severity.value,
        "error_type": command.report.get("error_type", command.fault.kind.value),
        "message": PERSONAL if private else command.fault.message[:1000],
        "task_id": command.task_id,
    }
    kept = [*errors, entry][-work.rules.error_history :]
    write(work, agent, value | {"errors": kept, "last_error": entry["at"]}, remember=False)
    return True


# -- the entry -----------------------------------------------------------------------------------------------------


def known(work: Work, id: AgentId) -> Agent:
    agent = work.agent(id)
    if agent is None:
        raise refuse(Kind.NOT_FOUND, f"there is no agent {id!r}", field="agent_id")
    return agent


def entry_of(work: Work, id: AgentId) -> Entity | None:
    """An agent's entry in the registry. For an agent that never reported, the entry shows what the hub sees and has
    version 0. An entry that was deleted is empty and keeps its version."""
    entity = work.entity(Registry.AGENT, id)
    agent = work.agent(id)
    if entity is not None or agent is None:
        return entity
    seen = work.directory.seen_at.get(id)
    return derived(agent, work.load_of(id), bool(work.links_to(id)) or seen is not None)


def derived(agent: Agent, load: int, there: bool) -> Entity:
    """What the hub knows of an agent that never reported its status."""
    if agent.silent_since is not None or not there:
        state = AgentState.OFFLINE
    else:
        state = AgentState.BUSY if load else AgentState.IDLE
    value: dict[str, Any] = {**UNREPORTED, "state": state.value}
    seen = agent.last_seen_at or agent.registered_at or agent.created_at
    return Entity(
        registry=Registry.AGENT,
        name=agent.id,
        version=0,
        value={**value, "last_heartbeat": rfc3339(seen)},
        created_at=agent.created_at,
        updated_at=seen,
        created_by=agent.id,
        updated_by=agent.id,
    )


def write(
    work: Work, agent: Agent, value: dict[str, Any], *, by: AgentId | None = None, remember: bool = True
) -> Entity:
    was = work.entity(Registry.AGENT, agent.id)
    old = {} if was is None else was.value
    value = UNREPORTED | {"last_heartbeat": rfc3339(work.now)} | value
    value = fitted(Registry.AGENT, value)
    past = () if was is None else was.past
    if was is not None and was.value and remember:
        before = {name: kept for name, kept in old.items() if name not in NOT_IN_THE_PAST}
        past = (*past, {"at": rfc3339(was.updated_at), **before})[-work.rules.status_history :]
    by = by or agent.id
    entity = Entity(
        registry=Registry.AGENT,
        name=agent.id,
        version=next_version(work, Registry.AGENT, agent.id, was),
        value=value,
        created_at=work.now if was is None else was.created_at,
        updated_at=work.now,
        created_by=agent.id if was is None else was.created_by,
        updated_by=by,
        past=past,
    )
    operation = Operation.UPDATE if was is not None and was.value else Operation.CREATE
    work.share(Change(operation, Registry.AGENT, agent.id, entity.version, difference(old, value), by), entity)
    return entity


# -- silence -------------------------------------------------------------------------------------------------------


def note_sign_of_life(work: Work, id: AgentId) -> None:
    """The principal sent a command. For an agent that converses this is a sign of life: the first one starts its timer,
    and an offline agent is back."""
    agent = work.agent(id)
    if agent is None or not agent.converses:
        return
    work.seen_from(id)
    if agent.silent_at is not None and agent.silent_since is None:
        return
    back = agent.silent_since is not None
    agent = replace(agent, silent_at=_next_look(work, work.now), silent_since=None, last_seen_at=work.now)
    if back:
        agent = replace(agent, connections=agent.noted(work.now, ConnectionEvent.BACK))
    work.put(with_wake_time(work, agent))
    if back:
        entity = work.entity(Registry.AGENT, id)
        if entity is not None and entity.value.get("state") == AgentState.OFFLINE:
            state = AgentState.BUSY if work.load_of(id) else AgentState.IDLE
            write(work, agent, entity.value | {"state": state.value, "last_heartbeat": rfc3339(work.now)}, by=HUB)
        fill(work, id)


def _next_look(work: Work, since: int) -> Instant:
    return Instant(since + work.rules.heartbeat * work.rules.heartbeats_missed)


def look(work: Work, agent: Agent) -> Agent:
    """The agent's wake time has come: has the hub seen it since?"""
    if agent.silent_at is None or agent.silent_at > work.now:
        return agent
    sign = max(work.directory.seen_at.get(agent.id, 0), work.serving_since)
    if any(link.vouches or not link.ordered for link in work.links_to(agent.id)):
        sign = work.now
    due = _next_look(work, sign)
    if due > work.now:
        return replace(agent, silent_at=due)
    connections = agent.noted(work.now, ConnectionEvent.SILENT, f"not heard since {rfc3339(Instant(sign))}")
    agent = replace(agent, silent_at=None, silent_since=work.now, connections=connections)
    return fallen_silent(work, agent, Instant(sign))


def fallen_silent(work: Work, agent: Agent, sign: Instant) -> Agent:
    """The agent is offline: its tasks go to other agents, or to itself when it is back."""
    work.put(with_wake_time(work, agent))
    entity = work.entity(Registry.AGENT, agent.id)
    value = {} if entity is None else entity.value
    write(work, agent, value | {"state": AgentState.OFFLINE.value, "last_heartbeat": rfc3339(sign)}, by=HUB)
    fault = Fault(
        kind=Kind.UNAVAILABLE,
        message=f"{agent.id} has not been heard since {rfc3339(sign)}",
        retryable=True,
        facts={"agent_id": agent.id, "last_heartbeat": rfc3339(sign)},
    )
    held = work.tasks(work.tasks_of(agent.id))
    for task in still_held(work, held):
        fail_attempt(work, task, fault, counts=False, lost=True, spent=not task.stands_still)
    if not all(task.stands_still for task in held):
        failed(work, agent.id)
    pass_on(work, agent.id, fault.message, for_good=False)
    return known(work, agent.id)


def look_again(work: Work, id: AgentId) -> None:
    """Something changed that the agent's wake times depend on."""
    agent = work.agent(id)
    if agent is not None and (now := with_wake_time(work, agent)) is not agent:
        work.put(now)


def totals_lapse(work: Work) -> None:
    """Allocations for all agents together may have ended."""
    if lapse(work, HUB):
        make_room(work, all_agents=True)


def lapse(work: Work, whose: AgentId) -> bool:
    """End the allocations of a principal whose time is over. True if there was one."""
    ended = False
    for kind in RESOURCES:
        entity = work.entity(Registry.RESOURCE, f"{whose}:{kind}")
        ends = None if entity is None else moment_of(entity.value.get("expires_at"))
        if entity is not None and ends is not None and ends <= work.now:
            budget.lapsed(work, entity)
            ended = True
    return ended


def woke(work: Work, agent: Agent) -> Agent:
    """Handle each wake time of an agent that is due, except for its breaker's."""
    if work.allotted(agent.id) and lapse(work, agent.id):
        make_room(work)
    agent = look(work, agent)
    work.put(with_wake_time(work, agent))
    fill(work, agent.id)
    return known(work, agent.id)

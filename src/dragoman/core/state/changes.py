"""Writing shared state: optimistic versions, merge patches, and who may write what.

    what               CREATE                       UPDATE                                        DELETE
    -----------------  ---------------------------  --------------------------------------------  -----------------
    a task of the hub  no: it is submitted          owner, caller, planner, admin: its context    no: cancel it
                                                    caller, planner, admin: status "cancelled"
    a task of agents   any agent                    creator, assigned agent, planner, admin       as UPDATE
    an agent           itself, admin                itself, admin                                 admin
    an allocation      itself: `consumed`;          itself: `consumed`; planner, admin: all       planner, admin
                       planner, admin: all
    the policy         no: it always exists         planner, admin: all; but admin only: which    no
                                                    domains may ask which (`dragoman policy`)

A writer names the version that it read, 0 for a new entity (agentmsg-D9). If another writer was faster, the refusal has
the current version, and the writer reads and decides again. Versions never go back, not even over a DELETE
(`versions`). There is one policy, whatever name a writer uses.
"""

from __future__ import annotations

import enum
from typing import Any

import msgspec
from msgspec.structs import replace

from dragoman.core import versions
from dragoman.core.agents.status import entry_of, look_again
from dragoman.core.budgets import budget
from dragoman.core.commands import ChangeState, WaitAgain
from dragoman.core.delivery.direct_messages import head_starts
from dragoman.core.ids import ADMIN, HUB, AgentId, Instant, TaskId, rfc3339
from dragoman.core.model import policy
from dragoman.core.model.agents import PLANNER
from dragoman.core.model.authorization import governs, is_party
from dragoman.core.model.shapes import fitted
from dragoman.core.model.shared_tasks import given_metadata, task_entity
from dragoman.core.model.state import Change, Entity, Operation, Registry, difference, merged
from dragoman.core.model.tasks import Priority, Task
from dragoman.core.policy import quotas
from dragoman.core.policy.replay import note, receipt
from dragoman.core.routing.dispatch import fill, make_room
from dragoman.core.tasks.outcome import end_with_children, refuse_hopeless
from dragoman.core.versions import next_version
from dragoman.core.work import Work
from dragoman.messages.faults import Fault, Kind, Refused, refuse
from dragoman.messages.tasks import read_request

LARGEST = 64 * 1024
"""Bytes of one shared value: the shared state is no place for files."""


class Role(enum.StrEnum):
    """What a writer is to the entity that it writes."""

    ADMIN = "the admin"
    PLANNER = "a planner"
    SELF = "the agent itself"
    CREATOR = "its creator"
    ASSIGNED = "the agent it is assigned to"
    OWNER = "its owner"
    CALLER = "who asked for it"
    ANY_AGENT = "anybody"


class What(enum.StrEnum):
    HUB_TASK = "a task of the hub"
    TASK = "a task of agents"
    AGENT = "an agent"
    RESOURCE = "an allocation"
    POLICY = "the policy"


ALL = frozenset({"*"})
CONTEXT = frozenset({"context"})
STEERED = frozenset({"context", "status"})
USED = frozenset({"consumed"})
KEEPERS = {Role.ADMIN: ALL, Role.PLANNER: ALL}
PARTIES = {**KEEPERS, Role.CREATOR: ALL, Role.ASSIGNED: ALL}

CREATE, UPDATE, DELETE = Operation.CREATE, Operation.UPDATE, Operation.DELETE

MAY: dict[tuple[What, Operation], dict[Role, frozenset[str]]] = {
    (What.HUB_TASK, CREATE): {},
    (What.HUB_TASK, UPDATE): {
        Role.ADMIN: STEERED,
        Role.PLANNER: STEERED,
        Role.CALLER: STEERED,
        Role.OWNER: CONTEXT,
    },
    (What.HUB_TASK, DELETE): {},
    (What.TASK, CREATE): {Role.ANY_AGENT: ALL},
    (What.TASK, UPDATE): PARTIES,
    (What.TASK, DELETE): PARTIES,
    (What.AGENT, CREATE): {Role.ADMIN: ALL, Role.SELF: ALL},
    (What.AGENT, UPDATE): {Role.ADMIN: ALL, Role.SELF: ALL},
    (What.AGENT, DELETE): {Role.ADMIN: ALL},
    (What.RESOURCE, CREATE): {**KEEPERS, Role.SELF: USED},
    (What.RESOURCE, UPDATE): {**KEEPERS, Role.SELF: USED},
    (What.RESOURCE, DELETE): KEEPERS,
    (What.POLICY, CREATE): {},
    (What.POLICY, UPDATE): KEEPERS,
    (What.POLICY, DELETE): {},
}

WHAT = {
    Registry.TASK: What.TASK,
    Registry.AGENT: What.AGENT,
    Registry.RESOURCE: What.RESOURCE,
    Registry.POLICY: What.POLICY,
}

HELD_BY_THE_HUB = {Registry.RESOURCE: budget.LEDGER, Registry.AGENT: frozenset({"errors", "last_error"})}
"""Fields that only the hub writes."""


def change_state(work: Work, command: ChangeState) -> Entity:
    if command.message_id is None:
        return changed(work, command)
    before = receipt(work, command.principal, command.message_id, command.digest)
    if before is None:
        entity = changed(work, command)
        note(work, command.principal, command.message_id, command.digest, str(entity.version))
        return entity
    return Entity(
        registry=command.entity, name=command.entity_id, version=int(before), value={}, created_at=work.now,
        updated_at=work.now, created_by=command.principal, updated_by=command.principal,
    )  # fmt: skip


def changed(work: Work, command: ChangeState) -> Entity:
    id = command.task or TaskId(command.entity_id)
    if command.entity is Registry.TASK and (task := work.task(id)) is not None:
        return change_task(work, command, task)
    name = policy.NAME if command.entity is Registry.POLICY else command.entity_id
    subject = named(work, command.entity, name)
    entity = current(work, command.entity, name)
    if entity is None and command.task is not None:  # an older hub kept it under the id that follows from its name
        entity = work.entity(Registry.TASK, command.task)
        name = name if entity is None else entity.name
    if entity is None and command.operation is not CREATE:
        next_step = "CREATE it first" if command.operation is UPDATE else "look at what there is"
        raise refuse(Kind.NOT_FOUND, f"there is no {command.subject}", next=next_step, field="entity_id")
    held = roles(work, command.principal, subject, entity)
    permit(command, WHAT[command.entity], held)
    if command.entity is Registry.POLICY and Role.ADMIN not in held:
        keep_domain_policies(command, entity)
    if command.operation is CREATE and entity is not None and is_there(entity):
        raise outdated(f"{entity.id} is there already", entity.version)
    if command.operation is not CREATE or command.version != 0 or entity is None:  # it was deleted: a new one
        expect(command, 0 if entity is None else entity.version)
    if command.operation is DELETE and entity is not None:
        if not is_there(entity):
            raise refuse(Kind.NOT_FOUND, f"{entity.name} says nothing of itself", next="there is nothing to delete")
        return delete(work, command, entity)
    return write(work, command, name, subject, entity, by_itself=held.isdisjoint(KEEPERS))


# -- who, and which version ----------------------------------------------------------------------------------------


def is_there(entity: Entity) -> bool:
    """Whether the entity was written. For an agent that reported nothing, or deleted its report, the hub shows what it
    sees."""
    return entity.version > 0 and bool(entity.value)


def named(work: Work, registry: Registry, name: str) -> AgentId | None:
    """The agent that an entity is about. Entries of agents and allocations need an agent that exists."""
    if registry is Registry.AGENT:
        subject, kind = name, ""
    elif registry is Registry.RESOURCE:
        subject, _, kind = name.rpartition(":")
        if kind not in budget.KINDS or not subject:
            message = f"an allocation is called agent_id:resource_type, one of {', '.join(budget.KINDS)}"
            raise refuse(Kind.INVALID, message, field="entity_id")
    else:
        if not 0 < len(name) <= 200:
            raise refuse(Kind.INVALID, "a name has 1 to 200 characters", field="entity_id")
        return None
    if work.agent(AgentId(subject)) is None and not (kind and subject == HUB):
        raise refuse(Kind.NOT_FOUND, f"there is no agent {subject!r}", field="entity_id")
    return AgentId(subject)


def current(work: Work, registry: Registry, name: str) -> Entity | None:
    if registry is Registry.POLICY:
        return policy_entity(work)
    if registry is Registry.AGENT:
        return entry_of(work, AgentId(name))
    return work.entity(registry, name)


def policy_entity(work: Work) -> Entity:
    """The policy; version 1 until its first change."""
    return work.entity(Registry.POLICY, policy.NAME) or Entity(
        registry=Registry.POLICY,
        name=policy.NAME,
        version=1,
        value=policy.default_value(work.rules),
        created_at=Instant(0),
        updated_at=Instant(0),
        created_by=HUB,
        updated_by=HUB,
    )


def roles(work: Work, principal: AgentId, subject: AgentId | None, entity: Entity | None) -> set[Role]:
    found = {Role.ANY_AGENT}
    if principal in (ADMIN, HUB):
        found.add(Role.ADMIN)
    agent = work.agent(principal)
    if agent is not None and agent.role == PLANNER:
        found.add(Role.PLANNER)
    if principal == subject:
        found.add(Role.SELF)
    if entity is not None and entity.created_by == principal:
        found.add(Role.CREATOR)
    if entity is not None and entity.value.get("assigned_agent") == principal:
        found.add(Role.ASSIGNED)
    return found


def permit(command: ChangeState, what: What, held: set[Role]) -> None:
    allowed = MAY[what, command.operation]
    fields: set[str] = set()
    for role in held & allowed.keys():
        fields |= allowed[role]
    given = set(command.changes)
    reserved = given & HELD_BY_THE_HUB.get(command.entity, frozenset())
    refused = reserved or (set() if "*" in fields else given - fields)
    if fields and not refused:
        return
    able = [role.value for role, writes in allowed.items() if "*" in writes or refused <= writes]
    next = f"leave it to {', '.join(able)}" if able else "nobody may"
    if not able and command.operation is not UPDATE and MAY[what, UPDATE]:
        next += ": UPDATE it instead"
    about = f"{sorted(refused)[0]} of {what.value}" if fields and refused else what.value
    raise refuse(
        Kind.FORBIDDEN,
        f"{command.principal} may not {command.operation.value} {about}" + (": the hub keeps it" if reserved else ""),
        next="" if reserved else next,
        field=f"changes.{sorted(refused)[0]}" if fields and refused else "entity_id",
        agent_id=command.principal,
        token_status="valid, but not for this",
    )


def keep_domain_policies(command: ChangeState, entity: Entity | None) -> None:
    """Only people change which domains may ask which (a2acp-D19). A writer of the whole policy may repeat those
    fields."""
    stands = [] if entity is None else entity.value.get(policy.DOMAINS, [])
    if command.changes.get(policy.DOMAINS, stands) != stands:
        raise refuse(
            Kind.FORBIDDEN,
            f"{command.principal} may not say which domains may ask which",
            next="a person does: `dragoman policy`",
            field=f"changes.{policy.DOMAINS}",
            agent_id=command.principal,
            token_status="valid, but not for this",
        )


def expect(command: ChangeState, version: int) -> None:
    if command.version != version:
        raise outdated(f"{command.subject} has version {version}, not {command.version}", version, "read it again")


def outdated(message: str, version: int, next: str = "") -> Refused:
    return refuse(Kind.CONFLICT, message, next=next, field="version", version=version)


# -- writing -------------------------------------------------------------------------------------------------------


def write(
    work: Work, command: ChangeState, name: str, subject: AgentId | None, was: Entity | None, *, by_itself: bool
) -> Entity:
    registry = command.entity
    old: dict[str, Any] = {} if was is None else was.value
    value = merged(old, command.changes)
    if registry is Registry.TASK:
        value = as_task(work, command, name, old, value)
        if was is None:
            quotas.check(work, command.principal, entities=1)
    elif registry is Registry.RESOURCE:
        whose, _, kind = name.rpartition(":")
        for field, expected in (("agent_id", whose), ("resource_type", kind)):
            if command.changes.get(field) not in (None, expected):
                raise refuse(Kind.INVALID, f"{name} says {expected}", next="write the same", field=f"changes.{field}")
        if "limit" in command.changes and command.changes["limit"] is None:
            raise refuse(
                Kind.INVALID, "a limit is a number", next="DELETE the allocation to have none", field="changes.limit"
            )
        value = budget.written(old, value | {"agent_id": whose, "resource_type": kind}, by_itself=by_itself)
    elif registry is Registry.POLICY:
        value = policy.completed(value, work.rules)
    value = fitted(registry, value)
    if registry is Registry.TASK:
        check_task(work, command, value)
    version = next_version(work, registry, name, was)
    if registry is Registry.POLICY and command.changes.get("version") is None:
        value["version"] = str(version)
    if len(msgspec.json.encode(value)) > LARGEST:
        raise refuse(
            Kind.TOO_LARGE,
            f"a shared value has at most {LARGEST} bytes",
            next="share less of it",
            field="changes",
            limit=LARGEST,
        )
    new = was is None or not is_there(was)
    entity = Entity(
        registry=registry,
        name=name,
        version=version,
        value=value,
        created_at=work.now if was is None else was.created_at,
        updated_at=work.now,
        created_by=command.principal if was is None else was.created_by,
        updated_by=command.principal,
        past=() if was is None else was.past,
    )
    patch = difference({} if new else old, value)
    operation = CREATE if new else UPDATE
    waits = work.policy.retry
    work.share(Change(operation, registry, name, version, patch, command.principal), entity)
    if registry is Registry.RESOURCE and by_itself:
        budget.grown(work, old, value)
    if registry is Registry.AGENT and command.principal == subject:
        budget.reported(work, subject, value.get("resource_usage", {}), old.get("resource_usage", {}))
    if subject is not None and command.principal == subject:
        refuse_hopeless(work)
    if registry is Registry.POLICY and work.policy.retry != waits:
        for id in sorted(work.directory.conversing):
            work.ask_afterwards(WaitAgain(agent=id, since=work.now))
    take_effect(work, registry, subject)
    return entity


def as_task(work: Work, command: ChangeState, name: str, old: dict[str, Any], value: dict[str, Any]) -> dict[str, Any]:
    """A task that agents keep among themselves: its name does not change. Required fields that they have not written
    yet are added on reading (`in_full`); the time of an earlier change is not kept for this one."""
    if old and value.get("id") != old.get("id"):
        raise refuse(Kind.INVALID, "the id of a task does not change", field="changes.id")
    if "updated_at" in old and "updated_at" not in command.changes:
        value = value | {"updated_at": rfc3339(work.now)}
    return {"id": name, "status": "pending"} | value


def check_task(work: Work, command: ChangeState, value: dict[str, Any]) -> None:
    """Refuse a task of agents that contradicts itself, or is assigned to an agent that does not exist."""
    agent, named = value.get("assigned_agent"), value.get("context", {}).get("task_id", value["id"])
    if "assigned_agent" in command.changes and agent is not None and work.agent(AgentId(agent)) is None:
        raise refuse(
            Kind.INVALID,
            f"there is no agent {agent!r}",
            next="assign it to one that is there, or to none (null)",
            field="changes.assigned_agent",
        )
    if named != value["id"]:
        raise refuse(
            Kind.INVALID,
            f"the task is called {value['id']}",
            next="write the same, or leave it out",
            field="changes.context.task_id",
        )


def delete(work: Work, command: ChangeState, entity: Entity) -> Entity:
    if entity.registry is Registry.RESOURCE and entity.value.get("reserved"):
        raise refuse(
            Kind.CONFLICT,
            f"{entity.value['reserved']:g} of {entity.name} is set aside for tasks under way",
            next="wait for them",
            field="entity_id",
            version=entity.version,
        )
    end = versions.take_back if entity.registry is Registry.AGENT else versions.delete
    version = end(work, entity, command.principal)
    take_effect(work, entity.registry, named(work, entity.registry, entity.name))
    return replace(entity, version=version)


def take_effect(work: Work, registry: Registry, subject: AgentId | None) -> None:
    """Let what waited for another value go on."""
    if registry is Registry.POLICY or subject == HUB:
        make_room(work, all_agents=True)
    elif subject is not None:
        look_again(work, subject)
        fill(work, subject)


# -- tasks of the hub ----------------------------------------------------------------------------------------------


def change_task(work: Work, command: ChangeState, task: Task) -> Entity:
    held = roles(work, command.principal, None, None)
    writer = work.agent(command.principal)
    if governs(writer, command.principal, task):
        held.add(Role.CALLER)
    elif is_party(writer, command.principal, task):
        held.add(Role.OWNER)
    version = work.task_version(task)
    if command.operation is CREATE:
        raise outdated("there is a task of this id already", version)
    permit(command, What.HUB_TASK, held)
    expect(command, version)
    if task.final:
        raise refuse(Kind.CONFLICT, f"the task is already {task.status.value}", version=version, task_id=task.id)
    task = in_context(work, command, task)
    if (status := command.changes.get("status")) is not None:
        if status != "cancelled":
            raise refuse(
                Kind.INVALID,
                "what a task is follows from what is said about it",
                next='only "cancelled" can be written',
                field="changes.status",
            )
        fault = Fault(kind=Kind.CANCELLED, message=f"cancelled by {command.principal}")
        task = end_with_children(work, task, fault)
    task = replace(task, version=version + 1)
    work.put_versioned(task)
    return task_entity(task, metadata_of(work, task))


def in_context(work: Work, command: ChangeState, task: Task) -> Task:
    context = command.changes.get("context")
    if context is None:
        return task
    if not isinstance(context, dict) or (unknown := sorted(context.keys() - {"metadata", "priority"})):
        field = f"changes.context.{unknown[0]}" if isinstance(context, dict) else "changes.context"
        raise refuse(Kind.FORBIDDEN, "of a task's context, metadata and priority can be changed", field=field)
    if (priority := context.get("priority")) is not None:
        try:
            wanted = Priority(priority)
        except ValueError:
            message = f"priority must be one of {', '.join(Priority)}"
            raise refuse(Kind.INVALID, message, field="changes.context.priority") from None
        starts = head_starts(work.rules)
        task = replace(task, priority=wanted, rank=task.rank + starts[task.priority] - starts[wanted])
    if "metadata" in context:
        metadata = merged(metadata_of(work, task), context["metadata"] or {})
        if not isinstance(metadata, dict) or len(msgspec.json.encode(metadata)) > LARGEST:
            message = f"metadata is an object of at most {LARGEST} bytes"
            raise refuse(Kind.INVALID, message, field="changes.context.metadata")
        task = replace(task, metadata=metadata)
    return replace(task, updated_at=work.now)


def metadata_of(work: Work, task: Task) -> dict[str, Any]:
    """The metadata of a task: as written since it came, or as it came."""
    if task.metadata is not None:
        return task.metadata
    return given_metadata(read_request(work.event(task.id, task.attempt.source).body))

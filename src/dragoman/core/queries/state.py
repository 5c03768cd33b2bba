"""The shared state as agents and people read it: whole, one by one, and as it changes.

Values are plain objects with the document's field names; times are RFC 3339 in UTC. Who sees what:

    registry   who
    ---------  ---------------------------------------------------------------------------------------------------------
    TASK       tasks of agents that converse: all see the head (status, agent, type, priority); only the caller, the
               owners, planners and the admin see metadata, history, result and error. Only these see other tasks of the
               hub at all. All see the tasks that agents keep among themselves.
    others     all

A watcher reads the log from its place, then waits for the next commit: it misses nothing, and nothing is kept for it. A
watcher that was away for too long must read everything again.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from typing import Any

from msgspec.structs import replace

from dragoman.core.agents.status import derived
from dragoman.core.budgets.budget import LEDGER
from dragoman.core.ids import ADMIN, HUB, AgentId, Instant, TaskId, rfc3339
from dragoman.core.model import authorization, policy
from dragoman.core.model.agents import PLANNER
from dragoman.core.model.shared_tasks import MOST_EVENTS, given_metadata, in_full, in_short, shared_name, task_entity
from dragoman.core.model.state import Change, Changed, Entity, Operation, Registry, moment_of
from dragoman.core.model.tasks import FINAL, Status, Task
from dragoman.core.ports import Intake, Store, TaskFilter
from dragoman.core.protocol_capabilities import CONVERSES
from dragoman.core.rules import Rules
from dragoman.messages.faults import Fault, Kind, refuse
from dragoman.messages.tasks import Request, read_request, read_result

SHOWN = 500
"""How many tasks the whole state shows: unfinished ones first, then the newest."""

BRIEF = 64 * 1024
"""Bytes of a request or a result that the whole state shows; longer ones are in the task itself."""

PAGE = 64
PATIENCE = 30.0


Explain = Callable[[Task, Fault, AgentId | None], dict[str, Any]]
"""Why a task failed, and which agent reported it; None is the hub itself."""
Recount = Callable[[Request, list[dict[str, Any]]], list[dict[str, Any]]]
"""The history of a task, from its request and its events (`core.model.shared_tasks`)."""


class StateView:
    def __init__(
        self,
        store: Store,
        intake: Intake,
        rules: Rules,
        explain: Explain | None = None,
        recount: Recount | None = None,
    ) -> None:
        self._store = store
        self._intake = intake
        self._rules = rules
        self._explain = explain or plain_fault
        self._recount = recount or no_history

    def in_words(self, explain: Explain, recount: Recount) -> StateView:
        """The same view for a protocol with its own form of failures and histories."""
        return StateView(self._store, self._intake, self._rules, explain, recount)

    # -- now ------------------------------------------------------------------------------------------------------

    async def whole(self, reader: AgentId | None = None, *, details: bool = True) -> dict[str, Any]:
        """Everything at once. A reader that goes on from `cursor` misses nothing, and may see a change twice. Without
        `details`, tasks have only what all may see."""
        cursor = self._intake.state_cursor
        tasks = await self._tasks(reader, details)
        allotted = [entity for entity in self._intake.entities() if entity.registry is Registry.RESOURCE]
        last = await self._store.changes(after=cursor - 1, limit=1) if cursor else ()
        return {
            "task_registry": tasks,
            "agent_registry": {agent.id: self._agent(agent.id).value for agent in self._intake.agents()},
            "resource_allocations": {entity.name: self._allocation(entity).value for entity in allotted},
            "policy_state": self._policy().value,
            "last_updated": rfc3339(last[0].at if last else self._intake.now()),
            "cursor": cursor,
        }

    async def _tasks(self, reader: AgentId | None, details: bool) -> dict[str, Any]:
        found: dict[TaskId, Task] = {}
        for status in (*(status for status in Status if status not in FINAL), None):
            page, _ = await self._store.tasks(TaskFilter(status=status), after=None, limit=SHOWN)
            found |= {task.id: task for task in page if task.id not in found}
        shown = [task for task in found.values() if self._may_see(task, reader)][:SHOWN]
        registry: dict[str, Any] = {}
        for entity in await self._store.entities(Registry.TASK, limit=SHOWN):
            registry[entity.value.get("id", entity.name)] = in_full(entity).value
        for task in shown:
            entity = await self._task(task, reader, most=BRIEF) if details else task_entity(task)
            registry[shared_name(task)] = entity.value
        return registry

    async def one(
        self, registry: Registry, name: str, reader: AgentId | None = None, *, history: bool = True
    ) -> Entity | None:
        """One entity; a task with its `history`, which costs a read of its events."""
        match registry:
            case Registry.POLICY:
                return self._policy()
            case Registry.AGENT:
                return None if self._intake.agent(AgentId(name)) is None else self._agent(AgentId(name))
            case Registry.RESOURCE:
                entity = self._intake.entity(f"{registry.value}/{name}")
                return None if entity is None else self._allocation(entity)
            case Registry.TASK:
                task = await self._store.task(TaskId(name))
                if task is None:
                    kept = await self._store.entity(f"{registry.value}/{name}")
                    return None if kept is None else in_full(kept)
                return await self._task(task, reader, history=history) if self._may_see(task, reader) else None

    async def _task(
        self, task: Task, reader: AgentId | None, *, history: bool = False, most: int | None = None
    ) -> Entity:
        """A task as this reader sees it; without its metadata or its result where they are among more than `most`
        bytes."""
        if not self._has_part(task, reader):
            return task_entity(task)
        source = read_request(await self._body(task, task.attempt.source, most))
        entity = task_entity(task, given_metadata(source) if task.metadata is None else task.metadata)
        if history and not task.agreement.personal:
            events = await self._store.events(task.id, after=max(0, task.seq - MOST_EVENTS), limit=MOST_EVENTS)
            entity.value["context"]["history"] = self._recount(source, in_short(events))
        if task.status is Status.COMPLETED and task.outcome.event is not None:
            ended = await self._body(task, task.outcome.event, most)
            if ended != b"{}":
                entity.value["result"] = read_result(ended).content
        if task.outcome.fault is not None and task.status is not Status.COMPLETED:
            entity.value["error"] = self._explain(task, task.outcome.fault, await self._reporter(task))
        return entity

    async def _reporter(self, task: Task) -> AgentId | None:
        if task.outcome.event is None:
            return task.owner
        ended = await self._store.events(task.id, after=task.outcome.event - 1, limit=1)
        return ended[0].agent if ended else None

    async def _body(self, task: Task, seq: int, most: int | None) -> bytes:
        events = await self._store.events(task.id, after=seq - 1, limit=1)
        body = bytes(events[0].body) if events else b"{}"
        return body if most is None or len(body) <= most else b"{}"

    def _agent(self, id: AgentId) -> Entity:
        entity = self._intake.entity(f"{Registry.AGENT.value}/{id}")
        seen_at = self._intake.seen_at(id)
        if entity is None or "state" not in entity.value:  # it never reported, or deleted its report
            agent = self._intake.agent(id)
            assert agent is not None
            seen = derived(agent, len(self._intake.load_of(id)), self._intake.reachable(id) or seen_at is not None)
            entity = seen if entity is None else replace(entity, value=seen.value | entity.value)
        if seen_at is not None and seen_at > (moment_of(entity.value.get("last_heartbeat")) or 0):
            entity = replace(entity, value=entity.value | {"last_heartbeat": rfc3339(seen_at)})
        return entity

    def _policy(self) -> Entity:
        return self._intake.entity(f"{Registry.POLICY.value}/{policy.NAME}") or Entity(
            registry=Registry.POLICY,
            name=policy.NAME,
            version=1,
            value=policy.default_value(self._rules),
            created_at=Instant(0),
            updated_at=Instant(0),
            created_by=HUB,
            updated_by=HUB,
        )

    def _allocation(self, entity: Entity) -> Entity:
        """With the limit in force, where it has none of its own, and without the hub's ledger."""
        value = without_ledger(entity.value)
        if "limit" in value:
            return replace(entity, value=value)
        limit: float | None = None
        if entity.value.get("resource_type") == "budget":
            in_force = policy.read(self._policy().value)
            limit = in_force.total if entity.value["agent_id"] == HUB else in_force.per_agent
        shown = policy.UNLIMITED if limit is None else limit
        return replace(entity, value=value | {"limit": shown})

    def status_history(self, id: AgentId) -> list[dict[str, Any]]:
        """The reports of an agent, the oldest first, the last one as it is now."""
        entity = self._intake.entity(f"{Registry.AGENT.value}/{id}")
        if entity is None or not entity.value:
            return []
        return [*entity.past, {"at": rfc3339(entity.updated_at), **entity.value}]

    # -- who sees what --------------------------------------------------------------------------------------------

    def _sees_all(self, reader: AgentId | None) -> bool:
        if reader is None or reader in (ADMIN, HUB):
            return True
        agent = self._intake.agent(reader)
        return agent is not None and agent.role == PLANNER

    def _has_part(self, task: Task, reader: AgentId | None) -> bool:
        agent = None if reader is None else self._intake.agent(reader)
        if authorization.is_party(agent, reader, task) or (agent is not None and authorization.had(agent, task)):
            return True
        return self._sees_all(reader) and not task.agreement.personal

    def _may_see(self, task: Task, reader: AgentId | None) -> bool:
        if task.origin.protocol in CONVERSES or self._has_part(task, reader) or self._sees_all(reader):
            return True
        parties = (task.owner, task.routing.pinned)
        return any(id is not None and (agent := self._intake.agent(id)) and agent.converses for id in parties)

    # -- as it changes --------------------------------------------------------------------------------------------

    async def changes(self, after: int, limit: int = PAGE) -> list[Changed]:
        """The log from a place on. A row may begin before that place: `Changed.first`."""
        rows = list(await self._store.changes(after=after, limit=limit))
        lost = rows[0].first > after + 1 if rows else after < 0
        if not rows and after > self._intake.state_cursor:  # committed this very moment, or never
            lost = not await self._store.changes(after=after - 1, limit=1)
        if lost:
            raise refuse(
                Kind.CONFLICT,
                f"the log does not reach back to {after}: read the whole state and go on from its cursor",
                field="cursor",
                cursor=self._intake.state_cursor,
            )
        return rows

    async def watch(
        self,
        after: int | None,
        registry: Registry | None = None,
        name: str | None = None,
        reader: AgentId | None = None,
    ) -> AsyncGenerator[tuple[int, Change, Instant]]:
        """Every change from a place in the log on (None: from now), as it is committed: its number, the change, and its
        time.

        Raises `Refused` CONFLICT where the log does not reach back so far.
        """
        at = self._intake.state_cursor if after is None else after
        async with self._intake.watch_state() as woken:
            while True:
                rows = await self.changes(at)
                for row in rows:
                    for number, change in enumerate(row.entries, row.first):
                        if number <= at or registry not in (None, change.registry):
                            continue
                        shown = await self._shown(change, row.at, name, reader)
                        if shown is not None:
                            yield number, shown, row.at
                        at = number
                    at = row.cursor
                if not rows:
                    await woken.changed(PATIENCE)

    async def _shown(self, change: Change, at: Instant, name: str | None, reader: AgentId | None) -> Change | None:
        """A change as this reader sees it; None if it may not, or asked for another name."""
        if change.registry is not Registry.TASK:
            if change.registry is Registry.POLICY:
                return change
            if name not in (None, change.name):
                return None
            if change.registry is Registry.RESOURCE:
                return replace(change, changes=without_ledger(change.changes))
            return change
        task = await self._store.task(TaskId(change.name))
        if task is None:
            if change.ours:
                return None  # it was forgotten, and with it who may see it
            entity = await self._store.entity(f"{Registry.TASK.value}/{change.name}")
            called = change.name if entity is None else entity.value.get("id", change.name)
            return replace(change, name=called) if name in (None, change.name, called) else None
        called = shared_name(task)
        if name not in (None, task.id, called) or not self._may_see(task, reader):
            return None
        patch = {**change.changes, "updated_at": rfc3339(at)}
        if change.operation is Operation.CREATE:
            patch = {"id": called, "created_at": rfc3339(at), **patch}
            patch["context"] = {"task_id": called, **patch["context"]}
        if "metadata" in patch.get("context", {}) and not self._has_part(task, reader):
            patch["context"] = {key: value for key, value in patch["context"].items() if key != "metadata"}
        return replace(change, name=called, changes=patch)


def without_ledger(value: dict[str, Any]) -> dict[str, Any]:
    """An allocation, or a change of one, as the document has it: without what only the hub's sums need."""
    return {name: field for name, field in value.items() if name not in LEDGER}


def no_history(source: Request, history: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The default: no history."""
    return []


def plain_fault(task: Task, fault: Fault, agent: AgentId | None) -> dict[str, Any]:
    """The default: the fault as it is."""
    return {"message": fault.message, "kind": fault.kind.value, "task_id": shared_name(task)}

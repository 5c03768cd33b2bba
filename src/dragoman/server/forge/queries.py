"""The requests that only read: agents, tasks, a task, a file. What an agent may not see does not exist for it (D5)."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from dragoman.core.ids import TaskId
from dragoman.core.model import authorization
from dragoman.core.model.agents import Agent
from dragoman.core.model.tasks import Status, Task
from dragoman.core.ports import TaskFilter
from dragoman.core.queries.tasks import PERSONAL
from dragoman.core.routing.routes import route_of, serves
from dragoman.messages.faults import Kind, refuse
from dragoman.messages.files import shown_name
from dragoman.protocols.forge.mapping import STATUSES_IN
from dragoman.protocols.forge.types import PLANNER, ROLES, FilePiece, GetFile, QueryAgents, QueryTasks
from dragoman.server.forge.handler import ForgeHandler
from dragoman.server.forge.outbound import agent_view, order_view, status_of, task_view
from dragoman.server.session import read_account

PAGE = 200
MOST_PAGES = 25
"""Pages of tasks one query looks through: 5000 tasks of a status."""
MOST_OUTPUT = 512 * 1024
"""Characters of output that get-task shows."""
FILE_PIECE = 512 * 1024
"""Bytes of a file in one response, unless fewer are asked for: as base64 it still fits into a line."""


def may_see(asker: Agent, task: Task) -> bool:
    """Whether a task exists for an agent: its own, one it submitted, a queued one that it could claim. A planner sees
    all."""
    if asker.role == PLANNER or authorization.is_party(asker, asker.id, task):
        return True
    return task.status is Status.QUEUED and serves(asker, route_of(task.routing.route))


def shown_to(asker: Agent, task: Task) -> Task:
    """The task as an agent sees it that may see it: the texts of a personal one are for its two sides only."""
    if not _is_kept_from(asker, task):
        return task
    texts = {name: PERSONAL for name in ("name", "description") if getattr(task, name) is not None}
    lineage = task.lineage
    if lineage.thread is not None:
        lineage = replace(lineage, thread=PERSONAL)
    return replace(task, lineage=lineage, **texts)


def _is_kept_from(asker: Agent, task: Task) -> bool:
    return task.agreement.personal and not authorization.is_party(asker, asker.id, task)


async def agents(handler: ForgeHandler, asker: Agent, query: QueryAgents) -> dict[str, Any]:
    """The agents that have the role, the status and all of the capabilities."""
    everybody = list(handler.hub.agents())
    role = query.role
    if role is not None and role not in ROLES and not any(agent.role == role for agent in everybody):
        raise refuse(Kind.INVALID, "Invalid role specified", field="payload.role", role=role[:200])
    wanted = set(query.capabilities)
    found = []
    for agent in everybody:
        if (role is not None and agent.role != role) or not wanted <= set(agent.capabilities):
            continue
        held = handler.hub.load_of(agent.id)
        view = agent_view(
            agent,
            reachable=handler.hub.reachable(agent.id),
            load=len(held),
            current=await _shown(handler, asker, held),
            status=handler.process_status(agent.id),
        )
        if query.status is None or view.status == query.status:
            found.append(view)
    return {"agents": found}


async def _shown(handler: ForgeHandler, asker: Agent, held: Sequence[TaskId]) -> TaskId | None:
    """The first of these tasks, if the asker may know of it."""
    task = await handler.store.task(held[0]) if held else None
    return task.id if task is not None and may_see(asker, task) else None


async def tasks(handler: ForgeHandler, asker: Agent, query: QueryTasks) -> dict[str, Any]:
    """The newest tasks that the asker may see, within its filters."""
    found: dict[TaskId, Task] = {}
    for where in _filters(asker, query):
        after: str | None = None
        here = 0
        for _ in range(MOST_PAGES):
            page, after = await handler.store.tasks(where, after=after, limit=PAGE)
            fitting = [task for task in page if _is_wanted(task, query) and may_see(asker, task)]
            found.update((task.id, task) for task in fitting)
            here += len(fitting)
            if after is None or here >= query.limit:
                break
    newest = sorted(found.values(), key=lambda task: (task.created_at, task.id), reverse=True)
    return {"tasks": [task_view(shown_to(asker, task)) for task in newest[: query.limit]]}


def _filters(asker: Agent, query: QueryTasks) -> list[TaskFilter]:
    """Where to look: everywhere for a planner, among what concerns the asker otherwise."""
    statuses: tuple[Status | None, ...] = (
        (None,) if query.status is None else tuple(map(Status, STATUSES_IN[query.status]))
    )
    if asker.role == PLANNER:
        return [TaskFilter(status=status) for status in statuses]
    filters = [TaskFilter(status=status, agent=asker.id) for status in statuses]
    filters += [TaskFilter(status=status, principal=asker.id) for status in statuses]
    if None in statuses or Status.QUEUED in statuses:
        filters.append(TaskFilter(status=Status.QUEUED))
    return filters


def _is_wanted(task: Task, query: QueryTasks) -> bool:
    if query.required_role is not None and task.routing.required_role != query.required_role:
        return False
    return query.status is None or status_of(task) == query.status


async def visible(handler: ForgeHandler, asker: Agent, task_id: str, field: str = "payload.taskId") -> Task:
    """The task, if it exists for the asker; raises `Refused`."""
    task = await handler.store.task(TaskId(task_id))
    if task is None or not may_see(asker, task):
        raise refuse(Kind.NOT_FOUND, "no such task", field=field, taskId=task_id)
    return task


async def check_cancel(handler: ForgeHandler, asker: Agent, task_id: str) -> None:
    """Raises `Refused` where the asker may not cancel a task. An agent that may see it may know that."""
    found = await visible(handler, asker, task_id)
    if not authorization.governs(asker, asker.id, found):
        raise refuse(
            Kind.FORBIDDEN,
            f"the task is done for {found.origin.principal}",
            next="only they, or a person, can cancel it",
            field="payload.taskId",
            taskId=task_id,
        )


async def task(handler: ForgeHandler, asker: Agent, task_id: str) -> dict[str, Any]:
    """A task with what went in and what came out; for the agent that is to do it, with the whole order."""
    found = await visible(handler, asker, task_id)
    if _is_kept_from(asker, found):
        return {"task": task_view(shown_to(asker, found))}
    account = await read_account(handler.store, found.id, found.seq, MOST_OUTPUT)
    if found.owner != asker.id or found.final:
        return {"task": task_view(found, account)}
    (source,) = await handler.store.events(found.id, after=found.attempt.source - 1, limit=1)
    return {"task": order_view(found, source, account)}


async def file(handler: ForgeHandler, asker: Agent, query: GetFile) -> dict[str, Any]:
    """A piece of a file that belongs to a task the asker may see."""
    found = await visible(handler, asker, query.task_id)
    files = () if _is_kept_from(asker, found) else found.output.files
    ref = next((ref for ref in files if ref.id == query.file_id), None)
    data = None if ref is None else await handler.files.fetch(ref.id)
    if ref is None or data is None:
        raise refuse(Kind.NOT_FOUND, "no such file", field="payload.fileId", fileId=query.file_id)
    piece = data[query.offset : query.offset + min(query.length or FILE_PIECE, FILE_PIECE)]
    view = FilePiece(
        id=ref.id,
        name=shown_name(ref.name),
        mime_type=ref.mime_type,
        size=ref.size,
        sha256=ref.sha256,
        data=base64.b64encode(piece).decode(),
        offset=query.offset,
        length=len(piece),
    )
    return dict(msgspec.to_builtins(view))

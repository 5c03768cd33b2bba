"""The requests that only read: agents, tasks, a task, a file. What an agent may not see is not there (D5)."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

from dragoman.core.ids import TaskId
from dragoman.core.model import authorization
from dragoman.core.model.agents import Agent
from dragoman.core.model.tasks import Status, Task
from dragoman.core.ports import TaskFilter
from dragoman.messages.faults import Kind, refuse
from dragoman.protocols.forge.types import PLANNER, GetFile, QueryAgents, QueryTasks
from dragoman.server.forge.handler import ForgeHandler
from dragoman.server.forge.views import agent_view, file_view, is_kept_from, may_see, order_view, shown_to, task_view
from dragoman.server.forge.vocabulary import STATUS_IN, role_is_known, status_of
from dragoman.server.outgoing import read_account

PAGE = 200
MOST_PAGES = 25
"""Pages of tasks one query looks through: 5000 tasks of a status."""
MOST_OUTPUT = 512 * 1024
"""Characters of output that get-task shows."""
FILE_PIECE = 512 * 1024
"""Bytes of a file in one response, unless fewer are asked for: as base64 it still fits into a line."""


async def agents(handler: ForgeHandler, asker: Agent, asked: QueryAgents) -> dict[str, Any]:
    """Whoever has the role, the status and all of the capabilities."""
    everybody = list(handler.hub.agents())
    if asked.role is not None and not role_is_known(asked.role, everybody):
        raise refuse(Kind.INVALID, "Invalid role specified", field="payload.role", role=asked.role[:200])
    wanted = set(asked.capabilities)
    found = []
    for agent in everybody:
        if (asked.role is not None and agent.role != asked.role) or not wanted <= set(agent.capabilities):
            continue
        held = handler.hub.load_of(agent.id)
        view = agent_view(
            agent,
            reachable=handler.hub.reachable(agent.id),
            load=len(held),
            current=await _shown(handler, asker, held),
            status=handler.condition(agent.id),
        )
        if asked.status is None or view["status"] == asked.status:
            found.append(view)
    return {"agents": found}


async def _shown(handler: ForgeHandler, asker: Agent, held: Sequence[TaskId]) -> TaskId | None:
    """The first of these tasks, if the asker may know of it."""
    task = await handler.store.task(held[0]) if held else None
    return task.id if task is not None and may_see(asker, task) else None


async def tasks(handler: ForgeHandler, asker: Agent, asked: QueryTasks) -> dict[str, Any]:
    """The newest tasks that the asker may see, within its filters."""
    found: dict[TaskId, Task] = {}
    for where in _places(asker, asked):
        after: str | None = None
        here = 0
        for _ in range(MOST_PAGES):
            page, after = await handler.store.tasks(where, after=after, limit=PAGE)
            fitting = [task for task in page if _wanted(task, asked) and may_see(asker, task)]
            found.update((task.id, task) for task in fitting)
            here += len(fitting)
            if after is None or here >= asked.limit:
                break
    newest = sorted(found.values(), key=lambda task: (task.created_at, task.id), reverse=True)
    return {"tasks": [task_view(shown_to(asker, task)) for task in newest[: asked.limit]]}


def _places(asker: Agent, asked: QueryTasks) -> list[TaskFilter]:
    """Where to look: everywhere for a planner, among what concerns the asker otherwise."""
    statuses: tuple[Status | None, ...] = (None,) if asked.status is None else STATUS_IN[asked.status]
    if asker.role == PLANNER:
        return [TaskFilter(status=status) for status in statuses]
    places = [TaskFilter(status=status, agent=asker.id) for status in statuses]
    places += [TaskFilter(status=status, principal=asker.id) for status in statuses]
    if None in statuses or Status.QUEUED in statuses:
        places.append(TaskFilter(status=Status.QUEUED))
    return places


def _wanted(task: Task, asked: QueryTasks) -> bool:
    if asked.required_role is not None and task.required_role != asked.required_role:
        return False
    return asked.status is None or status_of(task) == asked.status


async def seen(handler: ForgeHandler, asker: Agent, task_id: str, field: str = "payload.taskId") -> Task:
    """The task, if it is there for the asker; raises `Refused`."""
    task = await handler.store.task(TaskId(task_id))
    if task is None or not may_see(asker, task):
        raise refuse(Kind.NOT_FOUND, "no such task", field=field, taskId=task_id)
    return task


async def steered(handler: ForgeHandler, asker: Agent, task_id: str) -> Task:
    """The task, if it is the asker's to steer; raises `Refused`. To who may see it, that it is not is no secret."""
    found = await seen(handler, asker, task_id)
    if not authorization.governs(asker, asker.id, found):
        what = f"the task is done for {found.origin.principal}; only they, or a person, can cancel it"
        raise refuse(Kind.FORBIDDEN, what, field="payload.taskId", taskId=task_id)
    return found


async def task(handler: ForgeHandler, asker: Agent, task_id: str) -> dict[str, Any]:
    """A task with what went in and what came out; for the agent that is to do it, all that the order says."""
    found = await seen(handler, asker, task_id)
    if is_kept_from(asker, found):
        return {"task": task_view(shown_to(asker, found))}
    told = await read_account(handler.store, found.id, found.seq, MOST_OUTPUT)
    if found.owner != asker.id or found.final:
        return {"task": task_view(found, account=told)}
    (source,) = await handler.store.events(found.id, after=found.source - 1, limit=1)
    return {"task": order_view(found, source, told)}


async def file(handler: ForgeHandler, asker: Agent, asked: GetFile) -> dict[str, Any]:
    """A piece of a file that belongs to a task the asker may see."""
    found = await seen(handler, asker, asked.task_id)
    mine = () if is_kept_from(asker, found) else found.files
    ref = next((ref for ref in mine if ref.id == asked.file_id), None)
    data = None if ref is None else await handler.files.fetch(ref.id)
    if ref is None or data is None:
        raise refuse(Kind.NOT_FOUND, "no such file", field="payload.fileId", fileId=asked.file_id)
    length = min(asked.length or FILE_PIECE, FILE_PIECE)
    piece = data[asked.offset : asked.offset + length]
    return {
        **file_view(ref),
        "data": base64.b64encode(piece).decode(),
        "offset": asked.offset,
        "length": len(piece),
    }

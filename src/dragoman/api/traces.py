"""One trace: everything that came of a request, in one answer.

Nothing in the store is found by its trace, since that would cost every task an index. It is found by who did what.
Below a task are its children, and what its agents asked for in the same trace while they had it. Above it is its
parent, or what whoever asked for it was doing in the same trace.
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from dragoman.api.context import Context
from dragoman.api.route import respond
from dragoman.api.store_reads import agent_protocol, find_task, page_size
from dragoman.core.ids import ADMIN, HUB, AgentId, Instant, TaskId
from dragoman.core.model.tasks import Event, Task
from dragoman.core.ports import TaskFilter
from dragoman.core.queries.trace import Causes, TraceOut, TraceTask, in_tree_order, trace_task

MOST_TASKS = 100
MOST_EVENTS = 500
LOOKED_AT = 500
"""So many tasks of one agent are looked through for those of a trace."""
DEEPEST = 64


async def one(context: Context, request: Request) -> Response:
    task = await find_task(context, request.path_params["id"])
    causes: Causes = {}
    found, left_out = await _family(context, await _root(context, task), causes)
    found.setdefault(task.id, task)
    told = [await _told(context, one, causes) for one in in_tree_order(found, causes)]
    return respond(200, TraceOut(trace_id=task.trace_id, task_id=task.id, tasks=tuple(told), left_out=left_out))


async def _root(context: Context, task: Task) -> Task:
    for _ in range(DEEPEST):
        above = await _above(context, task)
        if above is None:
            break
        task = above
    return task


async def _above(context: Context, task: Task) -> Task | None:
    if task.parent is not None:
        return await context.store.task(task.parent)
    asker = task.origin.principal
    if asker in (ADMIN, HUB):
        return None
    where = TaskFilter(agent=asker, before=task.created_at)
    page, _ = await context.store.tasks(where, after=None, limit=LOOKED_AT)
    return next((one for one in page if one.trace_id == task.trace_id), None)


async def _family(context: Context, root: Task, causes: Causes) -> tuple[dict[TaskId, Task], int]:
    """All that descends from the root, and how many there are at least that did not fit. Notes in `causes` what they
    came of."""
    found: dict[TaskId, Task] = {root.id: root}
    waiting, left_out = [root], 0
    while waiting:
        task = waiting.pop(0)
        related, more = await _below(context, task)
        left_out += more
        for one in related:
            if one.id in found:
                continue
            if len(found) >= MOST_TASKS:
                left_out += 1
                continue
            found[one.id] = one
            causes[one.id] = task.id
            waiting.append(one)
    return found, left_out


async def _below(context: Context, task: Task) -> tuple[list[Task], bool]:
    """What came of a task, and whether there may be more."""
    found: list[Task] = []
    more = False
    if task.has_children:
        page, on = await context.store.tasks(TaskFilter(parent=task.id), after=None, limit=MOST_TASKS)
        found, more = list(page), on is not None
    until = Instant((task.finished_at or context.intake.now()) + 1)
    for agent in _hands(task):
        where = TaskFilter(principal=agent, since=task.created_at, before=until)
        page, on = await context.store.tasks(where, after=None, limit=LOOKED_AT)
        found += [one for one in page if one.parent is None and one.trace_id == task.trace_id and one.id != task.id]
        more = more or on is not None
    return found, more


def _hands(task: Task) -> list[AgentId]:
    """Whoever had it in hand."""
    hands = dict.fromkeys((task.owner, *(agent for pair in task.handed for agent in pair)))
    return [agent for agent in hands if agent is not None and agent not in (ADMIN, HUB)]


async def _told(context: Context, task: Task, causes: Causes) -> TraceTask:
    events: list[Event] = []
    after = 0
    while after < task.seq and len(events) < MOST_EVENTS:
        page = await context.store.events(task.id, after=after, limit=min(page_size(task), MOST_EVENTS - len(events)))
        if not page:
            break
        events += page
        after = page[-1].seq
    return trace_task(task, events, lambda agent: agent_protocol(context, agent), causes.get(task.id))

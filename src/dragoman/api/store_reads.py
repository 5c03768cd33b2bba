"""What handlers read from the store: things by a prefix of their id, and a task's events page by page.

Events can be large (an output block is up to 1 MiB, and lies there twice: in the hub's form and as the wire said
it), so they are read in pages that are small where the task wrote much.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import TypeVar

from dragoman.api.context import Context
from dragoman.api.problems import Next, Problem, Reason, list_of
from dragoman.core.ids import AgentId, QuestionId, TaskId
from dragoman.core.model.deliveries import DeadLetter
from dragoman.core.model.tasks import Event, Question, QuestionStatus, Task
from dragoman.core.queries import Account, EventOut, TaskOut, Transcript, event_out, is_hidden, task_out
from dragoman.core.queries.transcript import ENDINGS
from dragoman.messages.faults import Kind

SHORTEST_PREFIX = 4
TAIL = 8
MUCH_OUTPUT = 4 * 1024 * 1024
HISTORY_EVENTS = 1000
HISTORY_BYTES = 8 * 1024 * 1024


def page_size(task: Task) -> int:
    return 16 if task.output.bytes > MUCH_OUTPUT else 500


async def find_task(context: Context, id: str, *, field: str | None = None) -> Task:
    """The task of this id, or the only one whose id begins with it."""
    task = await context.store.task(TaskId(id))
    if task is not None:
        return task
    found = await context.store.find_tasks(id.lower(), 3) if len(id) >= SHORTEST_PREFIX else ()
    return _only("task", id, found, no_task(id, field), field)


def no_task(id: str, field: str | None = None) -> Problem:
    return Problem(
        Kind.NOT_FOUND,
        f"no task {id[:80]!r}; finished ones are forgotten after rules.keep_finished_days",
        field=field,
        next=list_of("tasks"),
        id=id[:80],
    )


async def find_question(context: Context, id: str) -> Question:
    """By its id, or by the beginning of an open one's."""
    question = await context.store.question(QuestionId(id))
    if question is not None:
        return question
    found: list[Question] = []
    if len(id) >= SHORTEST_PREFIX:
        nearest = await context.store.questions(status=QuestionStatus.OPEN, after=id.lower(), limit=3)
        found = [one for one in nearest if one.id.startswith(id.lower())]
    return _only("question", id, found, _missing("question", id))


async def find_dead_letter(context: Context, id: str) -> DeadLetter:
    """By its id, or by the beginning of it. Dead letters are listed from the newest id down, so those that begin with
    `id` are the first at or below the last text that does."""
    wanted = id.lower()
    nearest = await context.store.dead_letters(after=wanted + "~", limit=2)
    found = [one for one in nearest if one.id == wanted]
    if not found and len(wanted) >= SHORTEST_PREFIX:
        found = [one for one in nearest if one.id.startswith(wanted)]
    return _only("dead letter", id, found, _missing("dead letter", id))


COLLECTIONS = {"task": "tasks", "question": "questions", "dead letter": "deadletters"}

T = TypeVar("T", Task, Question, DeadLetter)


def _only(what: str, id: str, found: Sequence[T], missing: Problem, field: str | None = None) -> T:
    """The one that was found; else a problem that says why it is none or several."""
    if len(found) == 1:
        return found[0]
    if found:
        matches = [one.id for one in found]
        message = f"several {what}s begin with {id!r}: {', '.join(matches)}"
        listed = list_of(COLLECTIONS[what])
        advice = Next("give more of the id", listed.request, listed.command)
        raise Problem(Kind.INVALID, message, reason=Reason.AMBIGUOUS_ID, field=field, next=advice, matches=matches)
    if len(id) < SHORTEST_PREFIX:
        message = f"no {what} {id!r}; the beginning of an id has at least {SHORTEST_PREFIX} characters"
        raise Problem(Kind.NOT_FOUND, message, field=field, next=list_of(COLLECTIONS[what]))
    raise missing


def _missing(what: str, id: str) -> Problem:
    return Problem(Kind.NOT_FOUND, f"no {what} {id[:80]!r}", next=list_of(COLLECTIONS[what]))


def agent_protocol(context: Context, id: AgentId | None) -> str | None:
    agent = None if id is None else context.intake.agent(id)
    return None if agent is None else agent.protocol


async def events(context: Context, task: Task, after: int = 0) -> AsyncIterator[Event]:
    """All events from there on that stood in the store when `task` was read, page by page."""
    limit = page_size(task)
    while after < task.seq:
        page = await context.store.events(task.id, after=after, limit=limit)
        for event in page:
            if event.seq > task.seq:
                return
            yield event
        if not page:
            return
        after = page[-1].seq


async def account(context: Context, task: Task) -> Account:
    """Input, whole output and result. A finished task whose result brought the output costs two small reads."""
    if task.final:
        tail = await context.store.events(task.id, after=max(0, task.seq - TAIL), limit=TAIL)
        if not tail and await context.store.task(task.id) is None:  # forgotten at this very moment
            raise no_task(task.id)
        if any(event.kind in ENDINGS for event in tail):
            ending = Transcript()
            for event in tail:
                ending.feed(event)
            if ending.account.whole:
                source = await context.store.events(task.id, after=task.attempt.source - 1, limit=1)
                whole = Transcript()
                for event in (*source, *(event for event in tail if event.seq > task.attempt.source)):
                    whole.feed(event)
                return whole.account
    transcript = Transcript()
    async for event in events(context, task):
        transcript.feed(event)
    return transcript.account


async def history(context: Context, task: Task, *, raw: bool) -> tuple[tuple[EventOut, ...], int | None]:
    """The events from the first on, within bounds, and where `/events?after=` goes on."""
    events_out: list[EventOut] = []
    size = 0
    async for event in events(context, task):
        size += len(bytes(event.body)) + (len(event.raw or b"") if raw else 0)
        if events_out and (len(events_out) == HISTORY_EVENTS or size > HISTORY_BYTES):
            return tuple(events_out), events_out[-1].seq
        events_out.append(event_out(event, raw=raw, hidden=is_hidden(task)))
    return tuple(events_out), None


async def whole_task(context: Context, task: Task, *, with_history: bool = False, raw: bool = False) -> TaskOut:
    """A task with everything that its events say."""
    content = await account(context, task)
    protocol = agent_protocol(context, task.owner)
    if not with_history:
        return task_out(task, protocol_out=protocol, account=content)
    events_out, on = await history(context, task, raw=raw)
    return task_out(task, protocol_out=protocol, account=content, history=events_out, history_next=on)

"""What a page of the dashboard needs, in one answer each: a task, its sequence, its wire; an agent.

The wire of a task shows each message three times: as it came, as the hub understood it, and as the hub puts it for its
receiver. The hub keeps the first two. The third follows from them: it is encoded again as it was when it left, so that
nothing has to be kept; only the ids of the message itself are new.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec

from dragoman.api.agents import AgentDetails, Line, agent_logs, find_agent, whole_agent
from dragoman.api.bodies import BulkDeadLettersIn, BulkTasksIn, LogsQuery, WireQuery
from dragoman.api.context import PROTOCOL, Call, Context, Plain
from dragoman.api.events import TaskRow, task_row
from dragoman.api.problems import ProblemOut, problem_out
from dragoman.api.store_reads import agent_protocol, events, find_task, whole_task
from dragoman.api.task_events import lost_between, trace_of
from dragoman.api.tasks import explain
from dragoman.core.commands import Cancel, Command, Discard, Redrive, Retry
from dragoman.core.ids import ADMIN, AgentId, DeliveryId, TaskId, rfc3339
from dragoman.core.model.deliveries import Delivery, MessageKind
from dragoman.core.model.outgoing import Outgoing
from dragoman.core.model.tasks import Event, EventKind, Task
from dragoman.core.ports import TaskFilter
from dragoman.core.queries import QuestionOut, TaskOut, WhyOut, is_hidden, question_out
from dragoman.core.queries.sequence import Sequence, sequence_of
from dragoman.core.queries.trace import Lost, features_of
from dragoman.messages.faults import Refused
from dragoman.messages.tasks import AttemptFailed, Failure

MOST_WIRE = 200
LONGEST_RAW = 256 * 1024
LAST_TASKS = 10
LAST_LINES = 200
HIDDEN = {"personal": True}
CUT = "… cut here"

ENDS = {EventKind.COMPLETED: "completed", EventKind.FAILED: "failed", EventKind.CANCELLED: "cancelled"}


# -- a task ----------------------------------------------------------------------------------------------------------


class AttemptOut(msgspec.Struct, frozen=True, kw_only=True):
    """`outcome` is None while it goes on; `message` says why it failed."""

    number: int
    agent: str | None
    protocol: str | None
    begun_at: str
    ended_at: str | None
    outcome: str | None
    message: str | None


class TaskView(msgspec.Struct, frozen=True, kw_only=True):
    task: TaskOut
    why: WhyOut
    sequence: Sequence
    attempts: tuple[AttemptOut, ...]
    questions: tuple[QuestionOut, ...]


async def show_task_view(context: Context, call: Plain) -> TaskView:
    task = await find_task(context, call.id)
    return TaskView(
        task=await whole_task(context, task),
        why=await explain(context, task),
        sequence=sequence_of(await trace_of(context, task)),
        attempts=tuple([attempt async for attempt in _attempts(context, task)]),
        questions=tuple(map(question_out, await context.store.questions(task=task.id))),
    )


async def show_sequence(context: Context, call: Plain) -> Sequence:
    return sequence_of(await trace_of(context, await find_task(context, call.id)))


async def _attempts(context: Context, task: Task) -> AsyncIterator[AttemptOut]:
    begun: Event | None = None
    number = 0

    def ended(event: Event | None, outcome: str | None, message: str | None) -> AttemptOut:
        assert begun is not None
        return AttemptOut(
            number=number,
            agent=begun.agent,
            protocol=agent_protocol(context, begun.agent),
            begun_at=rfc3339(begun.at),
            ended_at=None if event is None else rfc3339(event.at),
            outcome=outcome,
            message=None if is_hidden(task) else message,
        )

    async for event in events(context, task):
        if event.kind is EventKind.ASSIGNED:
            if begun is not None:
                yield ended(event, "handed over", None)
            begun, number = event, number + 1
        elif begun is not None and event.kind is EventKind.ATTEMPT_FAILED:
            content = event.content
            assert isinstance(content, AttemptFailed)
            yield ended(event, "failed", None if content.fault is None else content.fault.message)
            begun = None
        elif begun is not None and event.kind in ENDS:
            content = event.content
            fault = content.fault if isinstance(content, Failure) else None
            yield ended(event, ENDS[event.kind], None if fault is None else fault.message)
            begun = None
    if begun is not None:
        yield ended(None, None, None)


# -- the wire --------------------------------------------------------------------------------------------------------


class Received(msgspec.Struct, frozen=True, kw_only=True):
    protocol: str
    raw: str


class Sent(msgspec.Struct, frozen=True, kw_only=True):
    protocol: str
    receiver: str
    raw: str
    losses: tuple[Lost, ...]


class WireMessage(msgspec.Struct, frozen=True, kw_only=True):
    """`received` is the message as it came, `hub` the same as the hub understood it, `sent` as it left for others."""

    seq: int
    at: str
    kind: str
    agent: str | None
    received: Received | None
    hub: Any
    sent: tuple[Sent, ...]


class WireOut(msgspec.Struct, frozen=True, kw_only=True):
    """`next` is the `from` of the next page, or None."""

    messages: tuple[WireMessage, ...]
    next: int | None


async def show_wire(context: Context, call: Call[WireQuery, None]) -> WireOut:
    task = await find_task(context, call.id)
    limit = min(call.query.limit, MOST_WIRE)
    page = await context.store.events(task.id, after=max(0, call.query.start - 1), limit=limit)
    messages = [await _message(context, task, event) for event in page]
    on = page[-1].seq + 1 if page and page[-1].seq < task.seq else None
    return WireOut(messages=tuple(messages), next=on)


async def _message(context: Context, task: Task, event: Event) -> WireMessage:
    hidden = is_hidden(task) or event.personal
    received = None
    if event.raw is not None and event.protocol is not None:
        received = Received(protocol=event.protocol, raw="" if hidden else _text(event.raw))
    return WireMessage(
        seq=event.seq,
        at=rfc3339(event.at),
        kind=event.kind.value,
        agent=event.agent,
        received=received,
        hub=HIDDEN if hidden else msgspec.Raw(event.body),
        sent=() if hidden else await _sent(context, task, event),
    )


TO_CALLER = {
    EventKind.PROGRESS: MessageKind.PROGRESS,
    EventKind.PAUSED: MessageKind.PROGRESS,
    EventKind.ASKED: MessageKind.PROGRESS,
    EventKind.COMPLETED: MessageKind.RESULT,
    EventKind.FAILED: MessageKind.FAILURE,
    EventKind.CANCELLED: MessageKind.FAILURE,
}


async def _sent(context: Context, task: Task, event: Event) -> tuple[Sent, ...]:
    """What left because of an event: work for an agent, or news for the caller."""
    if event.kind is EventKind.ASSIGNED and event.agent is not None:
        source = await context.store.events(task.id, after=task.attempt.source - 1, limit=1)
        return () if not source else _encoded(context, task, event.agent, MessageKind.WORK, source[0], event)
    kind = TO_CALLER.get(event.kind)
    return () if kind is None else _encoded(context, task, task.origin.principal, kind, event, event)


def _encoded(
    context: Context, task: Task, receiver: AgentId, kind: MessageKind, content: Event, event: Event
) -> tuple[Sent, ...]:
    agent = context.intake.agent(receiver)
    if agent is None or context.encode is None:
        return ()
    id = DeliveryId(context.intake.mint())
    delivery = Delivery(
        id=id, task=task.id, receiver=receiver, seq=1, kind=kind, event=content.seq, rank=0, created_at=event.at
    )
    frames = context.encode(Outgoing(delivery, task, content), agent, event.at)
    worker = receiver if kind is MessageKind.WORK else event.agent
    spoken = agent_protocol(context, worker) or agent.protocol
    table = lost_between(task.origin.protocol, spoken)
    lost = tuple(table[feature] for feature in features_of(task, event) if feature in table)
    return tuple(
        Sent(protocol=agent.protocol, receiver=receiver, raw=_text(frame), losses=lost if index == 0 else ())
        for index, frame in enumerate(frames)
    )


def _text(raw: bytes) -> str:
    text = raw[:LONGEST_RAW].decode("utf-8", "replace")
    return text + CUT if len(raw) > LONGEST_RAW else text


# -- an agent --------------------------------------------------------------------------------------------------------


class AgentView(msgspec.Struct, frozen=True, kw_only=True):
    agent: AgentDetails
    tasks: tuple[TaskRow, ...]
    logs: tuple[Line, ...]


async def show_agent_view(context: Context, call: Plain) -> AgentView:
    agent = find_agent(context, call.id)
    tasks, _ = await context.store.tasks(TaskFilter(agent=agent.id), after=None, limit=LAST_TASKS)
    return AgentView(
        agent=whole_agent(context, agent),
        tasks=tuple(task_row(context, task) for task in tasks),
        logs=(await agent_logs(context, Call(call.request, LogsQuery(tail=LAST_LINES), None))).logs,
    )


# -- several at once -------------------------------------------------------------------------------------------------


class BulkFailure(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    problem: ProblemOut


class BulkOut(msgspec.Struct, frozen=True, kw_only=True):
    """Each stands for itself: what the hub refused is in `failed`, with why."""

    done: tuple[str, ...]
    failed: tuple[BulkFailure, ...]


async def change_tasks(context: Context, call: Call[None, BulkTasksIn]) -> BulkOut:
    command: Any = {"retry": Retry, "cancel": Cancel}[call.body.action]
    return await _each(context, call, lambda one: command(principal=ADMIN, protocol=PROTOCOL, task_id=TaskId(one)))


async def change_dead_letters(context: Context, call: Call[None, BulkDeadLettersIn]) -> BulkOut:
    command: Any = {"redrive": Redrive, "discard": Discard}[call.body.action]
    return await _each(
        context, call, lambda one: command(principal=ADMIN, protocol=PROTOCOL, dead_letter=DeliveryId(one))
    )


async def _each(context: Context, call: Call[None, Any], command: Callable[[str], Command]) -> BulkOut:
    """All at once, so that they share commits; in the order that was asked for."""
    ids = tuple(dict.fromkeys(call.body.ids))
    outcomes = await asyncio.gather(*(context.execute(call, command(id)) for id in ids), return_exceptions=True)
    done: list[str] = []
    failed: list[BulkFailure] = []
    for id, outcome in zip(ids, outcomes, strict=True):
        if isinstance(outcome, Refused):
            failed.append(BulkFailure(id=id, problem=problem_out(outcome.fault, f"{call.request.url.path}#{id}")))
        elif isinstance(outcome, BaseException):
            raise outcome
        else:
            done.append(id)
    return BulkOut(done=tuple(done), failed=tuple(failed))

"""One trace through everything: the tasks that came of one request, and each step between caller, hub and agents.

A step is a message as the hub saw it: from whom to whom, in which protocol. Consecutive progress of an agent is one
step. The table has the direction of each kind of event:

    kind                                        from            to
    ------------------------------------------  --------------  -----------------
    submitted                                   the caller      the hub
    assigned, handed_over                       the hub         the agent
    progress, paused, log, error_reported, …    the agent       the hub
    asked                                       the agent       who is asked
    answered                                    the hub         the agent
    completed, failed, cancelled                agent or hub    the caller
    retried, resumed                            a person        the hub
    the rest                                    the hub         itself
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from dragoman.core.ids import ADMIN, AgentId, TaskId, rfc3339
from dragoman.core.model.tasks import Event, EventKind, Priority, Status, Task, Waiting
from dragoman.core.queries.tasks import PERSONAL, is_hidden, log_line, moment
from dragoman.messages.features import Carriage, Feature
from dragoman.messages.tasks import Failure, Progress, Result, read_question

HUB, PERSON = "hub", "person"
NOT_AGENTS = frozenset({HUB, PERSON, ADMIN})
LONGEST = 200

OF_THE_AGENT = frozenset(
    {
        EventKind.PROGRESS, EventKind.HELD_PIECE, EventKind.PAUSED, EventKind.LOG, EventKind.ERROR_REPORTED,
        EventKind.HANDOVER_ASKED,
    }
)  # fmt: skip
TO_THE_AGENT = frozenset({EventKind.ASSIGNED, EventKind.HANDED_OVER, EventKind.ANSWERED})
ENDS = frozenset({EventKind.COMPLETED, EventKind.FAILED, EventKind.CANCELLED})
OF_A_PERSON = frozenset({EventKind.RETRIED, EventKind.RESUMED})
CARRIED = frozenset({EventKind.ASSIGNED, EventKind.PROGRESS, *ENDS})
"""Messages that the hub translates between caller and agent."""
FOLDED = frozenset({EventKind.PROGRESS, EventKind.HELD_PIECE, EventKind.LOG})
"""Kinds that come in long rows, which are shown as one step."""

ProtocolOf = Callable[[AgentId], str | None]
Causes = dict[TaskId, TaskId]
"""The task in the course of which each task was asked for, where it is known."""


class Lost(msgspec.Struct, frozen=True, kw_only=True):
    """What the receiver's protocol cannot carry of a message."""

    feature: Feature
    how: Carriage
    why: str


Losses = Callable[[str, str], Mapping[Feature, Lost]]
"""What is lost between a caller's protocol and an agent's."""


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """`count` events of one kind from `at` to `until`. `source` and `target` are agents, `hub` or `person`; `protocol`
    is the one between them."""

    seq: int
    at: str
    until: str
    count: int
    kind: EventKind
    source: str
    target: str
    protocol: str | None
    text: str
    lost: tuple[Lost, ...] = ()


class TraceTask(msgspec.Struct, frozen=True, kw_only=True):
    """`cause` is the task in the course of which it was asked for: its parent, or by its trace."""

    id: str
    type: str
    name: str | None
    status: Status
    waiting: Waiting | None
    parent: str | None
    cause: str | None
    requested_by: str
    agent: str | None
    protocol_in: str
    sandbox: str | None
    attempts: int
    created_at: str
    finished_at: str | None
    steps: tuple[Step, ...]
    steps_left_out: int


class TraceOut(msgspec.Struct, frozen=True, kw_only=True):
    """`tasks` are in the order of a tree: each after its cause, and by age. `left_out`: at least so many more."""

    trace_id: str
    task_id: str
    tasks: tuple[TraceTask, ...]
    left_out: int


def trace_task(
    task: Task,
    events: Sequence[Event],
    protocol_of: ProtocolOf,
    losses: Losses,
    cause: TaskId | None = None,
) -> TraceTask:
    """`events` are those from the first on; the others are only counted."""
    return TraceTask(
        id=task.id,
        type=task.type,
        name=task.name and (PERSONAL if is_hidden(task) else task.name),
        status=task.status,
        waiting=task.waiting,
        parent=task.lineage.parent,
        cause=cause,
        requested_by=task.origin.principal,
        agent=task.owner or task.routing.pinned,
        protocol_in=task.origin.protocol,
        sandbox=task.attempt.sandbox,
        attempts=task.attempt.count,
        created_at=rfc3339(task.created_at),
        finished_at=moment(task.finished_at),
        steps=tuple(_folded(_step(task, event, protocol_of, losses) for event in events)),
        steps_left_out=max(0, task.seq - (events[-1].seq if events else 0)),
    )


def _step(task: Task, event: Event, protocol_of: ProtocolOf, losses: Losses) -> Step:
    caller = task.origin.principal
    agent = event.agent or HUB
    source, target = HUB, HUB
    protocol: str | None = None
    if event.kind is EventKind.SUBMITTED:
        source, protocol = caller, task.origin.protocol
    elif event.kind in TO_THE_AGENT:
        target = agent if event.agent is not None else task.owner or HUB
    elif event.kind in OF_THE_AGENT:
        source = agent
    elif event.kind is EventKind.ASKED:
        source, target = agent, read_question(event.body).asked_of or PERSON
    elif event.kind in ENDS:
        source, target = agent, caller
    elif event.kind in OF_A_PERSON:
        source = PERSON
    if protocol is None:
        speaker = next((one for one in (source, target) if one not in NOT_AGENTS), None)
        protocol = event.protocol or (None if speaker is None else protocol_of(AgentId(speaker)))
    at = rfc3339(event.at)
    text = "" if is_hidden(task) or event.personal else log_line(event).text
    return Step(
        seq=event.seq,
        at=at,
        until=at,
        count=1,
        kind=event.kind,
        source=source,
        target=target,
        protocol=protocol,
        text=" ".join(text.split())[:LONGEST],
        lost=_lost(task, event, protocol_of, losses),
    )


def _lost(task: Task, event: Event, protocol_of: ProtocolOf, losses: Losses) -> tuple[Lost, ...]:
    """What of this message is lost on its way, by its features."""
    agent = event.agent or task.owner
    spoken = None if agent is None or agent in NOT_AGENTS else protocol_of(AgentId(agent))
    if spoken is None or event.kind not in CARRIED:
        return ()
    table = losses(task.origin.protocol, spoken)
    return tuple(table[feature] for feature in features_of(task, event) if feature in table)


def features_of(task: Task, event: Event) -> list[Feature]:
    """The features of a message, as far as its event shows them."""
    has: Mapping[Feature, bool] = {}
    if event.kind is EventKind.ASSIGNED:
        has = {
            Feature.PRIORITY: task.priority is not Priority.NORMAL,
            Feature.DEADLINE: task.timing.limited,
            Feature.DEPENDENCIES: bool(task.lineage.dependencies),
            Feature.DESCRIPTION: bool(task.description),
            Feature.THREAD: task.lineage.thread is not None,
            Feature.BUDGET: task.spending.reserved is not None,
        }
    else:
        match event.content:
            case Progress() as report:
                has = {
                    Feature.PERCENT: report.percent is not None,
                    Feature.MESSAGE: report.message is not None,
                    Feature.STEP: report.step is not None,
                    Feature.OUTPUT: bool(report.output),
                    Feature.THINKING: report.thinking is not None,
                    Feature.TOOL_USE: report.tool_use is not None,
                    Feature.TOOL_RESULT: report.tool_result is not None,
                    Feature.FILE: report.file is not None,
                    Feature.USAGE: bool(report.usage),
                }
            case Failure() as failure:
                has = {
                    Feature.FAILURE: failure.fault is not None,
                    Feature.EXIT_CODE: failure.exit_code is not None,
                    Feature.USAGE: bool(failure.usage),
                }
            case Result() as result:
                has = {
                    Feature.RESULT: result.value is not None,
                    Feature.TEXT: bool(result.output),
                    Feature.EXIT_CODE: bool(result.exit_code),
                    Feature.USAGE: bool(result.usage),
                }
    return [feature for feature, there in has.items() if there]


def _folded(steps: Iterable[Step]) -> list[Step]:
    """Steps of a long row as one, with the text of the last one."""
    found: list[Step] = []
    for step in steps:
        last = found[-1] if found else None
        if last is not None and step.kind in FOLDED and (last.kind, last.source) == (step.kind, step.source):
            text = step.text or last.text
            lost = tuple(dict.fromkeys((*last.lost, *step.lost)))
            found[-1] = replace(last, until=step.at, count=last.count + 1, text=text, lost=lost)
        else:
            found.append(step)
    return found


def in_tree_order(tasks: Mapping[TaskId, Task], causes: Mapping[TaskId, TaskId]) -> list[Task]:
    """Each after its cause, and by age."""
    children: dict[TaskId | None, list[Task]] = {}
    for task in tasks.values():
        children.setdefault(causes.get(task.id), []).append(task)
    found: list[Task] = []
    waiting = sorted(children.get(None, ()), key=_birth, reverse=True)
    while waiting:
        task = waiting.pop()
        found.append(task)
        waiting += sorted(children.get(task.id, ()), key=_birth, reverse=True)
    return found


def _birth(task: Task) -> tuple[int, str]:
    return task.created_at, task.id

"""The sequence of a task across protocols: who takes part, and each step between caller, hub, agents and people.

It is made from a trace (`queries.trace`): the steps of all its tasks in the order of time. The dashboard, `trace
--sequence` and `trace --svg` draw the same value: its participants are in the order of their lanes, from left to right,
with the hub in the middle.

    kind of a participant   who
    ---------------------   -----------------------------------------------------
    caller                  asked for a task and was given none
    hub                     always there, between all the others
    agent                   was given one of the tasks
    person                  was asked a question
"""

from __future__ import annotations

import enum

import msgspec

from dragoman.core.model.tasks import FINAL
from dragoman.core.queries.trace import HUB, PERSON, Lost, TraceOut


class ParticipantKind(enum.StrEnum):
    CALLER = "caller"
    HUB = "hub"
    AGENT = "agent"
    PERSON = "person"


class Participant(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    kind: ParticipantKind
    protocol: str | None


class SequenceStep(msgspec.Struct, frozen=True, kw_only=True):
    """`n` is its place in the sequence; `task` and `seq` name its first event. `lost` is what the receiver's protocol
    cannot carry of it."""

    n: int
    task: str
    seq: int
    at: str
    until: str
    count: int
    kind: str
    source: str
    target: str
    protocol: str | None
    text: str
    lost: tuple[Lost, ...]


class Sequence(msgspec.Struct, frozen=True, kw_only=True):
    """`participants` stand from left to right as their lanes do. `running`: a task of it is not finished, so more steps
    may come."""

    trace_id: str
    task_id: str
    participants: tuple[Participant, ...]
    steps: tuple[SequenceStep, ...]
    running: bool


def sequence_of(trace: TraceOut) -> Sequence:
    flat = [(step, task) for task in trace.tasks for step in task.steps]
    flat.sort(key=lambda pair: (pair[0].at, pair[1].id, pair[0].seq))
    agents = {step.target for step, _ in flat if step.kind in ("assigned", "handed_over")} - {HUB}
    agents |= {task.agent for task in trace.tasks if task.agent is not None}
    callers = {task.requested_by: task.protocol_in for task in trace.tasks if task.requested_by not in agents}
    protocols: dict[str, str] = {}
    for step, _ in flat:
        for id in (step.source, step.target):
            if id in agents and step.protocol is not None and id not in protocols and HUB in (step.source, step.target):
                protocols[id] = step.protocol
    people = {PERSON} & {id for step, _ in flat for id in (step.source, step.target)}
    participants = lanes(
        callers=[Participant(id=id, kind=ParticipantKind.CALLER, protocol=spoken) for id, spoken in callers.items()],
        agents=[
            Participant(id=id, kind=ParticipantKind.AGENT, protocol=protocols.get(id))
            for id in dict.fromkeys(id for step, _ in flat for id in (step.source, step.target) if id in agents)
        ],
        people=[Participant(id=id, kind=ParticipantKind.PERSON, protocol=None) for id in people],
    )
    return Sequence(
        trace_id=trace.trace_id,
        task_id=trace.task_id,
        participants=participants,
        steps=tuple(
            SequenceStep(
                n=n,
                task=task.id,
                seq=step.seq,
                at=step.at,
                until=step.until,
                count=step.count,
                kind=step.kind.value,
                source=step.source,
                target=step.target,
                protocol=step.protocol,
                text=step.text or (task.type if step.kind == "submitted" else ""),
                lost=step.lost,
            )
            for n, (step, task) in enumerate(flat, start=1)
        ),
        running=any(task.status not in FINAL for task in trace.tasks),
    )


def lanes(callers: list[Participant], agents: list[Participant], people: list[Participant]) -> tuple[Participant, ...]:
    """Callers on the left, people on the right, the hub in the middle. Agents come in the order of their first step,
    each on the side that has fewer lanes, the earliest next to the hub: an arrow crosses as few lanes as can be, and an
    agent keeps its side when more agents come."""
    left: list[Participant] = []
    right: list[Participant] = []
    for agent in agents:
        if len(callers) + len(left) < len(right):
            left.insert(0, agent)
        else:
            right.append(agent)
    hub = Participant(id=HUB, kind=ParticipantKind.HUB, protocol=None)
    return (*callers, *left, hub, *right, *people)

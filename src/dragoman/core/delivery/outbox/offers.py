"""News of a task or a question: who hears of it, and in which lane."""

from __future__ import annotations

from dragoman.core.delivery.outbox.lanes import put_on_its_way
from dragoman.core.delivery.outbox.leases import send_over
from dragoman.core.ids import ADMIN, HUB, AgentId, DeliveryId, SessionId, TaskId
from dragoman.core.lookups import Lane
from dragoman.core.model.agents import Link
from dragoman.core.model.authorization import governs
from dragoman.core.model.deliveries import Delivery, DeliveryState, MessageKind, Outgoing
from dragoman.core.model.tasks import Question, Status, Task
from dragoman.core.work import Work

NOBODY = frozenset({ADMIN, HUB})
"""They have no inbox: people read the store, the hub knows."""

OUTCOME_KINDS = {
    Status.COMPLETED: MessageKind.RESULT,
    Status.FAILED: MessageKind.FAILURE,
    Status.CANCELLED: MessageKind.FAILURE,
}

OUTCOMES = frozenset({MessageKind.RESULT, MessageKind.FAILURE})

TO_CALLERS = frozenset({MessageKind.PROGRESS, MessageKind.RESULT, MessageKind.FAILURE})


def offer(work: Work, task: Task, receiver: AgentId, kind: MessageKind, event: int) -> None:
    """Tell a receiver of an event, after everything it was told about this task before."""
    agent = None if receiver in NOBODY else work.agent(receiver)
    if agent is None or (kind in TO_CALLERS and not governs(agent, receiver, task)):
        return
    waiting = None
    if receiver == task.origin.principal and kind in TO_CALLERS:
        waiting = awaiting(work, task.origin.awaited)
        if task.origin.follows or (waiting is not None and kind is MessageKind.PROGRESS):
            return
    lane = work.find(Lane(task.id, receiver))
    delivery = Delivery(
        id=DeliveryId(work.mint()),
        task=task.id,
        receiver=receiver,
        seq=task.seq if not lane else max(task.seq, lane[-1].seq + 1),
        kind=kind,
        event=event,
        rank=task.rank,
        created_at=work.now,
        head=not lane,
    )
    put_on_its_way(work, delivery, lane, task, waiting)


def offer_answer(work: Work, question: Question) -> None:
    """Tell an agent what a person said, after everything it was told about the task before."""
    agent = work.agent(question.agent)
    if agent is None or agent.created_at > question.created_at:
        return  # whoever asked was removed, and another has its name
    lane_id = TaskId(question.task or question.id)
    lane = work.find(Lane(lane_id, question.agent))
    task = None if question.task is None else work.known_task(question.task)
    delivery = Delivery(
        id=DeliveryId(work.mint()),
        task=lane_id,
        receiver=question.agent,
        seq=max(task.seq if task else 1, lane[-1].seq + 1 if lane else 0),
        kind=MessageKind.ANSWER,
        event=0,
        rank=task.rank if task else work.now,
        created_at=work.now,
        head=not lane,
        question=question.id,
    )
    put_on_its_way(work, delivery, lane, task, awaiting(work, question.details.get("awaited")))


def await_answer(work: Work, agent: AgentId, session: SessionId) -> None:
    """A request waits for its own answer, over a link that takes that one outgoing message."""
    work.put_link(Link(session=session, agent=agent, ordered=False, credit=1, awaits=True))


def awaiting(work: Work, session: SessionId | None) -> Link | None:
    """The request that still waits over this link."""
    return None if session is None else work.link(session)


def repeat(work: Work, delivery: Delivery, task: Task) -> None:
    """Say again over the same ordered link what it holds already: the same message, recognisable by its id."""
    link = None if delivery.session is None else work.link(delivery.session)
    if delivery.state is DeliveryState.LEASED and link is not None and link.ordered:
        send_over(work, link, Outgoing(delivery, task, work.event(delivery.task, delivery.event)))

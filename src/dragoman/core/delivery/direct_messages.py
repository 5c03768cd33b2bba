"""Direct messages: messages from one agent to another that the hub carries word for word.

There are two promises (agentmsg-D4). *At least once*: the message is a row from the commit that accepted it until it is
acknowledged, and is redelivered until then (`outbox`). *At most once*: if the receiver can be reached and nothing is
before the message in its lane, it is no row. The store only notes, durably and before it leaves, that it passed
(`Store.note`), so that this hub and the next one recognise it when it comes again.

A lane is (task, receiver). A message about a task of the hub is in that task's lane, behind work orders and results; a
message about a task that agents keep among themselves is in a lane of that name; any other is in its own. Everything
before a critical message in a lane becomes as critical (agentmsg-D5): ranks never fall along a lane, and its head has
the best.
"""

from __future__ import annotations

from functools import lru_cache

from msgspec.structs import replace

from dragoman.core.agreements import domain_policy
from dragoman.core.agreements.terms import between_the_same
from dragoman.core.commands import ClearOut, Sweep, Tell
from dragoman.core.delivery.outbox import hurry, put_on_its_way
from dragoman.core.delivery.redelivery import give_up, make_dead_letter
from dragoman.core.ids import AgentId, DeliveryId, Instant, TaskId
from dragoman.core.lookups import Inbox, LaneEnd, SeenMessageById, Spent, Unacknowledged
from dragoman.core.model.authorization import is_party
from dragoman.core.model.contracts import Standing
from dragoman.core.model.deliveries import UNKNOWN_TASK, DeadLetter, Delivery, DirectMessage, MessageKind, SeenMessage
from dragoman.core.model.tasks import Priority, Task
from dragoman.core.policy import quotas
from dragoman.core.policy.replay import mark_of, name_of, other_words
from dragoman.core.rules import Rules
from dragoman.core.work import Work
from dragoman.messages.faults import Kind, Refused, new_fault, refuse

PAGE = 512


def tell(work: Work, command: Tell) -> None:
    receiver = work.agent(command.to)
    if receiver is None:
        raise refuse(
            Kind.NOT_FOUND,
            f"there is no agent {command.to!r}",
            next="write to one that is there, or to the hub",
            field="to",
        )
    if not receiver.reads_direct_messages:
        raise refuse(
            Kind.UNSUPPORTED_WORK,
            f"agent {receiver.id!r} speaks {receiver.protocol}, which has no {command.direct_message.kind}",
            next="give it a task",
            field="to",
            work_type_requested=command.direct_message.kind,
            supported_types=[],
        )
    task = None if command.lane is None else work.task(command.lane)
    if command.direct_message.contract is not None:
        check_terms(work, command, command.direct_message.contract, task)
    reports = command.reports or (command.progress and task is not None and command.to == task.origin.principal)
    sender = command.principal
    if reports and task is not None and not is_party(work.agent(sender), sender, task):
        raise refuse(Kind.NOT_FOUND, "no such task, or not yours", field="task_id", task_id=task.id)
    if not is_known(work, command.direct_message, 0):
        quotas.check(work, sender, bytes=len(command.direct_message.raw), direct_messages=1)
        _send(work, command.direct_message, receiver.id, command.priority, command.lane, task)


def check_terms(work: Work, command: Tell, id: str, task: Task | None) -> None:
    """A message under a contract passes between its two agents, while the contract is in force; about work that was
    begun under it, while that work goes on."""
    contract = work.contract(id)
    if contract is None or {command.principal, command.to} != set(contract.parties):
        raise refuse(Kind.CONTRACT, "the contract is not between the two of you", field="contract_id", contract_id=id)
    begun = task is not None and task.agreement.contract == id and not task.final
    standing = contract.at(work.now)
    if not between_the_same(work, contract):
        standing, begun = Standing.TERMINATED, False
    if not begun and not (contract.honoured(work.now) and standing is not Standing.TERMINATED):
        raise refuse(
            Kind.CONTRACT,
            f"the contract is {standing.value}",
            next="shake hands for a new one",
            field="contract_id",
            contract_id=id,
            standing=standing.value,
        )
    domain_policy.check_standing(work, contract)


def carry(
    work: Work,
    direct_message: DirectMessage,
    to: AgentId,
    priority: Priority,
    about: TaskId | None = None,
    *,
    turn: int = 0,
) -> None:
    """Carry a direct message, unless it is under way already. `turn` distinguishes messages that reach several agents
    one after the other."""
    if not is_known(work, direct_message, turn):
        _send(work, direct_message, to, priority, about, None if about is None else work.task(about))


def _send(
    work: Work, direct_message: DirectMessage, to: AgentId, priority: Priority, about: TaskId | None, task: Task | None
) -> None:
    """`task`: what the message is about, where the hub knows that task."""
    id = DeliveryId(work.mint())
    lane, last = TaskId(id), None
    if about is not None:
        lane = TaskId(f"{UNKNOWN_TASK}{about}") if task is None else about
        if task is not None and task.agreement.personal:
            direct_message = replace(direct_message, personal=True)
        last = work.one(LaneEnd(lane, to))
    delivery = Delivery(
        id=id,
        task=lane,
        receiver=to,
        seq=1 if last is None else last.seq + 1,
        kind=MessageKind.DIRECT_MESSAGE,
        event=0,
        rank=rank_of(work, priority),
        created_at=work.now,
        head=last is None,
        wake_at=direct_message.expires_at,
        direct_message=direct_message,
        size=len(direct_message.raw),
    )
    if last is not None and last.rank > delivery.rank:
        hurry(work, delivery)
    put_on_its_way(work, delivery, () if last is None else (last,))


def carry_again(work: Work, dead: DeadLetter) -> None:
    """A person sends a direct message again that did not arrive; its time to live does not count any more."""
    assert dead.direct_message is not None
    assert dead.receiver is not None
    if work.agent(dead.receiver) is None:
        message, facts = f"there is no agent {dead.receiver!r} any more", {"dead_letter": dead.id}
        raise Refused(new_fault(Kind.CONFLICT, message, next="discard the dead letter", facts=facts))
    last = None if dead.task == TaskId(dead.id) else work.one(LaneEnd(dead.task, dead.receiver))
    delivery = Delivery(
        id=dead.id,
        task=dead.task,
        receiver=dead.receiver,
        seq=1 if last is None else last.seq + 1,
        kind=dead.kind,
        event=0,
        rank=work.now,
        created_at=work.now,
        head=last is None,
        direct_message=replace(dead.direct_message, expires_at=None),
        size=len(dead.direct_message.raw),
        reason=dead.reason if dead.kind is MessageKind.UNDELIVERED else None,
    )
    put_on_its_way(work, delivery, () if last is None else (last,))


def is_known(work: Work, direct_message: DirectMessage, turn: int) -> bool:
    """Whether the same direct message came before; it is noted now. Another content under its id is refused
    (all-D5)."""
    id = name_of(direct_message.sender, direct_message.message_id, turn)
    if direct_message.once:
        mark = mark_of(direct_message.digest)
        known = work.passed(id)
        if known is None:
            work.note_passed(id, mark)
    else:
        mark = direct_message.digest
        seen = work.one(SeenMessageById(id))
        known = None if seen is None else seen.digest
        if known is None:
            work.put(SeenMessage(id=id, digest=mark, at=work.now))
    if known is not None and known != mark:
        raise other_words()
    return known is not None


def clear_out(work: Work, command: ClearOut) -> int:
    """Give up the direct messages to a removed agent, and notify their senders.

    There may be many, so one unit takes a page. If the hub stops in between, the next one finds the rest
    (`Recovered.parted`).
    """
    message, facts = f"{command.agent} was removed", {"agent_id": command.agent}
    fault = new_fault(Kind.UNAVAILABLE, message, next="write to another agent", facts=facts)
    rows = [*work.find(Inbox(command.agent, PAGE)), *work.find(Unacknowledged(command.agent, limit=PAGE))]
    again = work.agent(command.agent)
    if again is not None:  # an agent of that name was added again: later messages are for it
        rows = [row for row in rows if row.created_at < again.created_at]
    for row in rows:
        if row.leaves_once:
            give_up(work, row, fault, onward=True)
        else:
            make_dead_letter(work, row, fault)
    if rows:
        work.ask_afterwards(ClearOut(agent=command.agent))
    return len(rows)


def sweep(work: Work, command: Sweep) -> int:
    """Forget the ids of direct messages that arrived long ago."""
    rows = work.find(Spent(Instant(work.now - work.rules.request_memory), PAGE))
    for row in rows:
        work.remove(row)
    if len(rows) == PAGE:
        work.ask_afterwards(Sweep())
    return len(rows)


def rank_of(work: Work, priority: Priority) -> int:
    """The smaller rank goes first: time of creation minus head start. Ageing needs no recomputation (see
    `Rules.head_start`).

    Tasks of one unit have the same time; a microsecond each keeps them in their order.
    """
    work.births += 1
    return work.now + work.births - head_starts(work.rules)[priority]


@lru_cache(8)
def head_starts(rules: Rules) -> dict[Priority, int]:
    return {Priority(name): head_start for name, head_start in rules.head_start}

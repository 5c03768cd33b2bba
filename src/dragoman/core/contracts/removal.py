"""The contracts of an agent that was removed end with it, and so does what was to come of them.

    a handshake that was put to it       comes to nothing, and whoever began it is told
    what it was asked on a contract      has failed, and whoever asked is told: nobody else agreed to do it

There may be thousands, so one unit ends a page of contracts and of what waits on them, and asks for the next; the first
goes with the agent itself. A hub that dies in between finds the rest of the contracts when it starts
(`Recovered.parted`), and of what waits when its time comes. Meanwhile nobody can use them: a contract holds between the
two who agreed (`terms.between_the_same`).
"""

from __future__ import annotations

from itertools import islice

import msgspec

from dragoman.core.agreements.terms import still_agreed
from dragoman.core.commands import EndContractsOf
from dragoman.core.contracts.handshake import failed, tell
from dragoman.core.ids import AgentId, TaskId
from dragoman.core.lookups import Bound, Lane, PutTo, Ready
from dragoman.core.model.contracts import Standing
from dragoman.core.model.deliveries import MessageKind
from dragoman.core.model.tasks import Asking, Status, Task
from dragoman.core.routing.routes import route_of
from dragoman.core.tasks.outcome import end, end_children
from dragoman.core.work import Work
from dragoman.messages.faults import Fault, Kind

PAGE = 32
"""Contracts that one unit ends: some ten milliseconds of the hub's time."""


def end_contracts_of(work: Work, command: EndContractsOf) -> int:
    page = work.find(Bound(command.agent, work.now, command.until, PAGE))
    work.together([Lane(TaskId(contract.id), contract.other(command.agent)) for contract in page])
    reason = f"{command.agent} was removed"
    for contract in page:
        over = {"standing": Standing.TERMINATED, "since": work.now, "by": command.by, "reason": reason}
        work.put(msgspec.structs.replace(contract, **over))
        work.audit(principal=command.by, action="contract.end", subject=contract.collaboration, reason=reason)
        tell(work, contract.other(command.agent), MessageKind.CONTRACT, contract=contract.id)
    if max(len(page), end_what_waits_for(work, command.agent)) == PAGE:
        work.ask_afterwards(command)
    return len(page)


def end_what_waits_for(work: Work, agent: AgentId) -> int:
    """A page of what stands in a queue for an agent that was removed, on a contract that ended with it."""
    queues = [queue for queue in work.queues() if route_of(queue).pinned == agent]
    waiting = (task for queue in queues for task in work.find(Ready(queue, PAGE)) if not still_agreed(work, task))
    page = list(islice(waiting, PAGE))
    for task in page:
        part(work, task)
    return len(page)


def end_handshakes_with(work: Work, agent: AgentId) -> None:
    """Whoever waits for its answer hears what it would be told if it asked now."""
    message = f"{agent} was removed before it answered; discover who else serves the intent"
    fault = Fault(kind=Kind.NOT_FOUND, message=message, field="target_agent_id", facts={"agent_id": agent})
    for question in work.find(PutTo(agent)):
        if question.about is Asking.HANDSHAKE:
            failed(work, question, fault)


def is_bound_to(work: Work, task: Task, agent: AgentId) -> bool:
    """Whether a task was asked of this agent on a contract: nobody else may do it then."""
    contract = None if task.contract is None else work.contract(task.contract)
    return contract is not None and contract.target.agent == agent


def part(work: Work, task: Task) -> None:
    """Nobody may do it any more: whoever comes under the name of one who agreed to its terms did not."""
    facts = {"contract_id": task.contract, "standing": Standing.TERMINATED.value}
    what = "one of the two who agreed was removed, and nobody else may do it; shake hands for a new contract"
    task = end(work, task, Status.FAILED, fault=Fault(kind=Kind.CONTRACT, message=what, facts=facts))
    end_children(work, task, "failed")

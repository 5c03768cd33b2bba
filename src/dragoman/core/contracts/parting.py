"""The contracts of an agent that was removed end with it.

There may be thousands, so one unit ends a page of them and asks for the next; the first goes with the agent itself. A
hub that dies in between finds the rest when it starts (`Recovered.parted`). Meanwhile nobody can use them: a contract
holds between the two who agreed (`terms.between_the_same`).
"""

from __future__ import annotations

import msgspec

from dragoman.core.commands import EndContractsOf
from dragoman.core.contracts.handshake import tell
from dragoman.core.contracts.model import Standing
from dragoman.core.delivery.model import Cargo
from dragoman.core.ids import TaskId
from dragoman.core.lookups import Bound, Lane
from dragoman.core.work import Work

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
        tell(work, contract.other(command.agent), Cargo.CONTRACT, contract=contract.id)
    if len(page) == PAGE:
        work.ask_afterwards(command)
    return len(page)

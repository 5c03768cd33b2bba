"""Refusals of messages before they become commands, for the audit record.

The refusal is committed before it is answered. A sender that is refused again and again gets no record for each: the
core counts them (`core.model.refusals`), which costs no commit, and the log has a line for each record only.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextvars import ContextVar

import structlog

from dragoman.core.commands import NoteRefusal
from dragoman.core.ids import NOBODY, AgentId
from dragoman.core.ports import Intake
from dragoman.messages.faults import Fault, Kind, Refused, new_fault

log = structlog.get_logger("dragoman.server")

CALLER: ContextVar[str | None] = ContextVar("caller", default=None)
"""The address of the request that is being served; endpoints set it. Every request is an asyncio task of its own."""

SHED = frozenset({Kind.OVERLOADED, Kind.RATE_LIMITED})
"""Refusals for overload are not recorded: the disk may be what is overloaded."""
SAY_SECONDS = 1.0
"""The log has a line about those no more often than this."""
UNREADABLE = new_fault(
    Kind.OVERLOADED, "the hub cannot read its store now", next="try again in a moment", retryable=True
)
"""What every endpoint answers when a read of the store fails (`StoreFailed`): nothing changed; a retry may work."""


class RefusalLog:
    """Records every refusal by an endpoint. Never raises: a refusal is answered even when it cannot be recorded."""

    def __init__(self, intake: Intake, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._intake = intake
        self._clock = clock
        self._logged_at = float("-inf")
        self.count = 0

    async def record(
        self,
        what: str,
        fault: Fault,
        *,
        principal: AgentId | None,
        protocol: str,
        about: str | None = None,
        person: str | None = None,
    ) -> None:
        """`what` is the verb that was tried; `about` the message or path it was about; `person` who tried it, where
        the administrator is a person that the hub knows by name."""
        self.count += 1
        by = principal or NOBODY
        who = person or by
        if fault.kind in SHED:
            if self._clock() - self._logged_at >= SAY_SECONDS:
                self._logged_at = self._clock()
                log.info("refused", what=what, kind=fault.kind.value, principal=who, so_far=self.count)
            return
        address = CALLER.get() if principal is None else None
        note = NoteRefusal(
            principal=by, protocol=protocol, person=person, what=what, fault=fault, about=about, address=address
        )
        try:
            recorded = await self._intake.execute(note)
        except Refused as refused:
            log.warning("refusal not recorded", what=what, why=refused.fault.kind.value)
            return
        if recorded != 0:
            log.info("refused", what=what, kind=fault.kind.value, field=fault.field, principal=who, address=address)

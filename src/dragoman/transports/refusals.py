"""What was refused before it became a command: kept in the audit record like everything else.

The refusal is committed before it is answered. That also slows whoever floods us with bad requests to the pace of
their own connections' commits, and commits are grouped, so it slows nobody else.
"""

from __future__ import annotations

import structlog

from dragoman.core.commands import NoteRefusal
from dragoman.core.errors import Fault, Kind, Refused
from dragoman.core.ids import NOBODY, AgentId
from dragoman.core.ports import Intake

log = structlog.get_logger("dragoman.transports")


SHED = frozenset({Kind.OVERLOADED, Kind.RATE_LIMITED})
"""What is refused because there is too much of it is not written down: the disk may be what is too slow."""


class Refusals:
    """Told of every refusal at the door. Never raises: a refusal is answered even when it cannot be recorded."""

    def __init__(self, intake: Intake) -> None:
        self._intake = intake
        self.count = 0

    async def note(
        self, what: str, fault: Fault, *, principal: AgentId | None, protocol: str, about: str | None = None
    ) -> None:
        """`what` is the verb that was tried; `about` the message or path it was about."""
        self.count += 1
        who = principal or NOBODY
        log.info("refused", what=what, kind=fault.kind.value, field=fault.field, principal=who)
        if fault.kind in SHED:
            return
        note = NoteRefusal(principal=who, protocol=protocol, what=what, fault=fault, about=about)
        try:
            await self._intake.ask(note)
        except Refused as refused:
            log.warning("refusal not recorded", what=what, why=refused.fault.kind.value)

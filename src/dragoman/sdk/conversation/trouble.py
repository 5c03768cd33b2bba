"""An agent's own troubles as agentmsg's ErrorReport: one form for everything that goes wrong."""

from __future__ import annotations

from typing import Any

from dragoman.protocols.agentmsg import errors
from dragoman.protocols.agentmsg.records import ErrorContext, ErrorReport, ErrorType


def report(
    kind: ErrorType, message: str, *, id: str, agent: str, task_id: str | None = None, details: dict[str, Any]
) -> ErrorReport:
    """A whole report: what the table says of its kind, and the facts."""
    rule = errors.TABLE[kind]
    return ErrorReport(
        error_id=id,
        agent_id=agent,
        error_type=kind,
        severity=rule.severity,
        message=message,
        context=ErrorContext(details=details),
        recovery_attempts=(),
        suggested_actions=(rule.action,),
        task_id=task_id,
    )

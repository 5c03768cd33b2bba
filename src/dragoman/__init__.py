"""The hub where AI agents of different protocols work together.

    from dragoman import Agent, Client, Task

Names are loaded when they are first used (PEP 562), so that importing `dragoman` costs nothing.
"""

from __future__ import annotations

import warnings
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dragoman.sdk.agent import Agent
    from dragoman.sdk.client import Client, TaskHandle
    from dragoman.sdk.errors import (
        BadInput,
        BadResult,
        Conflict,
        DragomanError,
        HubUnreachable,
        Misconfigured,
        NotAllowed,
        NotFound,
        NotSupported,
        Reject,
        Rejected,
        RequestRefused,
        Retry,
        StillRunning,
        TaskCancelled,
        TaskFailed,
    )
    from dragoman.sdk.events import (
        Assigned,
        AttemptFailed,
        Cancelled,
        Completed,
        Event,
        Failed,
        FileSent,
        HandedOver,
        LogWritten,
        OtherEvent,
        Output,
        Paused,
        Progress,
        Question,
        QuestionAnswered,
        QuestionAsked,
        Resumed,
        Step,
        Submitted,
        TaskEvent,
        TaskInfo,
        Thinking,
        ToolReturned,
        ToolUsed,
    )
    from dragoman.sdk.failures import (
        AuthFailed,
        CallFailed,
        CapabilityNotFound,
        ContractViolation,
        InternalError,
        RateLimitExceeded,
        SchemaMismatch,
        SecurityPolicyViolation,
        TimedOut,
    )
    from dragoman.sdk.messages import File
    from dragoman.sdk.options import Hints, Priority, SubmitOptions
    from dragoman.sdk.peers import (
        Accept,
        DirectMessage,
        Escalate,
        Handoff,
        HandoffRequest,
        Handover,
        HandshakeRequest,
        Help,
        HelpRequest,
        Resource,
        Unable,
    )
    from dragoman.sdk.shared_state import Change, Entity, Shared, SharedState, StateConflict
    from dragoman.sdk.sync import SyncClient, SyncTaskHandle
    from dragoman.sdk.work.signature import RetryPolicy
    from dragoman.sdk.work.task import CallNext, Middleware, SyncTask, Task

_HOMES = {
    "agent": "Agent",
    "client": "Client TaskHandle",
    "errors": (
        "BadInput BadResult Conflict DragomanError HubUnreachable Misconfigured NotAllowed NotFound "
        "NotSupported Reject Rejected RequestRefused Retry StillRunning TaskCancelled TaskFailed"
    ),
    "events": (
        "Assigned AttemptFailed Cancelled Completed Event Failed FileSent HandedOver LogWritten OtherEvent "
        "Output Paused Progress Question QuestionAnswered QuestionAsked Resumed Step Submitted TaskEvent "
        "TaskInfo Thinking ToolReturned ToolUsed"
    ),
    "failures": (
        "AuthFailed CallFailed CapabilityNotFound ContractViolation InternalError RateLimitExceeded "
        "SchemaMismatch SecurityPolicyViolation TimedOut"
    ),
    "messages": "File",
    "options": "Hints Priority SubmitOptions",
    "peers": (
        "Accept DirectMessage Escalate Handoff HandoffRequest Handover HandshakeRequest Help HelpRequest "
        "Resource Unable"
    ),
    "shared_state": "Change Entity Shared SharedState StateConflict",
    "sync": "SyncClient SyncTaskHandle",
    "work.signature": "RetryPolicy",
    "work.task": "CallNext Middleware SyncTask Task",
}
"""Module of `dragoman.sdk` → the names that users find here."""

__all__ = [
    "Accept", "Agent", "Assigned", "AttemptFailed", "AuthFailed", "BadInput", "BadResult", "CallFailed", "CallNext",
    "Cancelled", "CapabilityNotFound", "Change", "Client", "Completed", "Conflict", "ContractViolation",
    "DirectMessage", "DragomanError", "Entity", "Escalate", "Event", "Failed", "File", "FileSent", "HandedOver",
    "Handoff", "HandoffRequest", "Handover", "HandshakeRequest", "Help", "HelpRequest", "Hints", "HubUnreachable",
    "InternalError", "LogWritten", "Middleware", "Misconfigured", "NotAllowed", "NotFound", "NotSupported",
    "OtherEvent", "Output", "Paused", "Priority", "Progress", "Question", "QuestionAnswered", "QuestionAsked",
    "RateLimitExceeded", "Reject", "Rejected", "RequestRefused", "Resource", "Resumed", "Retry", "RetryPolicy",
    "SchemaMismatch", "SecurityPolicyViolation", "Shared", "SharedState", "StateConflict", "Step", "StillRunning",
    "SubmitOptions", "Submitted", "SyncClient", "SyncTask", "SyncTaskHandle", "Task", "TaskCancelled", "TaskEvent",
    "TaskFailed", "TaskHandle", "TaskInfo", "Thinking", "TimedOut", "ToolReturned", "ToolUsed", "Unable",
]  # fmt: skip


_FORMER = {"Letter": "DirectMessage"}
"""Names that this module had, and what they are called now. Programs that use them go on working, with a warning."""


def __getattr__(name: str) -> Any:
    if name in _FORMER:
        warnings.warn(f"dragoman.{name} is dragoman.{_FORMER[name]} now", DeprecationWarning, stacklevel=2)
        name = _FORMER[name]
    for home, names in _HOMES.items():
        if name in names.split():
            value = globals()[name] = getattr(import_module(f"dragoman.sdk.{home}"), name)
            return value
    raise AttributeError(f"module 'dragoman' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

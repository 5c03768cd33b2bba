"""The hub where AI agents of different protocols work together.

    from dragoman import Agent, Client, Task

Names are loaded when they are first used (PEP 562), so that importing `dragoman` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dragoman.sdk.agent import Agent
    from dragoman.sdk.client import Client
    from dragoman.sdk.errors import (
        BadInput,
        Conflict,
        DragomanError,
        HubUnreachable,
        Misconfigured,
        NotAllowed,
        NotFound,
        Rejected,
        RequestRefused,
        StillRunning,
        TaskCancelled,
        TaskFailed,
    )
    from dragoman.sdk.events import Event, Question, TaskInfo
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
    from dragoman.sdk.peers import (
        Accept,
        Escalate,
        Handoff,
        HandoffRequest,
        Handover,
        HandshakeRequest,
        Help,
        HelpRequest,
        Letter,
        Reject,
        Resource,
        Unable,
    )
    from dragoman.sdk.shared_state import Change, Entity, Shared, SharedState, StateConflict
    from dragoman.sdk.sync import SyncClient
    from dragoman.sdk.work.sync_task import SyncTask
    from dragoman.sdk.work.task import Task

__all__ = [
    "Accept",
    "Agent",
    "AuthFailed",
    "BadInput",
    "CallFailed",
    "CapabilityNotFound",
    "Change",
    "Client",
    "Conflict",
    "ContractViolation",
    "DragomanError",
    "Entity",
    "Escalate",
    "Event",
    "File",
    "Handoff",
    "HandoffRequest",
    "Handover",
    "HandshakeRequest",
    "Help",
    "HelpRequest",
    "HubUnreachable",
    "InternalError",
    "Letter",
    "Misconfigured",
    "NotAllowed",
    "NotFound",
    "Question",
    "RateLimitExceeded",
    "Reject",
    "Rejected",
    "RequestRefused",
    "Resource",
    "SchemaMismatch",
    "SecurityPolicyViolation",
    "Shared",
    "SharedState",
    "StateConflict",
    "StillRunning",
    "SyncClient",
    "SyncTask",
    "Task",
    "TaskCancelled",
    "TaskFailed",
    "TaskInfo",
    "TimedOut",
    "Unable",
]

_HOMES = {
    "Agent": "agent",
    "Client": "client",
    "SyncClient": "sync",
    "SyncTask": "work.sync_task",
    "Task": "work.task",
    "Event": "events",
    "Question": "events",
    "TaskInfo": "events",
    "File": "messages",
    "Accept": "peers",
    "Escalate": "peers",
    "Handoff": "peers",
    "HandoffRequest": "peers",
    "Handover": "peers",
    "HandshakeRequest": "peers",
    "Help": "peers",
    "HelpRequest": "peers",
    "Letter": "peers",
    "Reject": "peers",
    "Resource": "peers",
    "Unable": "peers",
    "AuthFailed": "failures",
    "CallFailed": "failures",
    "CapabilityNotFound": "failures",
    "ContractViolation": "failures",
    "InternalError": "failures",
    "RateLimitExceeded": "failures",
    "SchemaMismatch": "failures",
    "SecurityPolicyViolation": "failures",
    "TimedOut": "failures",
    "Change": "shared_state",
    "Entity": "shared_state",
    "Shared": "shared_state",
    "SharedState": "shared_state",
    "StateConflict": "shared_state",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'dragoman' has no attribute {name!r}")
    value = getattr(import_module(f"dragoman.sdk.{_HOMES.get(name, 'errors')}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

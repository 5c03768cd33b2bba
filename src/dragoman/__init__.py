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
        TaskCancelled,
        TaskFailed,
    )
    from dragoman.sdk.events import Event, Question, TaskInfo
    from dragoman.sdk.sync import SyncClient
    from dragoman.sdk.task import SyncTask, Task

__all__ = [
    "Agent",
    "BadInput",
    "Client",
    "Conflict",
    "DragomanError",
    "Event",
    "HubUnreachable",
    "Misconfigured",
    "NotAllowed",
    "NotFound",
    "Question",
    "Rejected",
    "RequestRefused",
    "SyncClient",
    "SyncTask",
    "Task",
    "TaskCancelled",
    "TaskFailed",
    "TaskInfo",
]

_HOMES = {
    "Agent": "agent",
    "Client": "client",
    "SyncClient": "sync",
    "SyncTask": "task",
    "Task": "task",
    "Event": "events",
    "Question": "events",
    "TaskInfo": "events",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'dragoman' has no attribute {name!r}")
    value = getattr(import_module(f"dragoman.sdk.{_HOMES.get(name, 'errors')}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

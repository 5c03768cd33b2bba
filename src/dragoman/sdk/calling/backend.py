"""The port between `Client` and each way of calling: the management API and the clients of the five protocols."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from dragoman.sdk.events import Event, Question, TaskInfo

if TYPE_CHECKING:
    from dragoman.protocols.a2acp.contracts import Contract, Mode
    from dragoman.protocols.a2acp.intents import Offering


class Backend(Protocol):
    """What every way of calling can do; it raises `NotSupported` for what its protocol cannot."""

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def submit(self, target: str | None, work: str, given: Mapping[str, Any], options: Mapping[str, Any]) -> str:
        """Returns the task's id when the hub has it, durably."""
        ...

    async def result(self, task_id: str) -> Any: ...

    async def task(self, task_id: str, wait: float = 0) -> TaskInfo: ...

    def events(self, task_id: str, after: int) -> AsyncIterator[Event]: ...

    async def cancel(self, task_id: str, reason: str | None) -> None: ...

    async def questions(self, status: str | None) -> list[Question]: ...

    async def answer(self, question_id: str, answer: Any) -> None: ...


@runtime_checkable
class ContractBackend(Protocol):
    """What only a2acp can: who serves which intent, and on which terms."""

    async def discover(self, **wanted: str | None) -> list[Offering]: ...

    async def contract(self, intent: str, agent: str | None, mode: Mode, encrypt: bool, **schemas: Any) -> Contract: ...

    async def terminate(self, collaboration_id: str, reason: str) -> None: ...

    async def rotate(self, collaboration_id: str) -> None: ...


def named(options: Iterable[str]) -> str:
    """Options as an error names them."""
    return ", ".join(f"`{name}`" for name in sorted(options))

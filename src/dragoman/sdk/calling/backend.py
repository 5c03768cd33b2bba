"""The port between `Client` and each way of calling, and how such a client waits for a hub that is gone for a moment.

A client that asks and is answered (the management API, coven, the shared state) asks again, with growing pauses, until
the hub was gone for too long. A hub that was never reached is reported at once.

    tries = self._retries.begin()
    while True:
        try:
            answer = await …
            tries.reached()
            return answer
        except TemporaryFailure as error:
            await tries.again(error)
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from dragoman.sdk.errors import HubUnreachable
from dragoman.sdk.events import Event, Question, TaskInfo
from dragoman.sdk.network.connect_errors import asks, sentence
from dragoman.sdk.runtime import Runtime, backoff

if TYPE_CHECKING:
    from dragoman.protocols.a2acp.contracts import Contract, Mode
    from dragoman.protocols.a2acp.intents import Offering


class Backend(Protocol):
    """What every backend can do; it raises `NotSupported` for what its protocol cannot."""

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


LONGEST_ABSENCE = 120.0
"""Seconds for which a hub may be unreachable: when it stops it closes its ports first, may give agents half a minute to
finish, and then is started again."""


class TemporaryFailure(Exception):
    """A failure that a retry may help."""


class HubRetries:
    """The retries with one hub: its address `where`, and whether it was ever reached."""

    def __init__(self, where: str, runtime: Runtime, seconds: float = LONGEST_ABSENCE) -> None:
        self.where = where
        self.runtime = runtime
        self.seconds = seconds
        self.was_reached = False

    def begin(self) -> Attempts:
        return Attempts(self)


class Attempts:
    """The attempts of one request."""

    def __init__(self, retries: HubRetries) -> None:
        self._retries = retries
        self._failures = 0
        self._gone_since: float | None = None

    def reached(self) -> None:
        """The hub answered."""
        self._retries.was_reached = True
        self._failures, self._gone_since = 0, None

    async def again(self, error: Exception, *, is_there: bool = False) -> None:
        """Wait before the next try; raises if there should be none. `is_there`: a server listens at the address."""
        retries, runtime = self._retries, self._retries.runtime
        if self._gone_since is None:
            self._gone_since = runtime.monotonic()
        if not (retries.was_reached or is_there) or runtime.monotonic() - self._gone_since > retries.seconds:
            problem = f"no answer from {retries.where}: {sentence(error)}"
            raise HubUnreachable(asks(problem, "Is the hub running?")) from None
        await runtime.sleep(backoff(self._failures, runtime.chance()))
        self._failures += 1

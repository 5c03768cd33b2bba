"""How often the SDK runs a handler again that failed, and when: declared where the handler is.

    @agent.on("fetch", retry=RetryPolicy(attempts=5, delay=2.0))
    async def fetch(url: str) -> str: ...

All runs are one attempt for the hub: the task stays with this agent, signs of life go out, and the hub's own retries
begin only after the last run failed. They end with the process: after a restart the hub gives the task out again.
"""

from __future__ import annotations

from msgspec import Struct

from dragoman.sdk.errors import BadInput, DragomanError, Misconfigured, NotSupported, Reject, Retry, TaskFailed

FINAL: tuple[type[DragomanError], ...] = (Reject, TaskFailed, BadInput, Misconfigured, NotSupported)
"""Never run again: the agent says no, gives its own verdict, or is wrong itself."""


class RetryPolicy(Struct, frozen=True, kw_only=True):
    """At most `attempts` runs, the first one included. Before the second one the SDK waits `delay` seconds, before each
    further one `factor` times as long, never more than `longest`. `on` are exceptions that are worth another run."""

    attempts: int = 4
    delay: float = 1.0
    factor: float = 2.0
    longest: float = 60.0
    on: tuple[type[BaseException], ...] = (Exception,)

    def __post_init__(self) -> None:
        if self.attempts < 1 or self.delay < 0 or self.factor < 1 or self.longest < 0:
            raise Misconfigured(f"{self!r} is no way to retry: give attempts of at least 1, delays of 0 or more")

    def next_delay(self, run: int, error: BaseException) -> float | None:
        """Seconds to wait after run number `run` ended with this error; None if that was the last one."""
        if run >= self.attempts:
            return None
        delay = min(self.longest, self.delay * self.factor ** (run - 1))
        if isinstance(error, Retry):
            return delay if error.after is None else max(0.0, error.after)
        return delay if isinstance(error, self.on) and not isinstance(error, FINAL) else None


ASKED = RetryPolicy(on=())
"""Of a handler without a policy: only what it asks for by `raise Retry(…)`."""


def policy_of(retry: RetryPolicy | int | None) -> RetryPolicy:
    """What `retry=` says; a number is that many runs."""
    if retry is None:
        return ASKED
    if isinstance(retry, RetryPolicy):
        return retry
    if isinstance(retry, bool) or not isinstance(retry, int):
        raise Misconfigured(f"retry is {retry!r}: give a number of runs, or a RetryPolicy")
    return RetryPolicy(attempts=retry)

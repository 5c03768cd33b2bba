"""Waiting for a hub that is gone for a moment (a restart), for clients that ask and are answered.

One that was reached before is asked again, with growing pauses, until it was gone for as long as the patience lasts.
One that was never reached is reported at once.

    tries = self._patience.begin()
    while True:
        try:
            answer = await …
            tries.reached()
            return answer
        except Passing as error:
            await tries.again(error)
"""

from __future__ import annotations

from dragoman.sdk.errors import HubUnreachable
from dragoman.sdk.network.connect_errors import asks, sentence
from dragoman.sdk.runtime import Runtime, backoff

LONGEST_ABSENCE = 120.0
"""Seconds for which a hub may be away: it shuts its doors first when it is stopped, may give agents half a minute to
finish, and then is started again."""


class TemporaryFailure(Exception):
    """It does not work now; it may in a moment."""


class HubRetries:
    """With one hub: `where` it is, and whether it was ever there."""

    def __init__(self, where: str, runtime: Runtime, seconds: float = LONGEST_ABSENCE) -> None:
        self.where = where
        self.runtime = runtime
        self.seconds = seconds
        self.was_reached = False

    def begin(self) -> Attempts:
        return Attempts(self)


class Attempts:
    """One request, as often as it takes."""

    def __init__(self, retries: HubRetries) -> None:
        self._retries = retries
        self._failures = 0
        self._gone_since: float | None = None

    def reached(self) -> None:
        """The hub said something."""
        self._retries.was_reached = True
        self._failures, self._gone_since = 0, None

    async def again(self, error: Exception, *, is_there: bool = False) -> None:
        """Wait before the next try; raises if there should be none. `is_there`: a server listens at the address."""
        retries, runtime = self._retries, self._retries.runtime
        if self._gone_since is None:
            self._gone_since = runtime.monotonic()
        if not (retries.was_reached or is_there) or runtime.monotonic() - self._gone_since > retries.seconds:
            said = f"no answer from {retries.where}: {sentence(error)}"
            raise HubUnreachable(asks(said, "Is the hub running?")) from None
        await runtime.sleep(backoff(self._failures, runtime.chance()))
        self._failures += 1

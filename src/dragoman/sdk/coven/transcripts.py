"""The messages that the agent sent about the last few requests, because coven has no receipts: the hub asks again for
what it lost.

When a stream breaks, such a hub counts the attempt as failed and sends the same request again, and the answer begins
from the start. The handler does not: it may still run, wait for a person, or be done. So the link sends everything it
sent so far again over the new stream, in order, and then it goes on from there.

One of these outlives all the links of an agent. It is bounded: of a request that grew too large the link sends only the
end again, which has the whole answer in it.
"""

from __future__ import annotations

from msgspec import Struct

from dragoman.sdk.messages import Decline, Outbound, Outcome, Report

MOST_REQUESTS = 64
MOST_THREADS = 1024
MOST_BYTES = 32 * 1024 * 1024


class Transcript(Struct):
    """One request: `print` identifies its content, because one id cannot mean two requests."""

    print: str
    messages: dict[str, Outbound]
    size: int = 0


class Transcripts:
    def __init__(self, most: int = MOST_REQUESTS, most_bytes: int = MOST_BYTES) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._kept: dict[str, Transcript] = {}
        self.asked: dict[str, str] = {}
        """Thread → the task that asked a question there."""

    def begin(self, request_id: str, print: str) -> list[Outbound]:
        """A request came: gives the messages that were sent about it before, if it is the same request."""
        known = self._kept.pop(request_id, None)
        if known is None or known.print != print:
            known = Transcript(print, {})
        self._kept[request_id] = known  # the latest is last
        while len(self._kept) > self._most:
            del self._kept[next(iter(self._kept))]
        return list(known.messages.values())

    def add(self, message: Outbound) -> None:
        """Remember a message that may have to be sent again; the same message twice counts once."""
        transcript = self._kept.get(message.correlation.request_id)
        if transcript is None or message.id in transcript.messages or isinstance(message, Decline):
            return
        if isinstance(message, Report):
            if not message.has_content:
                return
            content = message.content
            transcript.size += len(content.output or "") + len(content.thinking or "") + len(message.data or b"")
            if transcript.size > self._most_bytes:
                transcript.messages.clear()
                return
        elif isinstance(message, Outcome):
            transcript.size += len(message.output) + len(message.result_json)
        transcript.messages[message.id] = message

    def ask(self, thread_id: str, task_id: str) -> None:
        """A task asked a question; the answer is the next message in the thread."""
        self.asked[thread_id] = task_id
        while len(self.asked) > MOST_THREADS:
            del self.asked[next(iter(self.asked))]

    def forget(self, request_id: str) -> None:
        """The hub has all of the answer, or does not want it."""
        self._kept.pop(request_id, None)

    def __len__(self) -> int:
        return len(self._kept)

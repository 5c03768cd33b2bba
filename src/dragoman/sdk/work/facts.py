"""What is known of the work in hand, as its handler may read it: the same for coroutines (`task`) and for plain
functions in a thread (`sync_task`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dragoman.sdk import messages
from dragoman.sdk.peers import Handover

if TYPE_CHECKING:
    from dragoman.sdk.work.running_task import RunningTask


class Facts:
    __slots__ = ("_running",)

    def __init__(self, running: RunningTask) -> None:
        self._running = running

    @property
    def id(self) -> str:
        return self._running.id

    @property
    def type(self) -> str:
        return self._running.type

    @property
    def input(self) -> dict[str, Any]:
        """The input as it came."""
        return self._running.input

    @property
    def cancelled(self) -> bool:
        """Whether the work is no longer wanted. A coroutine is cancelled as well; a plain function should look."""
        return self._running.cancelled

    @property
    def handed_to(self) -> str | None:
        """Whose the task is after a handoff. Then nothing more is said about it from here."""
        return self._running.handed_to

    @property
    def trace_id(self) -> str:
        """The trace this work belongs to: 32 hex characters."""
        return self._running.trace_id

    @property
    def attempt(self) -> int:
        """1 at first; more when the hub had to give the work out again."""
        return self._running.work.attempt or 1

    @property
    def retries(self) -> int:
        """How often the SDK ran the handler again within this attempt (`RetryPolicy`)."""
        return self._running.retries

    @property
    def files(self) -> tuple[messages.File, ...]:
        """The files that came with the work: `name` (for display only), `mime_type`, `data`."""
        return self._running.work.files

    @property
    def context(self) -> dict[str, Any]:
        """What else is known of the task: its metadata, and its `thread`, if it has one."""
        terms = self._running.work.terms
        if terms is None:
            return {}
        return terms.metadata if terms.thread is None else {**terms.metadata, "thread": terms.thread}

    @property
    def history(self) -> tuple[dict[str, Any], ...]:
        """What happened to the task before, where its protocol tells: `timestamp`, `event_type`, `details`, …"""
        return () if self._running.work.terms is None else self._running.work.terms.history

    @property
    def handover(self) -> Handover | None:
        """From whom the task came and why, if somebody handed it over to us."""
        said = None if self._running.work.terms is None else self._running.work.terms.handover
        if said is None:
            return None
        return Handover(
            from_agent=str(said.get("from") or said.get("from_agent") or ""),
            reason=str(said.get("reason") or "").upper(),
            error=said.get("error"),
            recovery_attempts=tuple(said.get("recovery_attempts") or ()),
            parts=tuple(said.get("parts") or ()),
        )

    @property
    def is_held(self) -> bool:
        """Whether a person paused it."""
        return self._running.is_held

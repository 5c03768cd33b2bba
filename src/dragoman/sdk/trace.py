"""The current trace, as a context variable: the calls of a handler carry on the trace in which it was called.

The form is the W3C's `traceparent`: `00-<trace id, 32 hex>-<span id, 16 hex>-01`. Chiffon's trace_id without its
dashes is such a trace id (all-D7).
"""

from __future__ import annotations

import re
from contextvars import ContextVar
from typing import NamedTuple

_FORM = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}")


class Span(NamedTuple):
    """A place in a trace: the trace, the span, and the task."""

    trace_id: str
    span_id: str
    task_id: str | None = None

    @property
    def traceparent(self) -> str:
        return f"00-{self.trace_id}-{self.span_id}-01"


_current: ContextVar[Span | None] = ContextVar("dragoman_span", default=None)


def current() -> Span | None:
    """The span of the handler that calls this, if any."""
    return _current.get()


def enter(span: Span) -> None:
    """Make `span` the current one, in this task or thread only."""
    _current.set(span)


def parse(traceparent: object) -> Span | None:
    """The span that a peer named; None if it named none, or wrote something else."""
    match = _FORM.fullmatch(traceparent) if isinstance(traceparent, str) else None
    return Span(match[1], match[2]) if match else None


def span_id(fresh: str) -> str:
    """A span id out of a fresh UUID: its random end."""
    return fresh[-17:].replace("-", "")


def uuid(trace_id: str) -> str:
    """A trace id in chiffon's form, whatever its bits (all-D7)."""
    return f"{trace_id[:8]}-{trace_id[8:12]}-{trace_id[12:16]}-{trace_id[16:20]}-{trace_id[20:]}"

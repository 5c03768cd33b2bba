"""A task's input, whole output and result, read from its events.

The output a reader wants is the result's, where the agent sent one; before that, or without it, it is what came as
progress, piece by piece. Pieces of a split output carry their place (`chunk`) and are put in that order; a piece
that came twice counts once.

    event                      what it does to the output
    -------------------------  -----------------------------------------------------------------
    progress, paused           adds its piece
    completed, failed          whole output: replaces the pieces; split: its last piece
    attempt_failed, retried    the next piece begins anew (the old text stays readable until then)
    answered                   nothing: the agent goes on with what it wrote before
"""

from __future__ import annotations

from typing import Any

import msgspec

from dragoman.core.tasks.model import Event, EventKind

RESULT_STREAM = "result"
MOST_OUTPUT = 64 * 1024 * 1024

ENDINGS = frozenset({EventKind.COMPLETED, EventKind.FAILED, EventKind.CANCELLED})
BEGINNINGS = frozenset({EventKind.SUBMITTED, EventKind.RETRIED, EventKind.ANSWERED})
RESTARTS = frozenset({EventKind.ATTEMPT_FAILED, EventKind.RETRIED})
PIECES = frozenset({EventKind.PROGRESS, EventKind.PAUSED})


class _Order(msgspec.Struct):
    input: msgspec.Raw | None = None


class _Piece(msgspec.Struct):
    output: str | None = None
    chunk: tuple[int, int, int | None] | None = None
    stream: str | None = None


class _Ending(_Piece):
    result: msgspec.Raw | None = None
    exit_code: int | None = None
    usage: msgspec.Raw | None = None


_order = msgspec.json.Decoder(_Order).decode
_piece = msgspec.json.Decoder(_Piece).decode
_ending = msgspec.json.Decoder(_Ending).decode


class Account(msgspec.Struct, frozen=True, kw_only=True):
    """What the events of a task come to. `whole`: the result brought the whole output, nothing else is needed."""

    input: msgspec.Raw | None = None
    output: str = ""
    truncated: bool = False
    result: msgspec.Raw | None = None
    exit_code: int | None = None
    usage: msgspec.Raw | None = None
    whole: bool = False


class Transcript:
    """Feed it a task's events in order, all of them or the tail; `account` is what they come to."""

    def __init__(self, most: int = MOST_OUTPUT) -> None:
        self._most = most
        self._input: msgspec.Raw | None = None
        self._parts: dict[Any, dict[int, str]] = {}
        self._size = 0
        self._truncated = False
        self._begins_anew = False
        self._end: _Ending | None = None

    def feed(self, event: Event) -> None:
        if event.kind in BEGINNINGS:
            self._input = _order(event.body).input or self._input
        if event.kind in RESTARTS:
            self._begins_anew = True
        if event.kind is EventKind.RETRIED:
            self._end = None
        if event.kind in PIECES:
            self._add(_piece(event.body), event.seq)
        elif event.kind in ENDINGS:
            self._end = _ending(event.body)
            if self._end.chunk is not None:
                self._add(self._end, event.seq, RESULT_STREAM)

    def _add(self, piece: _Piece, seq: int, stream: str = "") -> None:
        if not piece.output:
            return
        if self._begins_anew:
            self._parts, self._size, self._truncated, self._begins_anew = {}, 0, False, False
        if self._size + len(piece.output) > self._most:
            self._truncated = True
            return
        place: Any = seq if piece.chunk is None else (piece.stream or stream)
        part = self._parts.setdefault(place, {})
        start = piece.chunk[0] if piece.chunk else 0
        if start not in part:
            part[start] = piece.output
            self._size += len(piece.output)

    @property
    def account(self) -> Account:
        end = self._end or _Ending()
        if end.output and end.chunk is None:
            output, whole = end.output, True
        elif end.chunk is not None:
            parts = self._parts.get(end.stream or RESULT_STREAM, {})
            output, whole = "".join(parts[start] for start in sorted(parts)), False
        else:
            output = "".join(part[start] for part in self._parts.values() for start in sorted(part))
            whole = False
        return Account(
            input=self._input,
            output=output,
            truncated=self._truncated and not whole,
            result=end.result,
            exit_code=end.exit_code,
            usage=end.usage,
            whole=whole,
        )

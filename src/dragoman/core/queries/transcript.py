"""A task's input, whole output and result, read from its events.

The output is the result's, where the agent sent one; otherwise it is the progress, piece by piece. Pieces of a split
output carry their place (`chunk`) in a stream and form one part of the text, at the place of the first. A stream that
starts at byte 0 again before it was whole replaces what it had.

    event                      what it does to the output
    -------------------------  -----------------------------------------------------------------
    progress, paused           adds its piece
    completed, failed          whole output: replaces the pieces; split: its last piece
    attempt_failed, retried    the next piece starts again (the old text stays readable until then)
    answered                   nothing: the agent goes on with what it wrote before
"""

from __future__ import annotations

import msgspec

from dragoman.core.model.tasks import Event, EventKind

RESULT_STREAM = "result"
MOST_OUTPUT = 64 * 1024 * 1024

ENDINGS = frozenset({EventKind.COMPLETED, EventKind.FAILED, EventKind.CANCELLED})
BEGINNINGS = frozenset({EventKind.SUBMITTED, EventKind.RETRIED, EventKind.ANSWERED})
RESTARTS = frozenset({EventKind.ATTEMPT_FAILED, EventKind.RETRIED})
PIECES = frozenset({EventKind.PROGRESS, EventKind.PAUSED})


# `Raw | None` reads nothing but null: what is left out or null is an empty Raw here, see `_given`.
_NOTHING = msgspec.Raw()


class _Order(msgspec.Struct):
    input: msgspec.Raw = _NOTHING


class _Piece(msgspec.Struct):
    output: str | None = None
    chunk: tuple[int, int, int | None] | None = None
    stream: str | None = None


class _Ending(_Piece):
    result: msgspec.Raw = _NOTHING
    exit_code: int | None = None
    usage: msgspec.Raw = _NOTHING


def _given(value: msgspec.Raw) -> msgspec.Raw | None:
    return value if bytes(value) not in (b"", b"null") else None


_order = msgspec.json.Decoder(_Order).decode
_piece = msgspec.json.Decoder(_Piece).decode
_ending = msgspec.json.Decoder(_Ending).decode


class _Part:
    """A part of the output: one piece, or the pieces of a split one by their first byte. `total` is the declared
    length."""

    __slots__ = ("pieces", "total", "whole")

    def __init__(self) -> None:
        self.pieces: dict[int, str] = {}
        self.total: int | None = None
        self.whole = False

    @property
    def text(self) -> str:
        return "".join(self.pieces[start] for start in sorted(self.pieces))


class Account(msgspec.Struct, frozen=True, kw_only=True):
    """The sum of a task's events. `whole`: the result brought the whole output, nothing else is needed."""

    input: msgspec.Raw | None = None
    output: str = ""
    truncated: bool = False
    result: msgspec.Raw | None = None
    exit_code: int | None = None
    usage: msgspec.Raw | None = None
    whole: bool = False


class Transcript:
    """Feed it a task's events in order, all of them or the last ones; `account` is their sum."""

    def __init__(self, most: int = MOST_OUTPUT) -> None:
        self._most = most
        self._input: msgspec.Raw | None = None
        self._parts: list[_Part] = []
        self._streams: dict[str, _Part] = {}
        self._size = 0
        self._truncated = False
        self._starts_over = False
        self._end: _Ending | None = None

    def feed(self, event: Event) -> None:
        if event.kind in BEGINNINGS:
            self._input = _given(_order(event.body).input) or self._input
        if event.kind in RESTARTS:
            self._starts_over = True
        if event.kind is EventKind.RETRIED:
            self._end = None
        if event.kind in PIECES:
            self._add(_piece(event.body))
        elif event.kind in ENDINGS:
            self._end = _ending(event.body)
            if self._end.chunk is not None:
                self._add(self._end, RESULT_STREAM)

    def _add(self, piece: _Piece, stream: str = "") -> None:
        if not piece.output:
            return
        if self._starts_over:
            self._parts, self._streams = [], {}
            self._size, self._truncated, self._starts_over = 0, False, False
        start, end, total = piece.chunk or (0, 0, 0)
        part = self._part(piece.stream or stream, start) if piece.chunk else self._new_part()
        if start in part.pieces:
            return
        part.total, part.whole = total, end == total
        if self._truncated:  # nothing follows what was cut off
            return
        text = piece.output[: self._most - self._size]
        self._truncated = len(text) < len(piece.output)
        part.pieces[start] = text
        self._size += len(text)

    def _new_part(self) -> _Part:
        self._parts.append(_Part())
        return self._parts[-1]

    def _part(self, stream: str, start: int) -> _Part:
        """The part that a piece of a stream belongs to."""
        part = self._streams.get(stream)
        if part is None or (start == 0 and part.whole):
            part = self._streams[stream] = self._new_part()
        elif start == 0:
            self._size -= sum(map(len, part.pieces.values()))
            part.pieces.clear()
            self._truncated = False
        return part

    @property
    def account(self) -> Account:
        end = self._end or _Ending()
        if end.output and end.chunk is None:
            output, whole = end.output, True
        elif end.chunk is not None:
            last = self._streams.get(end.stream or RESULT_STREAM)
            output, whole = last.text if last else "", False
        else:
            # A result is not accepted while a set of pieces is incomplete. If there is one, such a set was dropped
            # (chiffon-D4).
            dropped = end.exit_code is not None
            parts = [part for part in self._parts if part.whole or part.total is None or not dropped]
            output, whole = "".join(part.text for part in parts), False
        return Account(
            input=self._input,
            output=output,
            truncated=self._truncated and not whole,
            result=_given(end.result),
            exit_code=end.exit_code,
            usage=_given(end.usage),
            whole=whole,
        )

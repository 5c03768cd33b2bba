"""Lines, however the bytes are cut; and lines that never end."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dragoman.wire.framing import Line, LineFraming, Overlong

LONGEST = 8
BYTES = st.text(alphabet="ab\r\n", max_size=60).map(str.encode) | st.binary(max_size=60)


def oracle(data: bytes) -> list[Line]:
    """What the lines of a whole stream are."""
    lines = [line.removesuffix(b"\r") for line in data.split(b"\n")]
    return [line if len(line) <= LONGEST else Overlong(len(line)) for line in lines if line]


def framed(pieces: list[bytes]) -> list[Line]:
    framing = LineFraming(LONGEST)
    lines: list[Line] = []
    for piece in pieces:
        lines += framing.feed(piece)
        assert framing.held <= LONGEST + 1
    return lines + framing.finish()


@given(BYTES)
@example(b"aaaaaaaa\r\n")
@example(b"aaaaaaaaa\r\n")
@example(b"aaaaaaaa\r\r\n\r\n")
def test_a_stream_whole_and_byte_by_byte(data: bytes) -> None:
    assert framed([data]) == framed([bytes([byte]) for byte in data]) == oracle(data)


@given(BYTES, st.lists(st.integers(0, 60), max_size=8))
def test_a_stream_in_any_pieces(data: bytes, cuts: list[int]) -> None:
    places = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    pieces = [data[start:end] for start, end in pairwise(places)]
    assert framed(pieces) == oracle(data)


def test_a_line_without_end_is_counted_and_not_kept() -> None:
    framing = LineFraming(1024)
    piece = b"x" * 1_000_000
    for _ in range(1000):
        assert framing.feed(piece) == []
        assert framing.held == 0
    assert framing.feed(b"\nnext\n") == [Overlong(1_000_000_000), b"next"]


@pytest.mark.parametrize("ending", [b"\n", b"\r\n"])
def test_the_limit_is_inclusive_and_does_not_count_the_ending(ending: bytes) -> None:
    framing = LineFraming(4)
    assert framing.feed(b"abcd" + ending + b"abcde" + ending) == [b"abcd", Overlong(5)]


def test_the_stream_ends_with_or_without_an_ending() -> None:
    framing = LineFraming()
    assert framing.feed(b"one\ntw") == [b"one"]
    assert framing.feed(b"") == []
    assert framing.finish() == [b"tw"]
    assert framing.finish() == []

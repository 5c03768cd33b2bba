"""No frame, and no sequence of frames, ends a connection by an exception; and every refusal can be said and read."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.wire.errors import RemoteProtocolError
from dragoman.wire.framing import LineFraming, WholeMessage
from dragoman.wire.guard import Limits
from tests.fuzz.hostile import inputs
from tests.fuzz.links import LINKS
from tests.fuzz.thoroughness import THOROUGH, UNTIMED, for_a_while
from tests.fuzz.work import bounded

STEPS, EACH = 8000, 200


def talked(name: str, how: settings) -> Callable[[], None]:
    link = LINKS[name]

    @how
    @given(st.lists(inputs(link.samples(), link.trees()), min_size=1, max_size=4))
    def attempt(frames: list[bytes]) -> None:
        end = link.open()
        for frame in frames:
            for event in bounded(STEPS + EACH * len(frame), lambda frame=frame: end.hear(frame)):
                if (reply := end.reply(event)) is not None:
                    end.heard(reply)

    return attempt


@pytest.mark.parametrize("name", LINKS)
def test_a_connection_goes_on_whatever_it_reads(name: str) -> None:
    talked(name, settings(UNTIMED, max_examples=max(20, UNTIMED.max_examples // 2)))()


@pytest.mark.soak
@pytest.mark.parametrize("name", LINKS)
def test_a_connection_goes_on_whatever_it_reads_for_a_while(name: str) -> None:
    for_a_while(talked(name, THOROUGH))


LONGEST = 10
PIECES = st.lists(st.text("ab\r\n", max_size=15).map(str.encode) | st.binary(max_size=15), max_size=8)


@UNTIMED
@given(PIECES)
def test_lines_are_the_same_in_whatever_pieces_they_come(pieces: list[bytes]) -> None:
    def read(*data: bytes) -> list[object]:
        framing = LineFraming(LONGEST)
        lines: list[object] = []
        for one in data:
            lines += framing.feed(one)
            assert framing.held <= LONGEST + 1
        return lines + framing.finish()

    whole = b"".join(pieces)
    lines = read(*pieces)
    assert lines == read(whole) == read(*(whole[place : place + 1] for place in range(len(whole))))
    for line in lines:
        assert not isinstance(line, bytes) or (0 < len(line) <= LONGEST and b"\n" not in line)


@UNTIMED
@given(PIECES)
def test_a_message_in_pieces_is_whole_or_refused(pieces: list[bytes]) -> None:
    collected = WholeMessage(Limits(bytes=30))
    whole = b"".join(pieces)
    try:
        for piece in pieces:
            collected.feed(piece)
    except RemoteProtocolError:
        assert len(whole) > 30
    else:
        assert collected.finish() == whole
        assert len(whole) <= 30

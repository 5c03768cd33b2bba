"""How much was done: lines of Python that ran, which is the same number on every machine.

What runs in C (parsing, regular expressions, ciphers) is one line here. It is bounded by the size of its input, which
the decoders check first.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, TypeVar

T = TypeVar("T")


class TooMuch(AssertionError):
    """More was done than was allowed."""


def bounded(most: int, do: Callable[[], T]) -> T:
    """What `do` gives, or `TooMuch` as soon as it has run more lines than `most`."""
    left = most

    def line(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal left
        if event == "line":
            left -= 1
            if left < 0:
                raise TooMuch(f"more than {most} lines, last {frame.f_code.co_filename}:{frame.f_lineno}")
        return line

    before = sys.gettrace()
    sys.settrace(lambda frame, event, what: line)
    try:
        return do()
    finally:
        sys.settrace(before)

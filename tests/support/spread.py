"""Where the long tests stand in a run of several workers: each worker begins with some of them.

pytest-xdist (`--dist worksteal`) gives every worker an equal piece of the list, in its order, and later moves tests
from the end of one worker's piece to a worker that has none left. A test of ten seconds that a worker begins at the end
of the run keeps the others waiting, so those marked `long` come first in the pieces. Long tests of one file share what
they start, and stay together.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

T = TypeVar("T")


def spread(tests: Sequence[T], workers: int, *, is_long: Callable[[T], bool], file: Callable[[T], Hashable]) -> list[T]:
    """The same tests in another order, which is the same for all workers."""
    groups: dict[Hashable, list[T]] = {}
    for test in tests:
        if is_long(test):
            groups.setdefault(file(test), []).append(test)
    first: list[list[T]] = [[] for _ in range(workers)]
    for group in sorted(groups.values(), key=len, reverse=True):
        min(first, key=len).extend(group)
    others = iter([test for test in tests if not is_long(test)])
    ordered: list[T] = []
    for number, begin in enumerate(first):
        size = (len(tests) - len(ordered)) // (workers - number)
        piece = begin[:size]
        while len(piece) < size and (other := next(others, None)) is not None:
            piece.append(other)
        ordered += piece
    placed = set(map(id, ordered))
    return ordered + [test for test in tests if id(test) not in placed]

"""The order of the tests of a run."""

from __future__ import annotations

import pytest
from tests.support.spread import spread


def pieces(tests: list[str], workers: int) -> list[list[str]]:
    """What pytest-xdist gives to each worker."""
    found, left = [], list(tests)
    for number in range(workers):
        size = len(left) // (workers - number)
        found.append(left[:size])
        left = left[size:]
    return found


def ordered(tests: list[str], workers: int) -> list[str]:
    """A test in capitals is long; its first letter is its file."""
    return spread(tests, workers, is_long=str.isupper, file=lambda test: test[0])


def test_every_worker_begins_with_long_tests_and_those_of_a_file_stay_together() -> None:
    tests = ["a1", "B1", "B2", "b3", "c1", "C2", "d1", "D2", "e1", "e2", "e3"]
    assert pieces(ordered(tests, 3), 3) == [["B1", "B2", "a1"], ["C2", "b3", "c1", "d1"], ["D2", "e1", "e2", "e3"]]


@pytest.mark.parametrize("workers", [1, 2, 3, 7, 20])
@pytest.mark.parametrize("tests", [[], ["A1"], ["A1", "A2", "A3"], ["a1", "B1", "c1", "A2", "a3", "B2", "d1", "E1"]])
def test_no_test_is_lost_or_doubled(tests: list[str], workers: int) -> None:
    assert sorted(ordered(tests, workers)) == sorted(tests)


def test_where_nothing_is_long_the_order_stays() -> None:
    tests = [f"a{n}" for n in range(11)]
    assert ordered(tests, 4) == tests

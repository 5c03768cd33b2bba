"""What a child's output may cost, on a clock that the test moves."""

from __future__ import annotations

import pytest

from dragoman.supervisor import pipes
from dragoman.supervisor.pipes import TokenBucket


def kept(rate: float, burst: float, each_second: int, seconds: int) -> int:
    bucket = TokenBucket(rate, burst, 0.0)
    return sum(bucket.take(n / each_second) for n in range(each_second * seconds))


@pytest.mark.parametrize(("each_second", "expected"), [(50, 500), (100, 1000), (1000, 1199), (100_000, 1199)])
def test_a_burst_and_then_the_rate_is_kept(each_second: int, expected: int) -> None:
    assert abs(kept(100, 200, each_second, 10) - expected) <= 1


def test_a_bucket_never_holds_more_than_its_burst() -> None:
    bucket = TokenBucket(100, 200, 0.0)
    assert sum(bucket.take(1000.0) for _ in range(500)) == 200
    assert not bucket.take(999.0)  # a clock that goes back gives nothing
    assert bucket.take(1000.02)


def read_in(seconds: float, cost: float, *, each: float) -> float:
    """How much is read in that time, if a piece of `cost` is there whenever we look, and takes `each` to come."""
    bucket, now, read = TokenBucket(pipes.READ_RATE, pipes.READ_BURST, 0.0), 0.0, 0.0
    while now < seconds:
        read += cost
        now += bucket.spend(cost, now) + each
    return read


@pytest.mark.parametrize(
    ("what", "cost", "per_second"),
    [
        ("64 KiB without a newline", 64 * pipes.KIB, pipes.READ_RATE / 64 / pipes.KIB),
        ("128 short lines", 128 * pipes.LINE, pipes.READ_RATE / 128 / pipes.LINE),
        ("128 messages", 128 * pipes.MESSAGE, pipes.READ_RATE / 128 / pipes.MESSAGE),
    ],
)
def test_a_flood_is_read_at_the_rate_and_no_faster(what: str, cost: float, per_second: float) -> None:
    pieces = read_in(100, cost, each=1e-6) / cost
    assert pieces == pytest.approx(per_second * 101, rel=0.05), what


def test_a_rest_is_never_long_however_much_came_at_once() -> None:
    bucket = TokenBucket(pipes.READ_RATE, pipes.READ_BURST, 0.0)
    assert bucket.spend(1e9, 0.0) == pytest.approx(pipes.LONGEST_REST)
    assert bucket.spend(0.0, pipes.LONGEST_REST) == pytest.approx(0.0, abs=1e-9)


def test_ordinary_output_is_never_held_back() -> None:
    bucket = TokenBucket(pipes.READ_RATE, pipes.READ_BURST, 0.0)
    for n in range(10_000):  # a hundred messages a second
        assert bucket.spend(pipes.MESSAGE + 2 * pipes.KIB, n / 100) == 0.0

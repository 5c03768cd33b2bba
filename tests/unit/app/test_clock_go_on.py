"""A node that leads after another goes on after that one's time and ids, also where its own clock is behind."""

from __future__ import annotations

from dragoman.app.clock import Mint, SystemClock
from dragoman.core.ids import SECOND, Instant

NANO = 10**9


class Machine:
    def __init__(self, wall: int) -> None:
        self.wall, self.steady = wall * NANO, 0
        self.clock = SystemClock(wall=lambda: self.wall, steady=lambda: self.steady)

    def pass_time(self, seconds: int) -> None:
        self.wall += seconds * NANO
        self.steady += seconds * NANO


def test_time_and_ids_go_on_after_the_last_leaders() -> None:
    before, behind = Machine(1_000), Machine(996)
    theirs = Mint(before.clock)
    last = [theirs() for _ in range(1000)][-1]
    behind.clock.go_on_after(before.clock())
    assert behind.clock() > before.clock()
    assert Mint(behind.clock)() > last


def test_a_clock_that_is_ahead_already_stays_as_it_is() -> None:
    machine = Machine(1_000)
    machine.clock.go_on_after(Instant(990 * SECOND))
    assert machine.clock() == 1_000 * SECOND


def test_a_clock_that_went_on_is_steered_back_to_the_wall_and_never_runs_back() -> None:
    machine = Machine(1_000)
    machine.clock.go_on_after(Instant(1_004 * SECOND))
    told = []
    for _ in range(50):
        machine.pass_time(10)
        told.append(machine.clock())
    assert told == sorted(told)
    assert abs(told[-1] - machine.wall // 1000) < SECOND // 100

"""When a child is started again, as a table of histories (forge-D11)."""

from __future__ import annotations

import pytest

from dragoman.core.ids import MINUTE, SECOND, Instant
from dragoman.supervisor.spec import (
    MOST_RESTARTS,
    PAUSES,
    Decision,
    Exit,
    Restart,
    RestartPolicy,
    decide_restart,
    recent_exits,
)

NOW = Instant(1_768_796_464_000_000)


def exits(*ago: int, clean: bool = False) -> tuple[Exit, ...]:
    """Ends so many microseconds ago, the oldest first."""
    return tuple(Exit(at=Instant(NOW - age), clean=clean) for age in ago)


@pytest.mark.parametrize(
    ("policy", "clean", "said"),
    [
        ("never", True, "stopped"),
        ("never", False, "crashed"),
        ("on-failure", True, "stopped"),
        ("on-failure", False, Restart(Instant(NOW + PAUSES[0]), 1)),
        ("always", True, Restart(Instant(NOW + PAUSES[0]), 1)),
        ("always", False, Restart(Instant(NOW + PAUSES[0]), 1)),
    ],
)
def test_the_policy_decides_about_the_first_end(policy: RestartPolicy, clean: bool, said: Decision) -> None:
    assert decide_restart(policy, exits(0, clean=clean), NOW) == said


def test_a_program_that_cannot_be_started_is_not_retried() -> None:
    assert decide_restart("always", (Exit(at=NOW, clean=False, permanent=True),), NOW) == "crashed"


@pytest.mark.requirement("forge-D11")
@pytest.mark.parametrize("policy", ["on-failure", "always"])
def test_five_restarts_in_ten_minutes_with_growing_pauses_then_no_more(policy: RestartPolicy) -> None:
    ends = exits(50, 40, 30, 20, 10, 0)
    said = [decide_restart(policy, ends[: number + 1], NOW) for number in range(6)]
    assert said == [*(Restart(Instant(NOW + PAUSES[n]), n + 1) for n in range(MOST_RESTARTS)), "crashed"]
    assert list(PAUSES) == sorted(PAUSES)


def test_what_was_longer_ago_than_ten_minutes_is_forgiven() -> None:
    old = exits(*(10 * MINUTE + number for number in range(9, -1, -1)))
    assert decide_restart("on-failure", (*old, *exits(0)), NOW) == Restart(Instant(NOW + PAUSES[0]), 1)
    just_inside = exits(*(10 * MINUTE - SECOND,) * MOST_RESTARTS, 0)
    assert decide_restart("on-failure", just_inside, NOW) == "crashed"


def test_the_memory_of_ends_is_bounded() -> None:
    many = exits(*range(100, 0, -1))
    assert recent_exits(many, NOW) == many[-(MOST_RESTARTS + 1) :]
    assert recent_exits(exits(11 * MINUTE), NOW) == ()
    assert decide_restart("always", (*recent_exits(many, NOW), *exits(0)), NOW) == "crashed"

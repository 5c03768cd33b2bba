"""How many bytes of messages are held: in all, for each principal, and as far as there is memory."""

from __future__ import annotations

import pytest

from dragoman.core.memory import EXPANSION, MOST_WAITING, SMALL, MemoryBudget, MemoryLimits
from dragoman.messages.faults import Kind

MIB = 1024 * 1024
LARGE = 4 * MIB


def budget(free: int | None = None) -> MemoryBudget:
    return MemoryBudget(MemoryLimits(total=32 * MIB, per_principal=8 * MIB), free=lambda: free)


def test_a_principal_has_its_share_and_takes_nobody_elses() -> None:
    held = budget()
    assert [held.take("a", LARGE) for _ in range(2)] == [None, None]
    fault = held.take("a", LARGE)
    assert fault is not None
    assert (fault.kind, fault.retryable, fault.facts["retry_after"]) == (Kind.RATE_LIMITED, True, 1)
    assert held.take("b", LARGE) is None
    assert (held.held, held._by.get("a", 0), held._by.get("b", 0)) == (3 * LARGE, 2 * LARGE, LARGE)


def test_all_together_have_no_more_than_the_whole() -> None:
    held = budget()
    assert all(held.take(f"p{n}", LARGE) is None for n in range(8))
    fault = held.take("another", LARGE)
    assert fault is not None
    assert (fault.kind, fault.retryable) == (Kind.OVERLOADED, True)
    held.give_back("p0", LARGE)
    assert held.take("another", LARGE) is None


def test_small_messages_pass_where_large_ones_do_not() -> None:
    held = budget()
    for n in range(8):
        held.take(f"p{n}", LARGE)
    assert held.take("p0", SMALL + 1) is not None
    assert held.take("p0", SMALL) is None


def test_small_messages_are_bounded_too() -> None:
    held = budget()
    taken = 0
    while held.take("a", SMALL) is None:
        taken += SMALL
    assert taken == 10 * MIB


def test_the_first_message_of_all_passes_whatever_the_limits_say() -> None:
    held = MemoryBudget(MemoryLimits(total=10, per_principal=1))
    assert held.take("a", 100) is None
    assert held.take("a", 1) is not None
    assert held.take("b", 10) is not None


def test_a_large_message_needs_free_memory_and_a_small_one_is_not_asked() -> None:
    held = budget(free=EXPANSION * LARGE)
    assert held.take("a", LARGE + 1) is not None
    assert held.take("a", LARGE) is None
    assert held.take("b", SMALL + 1) is not None
    assert held.take("b", SMALL) is None


def test_nothing_is_left_of_what_was_given_back() -> None:
    held = budget()
    held.add("a", 5)
    held.add("a", 7)
    held.give_back("a", 5)
    held.give_back("a", 7)
    assert (held.held, held._by.get("a", 0), held._by) == (0, 0, {})


def test_those_who_wait_are_served_in_order_and_hold_up_nobody() -> None:
    held = budget()
    served: list[str] = []
    for principal in ("a", "a", "b", "b", "c", "c", "d", "d"):
        held.take(principal, LARGE)
    for name, principal, size in (("big", "e", 2 * LARGE), ("first", "a", LARGE), ("second", "e", LARGE)):
        assert held.wait(principal, size, lambda name=name: served.append(name)) is not None
    held.give_back("b", LARGE)
    assert served == ["second"]
    held.give_back("a", LARGE)
    assert served == ["second", "first"]
    assert held.held == 32 * MIB


def test_only_so_many_wait_and_one_that_gave_up_takes_nothing() -> None:
    held = budget()
    held.add("a", 8 * MIB)
    waiting = [held.wait("a", 1, lambda: pytest.fail("served")) for _ in range(MOST_WAITING)]
    assert held.wait("a", 1, lambda: None) is None
    for one in waiting:
        assert one is not None
        held.forget(one)
    held.give_back("a", 8 * MIB)
    assert (held.held, held.waiting) == (0, 0)


def test_a_connection_is_called_once_when_its_principal_has_room_again() -> None:
    held = budget()
    called: list[str] = []
    held.add("a", 9 * MIB)
    held.when_room("a", lambda: called.append("a"))
    held.add("b", 1)
    held.give_back("b", 1)
    assert called == []
    held.give_back("a", 2 * MIB)
    held.give_back("a", 2 * MIB)
    assert called == ["a"]

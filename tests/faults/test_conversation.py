"""Conversations under a simulated clock, network and disk. `make soak` runs many more of them."""

from __future__ import annotations

import os
from collections.abc import Mapping

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.faults.conversation import WEIGHTS, converse
from tests.faults.spoiling import spoil

from dragoman.core.delivery import direct_messages
from dragoman.core.model.deliveries import Delivery
from dragoman.stores.memory import MemoryStore

OUTBOX = "dragoman.core.delivery"
SEEDS = int(os.environ.get("SEEDS", "20000"))
BLOCKS = 10
"""Small enough to be shared out evenly among the cores of a machine."""


def hold(seeds: range) -> None:
    for seed in seeds:
        try:
            converse(seed)
        except BaseException as error:
            raise AssertionError(f"seed {seed}: {error}") from error


@pytest.mark.parametrize("block", range(4))
def test_direct_messages_keep_their_promises_whatever_breaks(block):
    hold(range(block * 15, block * 15 + 15))


@settings(max_examples=20, suppress_health_check=list(HealthCheck), deadline=None)
@given(script=st.lists(st.integers(0, len(WEIGHTS) - 1), min_size=5, max_size=60), seed=st.integers(0, 1000))
def test_no_inversion_no_loss_no_double_whatever_happens(script, seed):
    """The same, with what is done drawn so that a failure is shrunk to the few steps that matter."""
    converse(seed, script=script)


def test_what_a_decision_makes_is_not_looked_for_in_the_store():
    """A helper is removed, the next one gets the help as a task, and is gone, too: all in one decision. The task has
    another id each time it is run, so one that asked the store for the task's lane was run for ever."""
    hold(range(701132, 701133))


def test_help_that_gets_its_turn_when_other_help_is_called_off_leaves_nothing_behind():
    """Both were for the same task, and it ended: the second was given out and called off in one decision, by what the
    store knew of it, and its assignment stayed for ever."""
    hold(range(1090, 1091))


@pytest.mark.soak
@pytest.mark.parametrize("block", range(BLOCKS))
def test_many_conversations(block):
    hold(range(block, SEEDS, BLOCKS))


def caught(seeds: int = 80) -> bool:
    """Whether the witness notices that something is wrong with the hub."""
    for seed in range(seeds):
        try:
            converse(seed)
        except AssertionError:  # `Violation` is one
            return True
    return False


def test_a_hub_that_keeps_what_may_leave_once_is_caught(monkeypatch):
    monkeypatch.setattr(Delivery, "leaves_once", False)
    assert caught()


def test_a_hub_that_forgets_what_left_once_when_it_dies_is_caught(monkeypatch):
    async def nothing(store: MemoryStore, letters: Mapping[str, str]) -> None: ...

    monkeypatch.setattr(MemoryStore, "note", nothing)
    assert caught()


def test_a_hub_that_sends_more_than_the_head_of_a_lane_is_caught(monkeypatch):
    spoil(monkeypatch, OUTBOX, "converses", lambda work, agent: False)
    assert caught()


def test_a_hub_that_lets_messages_overtake_in_their_lane_is_caught(monkeypatch):
    honest = direct_messages.put_on_its_way
    monkeypatch.setattr(direct_messages, "put_on_its_way", lambda work, delivery, before: honest(work, delivery, ()))
    assert caught()


def test_a_hub_that_forgets_a_kept_message_when_it_leaves_is_caught(monkeypatch):
    monkeypatch.setattr(Delivery, "leaves_once", property(lambda delivery: delivery.direct_message is not None))
    assert caught()


def test_the_same_seed_gives_the_same_conversation():
    def trace(seed):
        seen = converse(seed).witness
        return dict(seen.seen), {name: list(line) for name, line in seen.lanes.items()}

    assert trace(11) == trace(11)
    assert msgspec.json.encode(trace(11)[0]) != msgspec.json.encode(trace(12)[0])

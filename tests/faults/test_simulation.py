"""Deterministic simulation: seeds that fail are printed by their test id. `make soak` runs a hundred thousand."""

from __future__ import annotations

import os
from collections.abc import Sequence

import msgspec
import pytest
from tests.faults.simulation import BUSY_LANES, WEIGHTS, simulate, trace
from tests.faults.spoiling import spoil
from tests.support.heads import task_head

from dragoman.app.intake import Intake
from dragoman.core.commands import Submit
from dragoman.core.model.tasks import Origin, Status, Task
from dragoman.core.work import Work

OUTBOX = "dragoman.core.delivery"
SEEDS = int(os.environ.get("SEEDS", "100000"))
BLOCKS = 20
"""Small enough to be shared out evenly among the cores of a machine."""


def hold(seeds: range, weights: Sequence[int] = WEIGHTS) -> None:
    for seed in seeds:
        try:
            simulate(seed, weights=weights)
        except BaseException as error:
            raise AssertionError(f"seed {seed}: {error}") from error


@pytest.mark.parametrize("block", range(8))
def test_nothing_acknowledged_is_lost_whatever_breaks(block):
    hold(range(block * 12, block * 12 + 12))


def test_lanes_keep_their_order_over_connections_that_come_and_go():
    hold(range(30), BUSY_LANES)


def test_the_same_seed_gives_the_same_trace():
    assert trace(simulate(7)) == trace(simulate(7))


@pytest.mark.soak
@pytest.mark.parametrize("block", range(BLOCKS))
def test_a_hundred_thousand_seeds(block):
    hold(range(block, SEEDS, BLOCKS))


def caught(seeds: int = 60, weights=WEIGHTS) -> bool:
    """Whether the checker notices that something is wrong with the hub."""
    for seed in range(seeds):
        try:
            simulate(seed, weights=weights)
        except AssertionError:  # `Violation` is one
            return True
    return False


def test_a_hub_that_acknowledges_before_it_commits_is_caught(monkeypatch):
    honest = Intake._unit

    async def hasty(self, batch):
        """Say "accepted" first, and only then try to commit."""
        told = []
        for command, then in batch:
            if isinstance(command, Submit) and then is not None:
                then(promised(command), None)
                then = None
            told.append((command, then))
        await honest(self, told)

    monkeypatch.setattr(Intake, "_unit", hasty)
    assert caught()


def test_a_hub_that_sends_before_it_commits_is_caught(monkeypatch):
    honest = Work.changes

    def hasty(work):
        changes = honest(work)
        if work.outgoing_messages:
            intakes[-1]._send(work.outgoing_messages)
            work.outgoing_messages.clear()
        return changes

    intakes = []
    begun = Intake.start

    async def start(intake):
        intakes.append(intake)
        await begun(intake)

    monkeypatch.setattr(Intake, "start", start)
    monkeypatch.setattr(Work, "changes", hasty)
    assert caught()


def promised(command):
    """A task as a hub would describe it that has not stored it yet."""
    origin = Origin(principal=command.principal, protocol="x", request_id=command.request_id, digest="")
    times = {"created_at": 0, "updated_at": 0, "deadline": 0, "idle_limit": 0, "rank": 0}
    return task_head(
        id=command.task_id, type=command.type, status=Status.QUEUED, route="", trace_id="", origin=origin, **times
    )


def test_a_hub_that_ignores_the_lane_is_caught(monkeypatch):
    def careless(work, delivery, before):
        return next((link for link in work.links_to(delivery.receiver) if link.has_room), None)

    spoil(monkeypatch, OUTBOX, "way_out", careless)
    assert caught(200, BUSY_LANES)


def test_a_hub_that_forgets_to_release_leases_is_caught(monkeypatch):
    spoil(monkeypatch, OUTBOX, "held", lambda work, delivery: delivery.state == "leased")
    assert caught()


def test_a_hub_that_forgets_what_was_acknowledged_is_caught(monkeypatch):
    spoil(monkeypatch, OUTBOX, "settle", lambda work, delivery, ordered=False: None)
    assert caught()


def test_a_hub_that_leaves_a_task_without_a_clock_is_caught(monkeypatch):
    honest = Work.put

    def careless(work, row):
        """Nothing looks at a running task again."""
        if isinstance(row, Task) and row.status is Status.RUNNING:
            row = msgspec.structs.replace(row, wake_at=None)
        honest(work, row)

    monkeypatch.setattr(Work, "put", careless)
    with pytest.raises(AssertionError, match="nothing would ever end that"):
        hold(range(20))

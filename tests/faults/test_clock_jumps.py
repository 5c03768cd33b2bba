"""Somebody sets the clock: nothing is early, nothing is late, nobody's lease is lost."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from tests.support.chiffon import kinds, task_of, work_result
from tests.support.hubproc import running, until
from tests.support.world import World

from dragoman.app.clock import Mint, SystemClock
from dragoman.core.ids import HOUR, SECOND, Instant
from dragoman.core.model.agents import BreakerState
from dragoman.core.model.tasks import Status
from dragoman.messages.faults import Kind

DAY = 24 * HOUR
SECOND_NS = 10**9


class Machine:
    """Its wall clock, which may be set or go wrong, and its steady one. In nanoseconds."""

    def __init__(self) -> None:
        self.steady, self.wall = 5_000 * SECOND_NS, 1_800_000_000 * SECOND_NS
        self.told: list[int] = []
        self.clock = SystemClock(self.told.append, wall=lambda: self.wall, steady=lambda: self.steady)

    def goes_on(self, seconds: float, wall_seconds: float | None = None, *, looks: int = 1000) -> list[Instant]:
        """What the hub's clock said meanwhile."""
        told = []
        for _ in range(looks):
            self.steady += int(seconds * SECOND_NS) // looks
            self.wall += int((seconds if wall_seconds is None else wall_seconds) * SECOND_NS) // looks
            told.append(self.clock())
        return told

    @property
    def wrong(self) -> int:
        """By how many microseconds the hub's clock is behind the wall."""
        return self.wall // 1000 - self.clock()


@pytest.mark.parametrize("jump", [DAY, -DAY, 365 * DAY, 30 * SECOND, -30 * SECOND])
def test_the_hubs_clock_does_not_follow_a_jump(jump: int) -> None:
    machine = Machine()
    before = machine.clock()
    machine.wall += jump * 1000
    assert machine.clock() == before
    told = machine.goes_on(60)
    assert told == sorted(told)
    assert 59.4 * SECOND <= told[-1] - before <= 60.6 * SECOND  # it steers there, by a hundredth


@pytest.mark.parametrize("jump", [30 * SECOND, -30 * SECOND])
def test_the_hubs_clock_is_where_the_wall_is_in_time(jump: int) -> None:
    machine = Machine()
    machine.wall += jump * 1000
    machine.goes_on(3100)
    assert machine.wrong == 0


@pytest.mark.parametrize("pace", [0.995, 1.005], ids=["slow", "fast"])
@pytest.mark.parametrize("looks", [1, 100_000], ids=["idle", "busy"])
def test_a_hub_that_runs_for_months_agrees_with_everybody_on_the_time(pace: float, looks: int) -> None:
    """The steady clock and the wall part by half a hundredth: after a day that would be seven minutes, and every a2acp
    message too old or too new."""
    machine = Machine()
    machine.goes_on(30 * 86_400, 30 * 86_400 * pace, looks=looks)
    assert abs(machine.wrong) < 1000


def test_a_clock_that_is_set_by_more_than_a_minute_is_logged_once() -> None:
    machine = Machine()
    machine.goes_on(60)
    machine.wall += 50 * SECOND_NS
    machine.goes_on(60)
    assert machine.told == []
    machine.wall -= 3600 * SECOND_NS
    machine.goes_on(60)
    assert machine.told == [-3551]


def test_ids_keep_growing_over_a_jump_back_and_a_restart_of_the_clock() -> None:
    machine = Machine()
    mint = Mint(machine.clock)
    ids = [mint() for _ in range(1000)]
    machine.wall -= 3600 * SECOND_NS
    ids += [mint() for _ in range(1000)]
    assert ids == sorted(ids)
    assert len(set(ids)) == len(ids)


def test_ids_keep_growing_under_a_clock_that_goes_back() -> None:
    times = iter([5_000_000, 3_000_000, 3_000_001, 5_001_000])
    ids = [mint() for mint in [Mint(lambda: Instant(next(times)))] for _ in range(4)]
    assert ids == sorted(set(ids))


@pytest.mark.parametrize("jump", [HOUR, -HOUR])
async def test_leases_and_retries_are_unaffected_by_a_jump_while_the_hub_runs(
    jump: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The world's clock is the hub's clock (monotonic): the wall's jump does not reach it, so its times hold."""
    world = await World().start()
    await world.add("boss", "orchestrator")
    await world.add("i1", "infra")
    agent = await world.connect("i1")
    task = await world.submit()
    real = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: real() + jump * 1000)
    await world.advance(29)
    assert (await world.task(task.id)).status is Status.ASSIGNED  # not early
    await world.advance(2)
    retried = await world.task(task.id)
    assert retried.outcome.fault is not None
    assert retried.outcome.fault.kind is Kind.TIMEOUT  # and not late
    await world.advance(2)
    assert (await world.task(task.id)).attempt.count == 2
    assert [p.delivery.task for p in agent.take()] == [task.id, task.id]


WALL = """
import os, time

def ahead():
    try:
        return int(open(os.environ["WALL"]).read())
    except FileNotFoundError:
        return 0

seconds, nanoseconds = time.time, time.time_ns
time.time = lambda: seconds() + ahead()
time.time_ns = lambda: nanoseconds() + ahead() * 10**9
"""
"""A `sitecustomize` under which the wall clock of a whole process is set by writing a file."""


@pytest.mark.parametrize("ahead", [86_400, -86_400], ids=["ahead", "back"])
def test_a_real_hubs_leases_end_neither_early_nor_late_when_its_clock_is_set(tmp_path: Path, ahead: int) -> None:
    (tmp_path / "sitecustomize.py").write_text(WALL)
    settings = {"PYTHONPATH": str(tmp_path), "WALL": str(tmp_path / "wall"), "DRAGOMAN_RULES__IDLE_SECONDS": "600"}
    with running(tmp_path / "home", wrap=("env",), **settings) as hub:
        boss, worker = hub.orchestrator(), hub.worker()
        done, _ = boss.submit()
        assert worker.send(work_result(worker.work())).status == 202
        under_way, _ = boss.submit()
        work = worker.work()
        (told,) = boss.poll(wait=60)  # and not acknowledged: its lease is short
        (tmp_path / "wall").write_text(str(ahead))
        (again,) = until(boss.poll, "the same again when its lease has ended: not a day late")
        assert "this machine's clock was set" in hub.log.read_text()
        boss.ack(again)
        assert again["message"] == told["message"]
        assert task_of(again["message"]) == task_of(done)
        task = hub.task(task_of(under_way))
        assert (task["status"], task["attempts"]) == ("assigned", 1)  # not a day early
        assert worker.send(work_result(work)).status == 202
        assert kinds(boss.take()) == ["work_result"]
        assert hub.pending == 0


@pytest.mark.parametrize("jump", [HOUR, -HOUR])
async def test_a_jump_during_a_restart_moves_due_times_once_and_loses_nothing(jump: int) -> None:
    """What was written before a restart is compared with the wall clock after it: a task may be retried early or
    late by the jump, but it is there, and its agent gets the full idle time before it is blamed."""
    world = await World().start()
    await world.add("boss", "orchestrator")
    await world.add("i1", "infra")
    await world.connect("i1")
    task = await world.submit(total_seconds=3 * 3600)
    world.time = type(world.time)(world.time + jump)
    await world.restart()
    await world.connect("i1")
    await world.advance(1)
    assert (await world.task(task.id)).status is Status.ASSIGNED
    await world.finish("i1", task.id)
    assert (await world.task(task.id)).status is Status.COMPLETED


@pytest.mark.parametrize("jump", [HOUR, -HOUR])
async def test_an_agent_that_is_not_back_yet_has_its_time_after_a_restart_whatever_the_clock_says(jump: int) -> None:
    world = await World().start()
    await world.add("boss", "orchestrator")
    await world.add("i1", "infra")
    await world.connect("i1")
    task = await world.submit(total_seconds=3 * 3600)
    await world.progress("i1", task.id)
    world.time = type(world.time)(world.time + jump)
    await world.restart()
    await world.advance(29)
    assert (await world.task(task.id)).status is Status.RUNNING


async def test_a_frozen_hub_reads_what_was_sent_meanwhile_and_recovers() -> None:
    """SIGSTOP: its clock went on and nothing else. All agents seem silent, so five tasks open a breaker; their results
    wait in sockets and count, and the breaker is half open a minute later."""
    world = await World().start()
    await world.add("boss", "orchestrator")
    await world.add("i1", "infra")
    agent = await world.connect("i1")
    tasks = [await world.submit() for _ in range(5)]
    given = agent.take()
    world.time = type(world.time)(world.time + HOUR // 2)
    await world.settle()
    assert world.intake.agent(agent.agent).breaker.state is BreakerState.OPEN
    for outgoing in given:
        await world.finish("i1", outgoing.delivery.task)
    assert [((await world.task(task.id)).status, (await world.task(task.id)).attempt.count) for task in tasks] == [
        (Status.COMPLETED, 1)
    ] * 5
    await world.advance(60)
    (probe,) = agent.take()
    assert probe.task.type == "health_check"
    await world.finish("i1", probe.task.id)
    assert world.intake.agent(agent.agent).breaker.state is BreakerState.CLOSED


def test_a_real_frozen_hub_reads_what_was_sent_meanwhile(tmp_path: Path) -> None:
    with running(tmp_path, DRAGOMAN_RULES__IDLE_SECONDS="2") as hub:
        boss, worker = hub.orchestrator(), hub.worker()
        with worker.websocket() as link:
            request, _ = boss.submit()
            work = link.recv()
            os.kill(hub.pid, signal.SIGSTOP)
            end = time.monotonic() + 3
            link.send(work_result(work, output="said to nobody"))
            until(lambda: time.monotonic() > end, "longer than an agent may be silent")
            os.kill(hub.pid, signal.SIGCONT)
            (told,) = boss.take()
        assert (told["type"], told["payload"]["output"]) == ("work_result", "said to nobody")
        assert hub.status(task_of(request)) == "completed"
        assert boss.poll() == []
        until(lambda: hub.pending == 0, "nothing is pending")


async def test_what_a_hub_that_stood_still_gave_to_another_agent_is_fenced_off() -> None:
    world = await World().start()
    await world.add("boss", "orchestrator")
    await world.add("i1", "infra")
    first = await world.connect("i1")
    task = await world.submit()
    assert first.work == [task.id]
    await first.close()
    await world.add("i2", "infra")
    second = await world.connect("i2")
    await world.advance(30)
    assert second.work == [task.id]
    assert (await world.refused_finish("i1", task.id)).kind is Kind.NOT_FOUND
    await world.finish("i2", task.id)
    assert (await world.task(task.id)).status is Status.COMPLETED

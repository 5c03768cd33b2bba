"""Reports on their way in: order kept, text put together, nothing lost, never more than the bound."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from dragoman.core.commands import Command, Finish, ReportProgress
from dragoman.core.ids import AgentId, TaskId
from dragoman.core.memory import MemoryBudget, MemoryLimits
from dragoman.messages.faults import Fault, Kind, Refused
from dragoman.server.coven.reports import Reports

TASK = TaskId("t1")
THEN = Callable[[Any, Refused | None], None]


class SlowHub:
    """Holds what is handed in until it is told to commit."""

    def __init__(self) -> None:
        self.memory = MemoryBudget()
        self.held: list[tuple[Command, THEN]] = []
        self.seen: list[Command] = []

    def enqueue_then(self, command: Command, then: THEN) -> None:
        self.seen.append(command)
        self.held.append((command, then))

    def commit(self, most: int = 1_000_000, refusal: Refused | None = None) -> None:
        now, self.held = self.held[:most], self.held[most:]
        for _, then in now:
            then(None, refusal)


def reports(hub: SlowHub, refused: list[Any] | None = None, **limits: int) -> Reports:
    given = {"unanswered": 256, "pending_bytes": 1000} | limits
    heard = [] if refused is None else refused
    return Reports(hub, AgentId("a"), refused=lambda command, why: heard.append((command, why)), **given)  # type: ignore[arg-type]


def barrier(name: str) -> Finish:
    return Finish(principal=AgentId("a"), task_id=TASK, digest=name)


def story(hub: SlowHub) -> list[str]:
    return [one.output if isinstance(one, ReportProgress) else one.digest for one in hub.seen]  # type: ignore[attr-defined]


async def test_text_that_comes_while_text_is_committed_goes_in_as_one() -> None:
    hub = SlowHub()
    way = reports(hub)
    for piece in "abcd":
        way.text(TASK, piece)
    assert story(hub) == ["a"]
    hub.commit()
    assert story(hub) == ["a", "bcd"]
    hub.commit()
    way.text(TASK, "e")
    assert story(hub) == ["a", "bcd", "e"]
    assert msgspec.to_builtins(hub.seen[1].content) == {"status": "running", "output": "bcd"}  # type: ignore[attr-defined]


async def test_anything_else_is_a_barrier_and_waits_for_nobody() -> None:
    hub = SlowHub()
    way = reports(hub)
    way.text(TASK, "a")
    way.text(TASK, "b")
    way.other(barrier("|"))
    way.text(TASK, "c")
    way.text(TaskId("t2"), "d")
    assert story(hub) == ["a", "b", "|", "c"]
    hub.commit()
    assert story(hub) == ["a", "b", "|", "c", "d"]


async def test_too_much_under_way_stops_the_reading_until_there_is_room() -> None:
    hub = SlowHub()
    way = reports(hub, unanswered=3)
    for number in range(3):
        way.other(barrier(str(number)))
    waiting = asyncio.ensure_future(way.room())
    await asyncio.sleep(0)
    assert not waiting.done()
    hub.commit(1)
    await asyncio.wait_for(waiting, 60)
    way.text(TASK, "a")
    way.text(TASK, "b" * 1000)
    waiting = asyncio.ensure_future(way.room())
    await asyncio.sleep(0)
    assert not waiting.done()
    hub.commit()
    await asyncio.wait_for(waiting, 60)


async def test_settled_waits_for_every_outcome() -> None:
    hub = SlowHub()
    way = reports(hub)
    way.text(TASK, "a")
    way.text(TASK, "b")
    settling = asyncio.ensure_future(way.settled())
    await asyncio.sleep(0)
    assert story(hub) == ["a", "b"]
    hub.commit(1)
    await asyncio.sleep(0)
    assert not settling.done()
    hub.commit()
    await asyncio.wait_for(settling, 60)


async def test_a_refusal_comes_back_with_its_report() -> None:
    hub = SlowHub()
    refused: list[Any] = []
    way = reports(hub, refused)
    way.text(TASK, "a")
    way.text(TASK, "b")
    no = Refused(Fault(kind=Kind.CONFLICT, message="over"))
    hub.commit(refusal=no)
    hub.commit()
    assert [(command.output, why) for command, why in refused] == [("a", no)]
    assert story(hub) == ["a", "b"]


@given(st.lists(st.tuples(st.sampled_from(["text", "other", "commit"]), st.integers(1, 3)), max_size=60))
def test_whatever_the_pace_the_order_is_kept_and_nothing_is_lost(steps: list[tuple[str, int]]) -> None:
    async def run() -> None:
        hub = SlowHub()
        way = reports(hub)
        said = ""
        for number, (what, amount) in enumerate(steps):
            if what == "text":
                said += f"<{number}>"
                way.text(TASK, f"<{number}>")
            elif what == "other":
                said += f"|{number}|"
                way.other(barrier(f"|{number}|"))
            else:
                hub.commit(amount)
        way.flush()
        while hub.held:
            hub.commit()
        await asyncio.wait_for(way.settled(), 60)
        assert "".join(story(hub)) == said

    asyncio.run(run())


async def test_a_stream_is_read_no_further_while_the_hub_holds_too_much_of_its_agent() -> None:
    hub = SlowHub()
    hub.memory = MemoryBudget(MemoryLimits(per_principal=1000))
    way = reports(hub)
    way.other(barrier("|"), 600)
    way.text(TASK, "x" * 400)
    assert hub.memory._by.get("a", 0) == 1000
    waiting = asyncio.ensure_future(way.room())
    await asyncio.sleep(0)
    assert not waiting.done()
    hub.commit(1)
    await asyncio.wait_for(waiting, 60)
    hub.commit()
    assert hub.memory.held == 0

"""The connection loop: order kept, text joined, nothing lost, never more than the bound."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, cast
from uuid import uuid4

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from dragoman.core.commands import Command, Finish, ReportProgress
from dragoman.core.ids import AgentId, SessionId, TaskId
from dragoman.core.memory import MemoryBudget, MemoryLimits
from dragoman.messages.faults import Fault, Kind, Refused
from dragoman.server.connection import ConnectionLoop
from dragoman.server.coven.inbound import text_of
from dragoman.server.session import CommandFrame, Decoded, Piece, Request

TASK = TaskId("t1")
THEN = Callable[[Any, Refused | None], None]


class SlowHub:
    """Holds what is handed in until it is told to commit."""

    def __init__(self) -> None:
        self.memory = MemoryBudget()
        self.held: list[tuple[Command, THEN]] = []
        self.seen: list[Command] = []

    def agent(self, id: AgentId) -> str:
        return id

    def enqueue_then(self, command: Command, then: THEN) -> None:
        self.seen.append(command)
        self.held.append((command, then))

    def commit(self, most: int = 1_000_000, refusal: Refused | None = None) -> None:
        now, self.held = self.held[:most], self.held[most:]
        for _, then in now:
            then(None, refusal)


class FakeSession:
    protocol = "coven"

    def __init__(self) -> None:
        self.refused: list[tuple[Any, Kind]] = []

    def writable(self) -> None: ...

    def closed(self) -> None: ...

    def decode(self, agent: Any, frame: Any) -> Decoded:
        return cast(Decoded, frame)

    def encode_answer(self, command: Command, request: Request, outcome: Any, agent: Any) -> tuple[bytes, ...]:
        return ()

    def encode_refusal(self, fault: Fault, context: Any, agent: Any) -> bytes:
        self.refused.append((context, fault.kind))
        return b""


class FakeWire:
    has_room = True
    reads = True

    def write(self, frames: Sequence[bytes]) -> None: ...

    def ping(self) -> None: ...

    def stop_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True


class Way:
    """A connection loop, and what its peer sends."""

    def __init__(self, hub: SlowHub, **limits: int) -> None:
        self.session, self.wire = FakeSession(), FakeWire()
        given: dict[str, Any] = {"unanswered": 256, "joined_bytes": 1000} | limits
        self.loop = ConnectionLoop(
            hub,  # type: ignore[arg-type]
            AgentId("a"),
            SessionId("s"),
            lambda connection: self.session,  # type: ignore[arg-type, return-value]
            self.wire,
            hang_up=lambda reason: None,
            **given,
        )

    def text(self, task: TaskId, text: str) -> None:
        def command(joined: str) -> Command:
            return text_of(AgentId("a"), task, joined)

        self.loop._act(Piece(task, text, command, Request(uuid4().hex, text, lane="stream")))

    def other(self, command: Command, size: int = 0) -> None:
        self.loop._act(CommandFrame(command, Request(uuid4().hex, command, lane="stream")), size)


def barrier(name: str) -> Finish:
    return Finish(principal=AgentId("a"), task_id=TASK, digest=name)


def history(hub: SlowHub) -> list[str]:
    return [one.output if isinstance(one, ReportProgress) else one.digest for one in hub.seen]  # type: ignore[attr-defined]


async def test_text_that_comes_while_text_is_committed_goes_in_as_one() -> None:
    hub = SlowHub()
    way = Way(hub)
    for piece in "abcd":
        way.text(TASK, piece)
    assert history(hub) == ["a"]
    hub.commit()
    assert history(hub) == ["a", "bcd"]
    hub.commit()
    way.text(TASK, "e")
    assert history(hub) == ["a", "bcd", "e"]
    assert msgspec.to_builtins(hub.seen[1].content) == {"status": "running", "output": "bcd"}  # type: ignore[attr-defined]


async def test_anything_else_is_a_barrier_and_waits_for_nobody() -> None:
    hub = SlowHub()
    way = Way(hub)
    way.text(TASK, "a")
    way.text(TASK, "b")
    way.other(barrier("|"))
    way.text(TASK, "c")
    way.text(TaskId("t2"), "d")
    assert history(hub) == ["a", "b", "|", "c"]
    hub.commit()
    assert history(hub) == ["a", "b", "|", "c", "d"]


async def test_too_much_under_way_stops_the_reading_until_there_is_room() -> None:
    hub = SlowHub()
    way = Way(hub, unanswered=3)
    for number in range(3):
        way.other(barrier(str(number)))
    assert not way.wire.reads
    hub.commit()
    assert way.wire.reads
    way.text(TASK, "a")
    way.text(TASK, "b" * 1000)
    assert not way.wire.reads
    hub.commit()
    assert way.wire.reads


async def test_draining_waits_for_every_outcome() -> None:
    hub = SlowHub()
    way = Way(hub)
    way.text(TASK, "a")
    way.text(TASK, "b")
    settling = asyncio.ensure_future(way.loop.drain())
    await asyncio.sleep(0)
    assert history(hub) == ["a", "b"]
    hub.commit(1)
    await asyncio.sleep(0)
    assert not settling.done()
    hub.commit()
    await asyncio.wait_for(settling, 60)


async def test_a_refusal_comes_back_with_its_report() -> None:
    hub = SlowHub()
    way = Way(hub)
    way.text(TASK, "a")
    way.text(TASK, "b")
    no = Refused(Fault(kind=Kind.CONFLICT, message="over"))
    hub.commit(refusal=no)
    hub.commit()
    assert way.session.refused == [("a", Kind.CONFLICT)]
    assert history(hub) == ["a", "b"]


@given(st.lists(st.tuples(st.sampled_from(["text", "other", "commit"]), st.integers(1, 3)), max_size=60))
def test_whatever_the_pace_the_order_is_kept_and_nothing_is_lost(steps: list[tuple[str, int]]) -> None:
    async def run() -> None:
        hub = SlowHub()
        way = Way(hub)
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
        way.loop._flush_pieces()
        while hub.held:
            hub.commit()
        await asyncio.wait_for(way.loop.drain(), 60)
        assert "".join(history(hub)) == said

    asyncio.run(run())


async def test_a_connection_is_read_no_further_while_the_hub_holds_too_much_of_its_agent() -> None:
    hub = SlowHub()
    hub.memory = MemoryBudget(MemoryLimits(per_principal=10_000))
    way = Way(hub)
    way.other(barrier("|"), 6000)
    way.text(TASK, "x" * 5000)
    assert hub.memory._by.get("a", 0) == 11_000
    assert not way.wire.reads
    hub.commit(1)
    assert way.wire.reads
    hub.commit()
    assert hub.memory.held == 0

"""A child's streams on a real event loop: bounded, paced, never waited for. The pipes are real; we are the child."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Callable

import pytest

from dragoman.supervisor import pipes
from dragoman.supervisor.pipes import ROOM, OutputPipe, StdinPipe, ThrottledPipes
from dragoman.wire.framing import Line, Overlong

PATIENCE = 60.0


class Receiver:
    """An outlet and what it took."""

    def __init__(self, cost: float = pipes.LINE, ready: Callable[[Line], bool] | None = None) -> None:
        self.source, self.end = os.pipe()
        self.lines: list[Line] = []
        self.throttled = ThrottledPipes()
        self.cost = cost
        self.outlet = OutputPipe(self.source, self._take, throttled=self.throttled, ready=ready)
        self.outlet.begin()

    def _take(self, line: Line) -> float:
        self.lines.append(line)
        return self.cost

    def pour(self, data: bytes, times: int = 1) -> threading.Thread:
        """Print from a thread, as a child would: it waits when the pipe is full."""

        def run() -> None:
            try:
                for _ in range(times):
                    view = memoryview(data)
                    while view:
                        view = view[os.write(self.end, view) :]
            except OSError:
                pass  # nobody listens any more
            finally:
                os.close(self.end)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        return thread

    async def ended(self) -> list[Line]:
        async with asyncio.timeout(PATIENCE):
            await self.outlet.ended
        return self.lines


async def test_lines_arrive_whole_and_in_order_whatever_the_pieces() -> None:
    receiver = Receiver()
    receiver.pour(b"".join(b"line %d\r\n" % n for n in range(3000)) + b"\n\nlast without an end")
    assert await receiver.ended() == [b"line %d" % n for n in range(3000)] + [b"last without an end"]
    assert receiver.throttled.resting == 0


async def test_a_hundred_megabytes_without_a_newline_cost_no_memory_and_little_time() -> None:
    receiver = Receiver()
    thread = receiver.pour(b"x" * 65536, 1600)
    async with asyncio.timeout(PATIENCE):
        while receiver.outlet.rests < 5:  # it is held back already
            await asyncio.sleep(0)
    assert thread.is_alive()  # it waits for us, not we for it
    assert receiver.throttled.resting == 1
    receiver.outlet.close()
    assert receiver.throttled.resting == 0
    assert receiver.lines == []
    await asyncio.to_thread(thread.join, PATIENCE)


async def test_an_overlong_line_is_reported_by_its_length_and_the_next_is_read() -> None:
    receiver = Receiver()
    receiver.pour(b"y" * (3 << 20) + b"\nafter\n")
    assert await receiver.ended() == [Overlong(3 << 20), b"after"]


async def test_a_million_lines_do_not_hold_up_others() -> None:
    """Turns of the loop are short: a bounded number of lines is handed on in each."""
    receiver = Receiver()
    receiver.pour(b"a\n" * 100_000, 10)
    turns, most = 0, 0
    async with asyncio.timeout(PATIENCE):
        while receiver.outlet.rests < 3:
            before = len(receiver.lines)
            await asyncio.sleep(0)
            most = max(most, len(receiver.lines) - before)
            turns += 1
    assert most <= 2 * 128
    assert turns > 100
    receiver.outlet.close()


async def test_no_line_is_taken_while_stopped_and_none_is_lost() -> None:
    receiver = Receiver()
    receiver.outlet.stop()
    receiver.pour(b"one\ntwo\n")
    for _ in range(20):
        await asyncio.sleep(0.001)
    assert receiver.lines == []
    receiver.outlet.resume()
    assert await receiver.ended() == [b"one", b"two"]


async def test_a_line_that_is_not_wanted_yet_waits_and_so_do_those_behind_it() -> None:
    open_to_all = False
    receiver = Receiver(ready=lambda line: open_to_all or line != b"request")
    receiver.pour(b"before\nrequest\nbehind\n")
    async with asyncio.timeout(PATIENCE):
        while not receiver.lines:
            await asyncio.sleep(0.001)
    for _ in range(20):
        await asyncio.sleep(0.001)
    assert receiver.lines == [b"before"]
    open_to_all = True
    receiver.outlet.look_again()
    assert await receiver.ended() == [b"before", b"request", b"behind"]


async def test_many_who_drown_us_share_what_one_would_get() -> None:
    throttled = ThrottledPipes()
    assert throttled.factor == 1.0
    throttled.resting = 40
    assert throttled.factor == 10.0


# -- stdin


class Mouth:
    def __init__(self) -> None:
        self.end, target = os.pipe()
        os.set_blocking(self.end, False)
        self.drained = asyncio.Event()
        self.arrived = asyncio.Event()
        self.inlet = StdinPipe(target, drained=self.drained.set, arrived=self.arrived.set)

    def read(self, most: int = 1 << 20) -> bytes:
        try:
            return os.read(self.end, most)
        except BlockingIOError:
            return b""


@pytest.fixture
async def mouth() -> AsyncIterator[Mouth]:
    mouth = Mouth()
    yield mouth
    mouth.inlet.close()
    os.close(mouth.end)


async def test_every_message_is_a_line(mouth: Mouth) -> None:
    mouth.inlet.write([b"a", b"b\n"])
    mouth.inlet.write([])
    assert mouth.read() == b"a\nb\n"


async def test_a_child_that_never_reads_has_no_room_and_nobody_waits(mouth: Mouth) -> None:
    line = b"z" * 10_000
    while mouth.inlet.has_room:
        mouth.inlet.write([line])
    assert ROOM <= mouth.inlet.unwritten <= ROOM + len(line) + 1
    assert not mouth.drained.is_set()
    read = 0
    async with asyncio.timeout(PATIENCE):
        while not mouth.drained.is_set():
            read += len(mouth.read(4096))
            await asyncio.sleep(0)
        while mouth.inlet.unwritten:
            read += len(mouth.read())
            await asyncio.sleep(0)
    assert mouth.inlet.has_room


async def test_what_was_written_has_arrived_when_the_child_has_read_it(mouth: Mouth) -> None:
    mouth.inlet.write([b"work"])
    mouth.inlet.mark()
    for _ in range(30):
        await asyncio.sleep(0.001)
    assert not mouth.arrived.is_set()  # it lies in the pipe
    mouth.read()
    async with asyncio.timeout(PATIENCE):
        await mouth.arrived.wait()


async def test_a_child_that_closed_its_stdin_gets_no_more_messages(mouth: Mouth) -> None:
    os.close(mouth.end)
    mouth.end = os.open(os.devnull, os.O_RDONLY)
    mouth.inlet.write([b"anybody?"])
    assert not mouth.inlet.open
    mouth.inlet.write([b"no"])
    mouth.inlet.mark()
    assert mouth.inlet.unwritten == 0


async def test_nobody_waits_for_room_at_a_child_that_will_never_read(mouth: Mouth) -> None:
    while mouth.inlet.has_room:
        mouth.inlet.write([b"z" * 10_000])
    os.close(mouth.end)
    mouth.end = os.open(os.devnull, os.O_RDONLY)
    async with asyncio.timeout(PATIENCE):
        await mouth.drained.wait()
    assert not mouth.inlet.open
    assert mouth.inlet.has_room


@pytest.fixture
async def careful(mouth: Mouth) -> Mouth:
    """A child that takes each read for one message."""
    mouth.inlet.close()
    os.close(mouth.end)
    mouth.end, target = os.pipe()
    os.set_blocking(mouth.end, False)
    mouth.inlet = StdinPipe(target, drained=mouth.drained.set, arrived=mouth.arrived.set, one_at_a_time=True)
    return mouth


async def test_a_message_is_written_when_the_one_before_it_was_read(careful: Mouth) -> None:
    careful.inlet.write([b"a", b"b\n"])
    careful.inlet.write([b"c"])
    careful.inlet.mark()
    read: list[bytes] = []
    async with asyncio.timeout(PATIENCE):
        while not careful.arrived.is_set():
            read += [data] if (data := careful.read()) else []
            await asyncio.sleep(0)
    assert read == [b"a\n", b"b\n", b"c\n"]


async def test_a_child_that_is_far_behind_gets_its_messages_one_by_one_too(careful: Mouth) -> None:
    careful.inlet.write([b"c" * 30_000 + b"\n"] * 10)
    read: list[bytes] = []
    async with asyncio.timeout(PATIENCE):
        while len(b"".join(read)) < 300_010:
            read += [data] if (data := careful.read()) else []
            await asyncio.sleep(0)
    assert careful.inlet.unwritten == 0
    assert read == [b"c" * 30_000 + b"\n"] * 10


async def test_several_messages_lie_in_the_pipe_of_a_child_that_reads_lines(careful: Mouth) -> None:
    careful.inlet.write([b"a", b"b", b"c"])
    careful.inlet.allow_several()
    assert careful.read() == b"a\nb\nc\n"

"""A child's three streams on the event loop: reads its output line by line within limits, and writes to its stdin
without waiting.

An `OutputPipe` reads at most once a turn of the loop, passes on a bounded number of lines a turn, and stops reading for
a moment when too much came: the pipe then holds the child back. A `StdinPipe` writes what the pipe takes and keeps the
rest; a child that does not read its stdin has no room, and the hub keeps its deliveries.

A child's output has two limits:

    what is *kept*   100 messages a second with a burst of 200 (forge-D9); 200 log lines with a burst of 2000. Lines
                     above that are only counted, and one line says how many there were.
    what is *read*   so much that a child costs a few hundredths of a core at most. Above that the hub does not read the
                     pipe for a moment: the pipe fills, and the child waits, not the hub.

    reading            costs
    -----------------  ------
    a line             1
    a message          25         it is parsed, and perhaps answered
    1 KiB              3
"""

from __future__ import annotations

import array
import asyncio
import fcntl
import os
import termios
from collections import deque
from collections.abc import Callable, Sequence

from dragoman.wire.framing import Line, LineFraming

LINE, MESSAGE, KIB = 1.0, 25.0, 3.0

READ_RATE, READ_BURST = 20_000.0, 20_000.0
LOG_RATE, LOG_BURST = 200.0, 2000.0
LONGEST_REST = 0.25
"""The most seconds for which a pipe is not read because its child printed too much."""


class TokenBucket:
    """Tokens that come at a steady rate, up to a burst. Time is a value: seconds on any one clock."""

    __slots__ = ("_burst", "_rate", "_since", "_tokens")

    def __init__(self, rate: float, burst: float, now: float) -> None:
        self._rate, self._burst = rate, burst
        self._tokens, self._since = burst, now

    def _fill(self, now: float) -> None:
        self._tokens = min(self._burst, self._tokens + max(0.0, now - self._since) * self._rate)
        self._since = now

    def take(self, now: float) -> bool:
        """Take one token; gives whether there was one."""
        self._fill(now)
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True

    def spend(self, cost: float, now: float) -> float:
        """Take so many tokens, into debt if necessary; gives the seconds until the debt is paid."""
        self._fill(now)
        self._tokens = max(self._tokens - cost, -LONGEST_REST * self._rate)
        return 0.0 if self._tokens >= 0 else -self._tokens / self._rate


AT_ONCE = 64 * 1024
LINES_A_TURN = 128
FEW = 4
"""So many pipes may be read at the full rate; more pipes share it."""

ROOM = 256 * 1024
"""Unwritten bytes above which a child has no room for more."""
LOOK_FIRST, LOOK_LAST = 0.002, 0.5
"""Seconds between two checks whether a child has read what was written."""
SPACE_LAST = 0.05
"""The same, where the next message waits for it."""


class ThrottledPipes:
    """Counts the pipes that are not read now because their children print too much."""

    def __init__(self) -> None:
        self.resting = 0

    @property
    def factor(self) -> float:
        return max(1.0, self.resting / FEW)


class OutputPipe:
    """Stdout or stderr. `take` gets every line and returns its cost."""

    def __init__(
        self,
        descriptor: int,
        take: Callable[[Line], float],
        *,
        throttled: ThrottledPipes,
        ready: Callable[[Line], bool] | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._descriptor = descriptor
        self._take = take
        self._ready = ready
        self._throttled = throttled
        self._framing = LineFraming()
        self._lines: deque[Line] = deque()
        self._bucket = TokenBucket(READ_RATE, READ_BURST, self._loop.time())
        self._timer: asyncio.TimerHandle | None = None
        self._resting = False  # the timer is a rest
        self._reading = False
        self._stopped = False
        self._eof = False
        self.rests = 0
        self.ended: asyncio.Future[None] = self._loop.create_future()
        os.set_blocking(descriptor, False)

    def begin(self) -> None:
        self._go_on()

    def stop(self) -> None:
        """Take no line until `resume`."""
        self._stopped = True
        self._read(False)

    def resume(self) -> None:
        if self._stopped:
            self._stopped = False
            self._schedule()

    def look_again(self) -> None:
        """Call it when `ready` may give True now."""
        if self._lines:
            self._schedule()

    def close(self) -> None:
        """Close it without reading the rest."""
        if self.ended.done():
            return
        self._read(False)
        if self._timer is not None:
            self._timer.cancel()
            self._rested()
        os.close(self._descriptor)
        self._lines.clear()
        self.ended.set_result(None)

    # --

    def _read(self, wanted: bool) -> None:
        if wanted and not self._reading:
            self._loop.add_reader(self._descriptor, self._readable)
        elif not wanted and self._reading:
            self._loop.remove_reader(self._descriptor)
        self._reading = wanted

    def _readable(self) -> None:
        try:
            data = os.read(self._descriptor, AT_ONCE)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self._lines.extend(self._framing.feed(data))
        else:
            self._eof = True
            self._read(False)
            self._lines.extend(self._framing.finish())
        self._work(len(data) / 1024 * KIB)

    def _work(self, cost: float) -> None:
        for _ in range(min(LINES_A_TURN, len(self._lines))):
            if self._stopped or (self._ready is not None and not self._ready(self._lines[0])):
                break
            cost += self._take(self._lines.popleft())
        rest = self._bucket.spend(cost, self._loop.time()) * self._throttled.factor
        if rest > 0:
            self.rests += 1
            self._throttled.resting += 1
            self._resting = True
            self._read(False)
            self._timer = self._loop.call_later(rest, self._due)
        else:
            self._go_on()

    def _go_on(self) -> None:
        if self._stopped:
            self._read(False)
        elif self._lines:
            self._read(False)
            if self._ready is None or self._ready(self._lines[0]):
                self._schedule()  # others have their turn first
        elif self._eof:
            self.close()
        else:
            self._read(True)

    def _schedule(self) -> None:
        """Schedule another read, unless one is scheduled."""
        if self._timer is None and not self._stopped and not self.ended.done():
            self._timer = self._loop.call_later(0, self._due)

    def _due(self) -> None:
        self._rested()
        if self._lines:
            self._work(0.0)
        else:
            self._go_on()

    def _rested(self) -> None:
        if self._resting:
            self._throttled.resting -= 1
        self._timer, self._resting = None, False


class StdinPipe:
    """Stdin. It calls `drained` when there is room again or it was closed, `arrived` when the child has read everything
    before the last `mark`, and `refused` when the child has closed it.

    `one_at_a_time`: write each message only when the child has read the one before it. The document's example takes
    everything that one read returns for one message. A child that registers reads by lines, see `allow_several`.
    """

    def __init__(
        self,
        descriptor: int,
        *,
        drained: Callable[[], None],
        arrived: Callable[[], None],
        refused: Callable[[], None] = lambda: None,
        one_at_a_time: bool = False,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._descriptor = descriptor
        self._one_at_a_time = one_at_a_time
        self._is_within = False  # a message, of which the rest must follow
        self._spacing: asyncio.TimerHandle | None = None
        self._space = LOOK_FIRST
        self._drained = drained
        self._arrived = arrived
        self._refused = refused
        self._unwritten: deque[memoryview] = deque()
        self._size = 0
        self._writing = False
        self._look: asyncio.TimerHandle | None = None
        self._pause = LOOK_FIRST
        self._bytes = array.array("i", [0])
        self.open = True
        os.set_blocking(descriptor, False)
        self._loop.add_reader(descriptor, self._broken)  # readable means that the reader has closed it

    @property
    def has_room(self) -> bool:
        return self._size < ROOM

    @property
    def unwritten(self) -> int:
        return self._size

    def write(self, lines: Sequence[bytes]) -> None:
        """Write lines. If the child has closed its stdin they are lost, as on any pipe."""
        if not self.open or not lines:
            return
        ended = [line if line.endswith(b"\n") else line + b"\n" for line in lines if line]
        pieces = ended if self._one_at_a_time else [b"".join(ended)]
        self._size += sum(map(len, pieces))
        self._unwritten.extend(map(memoryview, pieces))
        if not self._writing:
            self._flush()

    def allow_several(self) -> None:
        """From now on the pipe may hold several messages."""
        if self._one_at_a_time:
            self._one_at_a_time = False
            if self.open and not self._writing:
                self._flush()

    def _flush(self) -> None:
        had_room = self.has_room
        while self._unwritten:
            if self._one_at_a_time and not self._is_within and self._unread():
                self._wait_for_the_reader()
                break
            data = self._unwritten[0]
            try:
                written = os.write(self._descriptor, data)
            except BlockingIOError:
                if not self._writing:
                    self._writing = True
                    self._loop.add_writer(self._descriptor, self._flush)
                break
            except OSError:
                self._broken()
                return
            self._size -= written
            self._space = LOOK_FIRST
            self._is_within = written < len(data)
            if self._is_within:
                self._unwritten[0] = data[written:]
            else:
                self._unwritten.popleft()
        else:
            if self._writing:
                self._writing = False
                self._loop.remove_writer(self._descriptor)
        if self.has_room and not had_room:
            self._drained()

    def _wait_for_the_reader(self) -> None:
        if self._writing:
            self._writing = False
            self._loop.remove_writer(self._descriptor)
        if self._spacing is None:
            self._spacing = self._loop.call_later(self._space, self._look_whether_it_is_empty)
            self._space = min(self._space * 2, SPACE_LAST)

    def _look_whether_it_is_empty(self) -> None:
        self._spacing = None
        if self.open and not self._writing:
            self._flush()

    def _unread(self) -> int:
        fcntl.ioctl(self._descriptor, termios.FIONREAD, self._bytes)
        return self._bytes[0]

    def _broken(self) -> None:
        self.close()
        self._refused()

    def mark(self) -> None:
        """Call `arrived` when the child has read everything so far. The system reports the unread bytes of a pipe, so
        the child need not answer."""
        if self.open and self._look is None:
            self._pause = LOOK_FIRST
            self._look = self._loop.call_later(self._pause, self._look_whether_read)

    def _look_whether_read(self) -> None:
        self._look = None
        if not self.open:
            return
        if self._size == 0 and not self._unread():
            self._arrived()
            return
        self._pause = min(self._pause * 2, LOOK_LAST)
        self._look = self._loop.call_later(self._pause, self._look_whether_read)

    def close(self) -> None:
        """Close the pipe: later writes are lost, and no writer waits for room."""
        if not self.open:
            return
        had_room, self.open = self.has_room, False
        self._loop.remove_reader(self._descriptor)
        if self._writing:
            self._loop.remove_writer(self._descriptor)
        for timer in (self._look, self._spacing):
            if timer is not None:
                timer.cancel()
        os.close(self._descriptor)
        self._unwritten.clear()
        self._size = 0
        if not had_room:
            self._drained()

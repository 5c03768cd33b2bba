"""Messages from one process to another through whatever carries them: how one is made, and when it has arrived.

The sender is the load process (`bench.load`), the receiver a process of its own, and whatever is measured stands
between them. A message is one slot's operation. It is over when both have happened:

    the receiver has it and has acknowledged it     told through a pipe beside (a receipt: turn, slot, time)
    the carrier has confirmed it to the sender      where it promises something at all

so that never more than N messages are between them, neither unconfirmed nor waiting. Its time is from when it was sent
to when its receiver had acknowledged it, by the one clock of the machine. Both sides do as little as they can: frames
are put together from pieces made before, nothing is parsed but the id, receipts and acknowledgments go in batches.

Every carrier gets the same bytes: an agentmsg TASK_UPDATE of `size` bytes with a random id of version 4, whose last
digits are the turn and the slot.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import socket
import struct
import sys
import time
from array import array
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Protocol

import msgspec

from bench import procs
from bench.figures import Figure, Settings, median_run
from bench.load import Meter
from bench.load import measure as load

RECEIPT = struct.Struct("<HHd")
"""The turn (its last 16 bits), the slot, the time."""
LOST = 2.0
"""Seconds after which a message counts as lost: an error, and its slot goes on."""
HEAD = b'{"id":"'
ID = slice(len(HEAD), len(HEAD) + 36)


class Letters:
    """The bytes of the messages of one run."""

    def __init__(self, size: int, in_flight: int, *, sender: str, receiver: str, priority: str) -> None:
        at = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        before = (
            f'","timestamp":"{at}","from":"{sender}","to":"{receiver}","type":"TASK_UPDATE","payload":{{"task_id":"'
        )
        told = '","progress":50,"status":"in_progress","message":"'
        after = f'"}},"metadata":{{"priority":"{priority}","retry_count":0,"max_retries":3}}}}'
        filling = "x" * max(1, size - len(HEAD) - 72 - len(before) - len(told) - len(after))
        # A lane for each slot, as if each were about a task of its own.
        lanes = [fresh_id(0, slot).decode() for slot in range(in_flight)]
        self._rest = [f"{before}{lane}{told}{filling}{after}".encode() for lane in lanes]

    def make(self, turn: int, slot: int) -> bytes:
        return HEAD + fresh_id(turn, slot) + self._rest[slot]


def fresh_id(turn: int, slot: int) -> bytes:
    text = os.urandom(10).hex()
    return f"{text[:8]}-{text[8:12]}-4{text[12:15]}-8{text[15:18]}-{turn & 0xFFFFFFFF:08x}{slot:04x}".encode()


def seat(id: bytes) -> tuple[int, int]:
    """The turn (its last 16 bits) and the slot of a message, by its id."""
    return int(id[28:32], 16), int(id[32:36], 16)


class Window:
    """What is under way, at the sender's. `sent` gives a slot its next turn."""

    def __init__(self, meter: Meter, in_flight: int, receipts: int, *, confirmed: bool) -> None:
        self._meter = meter
        self._wanted = 2 if confirmed else 1
        self._missing = array("b", bytes(in_flight))
        self._turns = array("H", bytes(2 * in_flight))
        self._arrived = array("d", bytes(8 * in_flight))
        self._fd = receipts
        self._rest = b""
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(receipts, self._read)
        self._watch = self._loop.call_later(1.0, self._look)

    def sent(self, slot: int) -> int:
        turn = self._turns[slot] = (self._turns[slot] + 1) & 0xFFFF
        self._missing[slot] = self._wanted
        return turn

    def confirm(self, turn: int, slot: int) -> None:
        if self._turns[slot] == turn:
            self._settle(slot)

    def _read(self) -> None:
        data = self._rest + os.read(self._fd, 1 << 16)
        whole = len(data) // RECEIPT.size * RECEIPT.size
        self._rest = data[whole:]
        for turn, slot, at in RECEIPT.iter_unpack(memoryview(data)[:whole]):
            if self._turns[slot] == turn:
                self._arrived[slot] = at
                self._settle(slot)

    def _settle(self, slot: int) -> None:
        self._missing[slot] -= 1
        if not self._missing[slot]:
            self._meter.finish(slot, self._arrived[slot])

    def _look(self) -> None:
        late = time.perf_counter() - LOST
        for slot, began in enumerate(self._meter.began):
            if began < late:
                self._meter.fail(slot, f"not arrived and confirmed within {LOST:g} s")
        self._watch = self._loop.call_later(1.0, self._look)

    def close(self) -> None:
        self._watch.cancel()
        self._loop.remove_reader(self._fd)


class Receipts:
    """What has arrived, at the receiver's. `acknowledge` is called once for all that a turn of the loop brought."""

    def __init__(self, fd: int, acknowledge: Callable[[], None]) -> None:
        self._fd = fd
        self._acknowledge = acknowledge
        self._seen: dict[int, int] = {}
        self._fresh: list[tuple[int, int]] = []
        self._due = False
        self._soon = asyncio.get_running_loop().call_soon

    def arrived(self, id: bytes) -> None:
        turn, slot = seat(id)
        if self._seen.get(slot) != turn:  # else it came twice, which is allowed, and is acknowledged twice
            self._seen[slot] = turn
            self._fresh.append((turn, slot))
        if not self._due:
            self._due = True
            self._soon(self._flush)

    def _flush(self) -> None:
        self._due = False
        self._acknowledge()
        now = time.perf_counter()
        os.write(self._fd, b"".join([RECEIPT.pack(turn, slot, now) for turn, slot in self._fresh]))
        self._fresh.clear()


class Receiver(Protocol):
    """Constructed with the options of the run."""

    async def open(self, receipts: int) -> None:
        """Connect, and from now on tell of everything that arrives."""


def exchange(
    settings: Settings,
    server: procs.Proc,
    sender: str,
    receiver: str,
    options: Callable[[], dict[str, Any]],
    *,
    suite: str,
    in_flight: int,
) -> Figure:
    """Both `module:Class`. `options` are made anew for each run, so that none meets what the last one left behind."""
    once = msgspec.structs.replace(settings, repeats=1)
    return median_run(
        [_once(once, server, sender, receiver, options(), suite, in_flight) for _ in range(settings.repeats)]
    )


def _once(
    settings: Settings,
    server: procs.Proc,
    sender: str,
    receiver: str,
    options: dict[str, Any],
    suite: str,
    in_flight: int,
) -> Figure:
    near, far = socket.socketpair()
    with near, far:
        order = {"receiver": receiver, "options": options, "receipts": far.fileno()}
        with procs.python("bench.post", msgspec.json.encode(order).decode(), pass_fds=[far.fileno()]) as companion:
            companion.ready()
            return load(
                sender,
                {**options, "size": settings.body, "receipts": near.fileno()},
                suite=suite,
                in_flight=in_flight,
                settings=settings,
                server=server,
                companion=companion,
                pass_fds=[near.fileno()],
            )


async def receive(order: dict[str, Any]) -> None:
    module, _, name = order["receiver"].partition(":")
    receiver: Receiver = getattr(importlib.import_module(module), name)(**order["options"])
    await receiver.open(order["receipts"])
    print('{"ready":true}', flush=True)
    await asyncio.Event().wait()  # until it is stopped


if __name__ == "__main__":
    import uvloop

    uvloop.run(receive(msgspec.json.decode(sys.argv[1])))

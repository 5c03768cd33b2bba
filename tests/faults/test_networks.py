"""Wires that are slow, narrow or torn: a message is whole and comes once, whatever pieces it comes in.

Every protocol by its real endpoint, through a wire of our own (`dragoman.testing.faults`) that obeys the test.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dragoman import Agent, Task
from dragoman.testing import Hub, faults

PROTOCOLS = ("chiffon", "coven", "forge", "agentmsg", "a2acp")
OUTPUT = "".join(f"{n} ä€😀\n" for n in range(400))
"""More than a byte a character: pieces end in the middle of one."""


class Clerk(Agent):
    def __init__(self) -> None:
        super().__init__("clerk", version="1.0.0")
        self.heard: list[str] = []
        self.on("copy")(self.copy)

    async def copy(self, task: Task, text: str) -> dict[str, Any]:
        self.heard.append(text)
        await task.progress(50, "half", output=text)
        return {"copy": text}


class Wire:
    """All wires carry pieces of this size, with a rest after each; `cut_after`: so many bytes later one breaks, in the
    middle of what it carries."""

    def __init__(self, size: int, rests: float = 0.0) -> None:
        self.size = size
        self.rests = rests
        self.cut_after: int | None = None

    async def pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                for start in range(0, len(data), self.size):
                    writer.write(data[start : start + self.size])
                    await writer.drain()
                    await asyncio.sleep(self.rests)
                    self._carried(self.size)
            if writer.can_write_eof():
                writer.write_eof()
        except (OSError, RuntimeError):
            writer.transport.abort()
            raise OSError("it broke") from None

    def _carried(self, size: int) -> None:
        if self.cut_after is not None:
            self.cut_after -= size
            if self.cut_after <= 0:
                self.cut_after = None
                raise OSError("it breaks")


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    with Hub(data=tmp_path) as hub:
        hub.patience = 60  # a byte at a time is slow on a busy machine
        yield hub


@pytest.mark.parametrize(
    ("size", "rests", "length"),
    [(1, 0.0, 40), (512, 0.001, len(OUTPUT))],
    ids=["one byte at a time", "narrow and far"],
)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_what_comes_in_pieces_is_whole(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, protocol: str, size: int, rests: float, length: int
) -> None:
    monkeypatch.setattr(faults, "_copy", Wire(size, rests).pump)
    clerk, text = Clerk(), OUTPUT[:length]
    hub.add(clerk, protocol=protocol)
    assert hub.call("clerk", "copy", text=text) == {"copy": text}
    assert clerk.heard == [text]


@pytest.mark.parametrize("cut_after", [4_000, 9_000, 14_000])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_wire_that_breaks_in_the_middle_of_a_message_costs_nothing(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, protocol: str, cut_after: int
) -> None:
    wire = Wire(256)
    monkeypatch.setattr(faults, "_copy", wire.pump)
    clerk = Clerk()
    hub.add(clerk, protocol=protocol)
    wire.cut_after = cut_after
    assert hub.call("clerk", "copy", text=OUTPUT) == {"copy": OUTPUT}
    assert wire.cut_after is None
    assert clerk.heard == [OUTPUT]

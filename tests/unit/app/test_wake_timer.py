"""The wake timer ends when it is told to, whatever happens at the same moment."""

from __future__ import annotations

import ast
import asyncio
from pathlib import Path

import pytest
from tests.support.world import World

import dragoman
from dragoman.app.background import wake_rows


@pytest.mark.parametrize("turns", range(5))
async def test_it_ends_although_it_is_woken_at_the_same_moment(turns: int) -> None:
    world = await World().start()
    ringing = asyncio.create_task(wake_rows(world.intake))
    for _ in range(20):
        await asyncio.sleep(0)
    world.intake.wake_changed.set()
    for _ in range(turns):
        await asyncio.sleep(0)
    ringing.cancel()
    with pytest.raises(asyncio.CancelledError):
        async with asyncio.timeout(60):
            await ringing
    await world.intake.stop()


def test_nobody_waits_in_a_way_that_swallows_cancellation() -> None:
    """Python 3.11's `wait_for` forgets that it was cancelled when what it waits for ends at the same moment: a hub
    could not be stopped for that. `asyncio.timeout` does not."""
    guilty = [
        file.name
        for file in Path(dragoman.__file__).parent.rglob("*.py")
        if "wait_for" in file.read_text()
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Attribute) and node.attr == "wait_for"
    ]
    assert guilty == []

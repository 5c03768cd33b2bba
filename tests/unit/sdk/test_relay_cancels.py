"""A relay passes a cancel on also while the other hub has not answered its request yet."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from dragoman.sdk.calling.api import ApiClient
from dragoman.sdk.relay import _PassedOn
from dragoman.sdk.work.task import Task


class There:
    """The API of a hub that has taken the task, and whose answer is still on its way."""

    def __init__(self) -> None:
        self.took = asyncio.Event()
        self.answers = asyncio.Event()
        self.cancelled: list[str] = []

    async def submit(self, *_: Any, **__: Any) -> str:
        self.took.set()
        await self.answers.wait()
        return "t1"

    async def cancel(self, id: str, reason: str) -> None:
        self.cancelled.append(id)


class Given:
    id, request_id, type, files = "h1", "r1", "wait", ()

    def __init__(self, *, withdrawn: bool) -> None:
        self.withdrawn = withdrawn


@pytest.mark.parametrize(("withdrawn", "cancelled"), [(True, ["t1"]), (False, [])])
async def test_a_cancel_is_passed_on_once_the_task_there_is_known(withdrawn: bool, cancelled: list[str]) -> None:
    there = There()
    passed_on = _PassedOn(cast("ApiClient", there), cast("Task", Given(withdrawn=withdrawn)))
    work = asyncio.create_task(passed_on.done("w", {}))
    await there.took.wait()
    work.cancel()
    await asyncio.sleep(0)  # the other coroutine's turn
    there.answers.set()
    with pytest.raises(asyncio.CancelledError):
        await work
    assert there.cancelled == cancelled

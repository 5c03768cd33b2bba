"""A caller that does not wait for ever: what it hears when its time is over, over every protocol."""

from __future__ import annotations

import threading

import pytest

from dragoman import Agent, DragomanError, StillRunning
from dragoman.testing import Hub

WAYS = (None, "chiffon", "agentmsg", "forge", "a2acp", "coven")
"""By which protocol a client calls; None is the management API."""


PATIENCE = 30.0


def slow(go_on: threading.Event) -> Agent:
    agent = Agent("slow")

    @agent.on("work")
    def work() -> dict[str, bool]:
        return {"done": go_on.wait(PATIENCE)}

    return agent


def details(way: str | None) -> dict[str, str]:
    return {"domain": "tests"} if way == "a2acp" else {}


@pytest.mark.parametrize("way", WAYS, ids=str)
async def test_a_result_that_does_not_come_in_time_says_which_task_still_runs(way: str | None) -> None:
    go_on = threading.Event()
    with Hub() as hub:
        hub.add(slow(go_on), "a2acp" if way == "a2acp" else "chiffon")
        async with hub.client(way, **details(way)) as caller:
            task = await caller.submit("slow", "work")
            with pytest.raises(StillRunning) as caught:
                await caller.result(task, timeout=0.05)
            error = caught.value
            assert (error.task_id, error.seconds) == (task, 0.05)
            said = f"task {task} still runs after 0.05 s, and goes on: ask for its result again, or cancel it"
            assert str(error) == said
            assert isinstance(error, TimeoutError)
            assert isinstance(error, DragomanError)
            go_on.set()
            assert await caller.result(task, timeout=PATIENCE) == {"done": True}


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_so_it_is_without_an_event_loop(way: str | None) -> None:
    go_on = threading.Event()
    with Hub() as hub:
        hub.add(slow(go_on), "a2acp" if way == "a2acp" else "chiffon")
        with hub.sync_client(way, **details(way)) as caller:
            task = caller.submit("slow", "work")
            with pytest.raises(StillRunning, match=f"task {task} still runs after 0.05 s"):
                caller.result(task, timeout=0.05)
            go_on.set()
            assert caller.result(task, timeout=PATIENCE) == {"done": True}

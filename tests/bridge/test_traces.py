"""One trace from end to end (all-D7): the caller's own is what the worker, the history and the management API tell."""

from __future__ import annotations

import uuid

import pytest

from tests.bridge.conftest import Scene
from tests.bridge.players.neutral import heard

WHOSE = ["a UUID's", "a W3C id's"]

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.mark.parametrize("trace", [uuid.uuid4().hex, "0af7651916cd03dd0448eb211c80319c"], ids=WHOSE)
async def test_both_sides_are_in_the_callers_trace(scene: Scene, trace: str) -> None:
    """Also in one whose bits make no RFC 4122 UUID: it goes on unchanged."""
    handle, job = await scene.begin(trace=trace)
    await scene.worker.say(job, percent=10)
    await scene.worker.finish(job, text="done")
    history = await scene.caller.history(handle)
    assert job.trace == trace
    assert set(heard(history, "trace")) <= {trace}
    assert (await scene.stage.task(handle.task_id))["trace_id"] == trace


async def test_without_a_trace_the_hub_makes_one_for_both_sides(scene: Scene) -> None:
    handle, job = await scene.begin()
    await scene.worker.finish(job, text="done")
    history = await scene.caller.history(handle)
    made = (await scene.stage.task(handle.task_id))["trace_id"]
    assert job.trace == made
    assert set(heard(history, "trace")) <= {made}

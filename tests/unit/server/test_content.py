"""The content of tasks and events as every protocol sends it on."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.heads import task_head

from dragoman.core.ids import AgentId, Instant, TaskId
from dragoman.core.model.agents import CONSTRAINTS
from dragoman.core.model.tasks import Origin, Status
from dragoman.messages.tasks import Request
from dragoman.server.content import resource_limits
from dragoman.server.forge import outbound


@pytest.mark.parametrize(
    ("hints", "told"),
    [
        ({"max_memory_mb": 5, "max_gpu_vram_mb": 7}, {"max_memory_mb": 5, "max_gpu_vram_mb": 7}),
        ({"memory_mb": 5, "gpu_vram_mb": 7}, {"max_memory_mb": 5, "max_gpu_vram_mb": 7}),
        ({"max_gpu_vram_mb": None, "gpu_vram_mb": 7, "max_duration_seconds": 9}, {"max_gpu_vram_mb": 7}),
        ({}, {}),
        (None, {}),
    ],
)
def test_an_agent_of_another_protocol_learns_what_the_work_may_need(
    hints: dict[str, Any] | None, told: dict[str, int]
) -> None:
    task = task_head(
        id=TaskId("t"), type="x", status=Status.QUEUED, created_at=Instant(0), updated_at=Instant(0), route='["x"]',
        origin=Origin(principal=AgentId("boss"), protocol="chiffon", request_id="r", digest="d"), deadline=Instant(0),
        idle_limit=1, rank=0, trace_id="0" * 32, constraints={"quality_threshold": 0.5},
    )  # fmt: skip
    assert resource_limits(task, Request(hints=hints)) == told | {"quality_threshold": 0.5}


def test_forge_has_a_name_for_every_limit() -> None:
    assert outbound.LIMITS.keys() == CONSTRAINTS | {"quality_threshold"}

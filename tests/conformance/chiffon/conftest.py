"""Two ends of a link with nothing between them but bytes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

import pytest

from dragoman.protocols.chiffon.connection import Connection
from dragoman.protocols.chiffon.types import Correlation, Stamp, WorkRequest, WorkResult, WorkStatus
from dragoman.wire import Role


def uuid(number: int) -> str:
    return f"00000000-0000-4000-8000-{number:012d}"


class Link:
    """A hub and an agent. Each step hands the bytes of one straight to the other."""

    task = uuid(1)
    about = Correlation(request_id=uuid(2), trace_id=uuid(3))

    def __init__(self, **settings: Any) -> None:
        self.hub = Connection(Role.HUB, **settings)
        self.agent = Connection(Role.AGENT, **settings)
        self._numbers = count(100)

    def stamp(self) -> Stamp:
        number = next(self._numbers)
        return Stamp(uuid(number), datetime(2026, 1, 19, tzinfo=UTC) + timedelta(seconds=number))

    def request(self, about: Correlation | None = None, task: str | None = None, **custom: Any) -> bytes:
        payload = WorkRequest(task_id=task or self.task, work_type="run_playbook", parameters={"n": 1})
        return self.hub.send_request(
            payload,
            self.stamp(),
            about or self.about,
            from_agent="orchestrator",
            to_agent="infra",
            custom=custom or None,
        )

    def status(self, status: Any = "running", percent: int = 10) -> bytes:
        payload = WorkStatus(task_id=self.task, status=status, progress_percent=percent)
        return self.agent.send_status(self.about.request_id, payload, self.stamp())

    def result(self, exit_code: int = 0) -> bytes:
        payload = WorkResult(
            task_id=self.task,
            status="failed" if exit_code else "success",
            exit_code=exit_code,
            output="done",
        )
        return self.agent.send_result(self.about.request_id, payload, self.stamp())


@pytest.fixture
def link() -> Link:
    """Two fresh ends."""
    return Link()

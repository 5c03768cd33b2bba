"""The scribe in Python, for machines without node (`scribe.mjs` is the one usually seen): writes reports.

Run by the hub as a child process, it speaks forge over its standard streams. What it prints is a line in its log.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from dragoman import Agent, Task
from dragoman.demo import roster
from dragoman.demo.research import SHELF, UNKNOWN


def run(id: str, state_dir: Path | None) -> None:
    agent = Agent(id, kind=roster.SCRIBE.kind, version="0.1.0", concurrency=4, state_dir=state_dir, grace=0.5)

    @agent.on("write_report", timeout=120)
    async def write_report(task: Task, topic: str) -> dict[str, Any]:
        """Write what is known about something."""
        if topic.startswith("release") and task.attempt == 1:
            os._exit(1)  # the hub starts us again, and gives us the task again
        await task.progress(10, f"looking up {topic}")
        found = SHELF.get(topic, UNKNOWN)
        await task.progress(80, "writing it up", output=f"# {topic}\n\n{found}\n")
        return {"topic": topic, "words": len(found.split())}

    print("the scribe is at its desk")  # noqa: T201 - it goes to the log
    agent.run()
